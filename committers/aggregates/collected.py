"""Values by order, and bounded collections: First, Last, FirstN, LastN, CollectSet, CountDistinct.

Source: Trident's `minBy`, `maxBy` and `FirstN`; distinct counts by Spark's HLL sketches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from committers.aggregates.base import (
    Builtin,
    OfColumn,
    Reduction,
    either,
    if_any,
    input_column,
    input_value,
)
from committers.aggregates.parameters import require_number, require_text
from txn.spark.differences import collect_distinct, first_rows
from txn.spark.jvm import load_quietly
from txn.spark.lazy import sf

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["CollectSet", "CountDistinct", "First", "FirstN", "Last", "LastN"]

_MOST_KEPT = 10_000
"""The most values that one key may hold: a row of a table, not a table in a row."""


class _Ordered(Reduction):
    """The value of one column at an extreme of another."""

    def __init__(self, column: str, order_by: str) -> None:
        self.column: str = require_text(self, column)
        self.order_by = require_text(self, order_by, "the name of a column to order by")

    @property
    def columns(self) -> tuple[str, ...]:
        """The value and the order."""
        return (self.column, self.order_by)

    def _values(self, kinds: Mapping[str, DataType]) -> Column:
        """struct<order, value>; NULL if the order is NULL: the row is neither first nor last."""
        order, value = (input_value(name, kinds) for name in (self.order_by, self.column))
        row = sf.struct(order.alias("order"), value.alias("value"))
        return sf.when(order.isNotNull(), row)

    def result(self, stored: Column) -> Column:
        """The value without its order."""
        return stored["value"]


class First(_Ordered):
    """Value of a column in the row with the smallest order; NULL when no row has an order.

    Rows whose order is NULL do not count, rows whose value is NULL do. Among rows with the same
    smallest order, the smallest value counts (NULL is the smallest), so the result does not depend
    on batches. Stored as struct<order, value>. Source: Trident's `minBy`.
    """

    def _reduce(self, values: Column) -> Column:
        return sf.min(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The lesser (order, value) of the two; NULL counts only if both are NULL."""
        return sf.least(stored, partial)


class Last(_Ordered):
    """Value of a column in the row with the greatest order; NULL when no row has an order.

    Rows whose order is NULL do not count, rows whose value is NULL do. Among rows with the same
    greatest order, the greatest value counts (NULL is the smallest). Stored as
    struct<order, value>. Source: Trident's `maxBy`.
    """

    def _reduce(self, values: Column) -> Column:
        return sf.max(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The greater (order, value) of the two; NULL counts only if both are NULL."""
        return sf.greatest(stored, partial)


class FirstN(Builtin):
    """The `n` rows with the smallest order, as a sorted array of struct<order, columns>.

    Rows whose order is NULL do not count; rows of the same order are ordered by `columns`; equal
    rows are kept as often as they come. An empty array without such rows. Source: Trident's
    `FirstN`.

    Args:
        n: 1 to 10,000.
        order_by: the column to order by.
        columns: further columns to keep.

    Raises:
        ValueError: an `n` out of range, or a column without a name.
    """

    descending = False

    def __init__(self, n: int, order_by: str, *columns: str) -> None:
        self.n = require_number(self, "n", n, 1, _MOST_KEPT)
        self.order_by = require_text(self, order_by, "the name of a column to order by")
        self._further_columns = tuple(require_text(self, column) for column in columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The order and the further columns."""
        return tuple(dict.fromkeys((self.order_by, *self._further_columns)))

    @property
    def parameters(self) -> tuple[str | int, ...]:
        """N and the columns."""
        return (self.n, *self.columns)

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        """The first `n` rows, 0.0 for -0.0."""
        row = sf.struct(*(input_value(name, kinds).alias(name) for name in self.columns))
        present = sf.when(input_column(self.order_by).isNotNull(), row)
        return sf.coalesce(first_rows(present, self.n, descending=self.descending), self.zero())

    def zero(self) -> Column:
        """No rows."""
        return sf.array()

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The first `n` of both."""
        both = either(sf.concat(stored, partial), stored, partial)
        return sf.slice(sf.sort_array(both, asc=not self.descending), 1, self.n)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """The first `n` of all."""
        rows = sf.sort_array(sf.flatten(sf.collect_list(partial)), asc=not self.descending)
        return if_any(sf.slice(rows, 1, self.n), partial)


class LastN(FirstN):
    """The `n` rows with the greatest order, the greatest first; otherwise as `FirstN`."""

    descending = True


class CollectSet(OfColumn):
    """The `limit` smallest distinct values of a column, sorted; NULL does not count.

    The result does not show whether there are more. Keeping the smallest values, not the first to
    come, makes the result independent of the batches. All distinct values of one key within one
    batch are in a task's memory for a moment.

    Args:
        column: the column.
        limit: 1 to 10,000.

    Raises:
        ValueError: a `limit` out of range, or a column without a name.
    """

    def __init__(self, column: str, limit: int) -> None:
        super().__init__(column)
        self.limit = require_number(self, "limit", limit, 1, _MOST_KEPT)

    @property
    def parameters(self) -> tuple[str | int, ...]:
        """The column and the limit."""
        return (self.column, self.limit)

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        return self._smallest(collect_distinct(input_value(self.column, kinds)))

    def zero(self) -> Column:
        """No values."""
        return sf.array()

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        return self._smallest(either(sf.array_union(stored, partial), stored, partial))

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """The smallest values of all."""
        values = sf.array_distinct(sf.flatten(sf.collect_list(partial)))
        return if_any(self._smallest(values), partial)

    def _smallest(self, values: Column) -> Column:
        return sf.slice(sf.sort_array(values), 1, self.limit)


_WARNS = "org.apache.datasketches.memory.internal.ResourceImpl"
"""Spark's copy of it warns of memory off Java's heap, which sketches here never use. Spark 3.5 has
an older one, without the class and the warning."""


class CountDistinct(OfColumn):
    """The approximate number of distinct values of a column, without NULL; a bigint.

    Stored as a HyperLogLog sketch (binary) of at most 2^lg_config_k bytes and 40, far fewer for few
    values. The standard error is about 1.04 / sqrt(2^lg_config_k): 1.6 % for 12, 0.8 % for 14.
    Up to some hundreds of values are counted almost exactly; empty strings and empty binaries are
    not counted, as in Spark. An opaque table keeps two sketches per key.

    Args:
        column: of type int, bigint, string or binary; cast others, for example dates to string.
            Spark refuses other types when the stream's columns are known, before anything runs.
        lg_config_k: 4 to 21.

    Raises:
        ValueError: an `lg_config_k` out of range, or a column without a name.
    """

    def __init__(self, column: str, lg_config_k: int = 12) -> None:
        super().__init__(column)
        self.lg_config_k = require_number(self, "lg_config_k", lg_config_k, 4, 21)

    @property
    def parameters(self) -> tuple[str | int, ...]:
        """The column and lg_config_k."""
        return (self.column, self.lg_config_k)

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        load_quietly(_WARNS)
        return sf.hll_sketch_agg(input_column(self.column), self.lg_config_k)

    def zero(self) -> Column:
        """The empty sketch, the same bytes as hll_sketch_agg over no rows."""
        # Source: Apache DataSketches, HllUtil and PreambleUtil: an empty list of HLL_8 coupons.
        header = (2, 1, 7, self.lg_config_k, 3, 4, 0, 8)
        return sf.lit(bytes(header) + bytes(32))

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        return either(sf.hll_union(stored, partial), stored, partial)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """The union of all sketches."""
        # The union of one sketch would estimate a little differently from that sketch.
        single = sf.any_value(partial, sf.lit(True))
        union = sf.when(sf.count(partial) == 1, single).otherwise(sf.hll_union_agg(partial))
        return if_any(union, partial)

    def result(self, stored: Column) -> Column:
        """The sketch's estimate."""
        return sf.hll_sketch_estimate(stored)
