"""Partial aggregates: a batch's rows before they are combined with a state table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txn.delta.commits import TXID
from txn.interfaces import Aggregate, merged, partials_over
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = [
    "ROWS",
    "PartialRows",
    "mergeable",
    "merges",
    "nullable",
    "overrides",
]

ROWS = "txn_rows"
"""A temporary column of a global aggregate; no key or value may have this name."""


def overrides(aggregate: Aggregate, step: str) -> bool:
    """Return whether an aggregate overrides `initial`, `merge` or `result`."""
    return getattr(type(aggregate), step) is not getattr(Aggregate, step)


def mergeable(aggregate: Aggregate) -> bool:
    """Return whether partials of one key can be merged before they are combined with stored values.

    Not those of an aggregate that stores another type and does not define `merge`.
    """
    return overrides(aggregate, "merge") or not overrides(aggregate, "initial")


def merges(aggregates: Mapping[str, Aggregate], kinds: Mapping[str, DataType]) -> list[Column]:
    """Expressions that merge the partials of one key, value by value, with the newest `txid`.

    Args:
        kinds: value column -> type of its partials, which stays the same.
    """
    txid = sf.col(TXID)
    values = [
        merged(aggregate, sf.col(quoted(name)), txid, kinds[name]).alias(name)
        for name, aggregate in aggregates.items()
    ]
    return [*values, sf.max(txid).alias(TXID)]


@dataclass(frozen=True)
class _Expressions:
    """The expressions that compute partials from rows of some columns."""

    keys: Sequence[Column]
    groups: Sequence[Column]
    """Aggregates over the rows of each group."""
    values: Sequence[Column]
    """Expressions over those; empty if they are the partials already."""


class PartialRows:
    """Makes the partials of a table's batches. Thread-safe.

    It makes expressions once for rows of the same columns in the same session: two aggregates take
    sixty calls into Java, and a small batch would wait for them.
    """

    def __init__(self, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> None:
        self._keys = keys
        self._aggregates = aggregates
        self._cache: tuple[SparkSession, dict[tuple[Any, ...], _Expressions]] | None = None

    def of(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group: keys and partial values; for a global aggregate always one row.

        Args:
            count_as: name of one more column, the number of rows of each group; None: no column.
        """
        session, cache = batch.sparkSession, self._cache
        if cache is None or cache[0] is not session:
            cache = self._cache = session, {}
        key = count_as, *((field.name, field.dataType) for field in batch.schema)
        if key not in cache[1]:
            cache[1][key] = self._expressions(batch, count_as)
        expressions = cache[1][key]
        groups = batch.groupBy(*expressions.keys).agg(*expressions.groups)
        return groups.select(*expressions.values) if expressions.values else groups

    def _expressions(self, batch: DataFrame, count_as: str | None) -> _Expressions:
        partials = partials_over(batch, self._aggregates)
        columns = [partial.alias(name) for name, partial in partials.items()]
        count = sf.count(sf.lit(1))
        if self._keys:
            if count_as is not None:
                columns.append(count.alias(count_as))
            return _Expressions([sf.col(quoted(key)) for key in self._keys], columns, ())
        # For no rows an aggregate may return neither NULL nor its zero.
        any_row = sf.col(ROWS) > 0
        values = [
            sf.coalesce(sf.when(any_row, sf.col(quoted(name))), agg.zero()).alias(name)
            for name, agg in self._aggregates.items()
        ]
        counts = [] if count_as is None else [sf.col(ROWS).alias(count_as)]
        return _Expressions((), [*columns, count.alias(ROWS)], [*values, *counts])


def nullable(kind: DataType) -> DataType:
    """`kind` with everything in it nullable, as the table stores it: Spark only casts to that."""
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(nullable(kind.elementType))
    if isinstance(kind, st.MapType):
        return st.MapType(nullable(kind.keyType), nullable(kind.valueType))
    if isinstance(kind, st.StructType):
        return st.StructType(
            [st.StructField(field.name, nullable(field.dataType)) for field in kind]
        )
    return kind
