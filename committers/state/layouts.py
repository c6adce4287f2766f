"""The rows of the two layouts of a state table: what they store, and what readers see of it.

`layout="upsert"`: one row per key, in hash buckets of the keys, one file each. A commit reads only
the buckets that the batch touches, joins them with the batch's partial aggregates
(`committers.upsert_layout.join`) and rewrites them. The bucket of a key is the partition to which
Spark's own shuffle for a join by keys sends it: if the partials are so many that the join needs a
shuffle, each task holds one bucket and writes one file.

`layout="log"`: the partial aggregates of a txid, or of several compacted ones, and marks of removed
keys (`committers.state.removal`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from committers.publishing.files import BUCKET
from committers.publishing.spec import LOG_WITH_REMOVAL
from committers.state.expiring import BOUND, NEWEST, since_begun
from committers.state.keys import bucket_of
from committers.state.merging import merged_by_key
from committers.state.partials import ROWS, overrides
from committers.state.removal import REMOVED, marks_of, without_removed
from committers.state.shape import StateShape, stored_name, types_with
from txn.delta.commits import TXID
from txn.interfaces import WATERMARK
from txn.spark.keys import joined_by_key, with_keys_of
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = ["PREV_TXID", "RESERVED", "ROW", "LogLayout", "UpsertLayout"]

PREV_TXID = "prev_txid"
"""The txid of the previous value; NULL if the row did not exist before `txid`."""
ROW = "txn_row"
"""A temporary column for the removal of keys."""
RESERVED = (REMOVED, ROWS, ROW, NEWEST, BOUND, WATERMARK)
"""Names that keys and values may not have, besides those of the table's own columns."""


class UpsertLayout(StateShape):
    """One row per key: values, txid, and for opaque tables the previous values."""

    readers_merge = False

    @property
    def kind(self) -> str:
        """The table's property `txn.kind`."""
        return "upsert"

    @property
    def keeps_removed(self) -> bool:
        """True if a removed key stays as a tombstone until its txid is certainly committed.

        A replay of that txid must be able to restore the key. Source: Storm's `MemoryMapState`
        puts NULL and removes the key at the next different txid.
        """
        return self.keeps_previous and self.remove_where is not None

    @property
    def bookkeeping(self) -> tuple[str, ...]:
        """The table's own columns, in their order, the bucket last."""
        forms = (stored_name(value) for value in self.values if value in self.apart)
        previous = (*(f"prev_{value}" for value in self.stored), PREV_TXID)
        removed = (REMOVED,) if self.keeps_removed else ()
        return (TXID, *forms, *(previous if self.keeps_previous else ()), *removed, BUCKET)

    def table_schema(
        self, spark: SparkSession, partials: st.StructType, turn: SparkSession | None = None
    ) -> st.StructType:
        """Columns of the table, given those of the partials. Runs no job."""
        differ = {
            name: aggregate.initial(sf.col(quoted(name)))
            for name, aggregate in self.stored.items()
            if overrides(aggregate, "initial")
        }
        types = types_with(spark, partials, differ)
        own: dict[str, DataType] = {TXID: st.LongType(), PREV_TXID: st.LongType()}
        own |= {REMOVED: st.BooleanType(), BUCKET: st.IntegerType()}
        own |= {f"prev_{name}": types[name] for name in self.stored}
        own |= {stored_name(name): types[name] for name in self.apart}
        stored = st.StructType([st.StructField(name, kind) for name, kind in types.items()])
        seen = {name: self.shown_value(name, sf.col(quoted(name))) for name in self.apart}
        types = types_with(turn or spark, stored, seen)
        fields = [st.StructField(name, types[name]) for name in (*self.keys, *self.stored)]
        fields += [st.StructField(name, own[name]) for name in self.bookkeeping]
        return st.StructType(fields)

    def shown_value(self, name: str, stored: Column) -> Column:
        """The value of `name` that readers see."""
        return self.aggregates[name].result(stored)

    def shown(self, rows: DataFrame) -> DataFrame:
        """Keys and values of the table's rows, as readers see them, without removed keys."""
        return self._select(self.living(rows), self.shown_value)

    def living(self, rows: DataFrame) -> DataFrame:
        """One row for each key that readers see: keys and values as stored."""
        return self.unended(self.alive(rows))

    def as_in(self, columns: Collection[str]) -> UpsertLayout:
        """The layout of a table that has these columns already: its values stay as they are."""
        as_they_are = {*columns} - self.apart_in(columns)
        return replace(self, apart=self.apart - as_they_are)

    def as_written(self, rows: DataFrame) -> DataFrame:
        """The rows as the table holds them, given each value's stored form under its name."""
        if not self.apart:
            return rows
        columns = {name: sf.col(quoted(name)) for name in rows.columns}
        for name in self.apart:
            stored = columns[stored_name(name)] = columns[name]
            shown = self.shown_value(name, stored)
            columns[name] = sf.when(_is_alive(), shown) if self.keeps_removed else shown
        names = (*self.keys, *self.stored, *self.bookkeeping)
        return rows.select(*(columns[name].alias(name) for name in names))

    def with_bucket(self, groups: DataFrame) -> DataFrame:
        """Add the hash bucket to the partials of a batch, one row per group."""
        types = {field.name: field.dataType for field in groups.schema}
        # After the grouping, which merges -0.0 and 0.0 into one key.
        return groups.withColumn(BUCKET, bucket_of({k: types[k] for k in self.keys}, self.buckets))

    def alive(self, stored: DataFrame) -> DataFrame:
        """`stored` without the tombstones of removed keys."""
        if not self.keeps_removed:
            return stored
        return stored.where(_is_alive())

    def revert(self, stored: DataFrame, first_txid: int) -> DataFrame:
        """Revert `stored` to its state before `first_txid`: rows written since go back or vanish.

        Tombstones written since restore their key; older ones are final and vanish.
        """
        dead = sf.col(TXID) >= first_txid
        columns = [sf.col(quoted(key)) for key in self.keys]
        for name in (*self.stored, TXID):
            previous = sf.col(quoted(f"prev_{name}"))
            columns.append(sf.when(dead, previous).otherwise(sf.col(quoted(name))).alias(name))
        # NULL is right for reverted rows: a row is reverted only while its txid is not committed,
        # and to a txid that is.
        columns += [
            sf.when(~dead, sf.col(quoted(f"prev_{name}"))).alias(f"prev_{name}")
            for name in (*self.stored, TXID)
        ]
        existed = sf.col(PREV_TXID).isNotNull()
        stays = ~dead | existed
        if self.keeps_removed:
            stays = sf.when(dead, existed).otherwise(_is_alive())
        return stored.where(stays).select(*columns)


class LogLayout(StateShape):
    """Partial aggregates with their txid; readers merge those of a key."""

    readers_merge = True

    @property
    def kind(self) -> str:
        """The table's property `txn.kind`."""
        return LOG_WITH_REMOVAL if self.keeps_removed else "log"

    @property
    def keeps_removed(self) -> bool:
        """True if the table has marks of removed keys."""
        return self.remove_where is not None

    @property
    def bookkeeping(self) -> tuple[str, ...]:
        """The table's own columns, in their order."""
        return (TXID, REMOVED) if self.keeps_removed else (TXID,)

    def table_schema(
        self, spark: SparkSession, partials: st.StructType, turn: SparkSession | None = None
    ) -> st.StructType:
        """Columns of the table, given those of the partials."""
        schema = st.StructType([*partials.fields]).add(TXID, st.LongType())
        return schema.add(REMOVED, st.BooleanType()) if self.keeps_removed else schema

    def shown_value(self, name: str, stored: Column) -> Column:
        """The value of `name` that readers see."""
        return self._value_of_partial(name, stored)

    def shown(self, rows: DataFrame) -> DataFrame:
        """Keys and values of the table's rows, as readers see them, without removed keys."""
        return self._select(self.living(rows), self.shown_value)

    def living(self, rows: DataFrame) -> DataFrame:
        """One row for each key that readers see: keys and merged partials."""
        return self.unended(self.merged(rows))

    def merged(self, rows: DataFrame, *, with_txid: bool = False) -> DataFrame:
        """One row per key: keys and merged partials of the rows that count."""
        if self.keeps_removed:
            rows = without_removed(rows, self.keys, marks_of(rows, self.keys))
        counted = self.counted(rows)
        return merged_by_key(counted, self.keys, self.stored, with_txid=with_txid)

    def counted(self, rows: DataFrame) -> DataFrame:
        """The partials that count, of all partials of some keys.

        A key whose time is its last event ends as a whole: only its merged partials show whether
        it has.
        """
        return since_begun(rows, self.keys) if self.ends_by_event else self.unended(rows)

    @property
    def splits(self) -> bool:
        """True if `shown_in_two` applies: partials by key, of which none can be void."""
        return bool(self.keys) and not self.keeps_removed

    def shown_in_two(self, once: DataFrame, rest: DataFrame, *, has_null: bool) -> DataFrame:
        """Like `shown`, for the rows of both: merges only keys in `rest`.

        Args:
            once: rows of a table without removed keys; each key once.
            rest: its other rows, few enough to send them to every task.
            has_null: True if a key of `rest` may be NULL; without, reading takes a third less time.
        """
        keys = sf.broadcast(rest)
        alone = joined_by_key(once, keys, self.keys, "left_anti", has_null=has_null)
        touched = with_keys_of(once, keys, self.keys, has_null=has_null)
        return self.shown_once(alone).unionByName(self.shown(rest.unionByName(touched)))


def _is_alive() -> Column:
    """True in a row that is no tombstone; rows of a rebuilt table have NULL as their mark."""
    return ~sf.coalesce(sf.col(REMOVED), sf.lit(False))
