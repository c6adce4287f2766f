"""The standbys: one ephemeral node each, only for `txn status`.

These nodes decide nothing: the first multi that raises the epoch takes over. So a standby that
cannot write its node waits all the same.

A node's name ends in the id of the standby's program: a field of its record would make `txn status`
of release 0.1.0 refuse the node, and that release reads nothing out of the name.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone

from txn.errors import SetupError
from txn.machine.liveness import this_process
from txn.protocol.encoding import decode, encode
from txn.protocol.records import StandbyIdentity
from txn.zookeeper.client.connection import (
    Connection,
    Create,
    Delete,
    Operation,
    OutcomeUnknownError,
    RefusedError,
)
from txn.zookeeper.znodes import Paths

__all__ = ["Announcement", "read_standbys"]


class Announcement:
    """The node of one standby, which exists while it waits. Not thread-safe.

    Args:
        token: names the node; unique.
        program: the id of the standby's program; empty: unknown.
    """

    def __init__(self, connection: Connection, paths: Paths, token: str, program: str = "") -> None:
        self._connection = connection
        self._paths = paths
        self._path = paths.standby(f"{token}.{program}" if program else token)
        self._generation = 0
        self._identity: StandbyIdentity | None = None

    def keep(self, deadline: float) -> None:
        """Write the node in this session. No request while the session lasts."""
        if self._generation == self._connection.generation:
            return
        if self._identity is None:
            since = datetime.now(timezone.utc).isoformat(timespec="seconds")
            self._identity = StandbyIdentity(**this_process(), since=since)
        path = self._path
        node = self._connection.get(path, deadline)
        generation = self._connection.generation
        if node is not None and node.owner == self._connection.session_id:
            self._generation = generation
            return
        operations: list[Operation] = [] if node is None else [Delete(path, node.version)]
        operations.append(Create(path, encode(self._identity, "standby"), ephemeral=True))
        if self._connection.get(self._paths.standbys, deadline) is None:
            operations.insert(0, Create(self._paths.standbys))
        # If it is refused or the outcome is unknown, the next poll, in a second, tries again.
        with contextlib.suppress(OutcomeUnknownError, RefusedError, SetupError):
            self._connection.multi(operations, deadline, generation)

    def withdraw(self, deadline: float) -> None:
        """Delete the node."""
        if self._identity is None:
            return
        node = self._connection.get(self._path, deadline)
        if node is not None:
            with contextlib.suppress(OutcomeUnknownError, RefusedError, SetupError):
                self._connection.multi([Delete(self._path, node.version)], deadline)


def read_standbys(
    connection: Connection, paths: Paths, deadline: float
) -> tuple[tuple[StandbyIdentity, str], ...]:
    """Return each standby with the id of its program, the longest waiting first."""
    names = connection.children(paths.standbys, deadline) or []
    node_paths = [paths.standby(name) for name in names]
    nodes = zip(node_paths, connection.get_each(node_paths, deadline), strict=True)
    standbys = [
        (decode(StandbyIdentity, node.data, path), path.rpartition("/")[2].partition(".")[2])
        for path, node in nodes
        if node is not None
    ]
    return tuple(sorted(standbys, key=lambda standby: (standby[0].since, standby[0].pid)))
