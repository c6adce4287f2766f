"""The layout of the coordinator's state in ZooKeeper, as values: paths, contents, splitting.

No I/O here. `txn.protocol.encoding` makes a node's content.

A record larger than `NODE_LIMIT` is compressed and cut into parts, which are written first, each
under a name that no other content can have; the record's own node then holds a `PartsIndex` with
the SHA-256 of the record. A crash between the parts leaves parts that no index names; the next
leader removes them. See docs/zookeeper.md.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from typing import Literal, TypeVar

from pydantic import Field

from txn.errors import ProgressUnreadableError
from txn.protocol.encoding import (
    NEVER_GUESSED,
    NODE_LIMIT,
    RECORD_LIMIT,
    decode,
    encode,
    parse_object,
    unreadable,
)
from txn.protocol.records import Record

__all__ = [
    "FormatRecord",
    "PartsIndex",
    "Paths",
    "decode_index",
    "join_parts",
    "require",
    "split_parts",
    "txid_of",
]

_STEM = re.compile(r"[A-Za-z0-9-]{1,100}")

N = TypeVar("N")


class FormatRecord(Record):
    """`format`: written with the topology's node, checked at every start."""


class PartsIndex(Record):
    """The content of a node whose record is too large for it."""

    stem: str = Field(pattern=f"^{_STEM.pattern}$")
    """The parts are `parts/<stem>-0000`, `parts/<stem>-0001`, ..."""
    count: int = Field(ge=1, le=-(-RECORD_LIMIT // NODE_LIMIT))
    bytes: int = Field(ge=1, le=RECORD_LIMIT)
    """Size of the record, uncompressed."""
    sha256: str
    """SHA-256 of the record, uncompressed."""
    compression: Literal["zlib"] = "zlib"

    def names(self) -> list[str]:
        """Return the names of the parts' nodes, in order."""
        return [f"{self.stem}-{i:04d}" for i in range(self.count)]


class Paths:
    """The paths of one topology's nodes.

    Args:
        base: the connect string's chroot plus "/txn".
    """

    def __init__(self, base: str, topology: str) -> None:
        self.base = base
        self.topology = topology
        self.root = f"{base}/{topology}"
        """The topology's own node, parent of all others."""
        self.format = f"{self.root}/format"
        """Holds a `FormatRecord`."""
        self.leader = f"{self.root}/leader"
        """Ephemeral; holds a `LeaderIdentity`."""
        self.epoch = f"{self.root}/epoch"
        """Holds an `EpochRecord`."""
        self.incarnation = f"{self.root}/incarnation"
        """Holds an `IncarnationRecord`; created by the first leader."""
        self.committed = f"{self.root}/committed"
        """Holds a `CommittedRecord`."""
        self.batches = f"{self.root}/batches"
        """Parent of one node per started, uncommitted txid."""
        self.quarantine = f"{self.root}/quarantine"
        """Parent of one node per txid that was committed empty.

        Holds `ReplayRequests`; empty before the first request.
        """
        self.drops = f"{self.root}/drops"
        """Holds `DropRequests`; created with the first request."""
        self.parts = f"{self.root}/parts"
        """Parent of the parts of records too large for one node."""
        self.columns = f"{self.root}/columns"
        """Parent of one node per stream whose columns are known; created with the first."""
        self.row_replays = f"{self.root}/row_replays"
        """Parent of one node per stream with replayed rows; created with the first."""
        self.program = f"{self.root}/program"
        """Holds a `ProgramRecord`; created by the first leader."""
        self.notices = f"{self.root}/notices"
        """Holds a `NoticesRecord`; created with the first notice."""
        self.standbys = f"{self.root}/standbys"
        """Parent of one ephemeral node per waiting process; created with the first."""

    def standby(self, token: str) -> str:
        """Return the path of one process's `StandbyIdentity`."""
        return f"{self.standbys}/{token}"

    def batch(self, txid: int) -> str:
        """Return the path of one txid's `BatchRecord`."""
        return f"{self.batches}/{txid}"

    def quarantined(self, txid: int) -> str:
        """Return the path of one txid's `QuarantineRecord`."""
        return f"{self.quarantine}/{txid}"

    def columns_of(self, stream: str) -> str:
        """Return the path of one stream's `ColumnsRecord`."""
        return f"{self.columns}/{stream}"

    def row_replays_of(self, stream: str) -> str:
        """Return the path of the parent of one stream's replays of rows."""
        return f"{self.row_replays}/{stream}"

    def row_replay(self, stream: str, number: int) -> str:
        """Return the path of one replay's `RowReplayRecord`."""
        return f"{self.row_replays_of(stream)}/{number}"

    def part(self, name: str) -> str:
        """Return the path of one part."""
        return f"{self.parts}/{name}"


def txid_of(name: str, parent: str) -> int:
    """Return the txid in the name of a child of `batches` or `quarantine`.

    Raises:
        ProgressUnreadableError: the name is not a txid as this program writes it.
    """
    if not re.fullmatch("[1-9][0-9]*", name):
        raise ProgressUnreadableError(
            f"ZooKeeper node '{parent}/{name}' is not named after a txid: this program did not "
            "write it. Find out who did, and delete the node if it is not needed."
        )
    return int(name)


def decode_index(data: bytes, path: str) -> PartsIndex | None:
    """Return the index of a record's parts, or None if the node holds the record itself.

    Raises:
        ProgressUnreadableError: as `decode`; or it names more parts, more bytes, or other nodes
            than this program ever writes.
    """
    # Records have no field "stem"; the cheap test saves a second parse of ordinary records.
    if b'"stem"' not in data[:200] or "stem" not in parse_object(data, path):
        return None
    return decode(PartsIndex, data, path)


def split_parts(data: bytes, stem: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the content of the record's own node, and the parts (name -> bytes) to write first.

    Args:
        data: the encoded record.
        stem: unique for the record, the attempt and the leader; the content's digest is added, so
            a name never has two contents.
    """
    if len(data) <= NODE_LIMIT:
        return data, {}
    digest = hashlib.sha256(data).hexdigest()
    # Level 1 is the fastest; fewer parts save writes, each of which syncs the server's disk.
    small = zlib.compress(data, 1)
    pieces = [small[i : i + NODE_LIMIT] for i in range(0, len(small), NODE_LIMIT)]
    index = PartsIndex(
        stem=f"{stem}-{digest[:16]}",
        count=len(pieces),
        bytes=len(data),
        sha256=digest,
    )
    return encode(index, "index"), dict(zip(index.names(), pieces, strict=True))


def join_parts(index: PartsIndex, pieces: Sequence[bytes], path: str) -> bytes:
    """Return the whole record.

    Raises:
        ProgressUnreadableError: the parts do not match the index.
    """
    data = b"".join(pieces)
    try:
        data = zlib.decompressobj().decompress(data, index.bytes + 1)
    except zlib.error:
        data = b""  # refused below
    if len(data) != index.bytes or hashlib.sha256(data).hexdigest() != index.sha256:
        raise unreadable(path, f"names {index.count} parts that do not have its checksum")
    return data


def require(node: N | None, path: str) -> N:
    """Return `node`, which every topology has.

    Raises:
        ProgressUnreadableError: it is None.
    """
    if node is None:
        raise ProgressUnreadableError(
            f"ZooKeeper node '{path}' is missing, although its topology exists or has just been "
            f"in use: it was deleted, or all of ZooKeeper's data was. {NEVER_GUESSED}"
        )
    return node
