"""DataFrames of rows written in the program, without a Python task in the jobs over them.

`SparkSession.createDataFrame` keeps the rows of a list pickled: every job over them starts Python
workers, and takes three times as long as one over the same rows in Arrow's format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txn.spark.differences import arrow_frame
from txn.spark.lazy import sf, st

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

__all__ = ["local_frame", "no_rows", "verify_rows"]


def local_frame(spark: SparkSession, rows: Sequence[Any], schema: StructType) -> DataFrame:
    """Make the same DataFrame as `spark.createDataFrame(rows, schema)`.

    Raises:
        PySparkTypeError: a value is not of its column's type.
        PySparkValueError: a row has more or fewer values than the schema has columns, or a value
            does not fit its column's type.
    """
    if not rows:
        return no_rows(spark, schema)
    if "decimal" in schema.simpleString():
        return spark.createDataFrame(rows, schema)  # rounds half up; PySpark's Arrow half to even
    verify_rows(rows, schema)  # Arrow would turn 1.5 into 1 for a bigint
    return arrow_frame(spark, rows, schema)


def verify_rows(rows: Sequence[Any], schema: StructType) -> None:
    """Refuse values that are not of the columns' types; raises like `local_frame`."""
    verify = st._make_type_verifier(schema)
    for row in rows:
        verify(row)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """An empty DataFrame that Spark's optimizer recognises as empty."""
    columns = [_null(field) for field in schema]
    # The optimizer does not see that a range alone is empty: a join would compare each key with a
    # NULL, and be refused as a cartesian product (spark.sql.crossJoin.enabled=false).
    return spark.range(0).where(sf.lit(False)).select(*columns)


def _null(field: StructField) -> Column:
    """NULL as a column, with the comment of another one."""
    null, comment = sf.lit(None).cast(field.dataType), field.metadata.get("comment")
    if comment is None:
        return null.alias(field.name)
    return null.alias(field.name, metadata={"comment": comment})
