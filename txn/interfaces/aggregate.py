"""The contract of an aggregation that can be kept as running state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["Aggregate", "combined", "merged", "partials_over"]

_TYPED = (("partial", "partial_of"), ("combine", "combine_as"), ("combine", "merge"))
"""(plain method, a typed method that does the same)."""


class Aggregate(ABC):
    """An aggregation that can be kept as running state. Source: Trident's `CombinerAggregator`.

    Everything is a Spark SQL expression, so no row ever reaches Python. `combine` must be
    associative and commutative, because rows come in any order.

    Tables call the typed methods: `partial_of`, `combine_as` and `merge`. By default these call the
    plain ones, `partial` and `combine`.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Use the plain method that a subclass overrides, not a typed one that it inherits."""
        super().__init_subclass__(**arguments)
        parents = [base for base in cls.__bases__ if issubclass(base, Aggregate)]

        def overrides(name: str) -> bool:
            return all(getattr(cls, name) is not getattr(parent, name) for parent in parents)

        for plain, typed in _TYPED:
            # If stored values are not partials, `combine` cannot merge partials.
            is_same = typed != "merge" or cls.initial is Aggregate.initial
            if is_same and overrides(plain) and not overrides(typed):
                setattr(cls, typed, getattr(Aggregate, typed))

    # Any: a mutable attribute of type `str | None` could not be narrowed to `str` by a subclass.
    column: Any = None
    """Name of the input column, for validation and error messages; None if it reads no column."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every input column, for validation: `column`, unless a subclass reads several."""
        return () if self.column is None else (self.column,)

    @abstractmethod
    def partial(self) -> Column:
        """Aggregate expression over the rows of one group of one batch (Trident: `init`).

        It serves every batch with the same columns in a Spark session, so it must not depend on
        anything that differs between batches.
        """

    @abstractmethod
    def combine(self, stored: Column, partial: Column) -> Column:
        """Scalar expression joining two partial results of one key; either may be SQL NULL."""

    def partial_of(self, kinds: Mapping[str, DataType]) -> Column:
        """`partial` over input columns of known types (by name), if the types matter.

        Raises:
            TopologyError: a type that the aggregate cannot take.
        """
        return self.partial()

    def combine_as(self, stored: Column, partial: Column, kind: DataType) -> Column:
        """`combine` for values of the type `kind`, if the type matters."""
        return self.combine(stored, partial)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """Aggregate expression over several partials of one key: the partial of all their rows.

        Group commit joins txids by it, and so do tables that store partials. The default applies
        `combine` to one after the other, in the order of txids. If SQL has an aggregate function
        for it (sum, max), override this: it is many times faster.

        Args:
            txid: the txid of each partial.
            kind: the type of `partial`.
        """
        from pyspark.sql import functions as sf

        entry = sf.struct(txid.alias("txid"), partial.alias("partial"))
        partials = sf.transform(sf.sort_array(sf.collect_list(entry)), lambda one: one["partial"])
        return sf.reduce(
            partials,
            sf.lit(None).cast(kind),
            lambda left, right: self.combine_as(left, right, kind).cast(kind),
        )

    @abstractmethod
    def zero(self) -> Column:
        """The partial of no rows at all: a global aggregate's value for an empty batch."""

    def initial(self, partial: Column) -> Column:
        """The stored value of a new key."""
        return partial

    def result(self, stored: Column) -> Column:
        """The value for readers: a sketch's estimate, an average's quotient."""
        return stored


def partials_over(rows: DataFrame, aggregates: Mapping[str, Aggregate]) -> dict[str, Column]:
    """Value -> its partial over these rows.

    Raises:
        TopologyError: a type that an aggregate cannot take.
    """
    exact = {field.name: field.dataType for field in rows.schema}
    lower = {name.lower(): kind for name, kind in exact.items()}
    named = {name for aggregate in aggregates.values() for name in aggregate.columns}
    # The aggregates' own names are the keys. Names that only Spark can resolve are left out.
    kind_by_name = {name: exact.get(name, lower.get(name.lower())) for name in named}
    kinds = {name: kind for name, kind in kind_by_name.items() if kind is not None}
    return {name: aggregate.partial_of(kinds) for name, aggregate in aggregates.items()}


def combined(aggregate: Aggregate, stored: Column, partial: Column, kind: DataType) -> Column:
    """`combine_as`, cast to `kind`."""
    return aggregate.combine_as(stored, partial, kind).cast(kind)


def merged(aggregate: Aggregate, partial: Column, txid: Column, kind: DataType) -> Column:
    """`merge`, cast to `kind`."""
    return aggregate.merge(partial, txid, kind).cast(kind)
