"""Columns and rows that are made of nothing that is stored, and names of those in passing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["bigint", "no_rows", "passing"]


def bigint(value: int) -> Column:
    """`value` as a bigint, such as a txid, that generated code refers to and does not contain.

    Spark writes a literal number into the code that it generates, so that each txid's code is new
    and compiled anew: 25 ms a job (measured: 88 against 62 ms for a batch of 1,000 rows, each its
    own txid). An array is referred to instead, and an index that the optimizer cannot compute
    keeps it from folding the element into a literal again.
    """
    from pyspark.sql import functions as sf

    always_one = sf.least(sf.spark_partition_id(), sf.lit(0)) + sf.lit(1)
    return sf.element_at(sf.array(sf.lit(value).cast("bigint")), always_one)


def passing(name: str) -> str:
    """The name of a column that is needed for a moment, beside those of a table.

    With a space, which Delta allows in no name: so no key and no value has it.
    """
    return f"txn {name}"


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows, known as such to Spark's optimizer; `createDataFrame([])` would run Python tasks."""
    from pyspark.sql import functions as sf

    columns = [sf.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    return spark.range(0).select(*columns)
