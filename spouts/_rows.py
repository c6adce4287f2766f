"""Rows that are written in the program, with failures among them, and DataFrames of such rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spouts._schemas import as_struct
from txn.spark.rows import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Row", "Rows", "frame_of"]

Row = tuple[Any, ...]
Rows = Sequence[Row | Exception]
"""Rows of one batch or partition; an exception among them is raised at emission."""


def frame_of(spark: SparkSession, rows: Sequence[Any], schema: str | StructType) -> DataFrame:
    """Make a DataFrame of rows without exceptions."""
    return local_frame(spark, list(rows), as_struct(schema, "a memory spout"))
