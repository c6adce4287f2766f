"""The ledger of replayed rows: one node per replay of rows that a stream had set aside.

A node is created once, under a number that no other replay has, before the file of the replay
appears; it is updated once, when the file is known to exist. Users write these nodes and leaders
never do, so neither can disturb the other.
"""

from __future__ import annotations

import contextlib

from txn.errors import ProgressUnreadableError
from txn.protocol.encoding import decode, encode
from txn.protocol.records import RowReplayRecord
from txn.zookeeper.client.connection import (
    Connection,
    Create,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.znodes import Paths, require, txid_of

__all__ = ["begin_row_replay", "read_row_replays", "settle_row_replay"]

_ADVICE = (
    "Nothing is guessed: restore ZooKeeper's data from a backup. Who deletes the node lets rows "
    "go in again that were replayed before."
)


def read_row_replays(
    connection: Connection, paths: Paths, deadline: float
) -> dict[str, tuple[RowReplayRecord, ...]]:
    """Read the replays so far; as `ProgressBackend.row_replays`.

    Raises:
        ProgressUnreadableError: a node is unreadable, or one is missing between others.
    """
    streams = connection.children(paths.row_replays, deadline) or []
    return {name: _read_stream(connection, paths, name, deadline) for name in streams}


def begin_row_replay(
    connection: Connection, paths: Paths, deadline: float, record: RowReplayRecord
) -> RowReplayRecord:
    """Make a replay durable unless another one has its number; return the one of that number."""
    connection.ensure_path(paths.row_replays_of(record.stream), deadline)
    path = paths.row_replay(record.stream, record.number)
    data = encode(record, "replay of rows")
    while (node := connection.get(path, deadline)) is None:
        # Another process made it, or we did and lost the answer: the next read shows it.
        with contextlib.suppress(OutcomeUnknownError, RefusedError):
            connection.multi([Create(path, data)], deadline)
    return _decoded(node.data, path, record.stream, record.number)


def settle_row_replay(
    connection: Connection, paths: Paths, deadline: float, record: RowReplayRecord
) -> None:
    """Record that the file of a replay exists. Idempotent."""
    path = paths.row_replay(record.stream, record.number)
    data = encode(record.model_copy(update={"placed": True}), "replay of rows")
    while True:
        node = require(connection.get(path, deadline), path)
        if _decoded(node.data, path, record.stream, record.number).placed:
            return
        with contextlib.suppress(OutcomeUnknownError, RefusedError):
            connection.multi([Put(path, data, node.version)], deadline)


def _read_stream(
    connection: Connection, paths: Paths, stream: str, deadline: float
) -> tuple[RowReplayRecord, ...]:
    parent = paths.row_replays_of(stream)
    names = require(connection.children(parent, deadline), parent)
    numbers = sorted(txid_of(name, parent) for name in names)
    if numbers != list(range(1, len(numbers) + 1)):
        raise ProgressUnreadableError(
            f"ZooKeeper node '{parent}' has the replays {numbers[:5]}, which should be numbered "
            f"from 1 without a gap. {_ADVICE}"
        )
    records = []
    for number in numbers:
        path = paths.row_replay(stream, number)
        node = require(connection.get(path, deadline), path)
        records.append(_decoded(node.data, path, stream, number))
    return tuple(records)


def _decoded(data: bytes, path: str, stream: str, number: int) -> RowReplayRecord:
    record = decode(RowReplayRecord, data, path, _ADVICE)
    if (record.stream, record.number) != (stream, number):
        raise ProgressUnreadableError(
            f"ZooKeeper node '{path}' holds replay {record.number} of stream '{record.stream}'. "
            f"{_ADVICE}"
        )
    return record
