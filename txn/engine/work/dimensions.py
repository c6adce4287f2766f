"""Read the tables that streams look rows up in: others maintain them, a txid reads one version."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from txn.dataflow.graph import Dimension, Sink
from txn.delta.delta_rs import DeltaError, DeltaTable
from txn.delta.loading import damaged, file_sizes, load, require
from txn.errors import TableAbsentError, TopologyError, TxnError
from txn.interfaces import StoredRows
from txn.storage.retrying import retried
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Dimensions"]


class Dimensions:
    """The tables of the `Dimension` nodes of a program. Thread-safe."""

    def __init__(self, spark: SparkSession, sinks: Sequence[Sink]) -> None:
        self._spark = spark
        nodes = (node for sink in sinks for node in sink.parent.ancestors())
        self._nodes = {node.name: node for node in nodes if isinstance(node, Dimension)}
        self._loaded: dict[str, DeltaTable] = {}
        self._lock = threading.Lock()

    def versions(self) -> dict[str, int]:
        """Table -> its newest version.

        Raises:
            TopologyError: a table does not exist, or its log is damaged.
            StorageUnavailableError: its storage does not answer.
        """
        with self._lock:
            return {name: self._newest(node) for name, node in self._nodes.items()}

    def _newest(self, node: Dimension) -> int:
        storage = _storage(node)
        try:
            table = self._loaded.get(node.name)
            if table is None:
                table = self._loaded[node.name] = require(storage)
            else:
                retried(table.update_incremental, f"load the log of table {storage.location}")
            return table.version()
        except TableAbsentError as error:
            raise TopologyError(
                f"Stream '{node.label()}' looks rows up in table '{node.name}', which does not "
                "exist. Make it first, or correct the path.",
                number="TXN-124",
            ) from error
        except DeltaError as error:
            self._loaded.pop(node.name, None)
            effect = "Nothing of the batch was read."
            message = damaged(f"Table {storage.location}", error, effect)
            raise TopologyError(message, number="TXN-315") from error

    def columns(self, node: Dimension) -> DataFrame:
        """Return no rows, with the table's columns as of now."""
        with self._lock:
            version = self._newest(node)
        return self._read(node, version).limit(0)

    def rows(self, node: Dimension, version: int) -> StoredRows:
        """Read a version of the table, lazily."""
        return StoredRows(self._read(node, version), lambda: _missing_file(node, version))

    def _read(self, node: Dimension, version: int) -> DataFrame:
        from pyspark.errors import AnalysisException

        storage = _storage(node)
        reader = self._spark.read.format("delta").options(**storage.hadoop)
        try:
            return reader.option("versionAsOf", version).load(storage.url())
        except AnalysisException as error:
            raise TopologyError(
                f"Stream '{node.label()}' looks rows up in version {version} of table "
                f"'{node.name}', which cannot be read: it was cleaned out of the log, or another "
                "table is at that path now. An open txid has that version in its START. Restore "
                "the table, or commit the txid empty (on_exhausted='quarantine').",
                number="TXN-124",
            ) from error


def _storage(node: Dimension) -> Storage:
    return Storage(node.name, node.storage_options)


def _missing_file(node: Dimension, version: int) -> str | None:
    """Return a file of a version that is gone; None if all exist, or that is not known."""
    storage = _storage(node)
    try:
        return storage.first_missing(sorted(file_sizes(load(storage, version))))
    except (DeltaError, OSError, TxnError):
        return None
