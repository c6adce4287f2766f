"""Nodes that are asked for again only when they have changed, beside those that always are."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from kazoo.client import KazooClient

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
from txn.zookeeper.connection import Connection
from txn.zookeeper.remembering import RememberingConnection
from txn.zookeeper.status import StatusReader

NAMES = "abcd"


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """The requests that this process makes of ZooKeeper meanwhile, by operation."""
    seen: Counter[str] = Counter()

    def count(request: Request) -> None:
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
        zookeeper.hosts, CONFIG, passing=lambda path: path.endswith("d")
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


def test_nothing_is_asked_twice_that_has_not_changed(
    zookeeper: EmbeddedZooKeeper, remembering: RememberingConnection
) -> None:
    """Of nodes that are there; the others, and those that always change, are asked for."""
    with bare_client(zookeeper.hosts) as client:
        for name in NAMES:
            client.create(f"/twice/{name}", name.encode(), makepath=True)
        deadline = time.monotonic() + 20
        paths = [f"/twice/{name}" for name in (*NAMES, "x")]
        for _ in range(2):
            remembering.children("/twice", deadline)
            first = remembering.get_each(paths, deadline)
        with counted() as seen:
            assert remembering.get_each(paths, deadline) == first
            assert [remembering.get(path, deadline) for path in paths] == first
            assert remembering.children("/twice", deadline) == [*NAMES]
        assert seen == {"get": 4, "exists": 1}  # d and x, twice; that there is no x is remembered
        with counted() as seen:
            assert remembering.get("/twice/x", deadline) is None
        assert not seen
        client.set("/twice/b", b"new")
        client.delete("/twice/c")
        client.create("/twice/x", b"x")
        with counted() as seen:
            remembering.sync("/twice", deadline)
            found = remembering.get_each(paths, deadline)
            assert remembering.children("/twice", deadline) == ["a", "b", "d", "x"]
        assert [node.data if node else None for node in found] == [b"a", b"new", None, b"d", b"x"]
        assert seen == {"sync": 1, "get": 4, "get_children": 1}  # b, c, d, x


def test_a_look_at_a_topology_asks_for_what_its_batches_change(
    zookeeper: EmbeddedZooKeeper, name: str
) -> None:
    """Once a second, so what has never changed must cost nothing; it says what a new one says."""
    with (
        leading(zookeeper.hosts, name) as store,
        contextlib.closing(StatusReader(zookeeper.hosts, CONFIG)) as reader,
    ):
        for txid in range(1, 6):
            store.persist_start(start(txid, s=txid))
            assert reader.read(name) == read_status(zookeeper.hosts, name, CONFIG)
            quarantine = QuarantineRecord(txid=txid, attempt=0, error="boom")
            store.persist_committed(committed(txid), quarantine if txid % 2 else None)
            assert reader.read(name) == read_status(zookeeper.hosts, name, CONFIG)
        store.persist_start(start(6, s=6))
        reader.read(name)
        with counted() as seen:
            found = reader.read(name)
        assert (found.progress.committed.txid, len(found.quarantine)) == (5, 3)
        assert seen == {"sync": 1, "get": 3, "get_children": 1}
