"""Read topologies from ZooKeeper; takes no lock, changes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from txn.config import TopologyConfig
from txn.errors import ProgressUnreadableError, TopologyError
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import IncarnationRecord, NoticesRecord
from txn.protocol.store import check_topology_name
from txn.zookeeper.client.connection import Connection
from txn.zookeeper.foundation import check_format
from txn.zookeeper.image import Image, read_image, read_record
from txn.zookeeper.leadership import read_epoch, read_leader
from txn.zookeeper.standbys import read_standbys
from txn.zookeeper.znodes import Paths

__all__ = [
    "BASE",
    "existing_paths",
    "list_topologies",
    "read_names",
    "read_status",
    "read_topology",
    "topology_paths",
]

BASE = "/txn"
"""Parent of every topology's node, below the chroot."""

_READS = 50
_READS_TO_BE_SURE = 3
"""Reads in a row of an unreadable node, without a commit in between, that prove it unreadable."""
_PAUSE_SECS = 0.02


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
    with contextlib.closing(Connection(hosts, config, sleep=sleep, clock=clock)) as connection:
        deadline = clock() + config.zookeeper_connect_secs
        return read_topology(connection, topology, deadline, sleep)


def list_topologies(hosts: str, config: TopologyConfig) -> list[str]:
    """Return the names of the topologies that ZooKeeper knows, sorted. Creates nothing.

    Raises:
        ProgressUnavailableError: ZooKeeper did not answer.
    """
    with contextlib.closing(Connection(hosts, config)) as connection:
        return read_names(connection, time.monotonic() + config.zookeeper_connect_secs)


def read_names(connection: Connection, deadline: float) -> list[str]:
    """Return the names of the topologies, sorted; raises as `list_topologies`."""
    return connection.children(connection.chroot + BASE, deadline) or []


def topology_paths(connection: Connection, topology: str) -> Paths:
    """Return the paths of a topology, which may not exist."""
    return Paths(connection.chroot + BASE, topology)


def existing_paths(connection: Connection, topology: str, deadline: float) -> Paths:
    """Return the paths of an existing topology, as far as any process has written them.

    Raises:
        TopologyError: the topology does not exist; lists the existing ones.
        ProgressUnreadableError: it has a format that this program does not know.
        ProgressUnavailableError: ZooKeeper did not answer before `deadline`.
    """
    check_topology_name(topology)
    paths = topology_paths(connection, topology)
    connection.sync(paths.root, deadline)
    if connection.get(paths.root, deadline) is None:
        raise _no_such_topology(connection, topology, deadline)
    check_format(connection, paths, deadline)
    return paths


def read_topology(
    connection: Connection, topology: str, deadline: float, sleep: Callable[[float], None]
) -> TopologyStatus:
    """Read a topology's state; raises as `read_status`."""
    paths = existing_paths(connection, topology, deadline)
    image = _still_image(connection, paths, sleep, deadline)
    epoch, _ = read_epoch(connection, paths, deadline)
    holder = read_leader(connection, paths, deadline)
    standbys = read_standbys(connection, paths, deadline)
    incarnation = read_record(connection, IncarnationRecord, paths.incarnation, deadline)
    notices = read_record(connection, NoticesRecord, paths.notices, deadline)
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
        incarnation.record if incarnation else None,
        notices.record if notices and is_current else None,
        image.drops,
    )


def _no_such_topology(connection: Connection, topology: str, deadline: float) -> TopologyError:
    topologies = read_names(connection, deadline)
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
