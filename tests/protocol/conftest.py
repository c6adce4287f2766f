"""The backends that the package has, each empty."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.protocol.places import Place
from tests.zookeeper.progress_store import CONFIG, bare_client, expire
from txn.embedded import EmbeddedZooKeeper
from txn.testing import MemoryNodes
from txn.zookeeper.backend import ZooKeeperBackend


@pytest.fixture(params=["memory", "zookeeper"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """An empty place, with all its stores closed in the end."""
    if request.param == "memory":
        nodes = MemoryNodes()
        place = Place(
            nodes,
            lambda store: store.lose_session(),
            lambda store: store._leave(),
            lambda node: nodes.data.update({f"/txn/t/{node}": b"?"}),
        )
        yield place
    else:
        server: EmbeddedZooKeeper = request.getfixturevalue("zookeeper")
        hosts = f"{server.hosts}/{request.node.name}"

        def damage(node: str) -> None:
            with bare_client(hosts) as raw:
                raw.set(f"/txn/t/{node}", b"?")

        with closing(ZooKeeperBackend(hosts, CONFIG)) as backend:
            place = Place(
                backend,
                expire,
                lambda store: store._leadership.release(time.monotonic() + 60),
                damage,
            )
            yield place
    for store in place.opened:
        store.close()
