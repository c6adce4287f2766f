"""What one version of a Delta log says: the JSON commit file, parsed.

Source: Delta's PROTOCOL.md, "Delta Log Entries" and "Actions". Commit files are read here and
not through `DeltaTable.history`, which numbers the versions by position in its own answer.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from txn.delta.commits import BROKEN, actions_of, info_of, json_object
from txn.errors import RecoveryRefusedError
from txn.interfaces import (
    COMPACTION_KEY,
    FENCE_KEY,
    PUBLICATION_KEY,
    SETTLED_KEY,
    Publication,
    StagedFile,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "BUCKET",
    "COMPACTION_KEY",
    "TOKEN_KEY",
    "TXID",
    "ActiveFile",
    "Commit",
    "active_files",
    "commit_path",
    "fingerprint_of",
    "load_files",
    "parse_commit",
]

TXID = "txid"
"""The column that says which txid last wrote a row."""
BUCKET = "txn_bucket"
"""The partition column of state tables: the hash bucket of the keys."""
TOKEN_KEY = "txn_commit"  # noqa: S105 - no secret: a name for one try at one append
"""Key of the random token by which a writer knows its own commit again."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class ActiveFile:
    """A file of the current version of a table."""

    path: str
    size: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    txid_min: int | None = None
    """Smallest txid of its rows; None when the log does not say, or some rows have none: those
    that somebody else brought, and that were accepted, are older than any txid."""
    txid_max: int | None = None

    def may_hold(self, txid: int) -> bool:
        """Whether it may have a row written at `txid` or later."""
        return self.txid_max is None or self.txid_max >= txid

    def holds_only(self, txid: int) -> bool:
        """Whether every row of it was certainly written at `txid` or later."""
        return self.txid_min is not None and self.txid_min >= txid

    @property
    def bucket(self) -> int:
        """The hash bucket; raises KeyError for a table that has none."""
        return int(self.partition[BUCKET] or 0)


@dataclass(frozen=True)
class Commit:
    """One version of a table's log."""

    version: int
    timestamp_ms: int
    operation: str
    adds: tuple[StagedFile, ...] = ()
    removes: frozenset[str] = frozenset()
    data_change: bool = False
    """True when rows came or went; False for OPTIMIZE, metadata and empty commits."""
    metadata_change: bool = False
    """True when schema, properties or protocol were written."""
    publication: Publication | None = None
    fence: Mapping[str, Any] | None = None
    settled: Mapping[str, Any] | None = None
    """What `Committer.settle` wrote: like a fence, and the newest txid that is final."""
    compaction: Mapping[str, Any] | None = None
    """What a compaction says of itself: like a fence, and the txids of what it folded."""
    token: str | None = None
    changed: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    """Of the files added and of those removed, the paths that brought or took rows."""
    writer: str = ""
    """Who wrote it and with what, as far as it says."""
    fingerprint: int = 0
    """Of the commit file: tells whether it is still the same one."""

    @property
    def is_ours(self) -> bool:
        """Whether a topology wrote it: a publication, or a version that says so otherwise."""
        return self.publication is not None or self.mark is not None

    @property
    def epoch(self) -> int:
        """Epoch of the leader that wrote it; 0 for anybody else's commit."""
        if self.publication is not None:
            return self.publication.epoch
        return int(self.mark["epoch"]) if self.mark else 0

    @property
    def mark(self) -> Mapping[str, Any] | None:
        """What a version of ours that publishes nothing says of itself; None for any other."""
        return self.fence or self.settled or self.compaction

    @property
    def settled_txid(self) -> int:
        """The newest txid that a mark calls final; 0 when this version says nothing of it.

        A compaction folds committed txids only, and what it has folded cannot be taken back.
        """
        if self.settled is not None:
            return int(self.settled["txid"])
        folded = int(self.compaction["txids"][1]) if self.compaction else 0
        return max(folded, int(self.mark.get("settled", 0))) if self.mark else 0

    @property
    def last(self) -> Mapping[str, Any] | None:
        """{"version", "publication"} of the last publication, as a version of ours says."""
        return self.mark["last"] if self.mark else None


def commit_path(version: int) -> str:
    """Path of a version's commit file, relative to the table's folder."""
    return f"_delta_log/{version:020d}.json"


def fingerprint_of(text: bytes) -> int:
    """A checksum of a commit file."""
    return zlib.crc32(text)


def parse_commit(version: int, text: bytes, table: str) -> Commit:
    """Read one commit file.

    Raises:
        RecoveryRefusedError: it holds a publication of a format that this version does not know, a
            file outside of the table's folder, or is not what Delta writes at all.
    """
    try:
        return _parsed(version, text, table)
    except BROKEN as error:
        raise RecoveryRefusedError(
            f"Version {version} of table {table} cannot be read: its file in _delta_log is not "
            "what Delta, or a topology, writes. Restore that file from a backup, or restore the "
            "table to an earlier version."
        ) from error


def _parsed(version: int, text: bytes, table: str) -> Commit:
    actions = list(actions_of(text))
    info = info_of(actions)
    adds = [a["add"] for a in actions if "add" in a]
    removes = [a["remove"] for a in actions if "remove" in a]
    where = f"Version {version} of table {table}"
    changed = (_changing(adds, where), _changing(removes, where))
    return Commit(
        version=version,
        timestamp_ms=int(info.get("timestamp", 0)),
        operation=_operation(info),
        adds=tuple(_staged(add, where) for add in adds),
        removes=frozenset(_path(remove, where) for remove in removes),
        data_change=any(changed),
        metadata_change=any("metaData" in a or "protocol" in a for a in actions),
        publication=_publication(info, version, table),
        fence=_mark(info.get(FENCE_KEY)),
        settled=_mark(info.get(SETTLED_KEY), "txid"),
        compaction=_compaction(info.get(COMPACTION_KEY)),
        token=info.get(TOKEN_KEY),
        changed=changed,
        writer=_writer(info),
        fingerprint=fingerprint_of(text),
    )


def _changing(actions: Iterable[Mapping[str, Any]], where: str) -> frozenset[str]:
    return frozenset(_path(a, where) for a in actions if a.get("dataChange", True))


def _operation(info: Mapping[str, Any]) -> str:
    """The operation, with the version that a RESTORE went back to."""
    name = str(info.get("operation", "unknown operation"))
    parameters = info.get("operationParameters")
    target = parameters.get("version") if isinstance(parameters, dict) else None
    return f"{name} to version {target}" if name == "RESTORE" and target is not None else name


def _writer(info: Mapping[str, Any]) -> str:
    said = (info.get(key) for key in ("userName", "engineInfo", "clientVersion"))
    return ", ".join(dict.fromkeys(str(one) for one in said if one)) or "a writer without a name"


def _mark(found: Any, *more: str) -> Mapping[str, Any] | None:
    """What a version of ours says of itself, as far as it is acted on.

    Raises:
        ValueError, TypeError, KeyError: it says something else.
    """
    if found is None:
        return None
    for name in ("epoch", *more, *({"settled"} & set(found))):
        if type(found[name]) is not int or found[name] < 0:
            raise ValueError(f"{name} is no number")
    last = found["last"]
    if last is not None and not (type(last["version"]) is int and isinstance(last, dict)):
        raise ValueError("last names no version")
    if last is not None:
        Publication.model_validate(last["publication"])
    return json_object(found)


def _compaction(found: Any) -> Mapping[str, Any] | None:
    """As `_mark`, with the first and last txid of what was folded."""
    mark = _mark(found)
    if mark is not None:
        first, last = mark["txids"]
        if not (type(first) is type(last) is int and 0 <= first <= last):
            raise ValueError("txids are no range")
    return mark


def _path(action: Mapping[str, Any], where: str) -> str:
    """Path of a file, relative to the table's folder.

    Raises:
        RecoveryRefusedError: it is somewhere else, where nothing is ours to read or delete.
    """
    path = unquote(action["path"])
    # A scheme stands at the beginning of what is not decoded; anything else may be encoded.
    is_elsewhere = _SCHEME.match(action["path"]) or path.startswith("/")
    if is_elsewhere or not path or ".." in path.split("/") or "\0" in path:
        raise RecoveryRefusedError(
            f"{where} names a file outside of the table's folder: {path!r}. A "
            "topology never writes that (a shallow clone has such files). Restore the table to an "
            "earlier version, or give this committer a path of its own."
        )
    return path


def active_files(adds: Iterable[StagedFile]) -> dict[str, ActiveFile]:
    """Path -> active file, for files that a commit adds."""
    return {add.path: _active(add) for add in adds}


def load_files(table: DeltaTable) -> dict[str, ActiveFile]:
    """Path -> active file of a freshly loaded table, with the statistics of `txid`."""
    actions = pa.table(table.get_add_actions())
    unknown = [None] * actions.num_rows
    names = ("min", "max", "null_count")
    low, high, nulls = (_inner(actions, name, TXID) or unknown for name in names)
    keys = table.metadata().partition_columns
    values = [_inner(actions, "partition", key) or unknown for key in keys]
    partitions = list(zip(*values, strict=True)) if keys else [()] * actions.num_rows
    paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    files = (
        ActiveFile(
            _path({"path": path}, f"Table {table.table_uri}"),
            size,
            {k: None if v is None else str(v) for k, v in zip(keys, partition, strict=True)},
            None if missing else first,
            last,
        )
        for path, size, partition, first, last, missing in zip(
            paths, sizes, partitions, low, high, nulls, strict=True
        )
    )
    return {file.path: file for file in files}


def _inner(actions: pa.Table, name: str, field_name: str) -> list[Any] | None:
    """One field of a struct column; None where the table has no such statistics."""
    if name not in actions.column_names:
        return None
    column = actions[name].combine_chunks()
    if column.type.get_field_index(field_name) < 0:
        return None
    values: list[Any] = pc.struct_field(column, field_name).to_pylist()
    return values


def _staged(add: Mapping[str, Any], where: str) -> StagedFile:
    stats = add.get("stats") or "{}"
    known = json_object(json.loads(stats))
    if int(add["size"]) < 0:
        raise ValueError("no size")
    return StagedFile(
        path=_path(add, where),
        size=int(add["size"]),
        rows=int(known.get("numRecords", -1)),
        partition=json_object(add.get("partitionValues") or {}),
        stats=stats,
    )


def _active(add: StagedFile) -> ActiveFile:
    stats = json.loads(add.stats)
    return ActiveFile(
        path=add.path,
        size=add.size,
        partition=add.partition,
        txid_min=None if _txid(stats.get("nullCount")) else _txid(stats.get("minValues")),
        txid_max=_txid(stats.get("maxValues")),
    )


def _txid(bounds: Any) -> int | None:
    """What a file's statistics say of `txid`; None: the log does not say."""
    found = bounds.get(TXID) if isinstance(bounds, dict) else None
    return found if type(found) is int else None


def _publication(info: Mapping[str, Any], version: int, table: str) -> Publication | None:
    found = info.get(PUBLICATION_KEY)
    if found is None:
        return None
    try:
        publication = Publication.model_validate(found)
    except (ValidationError, RecursionError) as error:
        raise _unknown(version, table) from error
    if publication.format != 1:
        raise _unknown(version, table)
    return publication


def _unknown(version: int, table: str) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"Version {version} of table {table} holds a publication (commitInfo.txn) that this "
        "program cannot read: it was written by a newer release or changed by hand. Run the "
        "release that wrote it, or restore the table to an earlier version."
    )
