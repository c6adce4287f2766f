"""A topology's name of the test's own, and a store that leads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.zookeeper.progress_store import CONFIG, leading
from txn.embedded import EmbeddedZooKeeper
from txn.zookeeper import ZooKeeperProgress
from txn.zookeeper.backend import ZooKeeperBackend


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topology of the test's own."""
    return str(request.node.name).replace("/", "-")


@pytest.fixture
def backend(zookeeper: EmbeddedZooKeeper) -> Iterator[ZooKeeperBackend]:
    """A user's connection, beside that of the leader."""
    with contextlib.closing(ZooKeeperBackend(zookeeper.hosts, CONFIG)) as backend:
        yield backend


@pytest.fixture
def store(zookeeper: EmbeddedZooKeeper, name: str) -> Iterator[ZooKeeperProgress]:
    """A store that leads and has loaded; its epoch is 1."""
    with leading(zookeeper.hosts, name) as progress:
        yield progress
