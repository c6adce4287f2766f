"""The same event twice: rows that repeat an earlier one of the stream, across txids.

A stream's rows are compared with each other and with the keys that txids before have kept; a row
that repeats one breaks a rule (`NoRepeat`), so repeats are counted as all rows that break a rule.
The keys of the others go to a table of the topology's own (`Kept`), which the next txids look up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.dataflow.expectations import Expectation
from txn.dataflow.graph import Derived, Node, require_columns
from txn.dataflow.kept import Kept, own_table, require_replays
from txn.dataflow.watermarks import (
    Duration,
    microseconds,
    require_event_column,
    require_event_time,
)
from txn.errors import TopologyError
from txn.interfaces.committer_capabilities import FIRST_AT
from txn.spark.event_times import is_left, moment
from txn.spark.keys import with_keys_of
from txn.spark.lazy import sf
from txn.spark.names import passing, quoted
from txn.spark.ordering import orderable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["NoRepeat", "Repeats"]

_MARK = "txn_repeat"
"""The column of `Repeats` that tells whether a row repeats an earlier one."""
_KNOWN = passing("known")
"""A column that is true for the keys of earlier txids, while rows are compared with them."""


@dataclass(frozen=True, eq=False)
class Repeats(Derived):
    """A stream's rows, each with a mark: whether a row before has the same keys.

    Of the rows of one txid with the same keys, the one with the smallest event time is the first
    (with `within`); of several such, the one with the smallest values, column by column. So a
    replay over the same rows marks the same ones.

    Source: `dropDuplicatesWithinWatermark` of Structured Streaming.
    """

    keys: tuple[str, ...]
    time: str | None
    """The event time; None if keys are kept for ever."""
    within: int | None
    """Microseconds of event time for which keys are kept; None: for ever."""

    @classmethod
    def of(cls, node: Node, keys: Sequence[str], within: Duration | None) -> Repeats:
        """Make the node from what `Stream.drop_duplicates` was given.

        Raises:
            TopologyError: no column, no duration, no watermark to end the keys with, or a replay
                of the stream may bring the same rows twice.
        """
        where = f"drop_duplicates() of stream '{node.label()}'"
        time = after = None
        if within is not None:
            after = microseconds(within, f"{where}: within")
            time = require_event_column(node, where, f"within={within!r}")
        require_replays(node, where)
        return cls(node, tuple(keys), time, after)

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return "drop_duplicates"

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The keys, and the event time."""
        times = () if self.time is None else (self.time,)
        return tuple(dict.fromkeys((*self.keys, *times)))

    def kept(self, passed: Node) -> Kept:
        """The keys that later txids look up, of the rows that repeat none."""
        name = f"{own_table(self)}_keys_{'_'.join(self.keys)}"
        return Kept(passed, self, 0, name, self.keys, self.time, self.within, whole=False)

    def require_columns(self, rows: DataFrame) -> None:
        """Refuse a stream without a key or its event time as a timestamp, or with the mark."""
        require_columns(rows, self.columns_read, self.label())
        taken = next((name for name in rows.columns if name.lower() == _MARK), None)
        if taken is not None:
            raise TopologyError(
                f"drop_duplicates() marks rows in a column '{_MARK}', and stream '{self.label()}' "
                f"has a column '{taken}'. Rename it in a transform before.",
                number="TXN-101",
            )
        if self.time is not None:
            require_event_time(self, rows, self.time)

    def kept_keys(
        self, stored: DataFrame, watermark: int | None, asked: DataFrame | None
    ) -> DataFrame:
        """The keys that a txid with this watermark compares its rows with.

        Args:
            stored: the table of keys, or its rows with the keys of the txid.
            asked: the rows of the txid, if `stored` has many others.
        """
        if self.within is not None and watermark is not None:
            stored = stored.where(is_left(sf.col(FIRST_AT), moment(watermark - self.within)))
        kept = stored.select(*(sf.col(quoted(key)) for key in self.keys))
        return kept if asked is None else with_keys_of(kept, asked, self.keys)

    def marked(self, rows: DataFrame, kept: DataFrame | None = None) -> DataFrame:
        """All rows with their mark.

        Args:
            kept: what `kept_keys` returns; None: no txid before has seen any key.
        """
        from pyspark.sql import Window

        same = Window.partitionBy(*(sf.col(quoted(key)) for key in self.keys))
        order, both = self._order(rows), rows
        if kept is not None:
            # A known key stands before all rows with it, so that each of them repeats it. A join
            # would sort the rows a second time.
            both = rows.withColumn(_KNOWN, sf.lit(False)).unionByName(
                kept.withColumn(_KNOWN, sf.lit(True)), allowMissingColumns=True
            )
            order = [sf.col(quoted(_KNOWN)).desc(), *order]
        marked = both.withColumn(_MARK, sf.row_number().over(same.orderBy(*order)) > 1)
        if kept is not None:
            marked = marked.where(~sf.col(quoted(_KNOWN)))
        # A key of another type would have changed that of the union.
        columns = (sf.col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in rows.schema)
        return marked.select(*columns, _MARK)

    def _order(self, rows: DataFrame) -> list[Column]:
        """What makes one row of some with the same keys the first."""
        values = [orderable(f) for f in rows.schema if f.name not in self.columns_read]
        times = [] if self.time is None else [sf.col(quoted(self.time)).asc_nulls_last()]
        return [*times, *values, *([] if times or values else [sf.lit(1)])]


@dataclass(frozen=True, eq=False)
class NoRepeat(Expectation):
    """The rule that a row repeats none before it."""

    @classmethod
    def of(cls, repeats: Repeats) -> NoRepeat:
        """Make the rule; its name says the keys."""
        names = ", ".join(repeats.keys)
        return cls(repeats, f"duplicate {names}", f"NOT {_MARK}", "drop")

    @property
    def method(self) -> str:
        """The method of `Stream` that has made it."""
        return "drop_duplicates"

    @property
    def hidden(self) -> tuple[str, ...]:
        """The mark, which no stream below has."""
        return (_MARK,)

    @property
    def condition_text(self) -> str:
        """The condition for messages."""
        return "no row before has the same keys"
