"""Records, stores and clients that several tests of the progress store use."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from collections.abc import Iterator
from random import Random
from typing import Any

from kazoo.client import KazooClient

from txn.config import TopologyConfig
from txn.protocol.records import BatchRecord, CommittedRecord, Progress
from txn.zookeeper import ZooKeeperProgress
from txn.zookeeper.client.connection import Connection

CONFIG = TopologyConfig(zookeeper_timeout_secs=4.0, zookeeper_deadline_secs=30.0)


def noise(size: int) -> str:
    """So many characters, always the same, which compression makes no smaller than 3/4."""
    return b64encode(Random(7).randbytes(size)).decode()[:size]


LARGE = {"s": {"files": noise(5_000_000).split("A")}}


@contextlib.contextmanager
def leading(
    hosts: str, topology: str, config: TopologyConfig = CONFIG
) -> Iterator[ZooKeeperProgress]:
    """A store that leads and has loaded, closed in the end."""
    with contextlib.closing(ZooKeeperProgress(hosts, topology, config)) as progress:
        progress.lead()
        progress.load()
        yield progress


@contextlib.contextmanager
def bare_client(hosts: str) -> Iterator[KazooClient]:
    """A client of kazoo's, connected."""
    client = KazooClient(hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def start(txid: int, attempt: int = 0, epoch: int = 1, **spouts: Any) -> BatchRecord:
    """A START."""
    return BatchRecord(txid=txid, attempt=attempt, epoch=epoch, spouts=spouts)


def committed(txid: int, epoch: int = 1, **spouts: Any) -> CommittedRecord:
    """A COMMITTED."""
    return CommittedRecord(txid=txid, epoch=epoch, spouts=spouts, tables={"t": txid + 10})


def reloaded(store: ZooKeeperProgress) -> Progress:
    """What the next leader would find."""
    store.close()
    successor = ZooKeeperProgress(
        store._connection.servers + store._connection.chroot, store._topology, CONFIG
    )
    try:
        successor.lead()
        return successor.load()
    finally:
        successor.close()


def expire(store: ZooKeeperProgress) -> None:
    """End a store's session behind its back."""
    expire_session(store._connection)


def expire_session(connection: Connection) -> None:
    """End a connection's session: whoever knows its id and password may close it."""
    session = connection._session
    assert session is not None
    thief = KazooClient(connection.servers, client_id=session.client.client_id)
    thief.start()
    thief.stop()
    thief.close()
