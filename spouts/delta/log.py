"""Read the log of a Delta table that is a source: its new files, and their txids."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from txn.delta.commits import Commit, file_path, txid_in
from txn.delta.delta_rs import DeltaError
from txn.delta.loading import damaged, find
from txn.delta.log import TableLog
from txn.errors import RecoveryRefusedError, SourceChangedError
from txn.interfaces import StagedFile
from txn.storage.storage import Storage

__all__ = ["AddedFile", "SourceLog", "SourceVersion", "TableNow"]

_CACHED_VERSIONS = 1000
_WRITING_SECS = 1.0
"""Pause before a second read: a writer that is not atomic may be at the end of the log."""
_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")


@dataclass(frozen=True)
class AddedFile:
    """One file that a version adds with `dataChange`."""

    path: str
    """Relative to the table's folder, not percent-encoded."""
    size: int
    """Bytes."""
    rows: int | None
    """None where the log has no statistics."""
    partition: tuple[tuple[str, str | None], ...]
    txids: tuple[int, int] | None
    """Least and greatest `txid` of its rows; None if the log has no statistics of it."""
    has_deletion_vector: bool
    is_elsewhere: bool = False
    """True if it is outside of the table's folder, as in a shallow clone."""


@dataclass(frozen=True)
class SourceVersion:
    """One commit file."""

    version: int
    operation: str
    adds: tuple[AddedFile, ...]
    takes_rows: bool
    """True if existing rows were removed or rewritten."""
    metadata: Mapping[str, Any] | None
    """The `metaData` action, if any: id, schemaString, configuration."""
    publication: tuple[int, int] | None
    """First and last txid, of a topology's publication."""
    settled: int
    """Every txid up to this one is final; 0: the version has no such mark."""

    @classmethod
    def of(cls, commit: Commit) -> SourceVersion:
        """Return the fields of a version that a spout needs."""
        publication = commit.publication
        brought, taken = commit.changed
        return cls(
            version=commit.version,
            operation=commit.operation,
            adds=tuple(_added(add, commit) for add in commit.adds if add.path in brought),
            takes_rows=bool(taken),
            metadata=commit.metadata,
            publication=None
            if publication is None
            else (publication.first_txid, publication.last_txid),
            settled=commit.settled_txid,
        )

    @property
    def changes_rows(self) -> bool:
        """True if rows were added or removed."""
        return self.takes_rows or bool(self.adds)

    def files(self, below: int | None = None) -> tuple[AddedFile, ...]:
        """Return the files with rows that are new in this version.

        A topology's publication may also hold rows of older txids, written again because OPTIMIZE
        had mixed them with a dead attempt's rows: they were new in the version of their own txid.

        Args:
            below: leave out files of this and later txids, which were replaced since.
        """
        if self.publication is None:
            return self.adds
        first, last = self.publication
        end = last if below is None else min(last, below - 1)
        return tuple(f for f in self.adds if f.txids and first <= f.txids[0] <= f.txids[1] <= end)


@dataclass(frozen=True)
class TableNow:
    """The newest version of a table."""

    table_id: str
    version: int
    schema: str
    """JSON, as Delta and Spark write it."""
    properties: Mapping[str, str | None]
    reader_features: frozenset[str]


class SourceLog:
    """The log of one table, in a local folder or at a URI. Thread-safe."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        place = str(Path(path).expanduser()) if path.startswith("~") else path
        self.storage = Storage(place, storage_options)
        self._log = TableLog(self.storage)
        self._lock = Lock()
        self._cached: dict[int, SourceVersion] = {}
        self._table_id: str | None = None

    def load(self) -> TableNow | None:
        """Load the newest version of the table; None: there is no table.

        Raises:
            OSError, StorageUnavailableError: the storage does not answer.
            SourceChangedError: its log is damaged.
        """
        try:
            table = find(self.storage)
        except DeltaError:
            time.sleep(_WRITING_SECS)
            try:
                table = find(self.storage)
            except DeltaError as error:
                raise self._damaged(error) from error
        if table is None:
            return None
        metadata, protocol = table.metadata(), table.protocol()
        with self._lock:
            if str(metadata.id) != self._table_id:
                self._cached.clear()
                self._table_id = str(metadata.id)
        return TableNow(
            table_id=str(metadata.id),
            version=table.version(),
            schema=table.schema().to_json(),
            properties=metadata.configuration,
            reader_features=frozenset(protocol.reader_features or ()),
        )

    def _damaged(self, error: DeltaError) -> SourceChangedError:
        """Return the error with the newest damaged file of the log, if it is a commit file."""
        place = ""
        for path, _ in sorted(self.storage.files("_delta_log"), reverse=True):
            if (commit := _COMMIT.fullmatch(path)) is None:
                continue
            try:
                self._log.commit(int(commit[1]))
            except RecoveryRefusedError:
                place = f" ({path})"
                break
        table = f"Source table {self.storage.location}"
        message = damaged(table, error, "Waiting does not help.", place)
        return SourceChangedError(f"{message} Then start the topology again.", number="TXN-315")

    def read(self, version: int) -> SourceVersion | None:
        """Read one version; None: its commit file does not exist (any more).

        Raises:
            SourceChangedError: it is damaged, or of a newer format.
            OSError, StorageUnavailableError: the storage does not answer.
        """
        with self._lock:
            cached = self._cached.get(version)
        if cached is not None:
            return cached
        try:
            commit = self._log.commit(version)
        except RecoveryRefusedError as error:
            raise SourceChangedError(
                f"Version {version} of source table {self.storage.location} cannot be read: its "
                "file in _delta_log is damaged, or a newer release wrote it. Restore "
                "that file from a backup, or use that release; then start the topology again.",
                number="TXN-412",
            ) from error
        if commit is None:
            return None
        source_version = SourceVersion.of(commit)
        with self._lock:
            self._cached[version] = source_version
            while len(self._cached) > _CACHED_VERSIONS:
                del self._cached[next(iter(self._cached))]
        return source_version

    def change_files(self, version: int) -> list[str] | None:
        """Return the files with the recorded changes of a version; None: its commit file is gone.

        Source: Delta's PROTOCOL.md, "Add CDC File": without such files, the added and the removed
        ones have the changes.
        """
        text = self._log.text(version)
        if text is None:
            return None
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        cdc = [action["cdc"] for action in actions if "cdc" in action]
        moved = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
        files = cdc or [file for file in moved if file.get("dataChange", True)]
        return [file_path(file["path"])[0] for file in files]


def _added(add: StagedFile, commit: Commit) -> AddedFile:
    stats = json.loads(add.stats)
    low, high = (txid_in(stats.get(bound)) for bound in ("minValues", "maxValues"))
    return AddedFile(
        path=add.path,
        size=add.size,
        rows=None if add.rows < 0 else add.rows,
        partition=tuple(sorted(add.partition.items())),
        txids=None if low is None or high is None else (low, high),
        has_deletion_vector=add.path in commit.deletion_vectors,
        is_elsewhere=add.path in commit.elsewhere,
    )
