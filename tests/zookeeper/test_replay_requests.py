"""Quarantine records and requests for their replay, over a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.zookeeper.progress_store import CONFIG, LARGE, bare_client, committed, leading, start
from txn.embedded import EmbeddedZooKeeper
from txn.errors import ProgressUnreadableError
from txn.protocol.records import QuarantineRecord
from txn.zookeeper import ZooKeeperProgress, read_status
from txn.zookeeper.backend import ZooKeeperBackend
from txn.zookeeper.image import read_requests


@pytest.fixture
def store(zookeeper: EmbeddedZooKeeper, name: str) -> Iterator[ZooKeeperProgress]:
    """A store that leads; its epoch is 1, and txids 1 and 2 are quarantined."""
    with leading(zookeeper.hosts, name) as progress:
        for txid in (1, 2):
            progress.persist_start(start(txid, s=txid))
            progress.persist_committed(committed(txid), aside(txid))
        yield progress


@pytest.fixture
def raw(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A client that goes round the store."""
    with bare_client(zookeeper.hosts) as client:
        yield client


def aside(txid: int, **spouts: object) -> QuarantineRecord:
    """A quarantine record."""
    return QuarantineRecord(txid=txid, attempt=0, spouts=spouts or {"s": txid}, error="boom")


def quarantined(hosts: str, name: str) -> list[int]:
    """The txids that anybody would find quarantined."""
    return [record.txid for record in read_status(hosts, name, CONFIG).quarantine]


def test_committed_replay_takes_its_record_along(
    zookeeper: EmbeddedZooKeeper, backend: ZooKeeperBackend, store: ZooKeeperProgress, name: str
) -> None:
    """COMMITTED of the replay deletes the record; what is left of the request means nothing."""
    backend.request_replays(name, None)
    store.persist_start(start(3, s=1).model_copy(update={"replay_of": 1}))
    assert quarantined(zookeeper.hosts, name) == [1, 2]
    store.persist_committed(committed(3), replay_of=1)
    assert quarantined(zookeeper.hosts, name) == [2]
    assert store.requested_replay(()) == aside(2)
    store.persist_committed(committed(4), aside(4), replay_of=2)
    assert quarantined(zookeeper.hosts, name) == [4]
    assert store.requested_replay(()) is None
    assert read_status(zookeeper.hosts, name, CONFIG).replays_requested == frozenset()


def test_next_leader_deletes_a_record_that_it_has_only_read(
    zookeeper: EmbeddedZooKeeper, backend: ZooKeeperBackend, name: str, raw: KazooClient
) -> None:
    """Version and parts of a large record are known after a restart; nothing of it stays."""
    with leading(zookeeper.hosts, name) as store:
        store.persist_start(start(1, s=LARGE))
        store.persist_committed(committed(1), aside(1, s=LARGE))
    assert raw.get_children(f"/txn/{name}/parts")
    with leading(zookeeper.hosts, name) as store:
        assert backend.request_replays(name, [1]) == [1]
        assert store.requested_replay(()) == aside(1, s=LARGE)
        store.persist_committed(committed(2, epoch=2), replay_of=1)
    assert raw.get_children(f"/txn/{name}/quarantine") == []
    assert raw.get_children(f"/txn/{name}/parts") == []


def test_replay_of_a_txid_without_a_record_is_committed(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, name: str
) -> None:
    """Its record was lost with a ZooKeeper that was wiped; the rows are in the tables."""
    store.persist_committed(committed(3), replay_of=0)
    assert read_status(zookeeper.hosts, name, CONFIG).progress.committed.txid == 3


def test_nothing_is_read_while_nothing_is_quarantined(
    zookeeper: EmbeddedZooKeeper, name: str
) -> None:
    """The normal case costs no request."""
    with leading(zookeeper.hosts, name) as store:
        store._connection.close()
        assert store.requested_replay(()) is None


def overtaking(monkeypatch: pytest.MonkeyPatch, module: str, rival: Callable[[], object]) -> None:
    """Between a module's next read and its write, a rival writes."""
    rivals = [rival]

    def overtaken(*arguments: Any) -> Any:
        found = read_requests(*arguments)
        if rivals:
            rivals.pop()()
        return found

    monkeypatch.setattr(f"txn.zookeeper.{module}.read_requests", overtaken)


def test_requests_at_the_same_time_are_all_kept(
    zookeeper: EmbeddedZooKeeper,
    backend: ZooKeeperBackend,
    store: ZooKeeperProgress,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user who was overtaken between the read and the write does not overwrite the other's."""
    overtaking(monkeypatch, "replay_requests", lambda: backend.request_replays(name, [2]))
    assert backend.request_replays(name, [1]) == [1]
    assert read_status(zookeeper.hosts, name, CONFIG).replays_requested == {1, 2}


def test_a_request_that_comes_while_another_is_refused_is_kept(
    zookeeper: EmbeddedZooKeeper,
    backend: ZooKeeperBackend,
    store: ZooKeeperProgress,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader withdraws the one that it refuses, whoever writes the node meanwhile."""
    backend.request_replays(name, [1])
    overtaking(monkeypatch, "progress", lambda: backend.request_replays(name, [2]))
    store.refuse_replay(1, "gone")
    status = read_status(zookeeper.hosts, name, CONFIG)
    assert status.replays_requested == {2}
    assert [record.error for record in status.quarantine] == ["boom (replay refused) gone", "boom"]


def test_the_parts_of_a_large_record_that_is_refused_are_replaced(
    zookeeper: EmbeddedZooKeeper, backend: ZooKeeperBackend, name: str, raw: KazooClient
) -> None:
    """Nothing is left of them when its txid is dropped."""
    with leading(zookeeper.hosts, name) as store:
        store.persist_start(start(1, s=LARGE))
        store.persist_committed(committed(1), aside(1, s=LARGE))
        store.refuse_replay(1, "gone")
    with leading(zookeeper.hosts, name) as store:
        assert backend.request_drops(name, [1]) == [1]
        dropped = store.requested_drop(())
        assert dropped is not None
        assert dropped.spouts == {"s": LARGE}
        store.persist_committed(committed(2, epoch=2), replay_of=1)
    assert raw.get_children(f"/txn/{name}/parts") == []


def test_what_was_given_up_is_not_given_up_in_another_life(
    zookeeper: EmbeddedZooKeeper,
    backend: ZooKeeperBackend,
    store: ZooKeeperProgress,
    name: str,
    raw: KazooClient,
) -> None:
    """`txn recover` and `txn import` make the progress anew: a txid of the same number may have
    read something else.
    """
    backend.request_drops(name, [1])
    assert read_status(zookeeper.hosts, name, CONFIG).drops_requested == {1}
    assert raw.get(f"/txn/{name}/quarantine")[0] == b""
    store.close()
    other = ZooKeeperProgress(zookeeper.hosts, name, CONFIG)
    other.rebuild(committed(2), at_least=1)
    other.load()
    assert other.requested_drop(()) is None
    other.close()
    assert not raw.exists(f"/txn/{name}/drops")


def test_requests_that_cannot_be_read_are_refused(
    zookeeper: EmbeddedZooKeeper,
    backend: ZooKeeperBackend,
    store: ZooKeeperProgress,
    name: str,
    raw: KazooClient,
) -> None:
    """What somebody wrote into the node by hand is never read as "no requests"."""
    raw.create(f"/txn/{name}/drops", b"{}")
    with pytest.raises(ProgressUnreadableError, match="drops' has format version"):
        store.requested_drop(())
    raw.delete(f"/txn/{name}/drops")
    raw.set(f"/txn/{name}/quarantine", b"all of them")
    for read in (
        lambda: store.requested_replay(()),
        lambda: read_status(zookeeper.hosts, name, CONFIG),
        lambda: backend.request_replays(name, None),
    ):
        with pytest.raises(ProgressUnreadableError, match="quarantine' does not hold JSON"):
            read()
