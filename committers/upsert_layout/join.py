"""Compute a state table's next rows: join the stored rows with a batch's partial aggregates.

The stored rows of some hash buckets and the partials of the same buckets form a pair, and one task
joins each pair: the state is neither shuffled nor sorted; the task hashes the partials and streams
the stored rows past them. Only partials that are too large to be hashed are joined by Spark's
shuffle and sort. The same task merges several txids' partials by key.

Building expressions takes hundreds of calls into Java, so they are built once and used by every
commit. Nothing in them changes from batch to batch, so neither does the code that Spark generates:
the txid is a column of the partials, not a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

from committers.publishing.files import BUCKET
from committers.state.expiring import BOUND, NEWEST
from committers.state.keys import bucket_of
from committers.state.layouts import PREV_TXID, ROW, UpsertLayout
from committers.state.partials import merges, nullable
from committers.state.removal import REMOVED
from txn.delta.commits import TXID
from txn.interfaces import combined
from txn.spark.keys import renamed, same_key, side_column
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["Pair", "UpsertJoin"]

Pair = tuple["DataFrame | None", "DataFrame | None"]
"""Stored rows and partial aggregates of the same hash buckets; None if there are none."""

_STORED, _NEW = "s", "n"
_old, _fresh = partial(side_column, _STORED), partial(side_column, _NEW)


class UpsertJoin:
    """Joins pairs of stored rows and partials into rows of the table's next version.

    Args:
        table: schema of the table.
        partials: schema of the partials; their files have a bigint column `txid` besides.
    """

    def __init__(self, layout: UpsertLayout, table: StructType, partials: StructType) -> None:
        self._layout = layout
        self._types = {field.name: field.dataType for field in table}
        # The types after reading from files.
        self._partial_types = {field.name: nullable(field.dataType) for field in partials}
        old_names = [n for n in table.fieldNames() if n not in (REMOVED, BUCKET)]
        new_types = {**self._partial_types, TXID: self._types[TXID]}
        new_names = (*layout.keys, *layout.stored, TXID)
        # Built once, as all expressions here.
        self._keys = [sf.col(quoted(key)) for key in layout.keys]
        self._renamed_stored = renamed(_STORED, old_names)
        self._renamed_new = renamed(_NEW, new_names)
        self._absent_stored = [_absent(_STORED, name, self._types[name]) for name in old_names]
        self._absent_new = [_absent(_NEW, name, new_types[name]) for name in new_names]
        self._same_key = same_key(layout.keys, _old, _fresh)

    def rows(self, pairs: Sequence[Pair], *, several: bool, in_one_task: bool) -> DataFrame:
        """The table's rows: stored and new ones combined, every row of either side once.

        Args:
            pairs: at least one; stored rows are alive, and reverted if necessary.
            several: True if a key may have partials of several txids.
            in_one_task: join each pair in its own task, with its partials in memory; False:
                shuffle and sort both sides.
        """
        joined = [self._join(stored, new, several, in_one_task) for stored, new in pairs]
        rows = reduce(lambda one, other: one.unionAll(other), joined).select(*self._columns)
        if self._layout.remove_where is not None:
            rows = self._remove(rows, self._layout.remove_where)
        return rows.withColumn(BUCKET, self._bucket)

    # --- one pair ----------------------------------------------------------------------------

    def _join(
        self, stored: DataFrame | None, new: DataFrame | None, several: bool, in_one_task: bool
    ) -> DataFrame:
        if stored is not None:
            stored = stored.coalesce(1) if in_one_task else stored
            stored = stored.select(*self._renamed_stored)
        if new is not None:
            new = new.coalesce(1) if in_one_task else new
            if several:
                new = new.groupBy(*self._keys).agg(*self._merges)
            new = new.select(*self._renamed_new)
        if stored is None and new is not None:
            return new.select(*self._absent_stored, "*")
        if stored is not None and new is None:
            return stored.select("*", *self._absent_new)
        if stored is None or new is None:
            raise ValueError("a pair needs stored rows or partials")
        if in_one_task and self._layout.keys:
            new = new.hint("shuffle_hash")
        return stored.join(new, self._same_key, "full_outer")

    # --- expressions, built at their first use -----------------------------------------------

    @cached_property
    def _merges(self) -> list[Column]:
        return merges(self._layout.stored, self._partial_types)

    @cached_property
    def _columns(self) -> list[Column]:
        """The table's columns except the bucket, from both sides.

        The txid shows which side has the row: it is never NULL in an existing row.
        """
        updated, existed = _fresh(TXID).isNotNull(), _old(TXID).isNotNull()
        layout, types = self._layout, self._types
        keys = [
            sf.when(existed, _old(key)).otherwise(_fresh(key)).alias(key) for key in layout.keys
        ]
        begins = ~existed
        if layout.ends_by_event:
            begins |= sf.coalesce(_old(NEWEST) <= _fresh(BOUND), sf.lit(False))
        values = [
            sf.when(~updated, _old(name))
            .when(begins, agg.initial(_fresh(name)).cast(types[name]))
            .otherwise(combined(agg, _old(name), _fresh(name), types[name]))
            .alias(name)
            for name, agg in layout.stored.items()
        ]
        marks = [sf.coalesce(_fresh(TXID), _old(TXID)).alias(TXID)]
        if layout.keeps_previous:
            marks += [
                sf.when(updated, _old(name)).otherwise(_old(f"prev_{name}")).alias(f"prev_{name}")
                for name in (*layout.stored, TXID)
            ]
        if layout.remove_where is not None:
            marks.append(updated.alias(REMOVED))  # until `_remove`: a candidate for removal
        return [*keys, *values, *marks]

    @cached_property
    def _bucket(self) -> Column:
        layout = self._layout
        return bucket_of({key: self._types[key] for key in layout.keys}, layout.buckets)

    def _remove(self, rows: DataFrame, condition: str) -> DataFrame:
        """Remove the keys of this batch that satisfy `condition`, or leave a tombstone.

        A key that is new and removed at once leaves nothing: it has no value to revert to.
        """
        layout = self._layout
        stored = sf.struct(*(sf.col(quoted(name)) for name in rows.columns))
        seen = layout.shown_once(rows, stored.alias(ROW))
        gone = sf.coalesce(sf.expr(condition), sf.lit(False))
        gone &= sf.col(ROW).getField(REMOVED)
        whole = [sf.col(f"{ROW}.{quoted(n)}").alias(n) for n in rows.columns if n != REMOVED]
        marked = seen.select(*whole, gone.alias(REMOVED))
        removed = sf.col(REMOVED)
        if not layout.keeps_removed:
            return marked.where(~removed).drop(REMOVED)
        emptied = {name: sf.when(~removed, sf.col(quoted(name))) for name in layout.stored}
        return marked.where(~removed | sf.col(PREV_TXID).isNotNull()).withColumns(emptied)


def _absent(side: str, name: str, kind: DataType) -> Column:
    """A NULL column for a side without rows."""
    return sf.lit(None).cast(kind).alias(f"{side}_{name}")
