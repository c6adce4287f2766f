"""The description of a state table: keys, aggregates, hash buckets, removal, and what readers see.

A committer makes it from the program, a reader from the table's properties
(`committers.state.properties`). The two layouts differ in the rows that they store
(`committers.state.layouts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from committers.expressions import bigint
from committers.state.expiring import BOUND, after_bound, hidden_values, require_time
from committers.state.partials import nullable, overrides
from txn.changes import STORED
from txn.errors import TopologyError
from txn.interfaces import Aggregate, Expiry
from txn.spark.event_times import null_time
from txn.spark.lazy import sf, st
from txn.spark.names import passing, quoted
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType
    from typing_extensions import Self

__all__ = ["StateShape", "stored_name", "types_with"]

_NOW = passing("now")


@dataclass(frozen=True)
class StateShape(ABC):
    """The description of a state table. Each layout is a subclass, which defines the rows.

    Args:
        keys: grouping columns; empty for one global row.
        aggregates: value column -> aggregate.
        remove_where: SQL condition over keys and values, as readers see them: a key of the batch
            that satisfies it after the update is removed; None: keys stay.
        buckets: number of hash buckets; 0 without buckets.
        keeps_previous: True if rows carry their previous values, `prev_<value>` and `prev_txid`.
        expiry: when keys end; None: never.
        watermark: that of the txid as of which rows are shown; None: no key has ended.
        apart: values that the table holds as readers see them, with the stored form in a column
            of its own (`stored_name`).
    """

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    remove_where: str | None = None
    buckets: int = 0
    keeps_previous: bool = False
    expiry: Expiry | None = None
    watermark: int | None = None
    apart: frozenset[str] = frozenset()

    readers_merge: ClassVar[bool]
    """True if a reader needs every aggregate, because a key has several rows."""

    @property
    def values(self) -> tuple[str, ...]:
        """The value columns that readers see."""
        return tuple(self.aggregates)

    @property
    def stored(self) -> Mapping[str, Aggregate]:
        """Value column -> aggregate, with those of the end of keys, which no reader sees."""
        return {**self.aggregates, **hidden_values(self.expiry)}

    @property
    def ends_by_event(self) -> bool:
        """True if a key ends by its last event, so that it may begin anew."""
        return self.expiry is not None and self.expiry.by == "last event"

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The columns of a batch's rows that the partials read, each once."""
        inputs = [name for aggregate in self.stored.values() for name in aggregate.columns]
        return tuple(dict.fromkeys((*self.keys, *inputs)))

    # --- what a layout defines ---------------------------------------------------------------

    @property
    @abstractmethod
    def kind(self) -> str:
        """The table's property `txn.kind`."""

    @property
    @abstractmethod
    def bookkeeping(self) -> tuple[str, ...]:
        """The table's own columns, in their order, besides keys and values."""

    @property
    @abstractmethod
    def keeps_removed(self) -> bool:
        """True if the table has rows of removed keys, and a column that marks them."""

    @abstractmethod
    def table_schema(
        self, spark: SparkSession, partials: StructType, turn: SparkSession | None = None
    ) -> StructType:
        """Columns of the table, given those of the partials. Runs no job.

        Args:
            turn: the session that computes the values that the table shows; None: as `spark`.
        """

    @abstractmethod
    def shown_value(self, name: str, stored: Column) -> Column:
        """The value of `name` that readers see, given the stored one of a key with one row."""

    @abstractmethod
    def living(self, rows: DataFrame) -> DataFrame:
        """One row for each key that readers see: keys and values as stored."""

    @abstractmethod
    def shown(self, rows: DataFrame) -> DataFrame:
        """Keys and values of the table's rows, as readers see them, without removed keys."""

    # --- what readers see --------------------------------------------------------------------

    def at(self, watermark: int | None) -> Self:
        """The same shape, as of a txid with this watermark."""
        return self if self.expiry is None else replace(self, watermark=watermark)

    def unended(self, rows: DataFrame) -> DataFrame:
        """The stored rows that have not ended."""
        return rows.where(self.not_ended(rows.schema)) if self._hides else rows

    def not_ended(
        self,
        columns: st.StructType,
        column: Callable[[str], Column] | None = None,
        *,
        as_literal: bool = True,
    ) -> Column:
        """The condition that a stored row has not ended.

        Args:
            columns: those of the rows.
            column: name -> column; None: those of the rows.
            as_literal: Spark compares a literal with the statistics of Parquet files, and compiles
                a query anew for each one.
        """
        if self.expiry is None or self.watermark is None:
            return sf.lit(True)
        bound = self.expiry.bound(self.watermark)
        time = sf.timestamp_micros(sf.lit(bound) if as_literal else bigint(bound))
        return after_bound(self.expiry, self.keys, columns, time, column or _column)

    def view(self, rows: DataFrame) -> DataFrame:
        """Keys and values of rows that grow, as of the newest txid that has brought some."""
        if BOUND not in self.stored:
            return self.shown(rows)
        now = rows.agg(sf.greatest(sf.max(BOUND), self._bound()).alias(_NOW))
        living = self.at(None).living(rows).crossJoin(sf.broadcast(now))
        assert self.expiry is not None
        bound = sf.col(quoted(_NOW))
        is_left = after_bound(self.expiry, self.keys, living.schema, bound, _column)
        return self._select(living.where(bound.isNull() | is_left), self.shown_value)

    def _bound(self) -> Column:
        if self.expiry is None or self.watermark is None:
            return null_time()
        return sf.timestamp_micros(sf.lit(self.expiry.bound(self.watermark)))

    @property
    def _hides(self) -> bool:
        return self.expiry is not None and self.watermark is not None

    def shown_once(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Keys and values as readers see them, of living rows with each key once."""
        return self._select(self.unended(rows), self.shown_value, *others)

    def shown_alone(self, partials: DataFrame) -> DataFrame:
        """Keys and values as readers see them, of a state with these partials only.

        Args:
            partials: one row per key.
        """
        shown = self._select(partials, self._value_of_partial)
        if self.remove_where is None:
            return shown
        return shown.where(~sf.coalesce(sf.expr(self.remove_where), sf.lit(False)))

    def _value_of_partial(self, name: str, partial: Column) -> Column:
        aggregate = self.aggregates[name]
        return aggregate.result(aggregate.initial(partial))

    def _select(
        self, rows: DataFrame, value: Callable[[str, Column], Column], *others: Column
    ) -> DataFrame:
        keys = (sf.col(quoted(key)) for key in self.keys)
        apart = self.apart_in(rows.columns)
        values = (
            sf.col(quoted(name)) if name in apart else value(name, _column(name)).alias(name)
            for name in self.values
        )
        return rows.select(*keys, *values, *others)

    # --- values as readers see them, in the table --------------------------------------------

    def apart_in(self, columns: Collection[str]) -> frozenset[str]:
        """The values that a table with these columns holds as readers see them."""
        own = {*self.keys, *self.values}
        forms = {name: stored_name(name) for name in self.values}
        return frozenset(n for n, form in forms.items() if form in columns and form not in own)

    def as_stored(self, rows: DataFrame) -> DataFrame:
        """The rows of the table, with each value's stored form under its name."""
        names = self._stored_names(rows.columns)
        if len(names) == len(rows.columns):
            return rows
        return rows.select(*(_column(held).alias(name) for name, held in names.items()))

    def stored_schema(self, table: st.StructType) -> st.StructType:
        """The columns of `as_stored`, given those of the table."""
        names = self._stored_names(table.fieldNames())
        return st.StructType([st.StructField(n, table[held].dataType) for n, held in names.items()])

    def _stored_names(self, columns: Sequence[str]) -> dict[str, str]:
        """Column of `as_stored` -> that of the table, given all of the table's."""
        apart = self.apart_in(columns)
        forms = {stored_name(name) for name in apart}
        kept = [name for name in columns if name not in forms]
        return {name: stored_name(name) if name in apart else name for name in kept}

    def shown_schema(self, spark: SparkSession, table: st.StructType) -> st.StructType:
        """Keys and values as readers see them, given the table's columns. Runs no job."""
        differ = {
            name: self.shown_value(name, sf.col(quoted(name)))
            for name, aggregate in self.aggregates.items()
            if overrides(aggregate, "initial") or overrides(aggregate, "result")
        }
        types = types_with(spark, self.stored_schema(table), differ)
        return st.StructType(
            [st.StructField(name, types[name]) for name in (*self.keys, *self.values)]
        )

    # --- changes -----------------------------------------------------------------------------

    def require_changes(self, table: str) -> None:
        """Refuse a table whose changes would have two columns of one name.

        Raises:
            TopologyError: a `prev_<value>` is the name of a key or another value.
        """
        taken = {name.lower() for name in (*self.keys, *self.values)}
        for name in self.values:
            if f"prev_{name}".lower() in taken:
                raise TopologyError(
                    f"The new values of state table {table} need a column 'prev_{name}' for the "
                    f"previous value of '{name}', but the table has one already. Rename it.",
                    number="TXN-113",
                )

    def require_time(self, columns: st.StructType, table: str) -> None:
        """Refuse keys that cannot end by this rule.

        Args:
            columns: those of the table.

        Raises:
            TopologyError: naming the reason.
        """
        if self.expiry is not None:
            require_time(self.expiry, self.keys, columns, table)

    def changes_schema(
        self, spark: SparkSession, columns: st.StructType, table: str
    ) -> st.StructType:
        """Keys, values and `prev_<value>`, given the columns of the table. Runs no job."""
        self.require_changes(table)
        shown = self.shown_schema(spark, columns)
        previous = [st.StructField(f"prev_{name}", shown[name].dataType) for name in self.values]
        return st.StructType([*shown.fields, *previous])

    def change_columns(
        self,
        keys: Iterable[Column],
        after: Callable[[str], Column],
        exists: Column,
        before: Callable[[str], Column],
        existed: Column,
    ) -> list[Column]:
        """The columns of changes, one row per touched key (Trident: `newValuesStream`).

        Args:
            after: value column -> the value that readers see now, if the key `exists`.
            before: value column -> the one that they saw before, if the key `existed`.
        """
        values = (sf.when(exists, after(name)).alias(name) for name in self.values)
        previous = (sf.when(existed, before(name)).alias(f"prev_{name}") for name in self.values)
        return [*keys, *values, *previous]


def stored_name(value: str) -> str:
    """The column with the stored form of a value that a table holds as readers see it."""
    return STORED + value


def _column(name: str) -> Column:
    return sf.col(quoted(name))


def types_with(
    spark: SparkSession, columns: StructType, expressions: Mapping[str, Column]
) -> dict[str, DataType]:
    """The types of columns, with those of expressions over them in their place. Runs no job."""
    types = {field.name: nullable(field.dataType) for field in columns}
    if expressions:
        computed = (expression.alias(name) for name, expression in expressions.items())
        analysed = no_rows(spark, columns).select(*computed).schema
        types |= {field.name: nullable(field.dataType) for field in analysed}
    return types
