"""`ZooKeeperBackend`: one ZooKeeper with the durable state of many topologies, over one connection.

A call waits for ZooKeeper no longer than `zookeeper_connect_secs`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection

from txn.config import TopologyConfig
from txn.protocol.backend import ProgressBackend, TopologyStatus
from txn.protocol.records import RowReplayRecord
from txn.zookeeper.client.connection import Connection
from txn.zookeeper.client.remembering import RememberingConnection
from txn.zookeeper.progress import ZooKeeperProgress
from txn.zookeeper.replay_requests import request_drops, request_replays
from txn.zookeeper.row_replays import begin_row_replay, read_row_replays, settle_row_replay
from txn.zookeeper.status import existing_paths, read_names, read_topology, topology_paths
from txn.zookeeper.znodes import Paths

__all__ = ["ZooKeeperBackend"]

_OFTEN = re.compile(r"/(committed|batches|(batches|parts)/[^/]*)$")
"""Paths of nodes that change with each batch, and are never cached."""


class ZooKeeperBackend(ProgressBackend):
    """The topologies that one ZooKeeper knows.

    Args:
        hosts: connect string, "host:2181,host2:2181/chroot".
        config: timeouts, credentials, ACL and TLS.
        remembers: read nodes again only after they have changed; for one thread that polls.
    """

    def __init__(
        self,
        hosts: str,
        config: TopologyConfig,
        *,
        remembers: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts = hosts
        self._config = config
        self._sleep = sleep
        self._clock = clock
        self._connection = (
            RememberingConnection(
                hosts, config, changes_often=_OFTEN.search, sleep=sleep, clock=clock
            )
            if remembers
            else Connection(hosts, config, sleep=sleep, clock=clock)
        )

    def open(self, topology: str) -> ZooKeeperProgress:
        """Return a new store of a topology, with a session of its own."""
        return ZooKeeperProgress(
            self._hosts, topology, self._config, sleep=self._sleep, clock=self._clock
        )

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def topologies(self) -> list[str]:
        """Return the names of the topologies, sorted."""
        return read_names(self._connection, self._deadline())

    def is_led(self, topology: str) -> bool:
        """True if the topology has a leader, by one request."""
        leader = topology_paths(self._connection, topology).leader
        return self._connection.get(leader, self._deadline()) is not None

    def status(self, topology: str) -> TopologyStatus:
        """Read a topology's state. Takes no lock, creates and changes nothing."""
        return read_topology(self._connection, topology, self._deadline(), self._sleep)

    def request_replays(self, topology: str, txids: Collection[int] | None) -> list[int]:
        """Request the replay of quarantined txids by the present or next leader."""
        return request_replays(*self._existing(topology), txids)

    def request_drops(self, topology: str, txids: Collection[int] | None) -> list[int]:
        """Give quarantined txids up."""
        return request_drops(*self._existing(topology), txids)

    def row_replays(self, topology: str) -> dict[str, tuple[RowReplayRecord, ...]]:
        """Read the replays of rows so far."""
        return read_row_replays(*self._existing(topology))

    def begin_row_replay(self, topology: str, record: RowReplayRecord) -> RowReplayRecord:
        """Store a replay of rows, unless its number is taken."""
        return begin_row_replay(*self._existing(topology), record)

    def settle_row_replay(self, topology: str, record: RowReplayRecord) -> None:
        """Store that the file of a replay exists."""
        settle_row_replay(*self._existing(topology), record)

    def _existing(self, topology: str) -> tuple[Connection, Paths, float]:
        deadline = self._deadline()
        return self._connection, existing_paths(self._connection, topology, deadline), deadline

    def _deadline(self) -> float:
        return self._clock() + self._config.zookeeper_connect_secs
