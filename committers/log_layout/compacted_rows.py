"""The rows of a compaction: the partials in some files, merged by key."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from committers.publishing.files import ActiveFile
from committers.state.expiring import merged_where_certain, since_begun
from committers.state.layouts import LogLayout
from committers.state.merging import merged_by_key
from committers.state.removal import REMOVED, marks_of, without_removed
from committers.table_rows import strict_reader
from txn.delta.commits import TXID
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.spark.own_session import computing_session
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FILE_BYTES", "ONE_TASK_BYTES", "CompactedRows", "CompactionReader"]

ONE_TASK_BYTES = 64 * 1024 * 1024
"""Compressed bytes that one task compacts: without a shuffle, and in one slot of the cluster."""
FILE_BYTES = 128 * 1024 * 1024
"""Compressed input bytes per file of a larger result."""


class CompactionReader:
    """Reads the files of one table for a compaction.

    Args:
        storage: the table's folder.
        spark: the session of the run; a separate session beside it reads the files.
    """

    def __init__(self, storage: Storage, spark: Callable[[], SparkSession]) -> None:
        self._storage = storage
        self._spark = spark
        self._session: SparkSession | None = None

    def close(self) -> None:
        """Forget the session."""
        self._session = None

    def _own_session(self) -> SparkSession:
        """A session without adaptive changes to the plan: each task writes one file."""
        session = self._session
        if session is None:
            session = self._session = computing_session(
                self._spark(),
                {
                    "spark.sql.adaptive.enabled": "false",
                    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
                },
            )
        return session

    def _read(self, files: Sequence[ActiveFile], schema: StructType) -> DataFrame:
        reader = strict_reader(self._own_session(), schema, self._storage)
        return reader.parquet(*(self._storage.read_url(file.path) for file in files))

    def whole(self, files: Sequence[ActiveFile], schema: StructType) -> tuple[DataFrame, int]:
        """(all rows of files, in one task if they are small; the number of files for a result)."""
        rows, parts = self._read(files, schema), 1
        size = sum(file.size for file in files)
        if size <= ONE_TASK_BYTES:
            rows = rows.coalesce(1)
        else:
            parts = math.ceil(size / FILE_BYTES)
        # Even if one task compacts: other rows may be shuffled to it.
        self._own_session().conf.set("spark.sql.shuffle.partitions", str(parts))
        return rows, parts


class CompactedRows(CompactionReader):
    """Merges the rows of one table's files by key.

    Args:
        storage: the table's folder.
        spark: the session of the run; a separate session beside it reads the files.
    """

    def __init__(
        self, layout: LogLayout, storage: Storage, spark: Callable[[], SparkSession]
    ) -> None:
        super().__init__(storage, spark)
        self._layout = layout

    def rows(
        self,
        files: Sequence[ActiveFile],
        active: Sequence[ActiveFile],
        committed: int,
        schema: StructType,
        watermark: int | None,
    ) -> DataFrame:
        """The rows of `files`, one per key, in each file in the order of the keys.

        So a reader of some keys skips the rows between them.

        Args:
            active: all files of the table.
            committed: the newest committed txid.
            schema: the table's columns.
            watermark: that of `committed`; keys that have ended at it are left out.
        """
        layout = self._layout.at(watermark)
        rows, parts = self.whole(files, schema)
        keys = self._layout.keys
        if self._layout.keeps_removed:
            merged = self._with_marks(rows, files, active, committed, schema, layout)
            merged = merged.coalesce(parts)
        else:
            merged = _merged(rows, layout, files, active)
        return merged.sortWithinPartitions(*map(quoted, keys)) if keys else merged

    def _with_marks(
        self,
        rows: DataFrame,
        files: Sequence[ActiveFile],
        active: Sequence[ActiveFile],
        committed: int,
        schema: StructType,
        layout: LogLayout,
    ) -> DataFrame:
        """`rows` without keys removed since, and with the marks that are still needed.

        A compacted row gets the newest txid of its key, so drop every row that a mark voids, even a
        mark in a file that is not compacted. A mark stays as long as another file may have a row of
        its txid or before.
        """
        keys = self._layout.keys
        # Marks of uncommitted txids may be taken back.
        certain = self._read(
            [file for file in active if not file.holds_only(committed + 1)], schema
        )
        marks = marks_of(certain.where(sf.col(TXID) <= committed), keys)
        living = without_removed(rows, keys, marks)
        merged = _merged(living, layout, files, active)
        own = {file.path for file in files}
        left = [file for file in active if file.path not in own]
        oldest = min((file.txid_min or 0 for file in left), default=None)
        if oldest is None:
            return merged.withColumn(REMOVED, sf.lit(None).cast("boolean"))
        needed = marks_of(rows, keys).where(sf.col(TXID) >= oldest)
        return merged.unionByName(
            needed.withColumn(REMOVED, sf.lit(True)), allowMissingColumns=True
        ).select(*(sf.col(quoted(name)) for name in schema.fieldNames()))


def _merged(
    rows: DataFrame, layout: LogLayout, files: Sequence[ActiveFile], active: Sequence[ActiveFile]
) -> DataFrame:
    """The rows of `files` merged by key, without those of keys that have ended."""
    keys = layout.keys
    if not layout.ends_by_event:
        return merged_by_key(layout.unended(rows), keys, layout.stored, with_txid=True)
    own = {file.path for file in files}
    first = min(file.txid_min or 0 for file in files)
    if any((file.txid_min or 0) < first for file in active if file.path not in own):
        # Earlier partials decide which of these begin a key anew.
        return merged_where_certain(rows, keys, layout.stored)
    counted = since_begun(rows, keys)
    return layout.unended(merged_by_key(counted, keys, layout.stored, with_txid=True))
