"""Session windows: rows of the same keys with no long gap of event time between them.

Rows of sessions that are open are kept (`Kept`) with the end of what is known of their session. A
txid looks at those whose end its watermark passes: together with the other rows of their keys they
show whether the session is over, and its rows come out, or goes on, and they are kept up to its new
end. So no txid looks at rows that it cannot end, and a long session is kept anew once per gap.

Source: `session_window` of Structured Streaming, session windows of Flink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.dataflow.graph import Derived, Node, require_columns
from txn.dataflow.kept import Kept, in_name, own_table, require_replays
from txn.dataflow.spans import Span
from txn.dataflow.watermarks import (
    Duration,
    microseconds,
    require_event_column,
    require_event_time,
    require_guarded,
)
from txn.delta.commits import TXID
from txn.errors import TopologyError
from txn.spark.event_times import is_left, moment, null_time
from txn.spark.keys import with_keys_of
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["SESSION", "SessionRows", "Sessions"]

SESSION = "session_window"
"""The column with the session of a row, named as by Spark."""
_START, _END = "txn_session_start", "txn_session_end"
"""Columns beside those of the stream: NULL while the session is open; the end as far as known."""
_GROUP = "txn_group"
"""The number of a session of its keys, then its end: while sessions are told apart."""


@dataclass(frozen=True, eq=False)
class Sessions(Derived):
    """The rows of a txid and those whose time it ends, each with what is known of its session."""

    keys: tuple[str, ...]
    time: str
    gap: int
    """Microseconds."""

    @classmethod
    def of(cls, node: Node, keys: Sequence[str], gap: Duration) -> Sessions:
        """Make the node from what `Stream.session_windows` was given.

        Raises:
            TopologyError: no duration, no watermark, or one that lets late rows pass.
        """
        where = f"session_windows() of stream '{node.label()}'"
        micros = microseconds(gap, f"{where}: gap")
        if not micros:
            raise TopologyError(f"{where}: gap={gap!r} must be longer than zero.", number="TXN-123")
        time = require_event_column(node, where, f"gap={gap!r}")
        require_guarded(node, where, "a late row would belong to a session that is over")
        require_replays(node, where)
        return cls(node, tuple(keys), time, micros)

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return "session_windows"

    @property
    def hands_on_later(self) -> bool:
        """True: rows come out when their session is over."""
        return True

    def kept(self) -> Kept:
        """The rows of open sessions."""
        # With another gap, rows that are kept would end too late: that is another table.
        name = f"{own_table(self)}_sessions_{'_'.join(self.keys)}_{in_name(self.gap)}"
        open_rows = SessionRows(self, are_over=False)
        return Kept(open_rows, self, 0, name, self.keys, _END, 0, whole=True)

    def own_columns(self, kept: DataFrame) -> DataFrame:
        """Kept rows with the columns of the stream alone."""
        return kept.drop(_END, TXID)

    def result(self, new: DataFrame, kept: DataFrame | None, span: Span) -> DataFrame:
        """Rows of sessions that are over, and those of open ones that are to be kept.

        Args:
            new: the rows of the txid.
            kept: the rows of open sessions of earlier txids; None: there are none.
        """
        self._require_columns(new)
        names = [quoted(name) for name in new.columns]
        no_time = sf.raise_error(
            sf.lit(
                f"A row of stream '{self.label()}' has no event time '{self.time}' behind its "
                "watermark, so it has no session. Leave that column as it is."
            )
        )
        time = sf.coalesce(sf.col(quoted(self.time)), no_time)
        begun = new.withColumn(_END, self._end_after(time))
        nothing = null_time().alias(_START)
        opened = begun.select(*names, nothing, _END)
        if span.is_empty:
            return opened
        assert span.watermark is not None
        rows = begun
        if kept is not None:
            kept = kept.select(*names, _END)
            if span.before is not None:
                kept = kept.where(is_left(sf.col(_END), moment(span.before)))
            rows = begun.unionByName(kept)
        passed = sf.col(_END) <= moment(span.watermark)
        ended = self._with_sessions(with_keys_of(rows, rows.where(passed), self.keys)).where(passed)
        is_over = sf.col(_GROUP) <= moment(span.watermark)
        start = sf.when(is_over, sf.col(_START)).alias(_START)
        looked_at = ended.select(*names, start, sf.col(_GROUP).alias(_END))
        return opened.where(~passed).unionByName(looked_at)

    def _end_after(self, time: Column) -> Column:
        return sf.timestamp_micros(sf.unix_micros(time) + self.gap)

    def _with_sessions(self, rows: DataFrame) -> DataFrame:
        """The rows with start and end (`_GROUP`) of their session, as far as it is known."""
        from pyspark.sql import Window

        keys = [sf.col(quoted(key)) for key in self.keys]
        time = sf.col(quoted(self.time))
        in_order = Window.partitionBy(*keys).orderBy(time)
        # As in Spark and Flink, a row exactly at the end of a session belongs to it.
        begins = sf.coalesce(time > self._end_after(sf.lag(time).over(in_order)), sf.lit(True))
        numbered = rows.withColumn(_GROUP, sf.sum(begins.cast("int")).over(in_order))
        session = Window.partitionBy(*keys, _GROUP)
        end = self._end_after(sf.max(time).over(session))
        return numbered.withColumns({_START: sf.min(time).over(session), _GROUP: end})

    def _require_columns(self, rows: DataFrame) -> None:
        require_columns(rows, (*self.keys, self.time), self.label())
        require_event_time(self, rows, self.time)
        own = {name.lower(): name for name in rows.columns}
        taken = next((own[name] for name in (SESSION, _START, _END, _GROUP) if name in own), None)
        if taken is not None:
            raise TopologyError(
                f"session_windows() of stream '{self.label()}' adds a column '{taken.lower()}', "
                f"and the stream has '{taken}'. Rename it in a transform before.",
                number="TXN-101",
            )


@dataclass(frozen=True, eq=False)
class SessionRows(Derived):
    """The rows of `Sessions` that are over, or those that are to be kept."""

    are_over: bool

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return "rows of sessions that are over" if self.are_over else "rows of open sessions"

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """Choose the rows; those that are over get their session."""
        (rows,) = inputs
        if not self.are_over:
            return rows.where(sf.col(_START).isNull()).drop(_START)
        session = sf.struct(sf.col(_START).alias("start"), sf.col(_END).alias("end"))
        over = rows.where(sf.col(_START).isNotNull())
        return over.select("*", session.alias(SESSION)).drop(_START, _END)
