"""Nodes that are asked for again only when they have changed, beside those that always are."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tests.zookeeper.progress_store import (
    CONFIG,
    bare_client,
    committed,
    expire_session,
    leading,
    start,
)
from txn.embedded import EmbeddedZooKeeper
from txn.protocol.records import QuarantineRecord
from txn.requests import Request, listen
from txn.zookeeper import read_status
from txn.zookeeper.backend import ZooKeeperBackend
from txn.zookeeper.client.connection import Connection
from txn.zookeeper.client.remembering import RememberingConnection

NAMES = "abcd"


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """The requests that this thread makes of ZooKeeper meanwhile, by operation."""
    seen: Counter[str] = Counter()

    here = threading.get_ident()

    def count(request: Request) -> None:
        if threading.get_ident() == here:
            seen[request.operation] += 1

    end = listen(count)
    try:
        yield seen
    finally:
        end()


@pytest.fixture
def remembering(zookeeper: EmbeddedZooKeeper) -> Iterator[RememberingConnection]:
    """A connection that remembers all but what ends with `d`."""
    connection = RememberingConnection(
        zookeeper.hosts, CONFIG, changes_often=lambda path: path.endswith("d")
    )
    with contextlib.closing(connection):
        yield connection


def change(client: KazooClient, root: str, random: Random) -> None:
    """Create, write or delete some node below another one."""
    path = f"{root}/{random.choice(NAMES)}"
    if random.random() < 0.5:
        path = f"{path}/{random.choice(NAMES)}"
    kind = random.choice(["write", "write", "delete"])
    if kind == "delete":
        if client.exists(path):
            client.delete(path, recursive=True)
    else:
        client.ensure_path(path)
        client.set(path, random.randbytes(4))


def told(connection: Connection, root: str) -> list[object]:
    """All that is there, read in each of the three ways."""
    deadline = time.monotonic() + 20
    connection.sync(root, deadline)
    inner = [f"{root}/{name}" for name in NAMES]
    paths = [*inner, *(f"{path}/{name}" for path in inner for name in NAMES)]
    return [
        [connection.get(path, deadline) for path in paths],
        [connection.children(path, deadline) for path in (root, *inner)],
        connection.get_each(paths, deadline),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_remembered_is_what_is_there(
    zookeeper: EmbeddedZooKeeper, remembering: RememberingConnection, seed: int
) -> None:
    """After random changes, lost sessions among them, as a connection without memory reads it."""
    random, root = Random(seed), f"/remembered-{seed}"
    fresh = Connection(zookeeper.hosts, CONFIG)
    with contextlib.closing(fresh), bare_client(zookeeper.hosts) as client:
        client.ensure_path(root)
        for step in range(60):
            for _ in range(random.randrange(3)):
                change(client, root, random)
            if step % 20 == 19:
                expire_session(remembering)
            assert told(remembering, root) == told(fresh, root)
        assert remembering.generation == 4


def test_nothing_is_asked_twice_that_has_not_changed(
    zookeeper: EmbeddedZooKeeper, remembering: RememberingConnection, name: str
) -> None:
    """That there is no node is remembered by `get`; what often changes never is."""
    root = f"/{name}/r"
    with bare_client(zookeeper.hosts) as client:
        for each in NAMES:
            client.create(f"{root}/{each}", each.encode(), makepath=True)
        deadline = time.monotonic() + 20
        paths = [f"{root}/{each}" for each in (*NAMES, "x")]
        for _ in range(2):
            remembering.children(root, deadline)
            first = remembering.get_each(paths, deadline)
        with counted() as seen:
            assert remembering.get_each(paths, deadline) == first
            assert [remembering.get(path, deadline) for path in paths] == first
            assert remembering.children(root, deadline) == [*NAMES]
        assert seen == {"get": 4, "exists": 1}  # d and x, twice; that there is no x is remembered
        with counted() as seen:
            assert remembering.get(f"{root}/x", deadline) is None
        assert not seen
        client.set(f"{root}/b", b"new")
        client.delete(f"{root}/c")
        client.create(f"{root}/x", b"x")
        with counted() as seen:
            remembering.sync(root, deadline)
            found = remembering.get_each(paths, deadline)
            assert remembering.children(root, deadline) == ["a", "b", "d", "x"]
        assert [node.data if node else None for node in found] == [b"a", b"new", None, b"d", b"x"]
        assert seen == {"sync": 1, "get": 4, "get_children": 1}  # b, c, d, x


def test_what_zookeeper_may_not_tell_of_is_asked_again_after_a_while(
    zookeeper: EmbeddedZooKeeper, name: str
) -> None:
    """It tells only those of a change who may read the node by then, and forgets the watch."""
    later = [0.0]
    root, owner = f"/{name}", "owner:secret"
    closed = [make_digest_acl("owner", "secret", all=True)]
    reading = RememberingConnection(
        zookeeper.hosts,
        CONFIG,
        changes_often=lambda _: False,
        clock=lambda: time.monotonic() + later[0],
    )
    with contextlib.closing(reading), bare_client(zookeeper.hosts) as client:
        client.add_auth("digest", owner)
        client.create(root, b"")
        reading.sync(root, 1e9)
        assert reading.get(f"{root}/a", 1e9) is None
        client.create(f"{root}/a", b"1", acl=closed)
        client.set_acls(f"{root}/a", OPEN_ACL_UNSAFE)
        client.set(f"{root}/a", b"2")
        reading.sync(root, 1e9)
        assert reading.get(f"{root}/a", 1e9) is None
        later[0] = 20.0
        found = reading.get(f"{root}/a", 1e9)
        assert found is not None
        assert found.data == b"2"


def test_a_look_at_a_topology_asks_for_what_its_batches_change(
    zookeeper: EmbeddedZooKeeper, name: str
) -> None:
    """Once a second, so what has never changed must cost nothing; it says what a new one says."""
    with (
        leading(zookeeper.hosts, name) as store,
        contextlib.closing(ZooKeeperBackend(zookeeper.hosts, CONFIG, remembers=True)) as backend,
    ):
        for txid in range(1, 6):
            store.persist_start(start(txid, s=txid))
            assert backend.status(name) == read_status(zookeeper.hosts, name, CONFIG)
            quarantine = QuarantineRecord(txid=txid, attempt=0, error="boom")
            store.persist_committed(committed(txid), quarantine if txid % 2 else None)
            assert backend.status(name) == read_status(zookeeper.hosts, name, CONFIG)
        store.persist_start(start(6, s=6))
        backend.status(name)
        with counted() as seen:
            found = backend.status(name)
        assert (found.progress.committed.txid, len(found.quarantine)) == (5, 3)
        assert seen == {"sync": 1, "get": 3, "get_children": 1}
        assert isinstance(backend._connection, RememberingConnection)
        assert not [path for path in backend._connection._nodes if "/batches/" in path]
