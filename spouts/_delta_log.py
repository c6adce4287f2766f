"""What a Delta table's log says, read one commit file at a time: no Spark job, no row.

Source: Delta's PROTOCOL.md, "Delta Log Entries" and "Actions"; and `txn.interfaces` for what a
topology of ours writes into `commitInfo`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from txn.delta.commits import BROKEN, actions_of, info_of
from txn.delta.locations import is_local, normal
from txn.delta.retrying import retried
from txn.errors import SourceChangedError
from txn.interfaces import FENCE_KEY, PUBLICATION_KEY, SETTLED_KEY

__all__ = ["AddedFile", "SourceLog", "SourceVersion", "TableNow", "parse_version"]

TXID = "txid"
"""The column of our append tables that says which txid brought a row."""
_CACHED_VERSIONS = 1000
_ELSEWHERE = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:|/)")


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
    """Least and greatest `txid` of its rows; None where the log does not say."""
    has_deletion_vector: bool

    @property
    def is_elsewhere(self) -> bool:
        """Whether it lies outside of the table's folder, as in a shallow clone."""
        return _ELSEWHERE.match(self.path) is not None or ".." in self.path.split("/")


@dataclass(frozen=True)
class SourceVersion:
    """One commit file."""

    version: int
    operation: str
    adds: tuple[AddedFile, ...]
    takes_rows: bool
    """Whether rows that were there before left or were rewritten."""
    metadata: Mapping[str, Any] | None
    """The `metaData` action, if any: id, schemaString, configuration."""
    publication: tuple[int, int] | None
    """First and last txid, of a topology's publication."""
    settled: int
    """Every txid up to this one is final; 0 where the version does not say."""

    @property
    def changes_rows(self) -> bool:
        """Whether rows came or went."""
        return self.takes_rows or bool(self.adds)

    def files(self, below: int | None = None) -> tuple[AddedFile, ...]:
        """The files with rows that are new in this version.

        A topology's publication may also hold rows of older txids, written again because OPTIMIZE
        had mixed them with a dead attempt's: those came with the version of their own txid.

        Args:
            below: files of this and later txids are left out: they were replaced since.
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
    """The log of one table. Thread-safe.

    Args:
        path: the table's folder: a local path or an object-store URI.
        storage_options: credentials and endpoints, for deltalake.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._uri = normal(str(Path(path).expanduser()) if path.startswith("~") else path)
        self._is_local = is_local(self._uri)
        self._options = dict(storage_options or {})
        self._lock = Lock()
        self._cached: dict[int, SourceVersion] = {}
        self._table_id: str | None = None

    def load(self) -> TableNow | None:
        """The table as it is now; None when there is none.

        Raises:
            OSError, DeltaError, StorageUnavailableError: the storage does not answer.
        """
        table = retried(self._loaded, f"load the log of {self._uri}")
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

    def read(self, version: int) -> SourceVersion | None:
        """One version; None when its commit file does not exist (any more).

        Raises:
            OSError: the storage does not answer.
        """
        with self._lock:
            known = self._cached.get(version)
        if known is not None:
            return known
        name = f"_delta_log/{version:020d}.json"
        try:
            text = retried(lambda: self._text(name), f"read {name} of {self._uri}")
        except FileNotFoundError:
            return None
        found = parse_version(version, text)
        with self._lock:
            self._cached[version] = found
            while len(self._cached) > _CACHED_VERSIONS:
                del self._cached[next(iter(self._cached))]
        return found

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of each file, None where there is none.

        Raises:
            OSError: the storage does not answer.
        """
        if not paths:
            return []
        found = retried(
            lambda: self._files().get_file_info(list(paths)), f"look at files of {self._uri}"
        )
        return [info.size if info.type == fs.FileType.File else None for info in found]

    def url(self, path: str = "") -> str:
        """A file or the folder as Spark takes it, not percent-encoded."""
        base = f"file:{self._uri}" if self._is_local else self._uri
        return f"{base}/{path}" if path else base

    def _loaded(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            # delta-rs says the same of a disk that cannot be read; the disk itself tells.
            if self._is_local:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.scandir(f"{self._uri}/_delta_log").close()
            return None

    def _text(self, name: str) -> bytes:
        with self._files().open_input_stream(name) as stream:
            return bytes(stream.read())

    def _files(self) -> fs.FileSystem:
        return fs.PyFileSystem(DeltaStorageHandler(self._uri, self._options))


def parse_version(version: int, text: bytes) -> SourceVersion:
    """Read one commit file.

    Raises:
        SourceChangedError: it is not what Delta writes.
    """
    try:
        return _parsed(version, text)
    except BROKEN as error:
        raise SourceChangedError(
            f"Version {version} of a source table cannot be read: its file in _delta_log is not "
            f"what Delta writes ({type(error).__name__}). Restore that file from a backup, then "
            "start the topology again."
        ) from error


def _parsed(version: int, text: bytes) -> SourceVersion:
    actions = list(actions_of(text))
    info = info_of(actions)
    publication, fence = info.get(PUBLICATION_KEY), info.get(FENCE_KEY) or {}
    settled = (info.get(SETTLED_KEY) or {}).get("txid", fence.get("settled", 0))
    return SourceVersion(
        version=version,
        operation=str(info.get("operation", "unknown operation")),
        adds=tuple(_added(a["add"]) for a in actions if "add" in a and a["add"]["dataChange"]),
        takes_rows=any(a["remove"].get("dataChange", True) for a in actions if "remove" in a),
        metadata=next((a["metaData"] for a in actions if "metaData" in a), None),
        publication=None if publication is None else _txids(publication),
        settled=int(settled),
    )


def _txids(publication: Mapping[str, Any]) -> tuple[int, int]:
    first, last = publication["first_txid"], publication["last_txid"]
    if type(first) is not int or type(last) is not int or not 0 < first <= last:
        raise ValueError("no txids")
    return first, last


def _added(add: Mapping[str, Any]) -> AddedFile:
    stats = json.loads(add.get("stats") or "{}")
    low, high = (stats.get(bound, {}).get(TXID) for bound in ("minValues", "maxValues"))
    return AddedFile(
        path=unquote(add["path"]),
        size=int(add["size"]),
        rows=None if stats.get("numRecords") is None else int(stats["numRecords"]),
        partition=tuple(sorted((add.get("partitionValues") or {}).items())),
        txids=(low, high) if isinstance(low, int) and isinstance(high, int) else None,
        has_deletion_vector=add.get("deletionVector") is not None,
    )
