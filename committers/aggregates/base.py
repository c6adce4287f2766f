"""The base of the built-in aggregates: their columns, NULL and -0.0, and the table for errors."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from committers.aggregates.parameters import as_text, require_text
from committers.aggregates.totals import of_table
from txn.errors import TopologyError
from txn.interfaces import Aggregate
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = [
    "Builtin",
    "OfColumn",
    "Reduction",
    "either",
    "if_any",
    "input_column",
    "input_value",
    "named_for",
    "require_numeric",
]


def input_column(name: str) -> Column:
    """The input column of this name."""
    return sf.col(quoted(name))


def either(combined: Column, stored: Column, partial: Column) -> Column:
    """`combined`; where that is NULL, `stored` or `partial`, whichever is not NULL."""
    return sf.coalesce(combined, stored, partial)


def input_value(name: str, kinds: Mapping[str, DataType]) -> Column:
    """The input column of this name, with 0.0 for -0.0, within structs and arrays, too.

    They are equal in SQL, so the stored one would otherwise depend on the batches.
    """
    column, kind = input_column(name), kinds.get(name)
    return column if kind is None or not _has_floats(kind) else _without_minus_zero(column, kind)


def _is_float(kind: DataType) -> bool:
    return isinstance(kind, st.DoubleType | st.FloatType)


def _has_floats(kind: DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _has_floats(kind.elementType)
    if isinstance(kind, st.StructType):
        return any(_has_floats(field.dataType) for field in kind)
    return _is_float(kind)


def _without_minus_zero(value: Column, kind: DataType) -> Column:
    """`value`, of the same type, with 0.0 for every -0.0 in it; NULL stays NULL."""
    if not _has_floats(kind):
        return value
    if isinstance(kind, st.ArrayType):
        element = kind.elementType
        return sf.transform(value, lambda one: _without_minus_zero(one, element))
    if isinstance(kind, st.StructType):
        fields = (
            _without_minus_zero(value.getField(one.name), one.dataType).alias(one.name)
            for one in kind
        )
        return sf.when(value.isNotNull(), sf.struct(*fields))
    return value + sf.lit(0.0).cast(kind)


def if_any(merged: Column, partial: Column) -> Column:
    """`merged`, an aggregate over partials; NULL if all of them are NULL."""
    return sf.when(sf.count(partial) > 0, merged)


def require_numeric(aggregate: Aggregate, name: str, kinds: Mapping[str, DataType]) -> None:
    """Refuse a column that is not a number; Spark would make doubles of texts.

    Raises:
        TopologyError: naming the column and its type.
    """
    kind = kinds.get(name)
    if kind is not None and not isinstance(kind, st.NumericType):
        raise TopologyError(
            f"{aggregate!r} needs a column of numbers, but '{name}' is {kind.simpleString()}. Cast "
            "it to the type in which to add it up: bigint and decimal are exact, double is not.",
            number="TXN-111",
        )


class Builtin(Aggregate):
    """An aggregate of this package: a table records its name, and that is enough to read it.

    A subclass defines each step once, for types that may be unknown.
    """

    _table: str | None = None

    @abstractmethod
    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        """The partial over input columns of these types; a type that is missing is unknown."""

    @abstractmethod
    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """Both values combined; `kind` is their type, None if it is unknown."""

    def partial(self) -> Column:
        """The partial, without knowing the types of the input columns."""
        return self._partial({})

    def partial_of(self, kinds: Mapping[str, DataType]) -> Column:
        """The partial over input columns of known types."""
        return self._partial(kinds)

    def combine(self, stored: Column, partial: Column) -> Column:
        """Both values combined, without knowing their type."""
        return self._combine(stored, partial, None)

    def combine_as(self, stored: Column, partial: Column, kind: DataType) -> Column:
        """Both values combined."""
        return self._combine(stored, partial, kind)

    @property
    def _what(self) -> str:
        """The total's name in errors."""
        return repr(self) if self._table is None else f"{self!r}{of_table(self._table)}"

    @property
    def parameters(self) -> tuple[str | int, ...]:
        """The constructor's arguments, in order: they distinguish it from others of its class."""
        return self.columns

    def __repr__(self) -> str:
        return f"{type(self).__name__}({as_text(self.parameters)})"

    def zero(self) -> Column:
        """NULL, SQL's value for no rows."""
        return sf.lit(None)


def named_for(table: str, aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """Copy the built-in aggregates, so that their errors name the table; keep all others."""
    named = dict(aggregates)
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, Builtin):
            own = named[name] = copy.copy(aggregate)
            own._table = table
    return named


class Reduction(Builtin):
    """An aggregate that merges partials as it does rows: the least of least values is the least."""

    @abstractmethod
    def _values(self, kinds: Mapping[str, DataType]) -> Column:
        """The value of a row, given the types of the input columns."""

    @abstractmethod
    def _reduce(self, values: Column) -> Column:
        """SQL's aggregate over the values of rows, or over partials."""

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        return self._reduce(self._values(kinds))

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """The same aggregate over the partials."""
        return self._reduce(partial)


class OfColumn(Builtin):
    """An aggregate of one column.

    Raises:
        ValueError: the column has no name.
    """

    def __init__(self, column: str) -> None:
        self.column: str = require_text(self, column)
