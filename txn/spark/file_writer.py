"""Delta's own writer without a commit: Parquet files that their tasks' commits report.

A task attempt gives each of its files a random name, writes it once in its final place, and reports
its name and size to the driver when it commits. Nothing is renamed, copied or listed. A task that
goes on after another attempt took its place has files of other names, which nobody reports.

PySpark does not offer that writer, so this module calls it in the JVM. Without a JVM, or with
another version of Delta, `FileWriter.write` returns None before any job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from txn.spark.differences import no_partitions_in_files, unwritten_snapshot
from txn.spark.jvm import faster, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["COLLECT_STATISTICS", "FileWriter", "WrittenFile"]

_NO_LOG = "data/_delta_log"
"""Below the root; never created. Delta checks once whether it exists."""
_ALL_STATISTICS = {"delta.dataSkippingNumIndexedCols": "-1"}
"""Collect statistics of all columns, if the session collects any."""
_MAY_BE_NULL = frozenset(["nullable", "containsNull", "valueContainsNull"])
_PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
COLLECT_STATISTICS = "spark.databricks.delta.stats.collect"
"""A session's setting: true if tasks collect Delta's statistics of their files."""
_SUBFOLDER = "org$apache$spark$sql$delta$files$TransactionalWrite$_setter_$deltaDataSubdir_$eq"
"""Delta's transaction has a folder for its files, which a setting can only name `data`."""
_SLOWER = "Each staging job writes a Delta table of its own first: five times the requests."


@dataclass(frozen=True)
class WrittenFile:
    """A file of a finished job."""

    path: str
    """Relative to the root."""
    size: int
    """Bytes, as the task's storage reported right after the write."""
    partition: Mapping[str, str | None]
    """Partition column -> value."""
    stats: str | None = None
    """Delta's statistics as JSON, if the session of the rows collects them
    (`spark.databricks.delta.stats.collect`)."""


class FileWriter:
    """Writes rows into folders below one root. Thread-safe.

    Args:
        root: in the form Spark takes.
        conf: settings of Hadoop and Parquet for every job.
    """

    def __init__(self, root: str, conf: Mapping[str, str]) -> None:
        self._root = root
        self._conf = dict(conf)
        self._delta: _Delta | None = None

    def write(
        self, rows: DataFrame, folder: str, partition_by: str | None = None
    ) -> list[WrittenFile] | None:
        """Run one job; returns its files, perhaps some without rows. None: this session cannot.

        The session of `rows` provides the settings for writing.

        Args:
            folder: below the root; new.
        """
        session = rows.sparkSession
        jvm = jvm_of(session)
        if jvm is None:
            return None
        delta = faster(lambda: self._delta_in(jvm), _SLOWER)
        if delta is None:
            return None
        with _active(session, delta.sessions):
            files = faster(
                lambda: delta.transaction(rows, folder, partition_by).writeFiles(rows._jdf),
                _SLOWER,
            )
            if files is None:
                return None
            files_json = delta.to_json(files, None)
        return [
            WrittenFile(file["path"], file["size"], file["partitionValues"], file.get("stats"))
            for file in json.loads(files_json)
        ]

    def _delta_in(self, jvm: Any) -> _Delta:
        """Delta in this JVM; drops one made for an earlier JVM, which has ended."""
        if self._delta is None or self._delta.jvm is not jvm:
            self._delta = _Delta(jvm, self._root, self._conf)
        return self._delta


class _Delta:
    """Delta's classes in one JVM, and the objects that all jobs share there.

    Everything is resolved and made once: a class name takes one call into Java per part, and a
    small batch would wait for thirty of them.
    """

    def __init__(self, jvm: Any, root: str, conf: dict[str, str]) -> None:
        self.jvm = jvm
        self._root = root
        self._conf = conf
        delta = jvm.org.apache.spark.sql.delta
        self.sessions = jvm.org.apache.spark.sql.SparkSession
        self.to_json = delta.util.JsonUtils.toJson
        self._transaction = delta.OptimisticTransaction
        self._option = jvm.scala.Option.apply
        self._nothing = jvm.scala.Option.empty()
        self._tables: dict[tuple[str, str | None], Any] = {}
        """(columns, partition column) -> a table with them that does not exist."""

    def transaction(self, rows: DataFrame, folder: str, partition_by: str | None) -> Any:
        """A transaction of a table that does not exist, with these columns."""
        key = rows.schema.json(), partition_by
        if key not in self._tables:
            self._tables[key] = self._table(rows, partition_by)
        transaction = self._transaction(self._log, self._nothing, self._tables[key])
        getattr(transaction, _SUBFOLDER)(self._option(folder))
        return transaction

    def _table(self, rows: DataFrame, partition_by: str | None) -> Any:
        delta = self.jvm.org.apache.spark.sql.delta
        action = delta.actions.Action.fromJson
        metadata = action(json.dumps(_metadata(rows, partition_by, self._conf)))
        protocol = self._option(action(json.dumps(_PROTOCOL)))
        log = self._log
        return unwritten_snapshot(delta, log, metadata, protocol, self._nothing)

    @cached_property
    def _log(self) -> Any:
        """The log of a table that does not exist, not in Delta's cache, which would grow."""
        path = self.jvm.org.apache.hadoop.fs.Path
        conf = self.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._conf)
        return self.jvm.org.apache.spark.sql.delta.DeltaLog(
            path(f"{self._root}/{_NO_LOG}"),
            path(self._root),
            conf,
            conf,
            self.jvm.org.apache.spark.util.SystemClock(),
            self._nothing,
        )


def _metadata(rows: DataFrame, partition_by: str | None, conf: Mapping[str, str]) -> dict[str, Any]:
    """Delta's metadata of a table with these columns; its configuration reaches Hadoop."""
    metadata = {
        "id": "staged",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_without_rules(rows.schema.jsonValue())),
        "partitionColumns": [] if partition_by is None else [partition_by],
        "configuration": {**conf, **no_partitions_in_files(), **_ALL_STATISTICS},
    }
    return {"metaData": metadata}


def _without_rules(schema: Any) -> Any:
    """Let every value of a schema be NULL; otherwise Delta checks each row."""
    if isinstance(schema, list):
        return [_without_rules(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {} if key == "metadata" else key in _MAY_BE_NULL or _without_rules(value)
        for key, value in schema.items()
    }


@contextmanager
def _active(session: SparkSession, sessions: Any) -> Iterator[None]:
    """Make a session the thread's active one: Delta takes some settings from it."""
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
