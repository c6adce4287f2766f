"""Known Parquet files as a DataFrame, without a request for each file and without a listing.

Before Spark reads a path it asks whether it exists, whether it is a folder, what lies below it, and
how large it is: on an object store four requests, one after the other, for every file. Here a
missing file shows only when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from txn.spark.differences import verify_schema
from txn.spark.jvm import faster, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["KnownFile", "known_parquet"]

_SLOWER = "Every Parquet file is looked at before it is read: four more requests for each."


@dataclass(frozen=True)
class KnownFile:
    """A file in storage."""

    url: str
    """In the form Spark takes; not a pattern."""
    size: int
    """Bytes."""
    mtime_ms: int = 0
    """Time of the last change, milliseconds since 1970; 0 if unknown."""


def known_parquet(
    session: SparkSession,
    schema: StructType,
    files: Sequence[KnownFile],
    options: Mapping[str, str],
) -> DataFrame | None:
    """Read exactly these files. None: this session cannot; use Spark's own reader.

    Args:
        schema: the columns to read; their names differ in more than case.
        options: of Spark's reader, except `basePath`: no column comes from a path.

    Raises:
        AnalysisException: Parquet cannot hold such columns.
    """
    from pyspark.sql import DataFrame

    jvm = jvm_of(session)
    if jvm is None:
        return None
    relation = faster(lambda: _relation(jvm, session, schema, files, options), _SLOWER)
    return None if relation is None else DataFrame(relation, session)


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
    verify_schema(sources.DataSourceUtils, reader, columns)
    scala_options = to_scala.toScalaMap(dict(options))
    # The listing's cache gets an entry for each file here, and is emptied right afterwards.
    listed = sources.FileStatusCache.getOrCreate(inside)
    # Resolved once: a class name takes one call per part.
    path_of, status = jvm.org.apache.hadoop.fs.Path, jvm.org.apache.hadoop.fs.FileStatus
    paths = [path_of(file.url) for file in files]
    for path, file in zip(paths, files, strict=True):
        statuses = gateway.new_array(status, 1)
        statuses[0] = status(file.size, False, 1, 0, file.mtime_ms, path)
        listed.putLeafFiles(path, statuses)
    index = sources.InMemoryFileIndex(
        inside,
        to_scala.toSeq(paths),
        scala_options,
        jvm.scala.Option.apply(columns),
        listed,
        none,
        none,
    )
    listed.invalidateAll()
    no_columns = jvm.org.apache.spark.sql.types.StructType()
    relation = sources.HadoopFsRelation(
        index, no_columns, columns, none, reader, scala_options, inside
    )
    return inside.baseRelationToDataFrame(relation)
