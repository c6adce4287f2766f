"""Read exactly the given Parquet files of a Delta table; and the columns of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from spouts._schemas import as_nullable
from spouts._uris import literal
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["scan", "struct_of"]

Partition = tuple[tuple[str, str | None], ...]
"""(column, value as Delta writes it), in a fixed order."""


def struct_of(schema: str, *, changes: bool = False) -> st.StructType:
    """Return the columns as Spark reads them: all nullable, without Delta's metadata.

    Args:
        schema: JSON, from the table's metadata.
        changes: True to add the columns of Delta's change data feed.
    """
    stored = as_nullable(st.StructType.fromJson(json.loads(schema)))
    fields = [st.StructField(field.name, field.dataType, True) for field in stored]
    if changes:
        fields += [
            st.StructField("_change_type", st.StringType()),
            st.StructField("_commit_version", st.LongType()),
            st.StructField("_commit_timestamp", st.TimestampType()),
        ]
    return st.StructType(fields)


def scan(
    spark: SparkSession,
    files: Sequence[tuple[str, Partition]],
    schema: StructType,
    options: Mapping[str, str],
) -> DataFrame:
    """Return the rows of these files, with the partition columns from the log.

    Args:
        files: (URL, partition) of at least one file; one scan per partition.
        options: Spark's options to reach the files.
    """
    groups: dict[Partition, list[str]] = {}
    for url, partition in files:
        groups.setdefault(partition, []).append(literal(url))
    frames = [
        _read(spark, urls, schema, dict(partition), options) for partition, urls in groups.items()
    ]
    return reduce(lambda one, other: one.union(other), frames)


def _read(
    spark: SparkSession,
    paths: list[str],
    schema: st.StructType,
    partition: Mapping[str, str | None],
    options: Mapping[str, str],
) -> DataFrame:
    stored = st.StructType([field for field in schema if field.name not in partition])
    # Settings of the session must not turn a missing file into missing rows.
    loud = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "mergeSchema": "false"}
    rows = spark.read.schema(stored).options(**loud, **options).parquet(*paths)
    columns = [
        sf.lit(partition[field.name] or None).cast(field.dataType).alias(field.name)
        if field.name in partition
        else sf.col(quoted(field.name))
        for field in schema
    ]
    return rows.select(*columns)
