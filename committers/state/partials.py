"""Partial aggregates: a batch's rows before they meet a state table, and the types they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from txn.delta.commits import TXID
from txn.interfaces import Aggregate, merged, partials_over
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = [
    "ROWS",
    "columns_read",
    "mergeable",
    "merges",
    "nullable",
    "overrides",
    "partial_rows",
    "shown_alone",
]

ROWS = "txn_rows"
"""A column that a global aggregate needs for a moment; no key or value may be called so."""


def columns_read(keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> tuple[str, ...]:
    """The columns of a batch's rows that its partials are made of, each once."""
    inputs = [name for aggregate in aggregates.values() for name in aggregate.columns]
    return tuple(dict.fromkeys((*keys, *inputs)))


def overrides(aggregate: Aggregate, step: str) -> bool:
    """Return whether an aggregate overrides `initial`, `merge` or `result`."""
    return getattr(type(aggregate), step) is not getattr(Aggregate, step)


def mergeable(aggregate: Aggregate) -> bool:
    """Return whether partials of one key can be merged before they are combined with stored values.

    Not those of an aggregate that stores something else and does not say how partials are merged.
    """
    return overrides(aggregate, "merge") or not overrides(aggregate, "initial")


def merges(aggregates: Mapping[str, Aggregate], kinds: Mapping[str, DataType]) -> list[Column]:
    """Aggregates over the partials of one key: of each value their union, and the newest `txid`.

    Args:
        kinds: value column -> type of its partials, in which they stay.
    """
    from pyspark.sql import functions as sf

    txid = sf.col(TXID)
    values = [
        merged(aggregate, sf.col(quoted(name)), txid, kinds[name]).alias(name)
        for name, aggregate in aggregates.items()
    ]
    return [*values, sf.max(txid).alias(TXID)]


def partial_rows(
    batch: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    count_as: str | None = None,
) -> DataFrame:
    """One row per group: keys and partial values; one row for a global aggregate, rows or not.

    Args:
        count_as: name of one more column, the number of rows of each group; None: no such column.
    """
    from pyspark.sql import functions as sf

    partials = partials_over(batch, aggregates)
    columns = [partial.alias(name) for name, partial in partials.items()]
    count = sf.count(sf.lit(1))
    if keys:
        if count_as is not None:
            columns.append(count.alias(count_as))
        return batch.groupBy(*(sf.col(quoted(key)) for key in keys)).agg(*columns)
    # An aggregate may answer no rows with something else than NULL, and than its zero.
    whole = batch.agg(*columns, count.alias(ROWS))
    any_row = sf.col(ROWS) > 0
    values = [
        sf.coalesce(sf.when(any_row, sf.col(quoted(name))), agg.zero()).alias(name)
        for name, agg in aggregates.items()
    ]
    kept = [] if count_as is None else [sf.col(ROWS).alias(count_as)]
    return whole.select(*values, *kept)


def shown_alone(
    partials: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    remove_where: str | None,
) -> DataFrame:
    """Keys and values as readers see them of a state that holds these partials, and no others.

    Args:
        partials: one row per key.
    """
    from pyspark.sql import functions as sf

    values = [
        aggregate.result(aggregate.initial(sf.col(quoted(name)))).alias(name)
        for name, aggregate in aggregates.items()
    ]
    found = partials.select(*(sf.col(quoted(key)) for key in keys), *values)
    if remove_where is None:
        return found
    return found.where(~sf.coalesce(sf.expr(remove_where), sf.lit(False)))


def nullable(kind: DataType) -> DataType:
    """`kind` with everything in it nullable, as the table stores it: Spark casts no other way."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind])
    return kind
