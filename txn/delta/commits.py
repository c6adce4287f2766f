"""The content of one version of a Delta log: the one parser of commit files.

For a topology's tables, for those that a spout reads, and for `txn history`. It does not use
`DeltaTable.history`, which numbers the versions by position in its own answer.

Source: Delta's PROTOCOL.md, "Delta Log Entries" and "Actions"; and `txn.interfaces` for a
topology's keys in `commitInfo`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError

from txn.errors import RecoveryRefusedError
from txn.interfaces import (
    CHANGE_KEY,
    COMPACTION_KEY,
    FENCE_KEY,
    PUBLICATION_KEY,
    SETTLED_KEY,
    Publication,
    StagedFile,
)

__all__ = [
    "ACCEPTED",
    "BEFORE_KEY",
    "BROKEN",
    "EXACT",
    "FIRST_TXID",
    "LAST_CHECKPOINT",
    "TOKEN_KEY",
    "TXID",
    "Commit",
    "checkpoint_version",
    "commit_path",
    "epoch_app",
    "file_path",
    "fingerprint_of",
    "incarnation_app",
    "parse_commit",
    "txid_app",
    "txid_in",
]

BROKEN = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
"""The errors of parsing a commit file that is not Delta's."""
EXACT = frozenset(["byte", "short", "integer", "long", "date", "string"])
"""Column types for which every writer records exact bounds, or safe prefixes."""
TXID = "txid"
"""The column of a topology's tables with the txid that last wrote the row."""
ACCEPTED = "txn.accepted_version"
"""Table property by which a user accepts other writers' changes up to this version."""
FIRST_TXID = "txn.firstTxid"
"""Table property: the first txid of a table that was created after others had committed."""
TOKEN_KEY = "txn_commit"  # noqa: S105 - no secret: a name for one try at one append
"""Key of the random token by which a writer recognises its own commit."""
BEFORE_KEY = "txn_before"
"""Key of the fingerprints of the versions before it, the nearest last, as its writer read them."""
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
"""Path of the file that names the newest checkpoint, relative to the table's folder."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LATEST_MS = 253_402_300_800_000
"""The end of the year 9999: later times cannot be shown."""


def txid_app(topology: str) -> str:
    """The application id whose version is the newest txid."""
    return f"txn/{topology}"


def epoch_app(topology: str) -> str:
    """The application id whose version is the newest epoch."""
    return f"txn/{topology}/epoch"


def incarnation_app(topology: str) -> str:
    """The application id whose version is the id of the incarnation that leads the table.

    The id is compared for equality only. Delta keeps application transactions for ever, whatever
    is cleaned out of the log.
    """
    return f"txn/{topology}/incarnation"


@dataclass(frozen=True)
class Commit:
    """One version of a table's log."""

    version: int
    timestamp_ms: int
    """Time of the append, milliseconds since 1970; 0 if it is not recorded."""
    operation: str
    adds: tuple[StagedFile, ...] = ()
    """`rows` is -1 where the log has no statistics."""
    removes: frozenset[str] = frozenset()
    metadata: Mapping[str, Any] | None = None
    """The `metaData` action, if any: id, schemaString, configuration."""
    protocol: Mapping[str, Any] | None = None
    """The `protocol` action, if any: versions and features."""
    metadata_change: bool = False
    """True when schema, properties or protocol were written."""
    publication: Publication | None = None
    fence: Mapping[str, Any] | None = None
    settled: Mapping[str, Any] | None = None
    """The mark of `SettlesTxids.settle`: like a fence, with the newest final txid."""
    compaction: Mapping[str, Any] | None = None
    """The record of a compaction: like a fence, with the txids of its rows."""
    change: Mapping[str, Any] | None = None
    """The record of a change of the table's shape: like a fence, with the changes."""
    last: tuple[int, Publication] | None = None
    """(version, publication) of the last publication, as a mark repeats it."""
    token: str | None = None
    apps: Mapping[str, int] = field(default_factory=dict)
    """Application id -> version, of its `txn` actions."""
    before: tuple[int, ...] = ()
    """Fingerprints of the versions before it, the nearest last, as its writer read them."""
    changed: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    """Paths of the added files that brought rows, and of the removed ones that took rows."""
    deletion_vectors: Mapping[str, str] = field(default_factory=dict)
    """Added files with rows marked as deleted: path -> the deletion vector, as JSON."""
    removed_vectors: Mapping[str, str] = field(default_factory=dict)
    """The same for removed files: the path alone does not show which rows are gone."""
    elsewhere: frozenset[str] = frozenset()
    """Files outside of the table's folder, as in a shallow clone."""
    writer: str = ""
    """Its writer and engine, as far as recorded."""
    fingerprint: int = 0
    """Identifies the commit file's content."""

    @property
    def data_change(self) -> bool:
        """True if rows were added or removed; not in OPTIMIZE, metadata and empty commits."""
        return any(self.changed)

    @property
    def is_ours(self) -> bool:
        """True if a topology wrote it: a publication, a fence, a mark or a compaction."""
        return self.publication is not None or self.mark is not None

    @property
    def epoch(self) -> int:
        """Epoch of the leader that wrote it; 0 for another writer's commit."""
        if self.publication is not None:
            return self.publication.epoch
        return int(self.mark["epoch"]) if self.mark else 0

    @property
    def mark(self) -> Mapping[str, Any] | None:
        """The mark of a topology's version that publishes nothing; None for any other."""
        return self.fence or self.settled or self.compaction or self.change

    @property
    def last_publication(self) -> tuple[int, Publication] | None:
        """(version, publication) of the newest one so far, as a topology's version records it."""
        return (self.version, self.publication) if self.publication else self.last

    @property
    def settled_txid(self) -> int:
        """The newest txid that this version marks as final; 0 if it marks none.

        A compaction takes only committed txids, and merged rows cannot be taken back.
        """
        if self.settled is not None:
            return int(self.settled["txid"])
        merged = int(self.compaction["txids"][1]) if self.compaction else 0
        return max(merged, int(self.mark.get("settled", 0))) if self.mark else 0


def commit_path(version: int) -> str:
    """Path of a version's commit file, relative to the table's folder."""
    return f"_delta_log/{version:020d}.json"


def checkpoint_version(text: bytes | None) -> int | None:
    """The version of the newest checkpoint, from `LAST_CHECKPOINT`; None if it names none.

    Args:
        text: the file's content; None: the file does not exist.
    """
    try:
        return int(json.loads(text or b"")["version"])
    except BROKEN:
        return None


def fingerprint_of(text: bytes) -> int:
    """A checksum of a commit file."""
    return zlib.crc32(text)


def parse_commit(
    version: int, text: bytes, table: str, written: Sequence[Mapping[str, Any]] | None = None
) -> Commit:
    """Read one commit file.

    Args:
        written: the actions of the text, if the caller has just written it.

    Raises:
        RecoveryRefusedError: it holds a publication of an unknown format, or is not a commit file
            of Delta at all.
    """
    try:
        actions = [*_actions(text)] if written is None else written
        return _parsed(version, actions, fingerprint_of(text), table)
    except BROKEN as error:
        raise RecoveryRefusedError(
            f"Version {version} of table {table} cannot be read: its file in _delta_log is not "
            "in the format of Delta or of a topology. Restore that file from a backup, or "
            "restore the table to an earlier version.",
            number="TXN-315",
        ) from error


def file_path(path: str) -> tuple[str, bool]:
    """(the decoded path of a file in a log, True if it lies in the table's folder)."""
    decoded = unquote(path)
    # Only a scheme is never encoded, so it is looked for in the path as written.
    is_elsewhere = _SCHEME.match(path) or decoded.startswith("/")
    odd = not decoded or ".." in decoded.split("/") or "\0" in decoded
    return decoded, not (is_elsewhere or odd)


def txid_in(bounds: Any) -> int | None:
    """The `txid` in one part of a file's statistics; None if it is missing."""
    txid = bounds.get(TXID) if isinstance(bounds, dict) else None
    return txid if type(txid) is int else None


def _parsed(
    version: int, actions: Sequence[Mapping[str, Any]], fingerprint: int, table: str
) -> Commit:
    info = _json_object(next((a["commitInfo"] for a in actions if "commitInfo" in a), {}))
    adds = [a["add"] for a in actions if "add" in a]
    removes = [a["remove"] for a in actions if "remove" in a]
    apps = [a["txn"] for a in actions if "txn" in a]
    fence, settled = _mark(info.get(FENCE_KEY)), _mark(info.get(SETTLED_KEY), "txid")
    compaction, change = _compaction(info.get(COMPACTION_KEY)), _change(info.get(CHANGE_KEY))
    return Commit(
        version=version,
        timestamp_ms=_timestamp(info),
        operation=_operation(info),
        adds=tuple(map(_added, adds)),
        removes=frozenset(_path(remove) for remove in removes),
        metadata=next((_json_object(a["metaData"]) for a in actions if "metaData" in a), None),
        protocol=next((_json_object(a["protocol"]) for a in actions if "protocol" in a), None),
        metadata_change=any("metaData" in a or "protocol" in a for a in actions),
        publication=_publication(info, version, table),
        fence=fence,
        settled=settled,
        compaction=compaction,
        change=change,
        last=_last(fence or settled or compaction or change, version, table),
        token=info.get(TOKEN_KEY),
        apps={str(app["appId"]): int(app["version"]) for app in apps},
        before=_before(info.get(BEFORE_KEY, [])),
        changed=(_changing(adds), _changing(removes)),
        deletion_vectors=_vectors(adds),
        removed_vectors=_vectors(removes),
        elsewhere=frozenset(_path(a) for a in (*adds, *removes) if not file_path(a["path"])[1]),
        writer=_writer(info),
        fingerprint=fingerprint,
    )


def _actions(text: bytes) -> Iterator[dict[str, Any]]:
    return (_json_object(json.loads(line)) for line in text.splitlines() if line.strip())


def _json_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} is not a JSON object")
    return value


def _path(action: Mapping[str, Any]) -> str:
    return file_path(action["path"])[0]


def _changing(actions: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(_path(a) for a in actions if a.get("dataChange", True))


def _vectors(actions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    vectors = ((_path(a), a.get("deletionVector")) for a in actions)
    return {
        path: json.dumps(vector, sort_keys=True) for path, vector in vectors if vector is not None
    }


def _timestamp(info: Mapping[str, Any]) -> int:
    """The time recorded in a commit; 0 without a valid one."""
    stated = int(info.get("timestamp", 0))
    return stated if 0 <= stated < _LATEST_MS else 0


def _operation(info: Mapping[str, Any]) -> str:
    """The operation, with the version that a RESTORE went back to."""
    name = str(info.get("operation", "unknown operation"))
    parameters = info.get("operationParameters")
    target = parameters.get("version") if isinstance(parameters, dict) else None
    return f"{name} to version {target}" if name == "RESTORE" and target is not None else name


def _writer(info: Mapping[str, Any]) -> str:
    names = (info.get(key) for key in ("userName", "engineInfo", "clientVersion"))
    return ", ".join(dict.fromkeys(str(one) for one in names if one)) or "a writer without a name"


def _added(add: Mapping[str, Any]) -> StagedFile:
    stats = add.get("stats") or "{}"
    values = _json_object(json.loads(stats))
    if int(add["size"]) < 0:
        raise ValueError("no size")
    return StagedFile(
        path=_path(add),
        size=int(add["size"]),
        rows=int(values.get("numRecords", -1)),
        partition=_json_object(add.get("partitionValues") or {}),
        stats=stats,
    )


def _before(fingerprints: Any) -> tuple[int, ...]:
    if not isinstance(fingerprints, list) or any(type(one) is not int for one in fingerprints):
        raise ValueError("no fingerprints")
    return tuple(fingerprints)


def _mark(mark: Any, *more: str) -> Mapping[str, Any] | None:
    """Check the fields of a mark that the program acts on."""
    if mark is None:
        return None
    for name in ("epoch", *more, *({"settled"} & set(mark))):
        if type(mark[name]) is not int or mark[name] < 0:
            raise ValueError(f"{name} is not a number")
    return _json_object(mark)


def _last(
    mark: Mapping[str, Any] | None, version: int, table: str
) -> tuple[int, Publication] | None:
    last = None if mark is None else mark["last"]
    if last is None:
        return None
    if type(last["version"]) is not int:
        raise ValueError("last names no version")
    return last["version"], _validated(last["publication"], version, table)


def _compaction(value: Any) -> Mapping[str, Any] | None:
    """Like `_mark`, with the first and last txid of the merged rows."""
    mark = _mark(value)
    if mark is not None:
        first, last = mark["txids"]
        if not (type(first) is type(last) is int and 0 <= first <= last):
            raise ValueError("txids are not a range")
    return mark


def _change(value: Any) -> Mapping[str, Any] | None:
    """Like `_mark`, with what was changed."""
    mark = _mark(value, "txid")
    if mark is not None and any(not isinstance(text, str) for text in [*mark["changes"]]):
        raise ValueError("changes are not texts")
    return mark


def _publication(info: Mapping[str, Any], version: int, table: str) -> Publication | None:
    value = info.get(PUBLICATION_KEY)
    return None if value is None else _validated(value, version, table)


def _validated(value: Any, version: int, table: str) -> Publication:
    try:
        publication = Publication.model_validate(value)
    except (ValidationError, RecursionError) as error:
        raise _unknown(version, table) from error
    if publication.format != 1:
        raise _unknown(version, table)
    return publication


def _unknown(version: int, table: str) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"Version {version} of table {table} holds a publication (commitInfo.txn) that this "
        "program cannot read: it was written by a newer release or changed by hand. Run the "
        "release that wrote it, or restore the table to an earlier version.",
        number="TXN-315",
    )
