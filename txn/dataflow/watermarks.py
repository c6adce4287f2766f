"""Event time: the rules by which rows are late, or too far ahead (Structured Streaming, Flink).

Both are rules like those of `Stream.expect`, with conditions that follow from the txid's watermark.
So late rows are counted by txid, set aside and replayed as all rows that break a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from txn.dataflow.expectations import Expectation, Measured
from txn.dataflow.graph import Aggregation, Join, Node, require_columns
from txn.delta.durations import duration_secs
from txn.errors import TopologyError
from txn.interfaces import Expiry
from txn.spark.event_times import moment
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.text import duration, event_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "Ahead",
    "Duration",
    "Late",
    "Watermark",
    "expiry_of",
    "microseconds",
    "require_event_column",
    "require_event_time",
    "require_guarded",
    "timed",
]

Duration = str | timedelta
"""As "10 minutes", or a `timedelta`."""
Late = Literal["keep", "drop", "set_aside"]

_LONGEST = 1_000_000 * 86_400_000_000
"""Microseconds: more than all of the times that Spark has."""


@dataclass(frozen=True, eq=False)
class Ahead(Expectation):
    """The rows of a stream that are not too far ahead of the watermark."""

    column: str = ""
    max_ahead: int = 0
    """Microseconds."""

    @property
    def method(self) -> str:
        """The method of `Stream` that has made it."""
        return "watermark"

    @classmethod
    def of(cls, node: Node, column: str, max_ahead: Duration) -> Ahead:
        """Make the rule "ahead".

        Raises:
            TopologyError: `max_ahead` is no duration.
        """
        most = microseconds(max_ahead, f"watermark() of stream '{node.label()}': max_ahead")
        condition = f"{column} <= watermark + {duration(most / 1_000_000)}"
        return cls(node, "ahead", condition, "set_aside", column=column, max_ahead=most)

    def condition_at(self, watermark: int | None) -> Column:
        """Without a watermark, and without an event time, no row is too far ahead."""
        if watermark is None:
            return sf.lit(True)
        most = moment(watermark + self.max_ahead)
        return sf.coalesce(sf.col(quoted(self.column)) <= most, sf.lit(True))

    def text_at(self, watermark: int | None) -> str:
        """The condition with the watermark's value."""
        told = "not known" if watermark is None else event_time(watermark)
        return f"{self.condition_text}; the watermark is {told}"


@dataclass(frozen=True, eq=False)
class Watermark(Expectation):
    """The rows of a stream that are not late; the stream's event time is a column of it."""

    column: str = ""
    delay: int = 0
    """Microseconds."""
    by: str | None = None
    """The column that names a row's partition."""
    idle_after: int | None = None
    """Txids."""

    @classmethod
    def of(
        cls,
        node: Node,
        column: str,
        delay: Duration,
        late: Late,
        by: str | None,
        idle_after: int | None,
    ) -> Watermark:
        """Make the rule "late" from what `Stream.watermark` was given.

        Raises:
            TopologyError: a value is not valid, or the stream has no event time of its own.
        """
        behind = microseconds(delay, f"watermark() of stream '{node.label()}': delay")
        _check(node, column, late, by, idle_after)
        back = duration(behind / 1_000_000)
        condition = f"{column} > watermark, {back} behind the newest event"
        return cls(
            node,
            "late",
            condition,
            late,
            column=column,
            delay=behind,
            by=by,
            idle_after=idle_after,
        )

    @property
    def method(self) -> str:
        """The method of `Stream` that has made it."""
        return "watermark"

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return "watermark"

    @property
    def measured(self) -> Measured:
        """The event time, which is measured with the counts."""
        return Measured(self.column, self.by)

    def condition_at(self, watermark: int | None) -> Column:
        """A row without an event time is late in every txid."""
        time = sf.col(quoted(self.column))
        if watermark is None:
            return time.isNotNull()
        return time > moment(watermark)

    def text_at(self, watermark: int | None) -> str:
        """The condition with the watermark's value."""
        if watermark is None:
            return f"{self.column} IS NOT NULL"
        return f"{self.column} > watermark, which is {event_time(watermark)}"

    def require_columns(self, rows: DataFrame) -> None:
        """Refuse columns that are missing, or that Spark cannot compare with a watermark."""
        names = (self.column,) if self.by is None else (self.column, self.by)
        require_columns(rows, names, self.label())
        found = rows.schema[self.column].dataType.simpleString()
        if found != "timestamp":
            raise TopologyError(
                f"watermark() of stream '{self.label()}' needs a timestamp, and column "
                f"'{self.column}' is {found}. Make one in a transform before it, for example "
                f"rows.withColumn('{self.column}', sf.col('{self.column}').cast('timestamp_ltz')).",
                number="TXN-123",
            )


def _is_guarded(node: Node) -> bool:
    """Return whether each path from a source to a stream has a watermark that removes late rows."""
    if isinstance(node, Watermark) and node.on_violation != "keep":
        return True
    if node.brings_late_rows:
        return False
    return bool(node.upstream) and all(map(_is_guarded, node.upstream))


def expiry_of(node: Node, keys: Sequence[str], after: object, by: object) -> Expiry:
    """Make the rule by which the keys of a state end from what the program has given.

    Args:
        node: the stream that feeds the state.
        keys: the state's keys.

    Raises:
        TopologyError: a value is not valid, or a stream behind the state has no watermark.
    """
    where = f"persistent_aggregate() of stream '{node.label()}'"
    micros = microseconds(after, f"{where}: expire_after")
    listed = ", ".join(keys) or "none"
    if not isinstance(by, str) or (by not in keys and by not in ("last event", "window end")):
        raise TopologyError(
            f"{where}: by={by!r} does not say what the end of a key follows from. Write "
            f"by='last event', by='window end', or the key with the time (keys: {listed}).",
            number="TXN-123",
        )
    if not keys:
        raise TopologyError(
            f"{where}: a state without keys has one row, which cannot end. Leave expire_after out.",
            number="TXN-123",
        )
    if not timed(node):
        raise TopologyError(
            f"{where}: keys end by the watermark, and a stream behind the state has none. Give "
            "each one its event time: stream.watermark('event_time', '10 minutes').",
            number="TXN-123",
        )
    if by in keys:
        return Expiry("key", micros, by)
    if by == "window end":
        return Expiry("window end", micros)
    times = {one.column for one in node.ancestors() if isinstance(one, Watermark)}
    if len(times) > 1:
        raise TopologyError(
            f"{where}: by='last event' needs one column with the event time, and the streams "
            f"behind the state have {', '.join(sorted(times))}. Give them one name.",
            number="TXN-123",
        )
    return Expiry("last event", micros, *times)


def timed(node: Node) -> bool:
    """Return whether a stream has a watermark, on every path from a source."""
    if isinstance(node, Watermark):
        return True
    return bool(node.upstream) and all(map(timed, node.upstream))


def require_event_column(node: Node, where: str, duration: str) -> str:
    """Return the column with the event time of a stream.

    Args:
        where: the method and its stream.
        duration: the argument that counts in it, with its value.

    Raises:
        TopologyError: there is none, or not all streams behind it have the same.
    """
    found = {one.column for one in node.ancestors() if isinstance(one, Watermark)}
    if len(found) > 1 and timed(node):
        raise TopologyError(
            f"{where}: {duration} counts in event time, and the streams behind it call theirs "
            f"{', '.join(sorted(found))}. Before a merge, give them one name in a transform before "
            "the watermark; below a join in time nothing can count in event time.",
            number="TXN-123",
        )
    if len(found) != 1 or not timed(node):
        raise TopologyError(
            f"{where}: {duration} counts in event time, and stream '{node.label()}' has none. Give "
            "each stream behind it a watermark over one column before, for example "
            "watermark('at', '10 minutes').",
            number="TXN-123",
        )
    return found.pop()


def require_event_time(node: Node, rows: DataFrame, time: str) -> None:
    """Refuse rows whose event time is no timestamp any more.

    Raises:
        TopologyError: naming the column.
    """
    found = rows.schema[time].dataType.simpleString()
    if found != "timestamp":
        raise TopologyError(
            f"{node.operation} of stream '{node.label()}' needs its event time '{time}' as a "
            f"timestamp, and after a transform it is {found}. Leave the column of the watermark "
            "as it is.",
            number="TXN-123",
        )


def require_guarded(node: Node, where: str, harm: str, *, late_too: bool = True) -> None:
    """Refuse a stream that may bring late rows.

    Args:
        where: the method and its stream.
        harm: what a late row would do.
        late_too: False: those that a watermark lets pass are welcome, others not.

    Raises:
        TopologyError: naming the way out.
    """
    is_older = any(one.brings_late_rows for one in node.ancestors())
    if is_older:
        raise TopologyError(
            f"{where}: {harm}. It cannot stand below session_windows(), final_values(), a join in "
            "time, or new_values() of keys that end: their rows may be older than the watermark. "
            "Put these rows into a table, and read it by a DeltaSpout in a topology of its own.",
            number="TXN-123",
        )
    if late_too and not _is_guarded(node):
        raise TopologyError(
            f"{where}: {harm}. Give each stream behind it a watermark with late='drop' or "
            "late='set_aside'.",
            number="TXN-123",
        )


def microseconds(value: object, what: str) -> int:
    """Return a duration in microseconds.

    Args:
        what: the place and name of the value.

    Raises:
        TopologyError: it is none, or negative.
    """
    where = f"{what}={value!r}"
    found = None
    if isinstance(value, timedelta):
        found = value // timedelta(microseconds=1)
    elif isinstance(value, str) and (seconds := duration_secs(value)) is not None:
        found = round(seconds * 1_000_000)
    if found is None or found < 0:
        name = what.rpartition(" ")[2]
        raise TopologyError(
            f"{where} is no duration. Write for example {name}='10 minutes', or a timedelta. Units "
            "are seconds, minutes, hours, days and weeks.",
            number="TXN-123",
        )
    if found > _LONGEST:
        raise TopologyError(f"{where} is longer than 1,000,000 days.", number="TXN-123")
    return found


def _check(node: Node, column: object, late: object, by: object, idle_after: object) -> None:
    problems = {
        f" needs the name of a column, not {column!r}.": not _is_name(column),
        f": by={by!r} is no name of a column.": by is not None and not _is_name(by),
        f": late={late!r} is none of 'keep', 'drop' and 'set_aside'.": late not in get_args(Late),
        f": idle_after={idle_after!r} is no number of txids. Write for example idle_after=20.": (
            idle_after is not None and not _is_count(idle_after)
        ),
        " comes after a join, a merge, an aggregate or a table. Event time belongs to the rows of "
        "one stream as they come: declare the watermark before that.": (
            len(list(node.sources())) != 1 or any(map(_has_no_time, node.ancestors()))
        ),
    }
    for problem, is_one in problems.items():
        if is_one:
            where = f"watermark() of stream '{node.label()}'"
            raise TopologyError(f"{where}{problem}", number="TXN-123")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _has_no_time(node: Node) -> bool:
    return isinstance(node, Aggregation | Join) or node.in_commit_turn
