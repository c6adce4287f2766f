"""The nodes that a topology begins with: made all at once, known by their format, repaired."""

from __future__ import annotations

import contextlib
import json

from txn.protocol.records import CommittedRecord, EpochRecord
from txn.zookeeper.connection import (
    Connection,
    Create,
    Operation,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.znodes import FormatRecord, Paths, decode, encode, require

__all__ = ["check_format", "create_topology", "repair_topology"]


def create_topology(connection: Connection, paths: Paths, deadline: float) -> None:
    """Make the nodes of a topology that is not there yet.

    Raises:
        ProgressUnavailableError: no answer before `deadline`.
    """
    if connection.get(paths.root, deadline) is not None:
        return
    connection.ensure_path(paths.base, deadline)
    # All in one multi: a topology with half of its nodes was not made by us, and is refused.
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
        # Another process made it, or we did and lost the answer: the next look shows which.
        with contextlib.suppress(OutcomeUnknownError, RefusedError):
            connection.multi(nodes, deadline)


def check_format(connection: Connection, paths: Paths, deadline: float) -> None:
    """Refuse a topology whose nodes this program does not know.

    Raises:
        ProgressUnreadableError: see there.
    """
    decode(
        FormatRecord,
        require(connection.get(paths.format, deadline), paths.format).data,
        paths.format,
    )


def repair_topology(connection: Connection, paths: Paths, deadline: float) -> None:
    """Replace what is missing or unreadable of `format` and `epoch`, for `rebuild` only.

    `epoch` is never deleted: its znode version must go on growing, or a paused leader of the
    past could find the version that it remembers.

    Raises:
        ProgressUnreadableError: the topology is of a format that this program does not know.
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
        # An unknown outcome is harmless here: what is left undone, `claim` refuses to read.
        connection.multi([write], deadline)
    check_format(connection, paths, deadline)


def _is_garbage(data: bytes, default: bytes) -> bool:
    # Not JSON at all; JSON of another version is somebody's state, and `check_format` refuses it.
    if not default:
        return False
    try:
        return not isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return True
