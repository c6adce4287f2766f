"""Keys of a state that have ended: readers hide them at once, rewritten files lack them.

The end of a key is a bound, not a rewrite: a txid's watermark says which keys have ended as of it,
and a commit does nothing for them. Source: Flink's time-to-live, whose readers skip expired values
and whose compaction drops them; there by wall clock.

If keys end by their last event, a key that has ended and gets a row begins anew. With
layout="upsert" the rewrite of its bucket sees that. In a log table each partial has the newest
event time of its rows (`NEWEST`), and the time at or before which keys had ended in its txid
(`BOUND`): it begins the key anew if the times of all earlier partials are at or before its bound.
Only the partials from the last such one on count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from committers.state.partials import merges
from txn.delta.commits import TXID
from txn.errors import TopologyError
from txn.interfaces import WATERMARK, Aggregate, Expiry
from txn.spark.event_times import is_left, null_time
from txn.spark.keys import joined_by_key, with_keys_of
from txn.spark.lazy import sf, st
from txn.spark.names import passing, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType
    from pyspark.sql.window import WindowSpec

__all__ = [
    "BOUND",
    "NEWEST",
    "after_bound",
    "hidden_values",
    "merged_where_certain",
    "require_time",
    "since_begun",
]

NEWEST = "txn_newest"
"""The newest event time of a key's rows, as far as a stored row has them."""
BOUND = "txn_bound"
"""The time at or before which keys had ended in the txid that wrote the row, or in the first one of
several. A view, which cannot ask the log, takes the greatest one."""
_OLDEST = -62_135_596_800_000_000
"""The first microsecond of the year 1."""
_CUT, _SPAN = passing("cut"), passing("span")


class _Bound(Aggregate):
    """`BOUND` of a batch; of several txids, that of the first."""

    column = WATERMARK

    def __init__(self, after: int) -> None:
        self._after = after

    def partial(self) -> Column:
        return sf.timestamp_micros(sf.min(WATERMARK) - sf.lit(self._after))

    def combine(self, stored: Column, partial: Column) -> Column:
        return partial

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        return sf.min(partial)

    def zero(self) -> Column:
        return null_time()


class _Newest(_Bound):
    """`NEWEST` of a batch.

    Rows without an event time are as old as a key that has just ended; while nothing has ended, as
    old as can be.
    """

    def __init__(self, column: str, after: int) -> None:
        super().__init__(after)
        self._time = column

    @property
    def columns(self) -> tuple[str, ...]:
        return (self._time, WATERMARK)

    def partial(self) -> Column:
        oldest = sf.timestamp_micros(sf.lit(_OLDEST))
        return sf.coalesce(sf.max(self._time), super().partial(), oldest)

    def combine(self, stored: Column, partial: Column) -> Column:
        return sf.greatest(stored, partial)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        return sf.max(partial)


def hidden_values(expiry: Expiry | None) -> Mapping[str, Aggregate]:
    """The values of a state that no reader sees: column -> aggregate."""
    if expiry is None:
        return {}
    bound = {BOUND: _Bound(expiry.after)}
    if expiry.by != "last event":
        return bound
    return {NEWEST: _Newest(expiry.column, expiry.after), **bound}


def after_bound(
    expiry: Expiry,
    keys: Sequence[str],
    columns: StructType,
    bound: Column,
    column: Callable[[str], Column],
) -> Column:
    """The condition that a stored row, or a key with one row, has not ended.

    Args:
        keys: the table's keys.
        columns: those of the rows.
        bound: the time at or before which keys have ended.
        column: name -> column.
    """
    if expiry.by == "last event":
        time = column(NEWEST)
    else:
        name = expiry.column or next(key for key in keys if _is_window(columns[key].dataType))
        time = column(name)
        if _is_window(columns[name].dataType):
            time = time.getField("end")
    return is_left(time, bound)


def since_begun(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The partials of a log table that count: those since their key has begun anew.

    Most keys never have, and one grouping shows it: no time is at or before the greatest bound.
    Only the partials of the others are sorted.

    Args:
        rows: all partials of their keys, as of some txid; ends are by the last event.
    """
    columns = [sf.col(quoted(key)) for key in keys]
    least, greatest = sf.min(NEWEST).alias(NEWEST), sf.max(BOUND).alias(BOUND)
    may_have = rows.groupBy(*columns).agg(least, greatest).where(sf.col(NEWEST) <= sf.col(BOUND))
    some = with_keys_of(rows.select(*columns, TXID, NEWEST, BOUND), may_have, keys)
    begins = some.withColumn(_CUT, _newest_before(keys) <= sf.col(BOUND)).where(quoted(_CUT))
    cuts = begins.groupBy(*columns).agg(sf.max(TXID).alias(TXID))
    marked = joined_by_key(rows, cuts, keys, "left", sf.col(TXID).alias(_CUT))
    cut = sf.col(quoted(_CUT))
    counting = marked.where(cut.isNull() | (sf.coalesce(sf.col(TXID), sf.lit(0)) >= cut))
    return counting.select(*(sf.col(quoted(name)) for name in rows.columns))


def merged_where_certain(
    rows: DataFrame, keys: Sequence[str], aggregates: Mapping[str, Aggregate]
) -> DataFrame:
    """Merge those partials of a key of which one cannot begin the key anew without the other.

    That a partial begins its key anew is excluded as soon as an earlier one of `rows` is after its
    bound; otherwise it depends on partials that are still earlier.

    Args:
        rows: the partials of consecutive txids, not of the first ones.
        aggregates: value column -> aggregate, with the hidden ones.
    """
    certain = sf.col(BOUND).isNull() | (_newest_before(keys) > sf.col(BOUND))
    begins = sf.when(sf.coalesce(certain, sf.lit(False)), 0).otherwise(1)
    marked = rows.withColumn(_SPAN, begins)
    spans = marked.withColumn(_SPAN, sf.sum(quoted(_SPAN)).over(_by_txid(keys)))
    kinds = {field.name: field.dataType for field in rows.schema}
    groups = (sf.col(quoted(name)) for name in (*keys, _SPAN))
    return spans.groupBy(*groups).agg(*merges(aggregates, kinds)).drop(_SPAN)


def _newest_before(keys: Sequence[str]) -> Column:
    """The newest event time in the earlier partials of the same key."""
    from pyspark.sql import Window

    earlier = _by_txid(keys).rowsBetween(Window.unboundedPreceding, -1)
    return sf.max(NEWEST).over(earlier)


def _by_txid(keys: Sequence[str]) -> WindowSpec:
    from pyspark.sql import Window

    of_key = Window.partitionBy(*(sf.col(quoted(key)) for key in keys))
    # Rows of other writers, which have no txid, are older than all others.
    in_order = of_key.orderBy(sf.col(TXID).asc_nulls_first())
    return in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)


def require_time(expiry: Expiry, keys: Sequence[str], columns: st.StructType, table: str) -> None:
    """Refuse a state whose keys cannot end by this rule.

    Args:
        keys: the table's keys.
        columns: those of the table.

    Raises:
        TopologyError: naming the reason.
    """
    if expiry.by == "window end":
        windows = [key for key in keys if _is_window(columns[key].dataType)]
        if len(windows) != 1:
            raise TopologyError(
                f"Keys of state table {table} cannot end by 'window end': {len(windows)} of its "
                f"keys ({', '.join(keys) or 'none'}) are windows of timestamps. Name the key with "
                "the time: by='...'.",
                number="TXN-123",
            )
        return
    name = NEWEST if expiry.by == "last event" else expiry.column
    kind = columns[name].dataType
    if not _is_window(kind) and kind.simpleString() != "timestamp":
        raise TopologyError(
            f"Keys of state table {table} cannot end by '{expiry.column}': it is "
            f"{kind.simpleString()}, and neither a timestamp nor a window of timestamps. Make "
            "one in a transform before, for example with cast('timestamp_ltz').",
            number="TXN-123",
        )


def _is_window(kind: DataType) -> bool:
    return kind.simpleString() == "struct<start:timestamp,end:timestamp>"
