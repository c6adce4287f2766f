"""Create, check and repair the nodes that a topology begins with."""

from __future__ import annotations

import contextlib
import json

from txn.protocol.encoding import decode, encode
from txn.protocol.records import CommittedRecord, EpochRecord
from txn.zookeeper.client.connection import (
    Connection,
    Create,
    Operation,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.znodes import FormatRecord, Paths, require

__all__ = ["check_format", "create_topology", "repair_topology"]


def create_topology(connection: Connection, paths: Paths, deadline: float) -> None:
    """Create the nodes of a topology, all at once, unless it exists."""
    if connection.get(paths.root, deadline) is not None:
        return
    connection.ensure_path(paths.base, deadline)
    # All in one multi: a topology with only some of its nodes is not ours, and is refused.
    nodes: list[Operation] = [
        Create(paths.root),
        Create(paths.format, encode(FormatRecord(), "format")),
        Create(paths.epoch, encode(EpochRecord(epoch=0), "epoch")),
        Create(paths.committed, encode(CommittedRecord(), "COMMITTED record")),
        Create(paths.batches),
        Create(paths.quarantine),
        Create(paths.parts),
    ]
    while connection.get(paths.root, deadline) is None:
        # Another process made it, or we did and lost the answer: the next read shows it.
        with contextlib.suppress(OutcomeUnknownError, RefusedError):
            connection.multi(nodes, deadline)


def check_format(connection: Connection, paths: Paths, deadline: float) -> None:
    """Refuse a topology whose format this program does not know."""
    decode(
        FormatRecord,
        require(connection.get(paths.format, deadline), paths.format).data,
        paths.format,
    )


def repair_topology(connection: Connection, paths: Paths, deadline: float) -> None:
    """Replace missing and unreadable nodes, `committed` excepted, for `rebuild` only.

    `epoch` is never deleted: its znode version must keep growing, or a paused former leader could
    find the version that it remembers.
    """
    create_topology(connection, paths, deadline)
    defaults = {
        paths.format: encode(FormatRecord(), "format"),
        paths.epoch: encode(EpochRecord(epoch=0), "epoch"),
        paths.batches: b"",
        paths.quarantine: b"",
        paths.parts: b"",
    }
    for path, data in defaults.items():
        node = connection.get(path, deadline)
        if node is not None and not _is_garbage(node.data, data):
            continue
        write: Operation = Put(path, data, node.version) if node else Create(path, data)
        # An unknown outcome is harmless here: `claim` refuses nodes that are still unreadable.
        connection.multi([write], deadline)
    check_format(connection, paths, deadline)


def _is_garbage(data: bytes, default: bytes) -> bool:
    # Not JSON at all. JSON of another version is somebody's state: `check_format` refuses it.
    if not default:
        return False
    try:
        return not isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return True
