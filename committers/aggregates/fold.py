"""A fold over rows in order, for values that cannot be computed from partial results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from committers.aggregates.base import Builtin, if_any, input_value
from committers.aggregates.parameters import require_text
from txn.spark.lazy import sf

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["Fold"]


class Fold(Builtin):
    """Start with `init` and apply `reduce` to one row after the other.

        Fold("0D", "0.9D * acc + 0.1D * row.price", "time", "price")     # exponential smoothing

    Rows are taken batch by batch in the order of txids, and within a batch by `order_by`, then by
    `columns`, NULL first: a late row is applied when its batch is, as if it were new. A batch's
    rows of one key are sorted in one task's memory. Source: Trident's `ReducerAggregator`, with an
    order that does not depend on the cluster.

    An aggregate that can be combined (a sum, a maximum) is far cheaper than a fold.

    Args:
        init: SQL expression of the value before any row. Its type is the result's: cast it.
        reduce: SQL expression of the next value, of exactly that type, from `acc` (the value so
            far) and `row.<column>`.
        order_by: the column to order a batch's rows by.
        columns: further columns that `reduce` reads.

    Raises:
        ValueError: an expression or a column is empty.
    """

    def __init__(self, init: str, reduce: str, order_by: str, *columns: str) -> None:
        self.init = require_text(self, init, "an SQL expression to start with")
        self.reduce = require_text(self, reduce, "an SQL expression of acc and row")
        self.order_by = require_text(self, order_by, "the name of a column to order by")
        self._further_columns = tuple(require_text(self, column) for column in columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The order and the further columns."""
        return tuple(dict.fromkeys((self.order_by, *self._further_columns)))

    @property
    def parameters(self) -> tuple[str | int, ...]:
        """The two expressions and the columns."""
        return (self.init, self.reduce, *self.columns)

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        """The rows, sorted, 0.0 for -0.0."""
        row = sf.struct(*(input_value(name, kinds).alias(name) for name in self.columns))
        return sf.sort_array(sf.collect_list(row))

    def initial(self, partial: Column) -> Column:
        """The rows folded into `init`."""
        return self._fold(sf.expr(self.init), partial)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The rows folded into the stored value, or into `init` if that is NULL."""
        folded = self._fold(sf.coalesce(stored, sf.expr(self.init)), partial)
        return sf.when(partial.isNull(), stored).otherwise(folded)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """The rows of all, batch by batch in the order of txids."""
        entry = sf.when(partial.isNotNull(), sf.struct(txid.alias("txid"), partial.alias("rows")))
        batches = sf.sort_array(sf.collect_list(entry))
        rows = sf.flatten(sf.transform(batches, lambda batch: batch["rows"]))
        return if_any(rows, partial)

    def zero(self) -> Column:
        """No rows."""
        return sf.array()

    def _fold(self, start: Column, rows: Column) -> Column:
        step = sf.expr(f"(acc, row) -> {self.reduce}")
        return sf.call_function("aggregate", rows, start, step)
