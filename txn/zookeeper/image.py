"""Read all of a topology's nodes, for the leader at its start and for `txn status`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from txn.errors import NewerFormatError, ProgressUnreadableError
from txn.protocol.encoding import NEVER_GUESSED, decode
from txn.protocol.records import (
    BatchRecord,
    ColumnsRecord,
    CommittedRecord,
    DropRequests,
    NoticesRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
    ReplayRequests,
    RowReplayRecord,
)
from txn.zookeeper.client.connection import Connection, Delete, Node, Operation, Put
from txn.zookeeper.znodes import Paths, decode_index, join_parts, require, txid_of

__all__ = [
    "Image",
    "Stored",
    "clearing_operations",
    "read_drops",
    "read_image",
    "read_in_one_session",
    "read_record",
    "read_requests",
]

R = TypeVar("R", bound=BaseModel)
T = TypeVar("T", BatchRecord, QuarantineRecord)


@dataclass(frozen=True)
class Stored(Generic[R]):
    """A record with its znode version and parts."""

    record: R
    version: int
    """The version of its znode."""
    parts: tuple[str, ...] = ()
    """The names of its parts, if it is too large for one node."""


@dataclass(frozen=True)
class Image:
    """A topology's state in ZooKeeper, without leader, epoch and nodes for display only."""

    committed: Stored[CommittedRecord]
    batches: dict[int, Stored[BatchRecord]] = field(default_factory=dict)
    """By ascending txid, contiguous from `committed` + 1."""
    quarantine: dict[int, Stored[QuarantineRecord]] = field(default_factory=dict)
    """By ascending txid."""
    requests: frozenset[int] = frozenset()
    """The quarantined txids whose replay was requested."""
    drops: frozenset[int] = frozenset()
    """The quarantined txids that were given up."""
    columns: dict[str, Stored[ColumnsRecord]] = field(default_factory=dict)
    """By stream."""
    program: Stored[ProgramRecord] | None = None
    """None if no leader has written it yet."""
    orphans: tuple[str, ...] = ()
    """Parts that no record names, left by a leader that died before it wrote the record."""

    @property
    def progress(self) -> Progress:
        """The state with which the coordinator starts."""
        batches = tuple(stored.record for stored in self.batches.values())
        columns = {stream: stored.record.columns for stream, stored in self.columns.items()}
        aside = (stored.record.streams for stored in self.quarantine.values())
        return Progress(
            committed=self.committed.record,
            batches=batches,
            columns=columns,
            quarantined_streams=frozenset().union(*aside),
            quarantined=frozenset(self.quarantine),
            program=self.program.record if self.program else None,
        )


def read_image(connection: Connection, paths: Paths, deadline: float) -> Image:
    """Read and check everything. Not atomic: the caller excludes writers, or reads twice.

    Raises:
        ProgressUnreadableError: a node is missing, unreadable, or does not fit the others.
        ProgressUnavailableError: ZooKeeper did not answer before `deadline`.
    """
    # List the parts before reading the records. So a part that is written or named meanwhile is
    # never taken for an orphan.
    parts = require(connection.children(paths.parts, deadline), paths.parts)
    committed = _read(connection, paths, CommittedRecord, paths.committed, deadline)
    batches = _read_by_txid(connection, paths, BatchRecord, paths.batches, paths.batch, deadline)
    quarantine = _read_by_txid(
        connection, paths, QuarantineRecord, paths.quarantine, paths.quarantined, deadline
    )
    # Without records, requests mean nothing; a leader that never quarantined saves the reads.
    requests = read_requests(connection, paths, deadline)[0].replay if quarantine else ()
    drops = read_drops(connection, paths, deadline)[0].drop if quarantine else ()
    columns = _read_columns(connection, paths, deadline)
    program = read_record(connection, ProgramRecord, paths.program, deadline)
    _check_contiguous(committed.record.txid, list(batches), paths)
    records: list[Stored[Any]] = [committed, *batches.values(), *quarantine.values()]
    named = {name for stored in (*records, *columns.values()) for name in stored.parts}
    orphans = tuple(part for part in parts if part not in named)
    replays, dropped = (frozenset(txids) & set(quarantine) for txids in (requests, drops))
    return Image(committed, batches, quarantine, replays, dropped, columns, program, orphans)


def _read_columns(
    connection: Connection, paths: Paths, deadline: float
) -> dict[str, Stored[ColumnsRecord]]:
    # No parent (None): no stream's columns are known yet.
    records: dict[str, Stored[ColumnsRecord]] = {}
    for stream in connection.children(paths.columns, deadline) or []:
        path = paths.columns_of(stream)
        records[stream] = _read(connection, paths, ColumnsRecord, path, deadline)
        if records[stream].record.stream != stream:
            raise ProgressUnreadableError(
                f"ZooKeeper node '{path}' holds the columns of stream "
                f"'{records[stream].record.stream}'. {NEVER_GUESSED}"
            )
    return records


def read_in_one_session(connection: Connection, paths: Paths, deadline: float) -> Image | None:
    """As `read_image`; None if the session changed meanwhile: the image may mix two moments."""
    generation = connection.generation
    try:
        image = read_image(connection, paths, deadline)
    except ProgressUnreadableError:
        if generation == connection.generation:
            raise
        return None
    return image if generation == connection.generation else None


def read_requests(
    connection: Connection, paths: Paths, deadline: float
) -> tuple[ReplayRequests, int]:
    """Return the quarantined txids to replay, and the version of their node.

    Some of them may have been replayed since.
    """
    node = require(connection.get(paths.quarantine, deadline), paths.quarantine)
    if not node.data:
        return ReplayRequests(), node.version
    return decode(ReplayRequests, node.data, paths.quarantine), node.version


def read_drops(
    connection: Connection, paths: Paths, deadline: float
) -> tuple[DropRequests, int | None]:
    """As `read_requests`, for the quarantined txids to drop; version None: no node."""
    stored = read_record(connection, DropRequests, paths.drops, deadline)
    return (stored.record, stored.version) if stored else (DropRequests(), None)


def read_record(
    connection: Connection, model: type[R], path: str, deadline: float
) -> Stored[R] | None:
    """Return the record in a node, which is never in parts; None if there is no node."""
    node = connection.get(path, deadline)
    return None if node is None else Stored(decode(model, node.data, path), node.version)


def clearing_operations(
    connection: Connection, paths: Paths, deadline: float, *, forget: bool
) -> list[Operation]:
    """Return the operations that clear what a rebuild must not keep.

    They delete unreadable nodes of quarantine, columns, program and notices, empty unreadable
    requests to replay, and delete requests to drop in any case.

    Args:
        forget: clear the readable ones too, and the replays of rows.

    Raises:
        NewerFormatError: any record was written by a newer release: nothing may replace it.
    """

    def is_readable(read: Callable[[], object]) -> bool:
        try:
            read()
        except NewerFormatError:
            raise
        except ProgressUnreadableError:
            return False
        return True

    def quarantined(name: str, path: str) -> None:
        record = _read(connection, paths, QuarantineRecord, path, deadline).record
        _check_txid(txid_of(name, paths.quarantine), record.txid, path)

    # Only to raise NewerFormatError: the rebuild replaces these, readable or not.
    is_readable(lambda: _read(connection, paths, CommittedRecord, paths.committed, deadline))
    for name in connection.children(paths.batches, deadline) or []:
        batch = f"{paths.batches}/{name}"
        is_readable(partial(_read, connection, paths, BatchRecord, batch, deadline))
    replaceable: list[tuple[str, Callable[[], object]]] = []
    for name in connection.children(paths.quarantine, deadline) or []:
        path = f"{paths.quarantine}/{name}"
        replaceable.append((path, partial(quarantined, name, path)))
    for stream in connection.children(paths.columns, deadline) or []:
        path = paths.columns_of(stream)
        replaceable.append((path, partial(_read, connection, paths, ColumnsRecord, path, deadline)))
    for path, kind in ((paths.program, ProgramRecord), (paths.notices, NoticesRecord)):
        replaceable.append((path, partial(read_record, connection, kind, path, deadline)))
    for stream in (connection.children(paths.row_replays, deadline) or []) if forget else []:
        parent = paths.row_replays_of(stream)
        for name in connection.children(parent, deadline) or []:
            path, model = f"{parent}/{name}", RowReplayRecord
            replaceable.append((path, partial(_read, connection, paths, model, path, deadline)))
        replaceable.append((parent, lambda: None))  # readable: goes because of `forget`
    operations: list[Operation] = [
        Delete(path, node.version)
        for path, read_it in replaceable
        if (not is_readable(read_it) or forget) and (node := connection.get(path, deadline))
    ]
    if not is_readable(lambda: read_requests(connection, paths, deadline)) or forget:
        node = require(connection.get(paths.quarantine, deadline), paths.quarantine)
        operations.append(Put(paths.quarantine, b"", node.version))
    # Always: after the rebuild, a txid of the same number may read other records.
    drops = connection.get(paths.drops, deadline)
    return [*operations, *([Delete(paths.drops, drops.version)] if drops else [])]


def _read(
    connection: Connection, paths: Paths, model: type[R], path: str, deadline: float
) -> Stored[R]:
    return _decode_stored(connection, paths, model, path, connection.get(path, deadline), deadline)


def _read_by_txid(
    connection: Connection,
    paths: Paths,
    model: type[T],
    parent: str,
    path_of: Callable[[int], str],
    deadline: float,
) -> dict[int, Stored[T]]:
    """Read the records of the txids below a node, by ascending txid."""
    names = require(connection.children(parent, deadline), parent)
    txids = sorted(txid_of(name, parent) for name in names)
    nodes = connection.get_each([path_of(txid) for txid in txids], deadline)
    records: dict[int, Stored[T]] = {}
    for txid, node in zip(txids, nodes, strict=True):
        stored = _decode_stored(connection, paths, model, path_of(txid), node, deadline)
        _check_txid(txid, stored.record.txid, path_of(txid))
        records[txid] = stored
    return records


def _decode_stored(
    connection: Connection,
    paths: Paths,
    model: type[R],
    path: str,
    answer: Node | None,
    deadline: float,
) -> Stored[R]:
    node = require(answer, path)
    index = decode_index(node.data, path)
    if index is None:
        return Stored(decode(model, node.data, path), node.version)
    names = tuple(index.names())
    parts = [paths.part(name) for name in names]
    pieces = [
        require(piece, part).data
        for part, piece in zip(parts, connection.get_each(parts, deadline), strict=True)
    ]
    return Stored(decode(model, join_parts(index, pieces, path), path), node.version, names)


def _check_txid(expected: int, stored: int, path: str) -> None:
    if expected != stored:
        raise ProgressUnreadableError(
            f"ZooKeeper node '{path}' holds the record of txid {stored}. {NEVER_GUESSED}"
        )


def _check_contiguous(committed: int, txids: list[int], paths: Paths) -> None:
    # COMMITTED deletes its batch in the same multi, and a START checks COMMITTED's version, so no
    # crash leaves a gap, or a batch that is already committed.
    if txids != list(range(committed + 1, committed + 1 + len(txids))):
        raise ProgressUnreadableError(
            f"ZooKeeper node '{paths.batches}' has the txids {_shorten(txids)}, but "
            f"'{paths.committed}' says that {committed} is the last committed one: they must "
            f"follow it without a gap. {NEVER_GUESSED}"
        )


def _shorten(txids: list[int]) -> str:
    shown = ", ".join(str(txid) for txid in txids[:5])
    return shown + (f" ... {txids[-1]}" if len(txids) > 5 else "")
