"""Read topologies from ZooKeeper for `txn status`; takes no lock, changes nothing."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from txn.config import TopologyConfig
from txn.errors import ProgressUnreadableError, TopologyError
from txn.protocol.records import (
    IncarnationRecord,
    LeaderIdentity,
    NoticesRecord,
    Progress,
    QuarantineRecord,
    StandbyIdentity,
)
from txn.zookeeper.client.connection import Connection
from txn.zookeeper.client.remembering import RememberingConnection
from txn.zookeeper.foundation import check_format
from txn.zookeeper.image import Image, read_image, read_notices
from txn.zookeeper.incarnation import read_incarnation
from txn.zookeeper.leadership import read_epoch, read_leader
from txn.zookeeper.standbys import read_standbys
from txn.zookeeper.znodes import Paths, check_topology_name

__all__ = [
    "BASE",
    "StatusReader",
    "TopologyStatus",
    "existing_topology",
    "find_status",
    "list_topologies",
    "read_status",
    "require_answer",
]

BASE = "/txn"
"""Parent of every topology's node, below the chroot."""

_READS = 50
_READS_TO_BE_SURE = 3
"""Reads in a row of an unreadable node, without a commit in between, that prove it unreadable."""
_PAUSE_SECS = 0.02
_OFTEN = re.compile(r"/(committed|batches|(batches|parts)/[^/]*)$")
"""Paths of nodes that change with each batch, and are never cached."""


@dataclass(frozen=True)
class TopologyStatus:
    """The state of a topology in ZooKeeper at one moment."""

    topology: str
    progress: Progress
    epoch: int
    """The newest epoch; 0 before the first leader."""
    leader: LeaderIdentity | None
    """The present leader, or None."""
    last_leader: LeaderIdentity | None
    """The process that took the newest epoch, alive or not."""
    quarantine: tuple[QuarantineRecord, ...]
    """Txids that were committed empty, ascending."""
    replays_requested: frozenset[int] = frozenset()
    """The quarantined txids that the topology will replay."""
    standbys: tuple[StandbyIdentity, ...] = ()
    """The standbys, the longest waiting first."""
    incarnation: IncarnationRecord | None = None
    """The present incarnation; None before the first leader of this release."""
    notices: NoticesRecord | None = None
    """The newest notices of the newest run's spouts; None if there were none."""
    drops_requested: frozenset[int] = frozenset()
    """The quarantined txids that the topology will give up."""


def read_status(
    hosts: str,
    topology: str,
    config: TopologyConfig,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> TopologyStatus:
    """Read a topology's state. Takes no lock, creates and changes nothing.

    Waits for ZooKeeper no longer than `zookeeper_connect_secs`.

    Raises:
        TopologyError: the topology does not exist; lists the existing ones.
        ProgressUnreadableError: as `ZooKeeperProgress.load`.
        ProgressUnavailableError: ZooKeeper did not answer.
    """
    reader = StatusReader(hosts, config, sleep=sleep, clock=clock)
    with contextlib.closing(reader):
        return reader.read(topology)


class StatusReader:
    """Reads topologies over one connection. Creates and changes nothing.

    Each answer waits for ZooKeeper no longer than `zookeeper_connect_secs`.

    Args:
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
        self._connection = (
            RememberingConnection(
                hosts, config, changes_often=_changes_often, sleep=sleep, clock=clock
            )
            if remembers
            else Connection(hosts, config, sleep=sleep, clock=clock)
        )
        self._timeout_secs = config.zookeeper_connect_secs
        self._sleep = sleep
        self._clock = clock

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def topologies(self) -> list[str]:
        """Return the names of the topologies that ZooKeeper knows, sorted.

        Raises:
            ProgressUnavailableError: ZooKeeper did not answer.
        """
        deadline = self._clock() + self._timeout_secs
        return self._connection.children(self._connection.chroot + BASE, deadline) or []

    def is_led(self, topology: str) -> bool:
        """True if the topology has a leader, by one request.

        Raises:
            ProgressUnavailableError: ZooKeeper did not answer.
        """
        paths = Paths(self._connection.chroot + BASE, topology)
        return self._connection.get(paths.leader, self._clock() + self._timeout_secs) is not None

    def read(self, topology: str) -> TopologyStatus:
        """Read a topology's state; raises as `read_status`."""
        check_topology_name(topology)
        connection, deadline = self._connection, self._clock() + self._timeout_secs
        paths = _existing(connection, topology, deadline)
        image = _still_image(connection, paths, self._sleep, deadline)
        epoch, _ = read_epoch(connection, paths, deadline)
        holder = read_leader(connection, paths, deadline)
        standbys = read_standbys(connection, paths, deadline)
        incarnation = read_incarnation(connection, paths, deadline)
        notices = read_notices(connection, paths, deadline)
        is_current = notices is not None and notices.record.epoch >= epoch.epoch
        return TopologyStatus(
            topology,
            image.progress,
            epoch.epoch,
            holder[0] if holder else None,
            epoch.leader,
            tuple(stored.record for stored in image.quarantine.values()),
            image.requests,
            standbys,
            incarnation[0] if incarnation else None,
            notices.record if notices and is_current else None,
            image.drops,
        )


def find_status(hosts: str, topology: str, config: TopologyConfig) -> TopologyStatus | None:
    """Like `read_status`; None if ZooKeeper does not know the topology (yet)."""
    try:
        return read_status(hosts, topology, config)
    except TopologyError:
        return None


def list_topologies(hosts: str, config: TopologyConfig) -> list[str]:
    """Return the names of the topologies that ZooKeeper knows, sorted. Creates nothing.

    Raises:
        ProgressUnavailableError: ZooKeeper did not answer.
    """
    with contextlib.closing(StatusReader(hosts, config)) as reader:
        return reader.topologies()


def require_answer(
    hosts: str, config: TopologyConfig, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return once ZooKeeper answers. Reads and creates nothing.

    Raises:
        ProgressUnavailableError: no answer within `zookeeper_connect_secs`.
        SetupError: the server refused the credentials, or TLS failed.
    """
    with _connected(hosts, config, sleep, time.monotonic) as connection:
        connection.wait(time.monotonic() + config.zookeeper_connect_secs)


@contextlib.contextmanager
def existing_topology(
    hosts: str,
    topology: str,
    config: TopologyConfig,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Connection, Paths, float]]:
    """Connect to the ZooKeeper that knows the topology; yields connection, paths, deadline.

    Raises:
        TopologyError: the topology does not exist; lists the existing ones.
        ProgressUnreadableError: it has a format that this program does not know.
        ProgressUnavailableError: ZooKeeper did not answer within `zookeeper_connect_secs`.
    """
    check_topology_name(topology)
    deadline = clock() + config.zookeeper_connect_secs
    with _connected(hosts, config, sleep, clock) as connection:
        yield connection, _existing(connection, topology, deadline), deadline


def _changes_often(path: str) -> bool:
    return _OFTEN.search(path) is not None


def _existing(connection: Connection, topology: str, deadline: float) -> Paths:
    """Return the paths of an existing topology; raises as `existing_topology`."""
    paths = Paths(connection.chroot + BASE, topology)
    if connection.get(paths.root, deadline) is None:
        raise _no_such_topology(connection, topology, deadline)
    connection.sync(paths.root, deadline)
    check_format(connection, paths, deadline)
    return paths


@contextlib.contextmanager
def _connected(
    hosts: str, config: TopologyConfig, sleep: Callable[[float], None], clock: Callable[[], float]
) -> Iterator[Connection]:
    connection = Connection(hosts, config, sleep=sleep, clock=clock)
    try:
        yield connection
    finally:
        connection.close()


def _no_such_topology(connection: Connection, topology: str, deadline: float) -> TopologyError:
    topologies = connection.children(connection.chroot + BASE, deadline) or []
    there_are = (
        f"It knows {', '.join(topologies)}." if topologies else "It knows no topology at all."
    )
    return TopologyError(
        f"ZooKeeper at {connection.servers}{connection.chroot} knows no topology '{topology}'. "
        f"{there_are} Check the name and the --zookeeper setting.",
        number="TXN-607",
    )


def _still_image(
    connection: Connection, paths: Paths, sleep: Callable[[float], None], deadline: float
) -> Image:
    """Read an image during which `committed` did not change; a leader may be writing meanwhile.

    A batch that was committed between the read of the list and the read of the batch cannot be
    read, nor a large record that was replaced meanwhile. A node that stays unreadable is damaged.
    """
    unreadable, last_version = 0, -1
    for i in range(_READS):
        try:
            image = read_image(connection, paths, deadline)
        except ProgressUnreadableError:
            node = connection.get(paths.committed, deadline)
            version = node.version if node else -1
            unreadable = unreadable + 1 if version == last_version else 1
            last_version = version
            if unreadable == _READS_TO_BE_SURE or i == _READS - 1:
                raise
        else:
            node = connection.get(paths.committed, deadline)
            if i == _READS - 1 or (node and node.version == image.committed.version):
                return image
        sleep(_PAUSE_SECS)
    raise AssertionError("unreachable: the last read returns or raises")
