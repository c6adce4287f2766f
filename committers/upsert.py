"""The Spark half of a state table: hash buckets, partial aggregates, the join with what is stored.

A state table is partitioned into hash buckets of its keys, one file each. A commit reads only the
buckets that the batch touches, joins them with the batch's partial aggregates and writes them
again. The bucket of a key is the partition in which Spark's own shuffle for that join puts it, so
each task of the join holds one bucket and writes one file, without a second shuffle. Measured
side by side (100,000 stored keys, 100,000 partials, two busy cores): this join 0.5 s; full outer
join with Spark's default settings 0.65 s and twice the files; one join per bucket without any
shuffle 0.8 s; union + GROUP BY 0.9 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from committers.aggregates import quoted
from committers.log_actions import BUCKET, TXID
from txn.interfaces import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["PREV_TXID", "StateLayout"]

PREV_TXID = "prev_txid"
"""The txid of the previous value; NULL: the row did not exist before `txid`."""

_STORED, _NEW = "s", "n"


@dataclass(frozen=True)
class StateLayout:
    """Keys, aggregates and the columns that they make.

    Args:
        keeps_previous: True for opaque tables, which carry `prev_<value>` and `prev_txid`.
    """

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    buckets: int
    keeps_previous: bool

    @property
    def values(self) -> tuple[str, ...]:
        """The value columns."""
        return tuple(self.aggregates)

    @property
    def bookkeeping(self) -> tuple[str, ...]:
        """Columns that are the table's own, in their order, the bucket last."""
        previous = (*(f"prev_{value}" for value in self.values), PREV_TXID)
        return (TXID, *(previous if self.keeps_previous else ()), BUCKET)

    # --- schemas -----------------------------------------------------------------------------

    def table_schema(self, partials: StructType) -> StructType:
        """Columns of the table, given those of the partials."""
        from pyspark.sql.types import IntegerType, LongType, StructField, StructType

        types = {field.name: field.dataType for field in partials}
        fields = [StructField(name, types[name]) for name in (*self.keys, *self.values)]
        fields.append(StructField(TXID, LongType()))
        if self.keeps_previous:
            fields += [StructField(f"prev_{name}", types[name]) for name in self.values]
            fields.append(StructField(PREV_TXID, LongType()))
        return StructType([*fields, StructField(BUCKET, IntegerType())])

    # --- partials ----------------------------------------------------------------------------

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch: keys, partial values, its row count, bucket."""
        from pyspark.sql import functions as sf

        columns = [agg.partial().alias(name) for name, agg in self.aggregates.items()]
        if count_as is not None:
            columns.append(sf.count(sf.lit(1)).alias(count_as))
        if not self.keys:
            whole = batch.agg(*columns)
            values = [
                sf.coalesce(sf.col(quoted(name)), agg.zero()).alias(name)
                for name, agg in self.aggregates.items()
            ]
            kept = [] if count_as is None else [sf.col(count_as)]
            return whole.select(*values, *kept, self._bucket([]).alias(BUCKET))
        groups = batch.groupBy(*(sf.col(quoted(key)) for key in self.keys)).agg(*columns)
        types = {field.name: field.dataType for field in groups.schema}
        # After the grouping, which makes -0.0 and 0.0 one key.
        return groups.withColumn(BUCKET, self._bucket([types[key] for key in self.keys]))

    def _bucket(self, types: Sequence[DataType]) -> Column:
        from pyspark.sql import functions as sf

        if not self.keys:
            return sf.lit(0)
        parts: list[Column] = []
        for key, kind in zip(self.keys, types, strict=True):
            column = sf.col(quoted(key))
            filler = _filler(kind)
            parts += [column if filler is None else sf.coalesce(column, filler), column.isNull()]
        return sf.pmod(sf.hash(*parts), sf.lit(self.buckets)).cast("int")

    # --- the next version --------------------------------------------------------------------

    def revert(self, stored: DataFrame, first_txid: int) -> DataFrame:
        """`stored` as it was before `first_txid`: rows written since go back or go away."""
        from pyspark.sql import functions as sf

        dead = sf.col(TXID) >= first_txid
        columns = [sf.col(quoted(key)) for key in self.keys]
        for name in (*self.values, TXID):
            previous = sf.col(quoted(f"prev_{name}"))
            columns.append(sf.when(dead, previous).otherwise(sf.col(quoted(name))).alias(name))
        # NULL is right for reverted rows: a row goes back only while its txid is not committed, and
        # the txid that it goes back to is.
        columns += [
            sf.when(~dead, sf.col(quoted(f"prev_{name}"))).alias(f"prev_{name}")
            for name in (*self.values, TXID)
        ]
        return stored.where(~dead | sf.col(PREV_TXID).isNotNull()).select(*columns)

    def merge(
        self,
        stored: DataFrame | None,
        partials: DataFrame | None,
        schema: StructType,
        txid: int,
        *,
        hash_partials: bool,
    ) -> DataFrame:
        """Stored rows and partial aggregates, combined; every row of either side once.

        Args:
            stored: rows of the table, reverted if need be; None when there are none.
            partials: one row per key; None when there are none.
            schema: of the table.
            txid: what updated rows are marked with.
            hash_partials: whether the partials of one bucket fit into one task's memory.
        """
        types = {field.name: field.dataType for field in schema}
        joined = self._join(stored, partials, schema, hash_partials)
        rows = joined.select(*self._columns(types, txid))
        return rows.withColumn(BUCKET, self._bucket([types[key] for key in self.keys]))

    def _join(
        self,
        stored: DataFrame | None,
        partials: DataFrame | None,
        schema: StructType,
        hash_partials: bool,
    ) -> DataFrame:
        from pyspark.sql import functions as sf

        new_names = (*self.keys, *self.values)
        old_names = [name for name in schema.fieldNames() if name != BUCKET]
        old = None if stored is None else _prefixed(stored, old_names, _STORED)
        new = None if partials is None else _prefixed(partials, new_names, _NEW)
        if old is None and new is not None:
            return _with_absent(new, old_names, schema, _STORED)
        if old is not None and new is None:
            return _with_absent(old, new_names, schema, _NEW)
        if old is None or new is None:
            raise ValueError("a merge needs stored rows or partials")
        if hash_partials and self.keys:
            new = new.hint("shuffle_hash")
        condition = sf.lit(True)
        for key in self.keys:
            condition &= _old(key).eqNullSafe(_fresh(key))
        return old.join(new, condition, "full_outer")

    def _columns(self, types: Mapping[str, DataType], txid: int) -> list[Column]:
        from pyspark.sql import functions as sf

        updated, existed = sf.col(_at(_NEW)).isNotNull(), sf.col(_at(_STORED)).isNotNull()
        keys = [sf.when(existed, _old(key)).otherwise(_fresh(key)).alias(key) for key in self.keys]
        values = [
            sf.when(~updated, _old(name))
            .when(~existed, _fresh(name))
            .otherwise(agg.combine(_old(name), _fresh(name)).cast(types[name]))
            .alias(name)
            for name, agg in self.aggregates.items()
        ]
        marks = [sf.when(updated, sf.lit(txid)).otherwise(_old(TXID)).cast("bigint").alias(TXID)]
        if self.keeps_previous:
            marks += [
                sf.when(updated, _old(name)).otherwise(_old(f"prev_{name}")).alias(f"prev_{name}")
                for name in (*self.values, TXID)
            ]
        return [*keys, *values, *marks]


def _at(side: str, name: str | None = None) -> str:
    """A column of one side of the join; without a name, the mark that the side has a row."""
    return side if name is None else f"{side}_{name}"


def _old(name: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(quoted(_at(_STORED, name)))


def _fresh(name: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(quoted(_at(_NEW, name)))


def _prefixed(frame: DataFrame, names: Sequence[str], side: str) -> DataFrame:
    from pyspark.sql import functions as sf

    columns = [sf.col(quoted(name)).alias(_at(side, name)) for name in names]
    return frame.select(*columns, sf.lit(True).alias(_at(side)))


def _with_absent(
    frame: DataFrame, names: Sequence[str], schema: StructType, side: str
) -> DataFrame:
    """`frame` with the columns of a side that has no rows at all."""
    from pyspark.sql import functions as sf

    types = {field.name: field.dataType for field in schema}
    absent = [sf.lit(None).cast(types[name]).alias(_at(side, name)) for name in names]
    return frame.select("*", *absent, sf.lit(None).cast("boolean").alias(_at(side)))


def _filler(kind: DataType) -> Column | None:
    """What Spark's null-safe join hashes in place of NULL, so that buckets follow its shuffle.

    Source: `ExtractEquiJoinKeys` and `Literal.default`. A type that is missing here still works:
    its NULL keys only come to lie in a second file of their bucket.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types

    if isinstance(kind, types.BooleanType):
        return sf.lit(False)
    if isinstance(kind, types.NumericType):
        return sf.lit(0).cast(kind)
    if isinstance(kind, types.StringType | types.BinaryType):
        return sf.lit("").cast(kind)
    if isinstance(kind, types.DateType):
        return sf.lit("1970-01-01").cast(kind)
    if isinstance(kind, types.TimestampType):
        return sf.timestamp_micros(sf.lit(0))
    return None
