"""Delta's own writer without a commit: Parquet files that are known from their tasks' commits.

A task attempt gives each of its files a random name, writes it once, where it stays, and tells the
driver its name and size when it commits. Nothing is renamed, copied or listed. A task that goes on
after another attempt took its place has files of other names, which nobody has told of.

PySpark has no name for that writer, so it is asked for in the JVM. Where there is none, or another
version of Delta, `FileWriter.write` says so, before any job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txn.spark.jvm import if_known, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["COLLECT_STATISTICS", "PARTITIONS_IN_FILES", "FileWriter", "WrittenFile"]

_NO_LOG = "data/_delta_log"
"""Below the root; never made. Delta looks once whether there is one."""
_ALL_STATISTICS = {"delta.dataSkippingNumIndexedCols": "-1"}
"""Where a session has statistics collected: of all columns."""
_MAY_BE_NULL = frozenset(["nullable", "containsNull", "valueContainsNull"])
_PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
COLLECT_STATISTICS = "spark.databricks.delta.stats.collect"
"""A session's setting: whether tasks collect Delta's statistics of their files."""
PARTITIONS_IN_FILES = "delta.writePartitionColumnsToParquet"
"""A table's property: whether files have partition columns, too, as is the default of Delta 4.4."""
_SUBFOLDER = "org$apache$spark$sql$delta$files$TransactionalWrite$_setter_$deltaDataSubdir_$eq"
"""Delta's transaction has a folder for its files, which a setting can only name `data`."""


@dataclass(frozen=True)
class WrittenFile:
    """A file of a job that has ended."""

    path: str
    """Relative to the root."""
    size: int
    """Bytes, as the task's storage told right after it was written."""
    partition: Mapping[str, str | None]
    """Partition column -> value."""
    stats: str | None = None
    """Delta's statistics as JSON, if the session of the rows says that they are collected
    (`spark.databricks.delta.stats.collect`)."""


class FileWriter:
    """Writes rows into folders below one root. Thread-safe.

    Args:
        root: as Spark takes it.
        conf: settings of Hadoop and Parquet for each job.
    """

    def __init__(self, root: str, conf: Mapping[str, str]) -> None:
        self._root = root
        self._conf = dict(conf)
        self._log: tuple[Any, Any] | None = None
        """The JVM, and the log there that the transactions of all jobs have."""

    def write(
        self, rows: DataFrame, folder: str, partition_by: str | None = None
    ) -> list[WrittenFile] | None:
        """Run one job; its files, some perhaps without rows. None: this session cannot.

        Settings for writing are those of the session of `rows`.

        Args:
            folder: below the root; new.
        """
        session = rows.sparkSession
        jvm = jvm_of(session)
        if jvm is None:
            return None
        with _active(session, jvm):
            transaction = if_known(lambda: self._transaction(jvm, rows, folder, partition_by))
            if transaction is None:
                return None
            files = if_known(lambda: transaction.writeFiles(rows._jdf))
            if files is None:
                return None
            told = jvm.org.apache.spark.sql.delta.util.JsonUtils.toJson(files, None)
        return [
            WrittenFile(file["path"], file["size"], file["partitionValues"], file.get("stats"))
            for file in json.loads(told)
        ]

    def _transaction(self, jvm: Any, rows: DataFrame, folder: str, partition_by: str | None) -> Any:
        """A transaction of a table that does not exist, with these columns."""
        delta = jvm.org.apache.spark.sql.delta
        action, option = delta.actions.Action.fromJson, jvm.scala.Option
        metadata = action(json.dumps(_metadata(rows, partition_by, self._conf)))
        protocol = option.apply(action(json.dumps(_PROTOCOL)))
        log = self._log_in(jvm)
        table = delta.DummySnapshot(log.logPath(), log, metadata, option.empty(), protocol)
        transaction = delta.OptimisticTransaction(log, option.empty(), table)
        getattr(transaction, _SUBFOLDER)(option.apply(folder))
        return transaction

    def _log_in(self, jvm: Any) -> Any:
        """The log of a table that does not exist: never in Delta's cache, which would grow."""
        if self._log is None or self._log[0] is not jvm:
            path = jvm.org.apache.hadoop.fs.Path
            conf = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._conf)
            log = jvm.org.apache.spark.sql.delta.DeltaLog(
                path(f"{self._root}/{_NO_LOG}"),
                path(self._root),
                conf,
                conf,
                jvm.org.apache.spark.util.SystemClock(),
                jvm.scala.Option.empty(),
            )
            self._log = (jvm, log)
        return self._log[1]


def _metadata(rows: DataFrame, partition_by: str | None, conf: Mapping[str, str]) -> dict[str, Any]:
    """Delta's metadata of a table of these columns; its configuration reaches Hadoop."""
    metadata = {
        "id": "staged",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_without_rules(rows.schema.jsonValue())),
        "partitionColumns": [] if partition_by is None else [partition_by],
        "configuration": {**conf, PARTITIONS_IN_FILES: "false", **_ALL_STATISTICS},
    }
    return {"metaData": metadata}


def _without_rules(schema: Any) -> Any:
    """A schema in which any value may be NULL: Delta would check each row."""
    if isinstance(schema, list):
        return [_without_rules(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {} if key == "metadata" else key in _MAY_BE_NULL or _without_rules(value)
        for key, value in schema.items()
    }


@contextmanager
def _active(session: SparkSession, jvm: Any) -> Iterator[None]:
    """Make a session the thread's: Delta takes some settings from there."""
    sessions = jvm.org.apache.spark.sql.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
