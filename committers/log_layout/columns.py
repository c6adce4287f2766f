"""The columns of a log table: partial aggregates, their txid, marks of removal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from committers.state.changes import refuse_taken_names
from committers.state.partials import nullable
from committers.state.removal import REMOVED
from committers.state.shape import StateShape
from txn.delta.commits import TXID
from txn.interfaces import Aggregate
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["LogLayout"]


@dataclass(frozen=True)
class LogLayout:
    """Keys, aggregates and the columns that follow from them.

    Args:
        keys: grouping columns; empty for one global row.
        aggregates: value column -> aggregate.
        remove_where: SQL condition over keys and values, as readers see them: a key of the batch
            that satisfies it after the update is removed; None: keys stay.
    """

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    remove_where: str | None = None

    @property
    def removes(self) -> bool:
        """True if keys may be removed: then the table has marks."""
        return self.remove_where is not None

    def table_schema(self, partials: StructType) -> StructType:
        """Columns of the table, given those of the partials."""
        from pyspark.sql.types import BooleanType, LongType, StructType

        schema = StructType([*partials.fields]).add(TXID, LongType())
        return schema.add(REMOVED, BooleanType()) if self.removes else schema

    def shown(self, rows: DataFrame) -> DataFrame:
        """Keys and values of the table's rows, as readers see them."""
        return StateShape(self.keys, self.aggregates, 0, self.removes, "log").shown(rows)

    def shown_schema(self, spark: SparkSession, partials: StructType) -> StructType:
        """Keys and values as readers see them, given the columns of the partials. Runs no job."""
        return self.shown(no_rows(spark, self.table_schema(partials))).schema

    def changes_schema(self, spark: SparkSession, partials: StructType, table: str) -> StructType:
        """Keys, values and `prev_<value>`, given the columns of the partials. Runs no job.

        Raises:
            TopologyError: a `prev_<value>` is the name of a key or another value.
        """
        from pyspark.sql.types import StructField, StructType

        refuse_taken_names(self.keys, tuple(self.aggregates), table)
        shown = {
            field.name: nullable(field.dataType) for field in self.shown_schema(spark, partials)
        }
        previous = {f"prev_{name}": shown[name] for name in self.aggregates}
        return StructType([StructField(*column) for column in (shown | previous).items()])
