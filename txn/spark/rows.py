"""DataFrames of rows that are written in the program, without a Python task in the jobs over them.

`SparkSession.createDataFrame` of a list keeps the rows pickled: every job over them starts Python
workers, and takes three times as long as one over the same rows in Arrow's format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["local_frame", "no_rows", "verify_rows"]


def local_frame(spark: SparkSession, rows: Sequence[Any], schema: StructType) -> DataFrame:
    """The DataFrame that `spark.createDataFrame(rows, schema)` is.

    Raises:
        PySparkTypeError: a value is not of its column's type.
        PySparkValueError: a row has not as many values as there are columns, or a value does not
            fit its column's type.
    """
    from pyspark.sql.conversion import LocalDataToArrowConversion

    if not rows:
        return no_rows(spark, schema)
    if "decimal" in schema.simpleString():
        return spark.createDataFrame(rows, schema)  # rounds half up; PySpark's Arrow half to even
    verify_rows(rows, schema)  # Arrow would take 1.5 for a bigint, and make 1 of it
    return spark.createDataFrame(LocalDataToArrowConversion.convert(rows, schema, False), schema)


def verify_rows(rows: Sequence[Any], schema: StructType) -> None:
    """Refuse values that are not of the columns' types; raises as `local_frame`."""
    from pyspark.sql.types import _make_type_verifier

    verify = _make_type_verifier(schema)
    for row in rows:
        verify(row)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows, known as such to Spark's optimizer."""
    from pyspark.sql import functions as sf

    columns = [sf.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    # Of a range alone the optimizer does not see it: a join would compare each key with a NULL, and
    # be refused as a cartesian product (spark.sql.crossJoin.enabled=false).
    return spark.range(0).where(sf.lit(False)).select(*columns)
