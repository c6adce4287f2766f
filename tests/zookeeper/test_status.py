from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.zookeeper.progress_store import CONFIG, bare_client, committed, start
from txn.embedded import EmbeddedZooKeeper
from txn.errors import TopologyError
from txn.protocol.records import Progress
from txn.zookeeper import ZooKeeperProgress, list_topologies, read_status


def test_status_shows_progress_and_leader(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, name: str
) -> None:
    """While somebody leads, and after."""
    store.persist_start(start(1, s=1))
    status = read_status(zookeeper.hosts, name, CONFIG)
    assert status.leader is not None
    assert (os.getpid(), 1, 1) == (status.leader.pid, status.leader.epoch, status.epoch)
    assert Progress(batches=(start(1, s=1),)) == status.progress
    store.close()
    status = read_status(zookeeper.hosts, name, CONFIG)
    assert status.leader is None
    assert status.last_leader is not None
    assert os.getpid() == status.last_leader.pid


def test_status_while_a_leader_writes(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, name: str
) -> None:
    """What is seen is always something that was."""
    done = threading.Event()

    def write() -> None:
        txid = 0
        while not done.is_set():
            txid += 1
            store.persist_start(start(txid, s="x" * 500_000))
            store.persist_committed(committed(txid))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [read_status(zookeeper.hosts, name, CONFIG).progress for _ in range(20)]
    finally:
        done.set()
        writer.join()
    assert sorted(p.committed.txid for p in seen) == [p.committed.txid for p in seen]
    assert all(len(p.batches) <= 1 for p in seen)


def test_status_of_an_unknown_topology_lists_those_that_there_are(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, name: str
) -> None:
    """A misspelt name is answered with the right ones, and nothing is created."""
    with pytest.raises(TopologyError, match=rf"knows no topology 'flihgts'\. It knows .*{name}"):
        read_status(zookeeper.hosts, "flihgts", CONFIG)
    assert "flihgts" not in list_topologies(zookeeper.hosts, CONFIG)
    assert name in list_topologies(zookeeper.hosts, CONFIG)


def test_looking_creates_nothing(tmp_path: Path) -> None:
    """Not even the parent of all topologies."""
    with EmbeddedZooKeeper(tmp_path) as server:
        assert [] == list_topologies(server.hosts, CONFIG)
        with pytest.raises(TopologyError, match="It knows no topology at all"):
            read_status(server.hosts, "t", CONFIG)
        with bare_client(server.hosts) as raw:
            assert ["zookeeper"] == raw.get_children("/")


@pytest.mark.parametrize("bad", ["", "..", "a/b", "a\0"])
def test_names_that_would_leave_the_node_are_refused(bad: str) -> None:
    """Before anything is connected."""
    with pytest.raises(TopologyError):
        ZooKeeperProgress("127.0.0.1:1", bad, CONFIG)
    with pytest.raises(TopologyError):
        read_status("127.0.0.1:1", bad, CONFIG)
