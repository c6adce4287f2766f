"""Aggregations that can be kept as running state: Count, Sum, Min, Max, and one's own.

    class Product(Aggregate):
        def __init__(self, column): self.column = column
        def partial(self): return sf.product(self.column)
        def combine(self, stored, partial): return stored * partial
        def zero(self): return sf.lit(1.0)

Everything is a Spark SQL expression; see `txn.interfaces.Aggregate` for what is promised.
Source: Trident's builtin `Count`, `Sum`, `Min`, `Max`, with SQL's treatment of NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txn.interfaces import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Aggregate", "Count", "Max", "Min", "Sum", "identity", "quoted"]


def quoted(name: str) -> str:
    """A column name as Spark takes it literally, dots included."""
    return "`" + name.replace("`", "``") + "`"


def identity(aggregate: Aggregate) -> str:
    """What a table remembers of an aggregate: its class and its column, such as `Sum(delay)`."""
    return f"{type(aggregate).__name__}({aggregate.column or '*'})"


class _OfColumn(Aggregate):
    """An aggregate of one column."""

    def __init__(self, column: str) -> None:
        if not column:
            raise ValueError(f"{type(self).__name__} needs the name of a column")
        self.column: str = column

    def __repr__(self) -> str:
        return identity(self)

    def zero(self) -> Column:
        """NULL, as SQL has it for no rows."""
        from pyspark.sql import functions as sf

        return sf.lit(None)


class Count(Aggregate):
    """Number of rows (`Count()`), or of rows in which a column is not NULL (`Count("col")`).

    The result is a bigint, 0 for no rows.
    """

    def __init__(self, column: str | None = None) -> None:
        self.column = column

    def __repr__(self) -> str:
        return identity(self)

    def partial(self) -> Column:
        """count(*) or count(column)."""
        from pyspark.sql import functions as sf

        return sf.count("*" if self.column is None else sf.col(quoted(self.column)))

    def combine(self, stored: Column, partial: Column) -> Column:
        """The sum of both; NULL counts as 0."""
        from pyspark.sql import functions as sf

        zero = sf.lit(0).cast("bigint")
        return sf.coalesce(stored, zero) + sf.coalesce(partial, zero)

    def zero(self) -> Column:
        """0."""
        from pyspark.sql import functions as sf

        return sf.lit(0).cast("bigint")


class Sum(_OfColumn):
    """Sum of a column over the rows where it is not NULL; NULL when there are none.

    Integers add up to bigint, decimals to decimal(precision + 10, scale), as in Spark's SQL. A sum
    that leaves its type's range is an error (ARITHMETIC_OVERFLOW), never a wrapped number.
    """

    def partial(self) -> Column:
        """sum(column)."""
        from pyspark.sql import functions as sf

        return sf.sum(sf.col(quoted(self.column)))

    def combine(self, stored: Column, partial: Column) -> Column:
        """The sum of those that are not NULL."""
        from pyspark.sql import functions as sf

        return sf.coalesce(stored + partial, stored, partial)


class Min(_OfColumn):
    """Smallest value of a column, NULL when there is none. NaN is the greatest number."""

    def partial(self) -> Column:
        """min(column)."""
        from pyspark.sql import functions as sf

        return sf.min(sf.col(quoted(self.column)))

    def combine(self, stored: Column, partial: Column) -> Column:
        """The smaller of those that are not NULL."""
        from pyspark.sql import functions as sf

        return sf.least(stored, partial)


class Max(_OfColumn):
    """Greatest value of a column, NULL when there is none. NaN is the greatest number."""

    def partial(self) -> Column:
        """max(column)."""
        from pyspark.sql import functions as sf

        return sf.max(sf.col(quoted(self.column)))

    def combine(self, stored: Column, partial: Column) -> Column:
        """The greater of those that are not NULL."""
        from pyspark.sql import functions as sf

        return sf.greatest(stored, partial)
