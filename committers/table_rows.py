"""Read a topology's table as a DataFrame: by its log, or by the paths of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from txn.delta.delta_rs import DeltaError
from txn.delta.loading import load, require
from txn.errors import TableRefusedError
from txn.spark.file_reader import KnownFile, known_parquet
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["known_files", "read_table", "strict_reader"]

_STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def strict_reader(session: SparkSession, schema: StructType, storage: Storage) -> DataFrameReader:
    """A reader of a table's files by path; a missing or broken file is an error.

    Whatever the session's settings: a skipped row is a wrong total.
    """
    return session.read.schema(schema).options(**storage.hadoop, **_STRICT)


def known_files(
    session: SparkSession, schema: StructType, storage: Storage, files: Sequence[tuple[str, int]]
) -> DataFrame:
    """The same rows as `strict_reader` reads, without a request for each file before the job.

    Args:
        files: (path, bytes) of each.
    """
    listed = [KnownFile(storage.url(path), size) for path, size in files]
    rows = known_parquet(session, schema, listed, {**storage.hadoop, **_STRICT})
    if rows is not None:
        return rows
    paths = [storage.read_url(path) for path, _ in files]
    return strict_reader(session, schema, storage).parquet(*paths)


def read_table(
    spark: SparkSession,
    storage: Storage,
    version: int | None = None,
    *,
    follow: bool = False,
) -> tuple[DataFrame, Mapping[str, str | None]]:
    """(all columns of a version, the newest if None; the table's properties in that version).

    Later versions do not show, unless `follow`: then each query sees the newest one.

    Raises:
        TableRefusedError: the version does not exist.
        TableAbsentError: the table does not exist.
    """
    from pyspark.errors import AnalysisException

    table = require(storage)
    newest = table.version()
    as_of = newest if version is None else version
    reader = spark.read.format("delta").options(**storage.hadoop)
    if not follow:
        reader = reader.option("versionAsOf", as_of)
    try:
        rows = reader.load(storage.url())
        if as_of != newest:
            table = load(storage, as_of)
        return rows, table.metadata().configuration
    except (AnalysisException, DeltaError) as error:
        raise TableRefusedError(
            f"Version {as_of} of table {storage.location} cannot be read: it was never written, "
            f"or was cleaned out of the log. The newest version is {newest}.",
            number="TXN-309",
        ) from error
