"""Numbers: counts, sums, averages, variances, extremes. Bits and truth values.

Source: Trident's builtin `Count`, `Sum`, `Min`, `Max`, with SQL's treatment of NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from committers.aggregates.base import (
    Builtin,
    OfColumn,
    Reduction,
    either,
    if_any,
    input_column,
    input_value,
    require_numeric,
)
from committers.aggregates.parameters import require_text
from committers.aggregates.totals import (
    exact_add,
    exact_sum,
    or_overflow,
    quotient_checked,
    wants_exact_check,
    whole_sum,
)
from txn.spark.lazy import sf, st

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "Avg",
    "BitAnd",
    "BitOr",
    "BitXor",
    "BoolAnd",
    "BoolOr",
    "Count",
    "Max",
    "Min",
    "StdDev",
    "Sum",
    "Variance",
]


class Count(Builtin):
    """Number of rows (`Count()`), or of rows in which a column is not NULL (`Count("col")`).

    The result is a bigint, 0 for no rows.
    """

    def __init__(self, column: str | None = None) -> None:
        self.column = None if column is None else require_text(self, column)

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        return sf.count("*" if self.column is None else input_column(self.column))

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The sum of both; NULL counts as 0."""
        return _or_zero(stored) + _or_zero(partial)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """The sum of all; NULL counts as 0."""
        return _or_zero(exact_sum(partial, kind, self._what))

    def zero(self) -> Column:
        """0."""
        return sf.lit(0).cast("bigint")


class Sum(OfColumn):
    """Sum of a column over the rows where it is not NULL; NULL without such rows.

    Integers add up to bigint, decimals to decimal(precision + 10, scale), as in Spark's SQL. A sum
    that leaves its type's range is an error, never a wrapped number, whatever the session's
    settings.
    """

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        require_numeric(self, self.column, kinds)
        return _checked_sum(self, kinds.get(self.column))

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The sum without NULLs; every digit of it, if the type is known."""
        return _added(stored, partial, kind, self._what)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """The sum without NULLs."""
        return exact_sum(partial, kind, self._what)


class _OfValues(Reduction, OfColumn):
    """SQL's aggregate over the values of one column."""

    def _values(self, kinds: Mapping[str, DataType]) -> Column:
        return input_value(self.column, kinds)


class Min(_OfValues):
    """Smallest value of a column, NULL without values. NaN is the greatest number."""

    def _reduce(self, values: Column) -> Column:
        return sf.min(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The smaller of the two; NULL counts only if both are NULL."""
        return sf.least(stored, partial)


class Max(_OfValues):
    """Greatest value of a column, NULL without values. NaN is the greatest number."""

    def _reduce(self, values: Column) -> Column:
        return sf.max(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """The greater of the two; NULL counts only if both are NULL."""
        return sf.greatest(stored, partial)


class Avg(OfColumn):
    """Mean of a column over the rows where it is not NULL; NULL without such rows.

    Stored as struct<sum, count>, summed as in `Sum`: integers and decimals exactly, and an error
    when the sum leaves its type's range. The result is a double; for decimals it has the type of
    SQL's `sum / count`, with at least as many digits after the point as Spark's avg(), up to 38 in
    all.
    """

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        """struct<sum, count> of a column of numbers."""
        require_numeric(self, self.column, kinds)
        kind = kinds.get(self.column)
        total, count = _checked_sum(self, kind), sf.count(input_column(self.column))
        if kind is not None:
            total = quotient_checked(total, count, kind, self._what)
        return sf.struct(total.alias("sum"), count.alias("count"))

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        kinds = {} if kind is None else _types_of_fields(kind)
        total, count = (
            _added(stored[name], partial[name], kinds.get(name), self._what)
            for name in ("sum", "count")
        )
        both = sf.struct(total.alias("sum"), _or_zero(count).alias("count"))
        return _unless_both_null(stored, partial, both)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """Sums and counts added up."""
        kinds = _types_of_fields(kind)
        total = exact_sum(partial["sum"], kinds["sum"], self._what)
        count = exact_sum(partial["count"], kinds["count"], self._what)
        both = sf.struct(total.alias("sum"), _or_zero(count).alias("count"))
        return if_any(both, partial)

    def result(self, stored: Column) -> Column:
        """The quotient; NULL, not an error, for a count of 0."""
        counted = stored["count"] > 0
        mean = sf.when(counted, sf.try_divide(stored["sum"], stored["count"]))
        return or_overflow(mean, counted, self._what)


class Variance(OfColumn):
    """Sample variance of a column over the rows where it is not NULL (Spark's var_samp).

    A double, NULL for fewer than two values. Stored as struct<count, mean, m2>: m2 is the sum of
    squared distances from the mean, and unlike a sum of squares it loses no digits to large means.
    Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979; Spark's own `CentralMomentAgg` is the same.
    """

    def _partial(self, kinds: Mapping[str, DataType]) -> Column:
        """struct<count, mean, m2> of a column of numbers."""
        require_numeric(self, self.column, kinds)
        column = input_column(self.column).cast("double")
        count = sf.count(column)
        return sf.struct(
            count.alias("count"),
            sf.avg(column).alias("mean"),
            (sf.var_pop(column) * count).alias("m2"),
        )

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        """Add the counts, weight the mean by count, add both m2 and the distance of the means."""
        old, new = _or_zero(stored["count"]), _or_zero(partial["count"])
        total, distance = old + new, partial["mean"] - stored["mean"]
        mean = stored["mean"] + distance * new / total
        m2 = stored["m2"] + partial["m2"] + distance * distance * old * new / total
        both = sf.struct(
            total.alias("count"),
            either(mean, stored["mean"], partial["mean"]).alias("mean"),
            either(m2, stored["m2"], partial["m2"]).alias("m2"),
        )
        return _unless_both_null(stored, partial, both)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """Combine them one by one, in any order: sums of squares would lose digits."""

        def add(one: Column, other: Column) -> Column:
            counted = sf.when(other["count"] == 0, one).otherwise(self._combine(one, other, kind))
            return sf.when(_or_zero(one["count"]) == 0, other).otherwise(counted).cast(kind)

        return sf.reduce(sf.collect_list(partial), sf.lit(None).cast(kind), add)

    def result(self, stored: Column) -> Column:
        """m2 / (count - 1)."""
        return sf.when(stored["count"] > 1, stored["m2"] / (stored["count"] - 1))


class StdDev(Variance):
    """Sample standard deviation of a column: the root of `Variance` (Spark's stddev_samp)."""

    def result(self, stored: Column) -> Column:
        """The root of the variance."""
        return sf.sqrt(super().result(stored))


class BoolAnd(_OfValues):
    """True if a boolean column is true in all rows where it is not NULL; NULL without such rows."""

    def _reduce(self, values: Column) -> Column:
        return sf.bool_and(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        return either(stored & partial, stored, partial)


class BoolOr(_OfValues):
    """True if a boolean column is true in any row; NULL if it is NULL in all of them."""

    def _reduce(self, values: Column) -> Column:
        return sf.bool_or(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        return either(stored | partial, stored, partial)


class BitAnd(_OfValues):
    """Bitwise AND of an integer column over the rows where it is not NULL, in the column's type."""

    def _reduce(self, values: Column) -> Column:
        return sf.bit_and(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        return either(stored.bitwiseAND(partial), stored, partial)


class BitOr(_OfValues):
    """Bitwise OR of an integer column over the rows where it is not NULL, in the column's type."""

    def _reduce(self, values: Column) -> Column:
        return sf.bit_or(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        return either(stored.bitwiseOR(partial), stored, partial)


class BitXor(_OfValues):
    """Bitwise XOR of an integer column over the rows where it is not NULL, in the column's type."""

    def _reduce(self, values: Column) -> Column:
        return sf.bit_xor(values)

    def _combine(self, stored: Column, partial: Column, kind: DataType | None) -> Column:
        return either(stored.bitwiseXOR(partial), stored, partial)


def _checked_sum(aggregate: OfColumn, kind: DataType | None) -> Column:
    """sum(column); an error if it leaves the range of its type, in a session without ANSI too."""
    column = input_column(aggregate.column)
    if isinstance(kind, st.LongType):
        total = whole_sum(column)
    else:
        # `try_sum` of decimals takes twice the time of `sum`.
        total = sf.try_sum(column) if wants_exact_check(kind) else sf.sum(column)
    return or_overflow(total, sf.count(column) > 0, aggregate._what)


def _added(stored: Column, partial: Column, kind: DataType | None, what: str) -> Column:
    """The sum of both without NULLs; an error if it leaves the range of `kind`, if known."""
    if kind is None:
        return either(stored + partial, stored, partial)
    return exact_add(stored, partial, kind, what)


def _types_of_fields(kind: DataType) -> dict[str, DataType]:
    return {field.name: field.dataType for field in cast("StructType", kind)}


def _or_zero(count: Column) -> Column:
    return sf.coalesce(count, sf.lit(0).cast("bigint"))


def _unless_both_null(stored: Column, partial: Column, both: Column) -> Column:
    """`both`, or NULL if both inputs are NULL: a struct of NULLs is not NULL by itself."""
    return sf.when(stored.isNotNull() | partial.isNotNull(), both)
