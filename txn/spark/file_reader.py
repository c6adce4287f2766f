"""Parquet files that are known already, as a DataFrame: none is looked at, and nothing is listed.

Before Spark reads a path it asks whether it is there, whether it is a folder, what lies below it,
and how large it is: on an object store four requests, one after the other, for every file. A file
that is not there is noticed when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from txn.spark.jvm import if_known, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KnownFile", "known_parquet"]


@dataclass(frozen=True)
class KnownFile:
    """A file as storage has it."""

    url: str
    """As Spark takes it; no pattern."""
    size: int
    """Bytes."""
    mtime_ms: int = 0
    """Time of the last change, milliseconds since 1970; 0: not known."""


def known_parquet(
    session: SparkSession,
    schema: StructType,
    files: Sequence[KnownFile],
    options: Mapping[str, str],
) -> DataFrame | None:
    """The rows of exactly these files. None: this session cannot; ask Spark's own reader.

    Args:
        schema: the columns to read; names differ not only in case.
        options: of Spark's reader, but for `basePath`: no column comes from a path.

    Raises:
        AnalysisException: Parquet has no such columns.
    """
    from pyspark.sql import DataFrame

    jvm = jvm_of(session)
    if jvm is None:
        return None
    found = if_known(lambda: _relation(jvm, session, schema, files, options))
    return None if found is None else DataFrame(found, session)


def _relation(
    jvm: Any,
    session: SparkSession,
    schema: StructType,
    files: Sequence[KnownFile],
    options: Mapping[str, str],
) -> Any:
    inside, gateway = session._jsparkSession, cast("Any", session.sparkContext._gateway)
    sources = jvm.org.apache.spark.sql.execution.datasources
    to_scala, none = jvm.org.apache.spark.api.python.PythonUtils, jvm.scala.Option.empty()
    columns = inside.parseDataType(schema.json()).asNullable()
    reader = sources.parquet.ParquetFileFormat()
    sources.DataSourceUtils.verifySchema(reader, columns, True)
    given = to_scala.toScalaMap(dict(options))
    # The listing's cache, in which all of them are found: its own entries, deleted at once.
    listed = sources.FileStatusCache.getOrCreate(inside)
    # Looked up once: a name takes a call for each of its parts.
    path_of, status = jvm.org.apache.hadoop.fs.Path, jvm.org.apache.hadoop.fs.FileStatus
    paths = [path_of(file.url) for file in files]
    for path, file in zip(paths, files, strict=True):
        found = gateway.new_array(status, 1)
        found[0] = status(file.size, False, 1, 0, file.mtime_ms, path)
        listed.putLeafFiles(path, found)
    index = sources.InMemoryFileIndex(
        inside, to_scala.toSeq(paths), given, jvm.scala.Option.apply(columns), listed, none, none
    )
    listed.invalidateAll()
    no_columns = jvm.org.apache.spark.sql.types.StructType()
    relation = sources.HadoopFsRelation(index, no_columns, columns, none, reader, given, inside)
    return inside.baseRelationToDataFrame(relation)
