"""The columns of a state table: hash buckets, partial aggregates, previous values.

A state table is partitioned into hash buckets of its keys, one file each. A commit reads only the
buckets that the batch touches, joins them with the batch's partial aggregates (`join`) and rewrites
them. The bucket of a key is the partition to which Spark's own shuffle for a join by keys sends it:
if the partials are so many that the join needs a shuffle, each task holds one bucket and writes one
file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from committers.publishing.files import BUCKET
from committers.state.keys import bucket_of
from committers.state.partials import ROWS, nullable, overrides
from committers.state.removal import REMOVED
from txn.delta.commits import TXID
from txn.interfaces import Aggregate
from txn.spark.names import quoted
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "PREV_TXID",
    "RESERVED",
    "ROW",
    "UpsertLayout",
]

PREV_TXID = "prev_txid"
"""The txid of the previous value; NULL if the row did not exist before `txid`."""
ROW = "txn_row"
"""A temporary column for the removal of keys."""
RESERVED = (REMOVED, ROWS, ROW)
"""Names that keys and values may not have, besides those of the table's own columns."""


@dataclass(frozen=True)
class UpsertLayout:
    """Keys, aggregates and the columns that follow from them.

    Args:
        keeps_previous: True for opaque tables, which carry `prev_<value>` and `prev_txid`.
        remove_where: SQL condition over keys and values, as readers see them: a key of the batch
            that satisfies it after the update is removed; None: keys stay.
    """

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    buckets: int
    keeps_previous: bool
    remove_where: str | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """The value columns."""
        return tuple(self.aggregates)

    @property
    def bookkeeping(self) -> tuple[str, ...]:
        """The table's own columns, in their order, the bucket last."""
        previous = (*(f"prev_{value}" for value in self.values), PREV_TXID)
        removed = (REMOVED,) if self.keeps_removed else ()
        return (TXID, *(previous if self.keeps_previous else ()), *removed, BUCKET)

    @property
    def keeps_removed(self) -> bool:
        """True if a removed key stays as a tombstone until its txid is certainly committed.

        A replay of that txid must be able to restore the key. Source: Storm's `MemoryMapState`
        puts NULL and removes the key at the next different txid.
        """
        return self.keeps_previous and self.remove_where is not None

    # --- schemas -----------------------------------------------------------------------------

    def table_schema(self, spark: SparkSession, partials: StructType) -> StructType:
        """Columns of the table, given those of the partials. Runs no job."""
        from pyspark.sql.types import BooleanType, IntegerType, LongType, StructField, StructType

        types = self._types(spark, partials, "initial")
        fields = [StructField(name, types[name]) for name in (*self.keys, *self.values)]
        fields.append(StructField(TXID, LongType()))
        if self.keeps_previous:
            fields += [StructField(f"prev_{name}", types[name]) for name in self.values]
            fields.append(StructField(PREV_TXID, LongType()))
        if self.keeps_removed:
            fields.append(StructField(REMOVED, BooleanType()))
        return StructType([*fields, StructField(BUCKET, IntegerType())])

    def shown_schema(self, spark: SparkSession, table: StructType) -> StructType:
        """Keys and values as readers see them, given the table's columns. Runs no job."""
        from pyspark.sql.types import StructField, StructType

        types = self._types(spark, table, "result")
        return StructType([StructField(name, types[name]) for name in (*self.keys, *self.values)])

    def _types(self, spark: SparkSession, columns: StructType, step: str) -> Mapping[str, DataType]:
        """Types of keys and values after `Aggregate.initial` or `Aggregate.result`."""
        from pyspark.sql import functions as sf

        types = {field.name: nullable(field.dataType) for field in columns}
        own = {name: agg for name, agg in self.aggregates.items() if overrides(agg, step)}
        if own:
            made = [
                getattr(agg, step)(sf.col(quoted(name))).alias(name) for name, agg in own.items()
            ]
            analysed = no_rows(spark, columns).select(*made).schema
            types |= {field.name: nullable(field.dataType) for field in analysed}
        return types

    def shown(self, name: str, stored: Column) -> Column:
        """The value of `name` that readers see."""
        return self.aggregates[name].result(stored)

    # --- partials ----------------------------------------------------------------------------

    def with_bucket(self, groups: DataFrame) -> DataFrame:
        """Add the hash bucket to the partials of a batch, one row per group."""
        types = {field.name: field.dataType for field in groups.schema}
        # After the grouping, which merges -0.0 and 0.0 into one key.
        return groups.withColumn(BUCKET, self._bucket([types[key] for key in self.keys]))

    def _bucket(self, types: Sequence[DataType]) -> Column:
        return bucket_of(dict(zip(self.keys, types, strict=True)), self.buckets)

    # --- the next version --------------------------------------------------------------------

    def alive(self, stored: DataFrame) -> DataFrame:
        """`stored` without the tombstones of removed keys."""
        from pyspark.sql import functions as sf

        if not self.keeps_removed:
            return stored
        return stored.where(~sf.coalesce(sf.col(REMOVED), sf.lit(False)))

    def revert(self, stored: DataFrame, first_txid: int) -> DataFrame:
        """Revert `stored` to its state before `first_txid`: rows written since go back or vanish.

        Tombstones written since restore their key; older ones are final and vanish.
        """
        from pyspark.sql import functions as sf

        dead = sf.col(TXID) >= first_txid
        columns = [sf.col(quoted(key)) for key in self.keys]
        for name in (*self.values, TXID):
            previous = sf.col(quoted(f"prev_{name}"))
            columns.append(sf.when(dead, previous).otherwise(sf.col(quoted(name))).alias(name))
        # NULL is right for reverted rows: a row is reverted only while its txid is not committed,
        # and to a txid that is.
        columns += [
            sf.when(~dead, sf.col(quoted(f"prev_{name}"))).alias(f"prev_{name}")
            for name in (*self.values, TXID)
        ]
        existed = sf.col(PREV_TXID).isNotNull()
        stays = ~dead | existed
        if self.keeps_removed:
            stays = sf.when(dead, existed).otherwise(~sf.coalesce(sf.col(REMOVED), sf.lit(False)))
        return stored.where(stays).select(*columns)
