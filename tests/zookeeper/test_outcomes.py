"""Writes whose outcome is not told: lost answers, killed servers, killed writers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.zookeeper.progress_store import (
    CONFIG,
    LARGE,
    bare_client,
    committed,
    leading,
    noise,
    reloaded,
    start,
)
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.errors import ProgressUnavailableError
from txn.protocol.records import Progress, QuarantineRecord
from txn.zookeeper import ZooKeeperProgress, read_status
from txn.zookeeper.client.connection import Connection

ROOT = Path(__file__).parents[2]

# Persists START and COMMITTED of txid after txid, and says each one that is done.
WRITER = """
import sys
from tests.zookeeper.progress_store import noise
from txn.config import TopologyConfig
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.zookeeper import ZooKeeperProgress
config = TopologyConfig(zookeeper_timeout_secs=4.0, zookeeper_deadline_secs=30.0)
progress = ZooKeeperProgress(sys.argv[1], sys.argv[2], config)
epoch = progress.lead()
txid = progress.load().committed.txid
large = {"s": noise(int(sys.argv[3]))}
while True:
    txid += 1
    progress.persist_start(BatchRecord(txid=txid, attempt=epoch, epoch=epoch, spouts=large))
    print("start", txid, flush=True)
    progress.persist_committed(CommittedRecord(txid=txid, epoch=epoch, spouts=large))
    print("committed", txid, flush=True)
"""


@pytest.fixture
def raw(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A bare client, to look and to spoil."""
    with bare_client(zookeeper.hosts) as client:
        yield client


class Proxy:
    """Stands between a client and the server; can lose the answers of the server."""

    def __init__(self, hosts: str) -> None:
        host, port = hosts.split(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.lose = 0
        """That many times more, the answer to a request is lost and the connection cut."""
        self.skip = 0
        """That many answers come through before."""
        self.lost = 0
        self.silent = 0
        """That many of the next connections are accepted and never answered."""
        self._threads: list[threading.Thread] = []
        self._clients: list[socket.socket] = []
        self._spawn(self._accept)

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._server.accept()[0]
                self._clients.append(client)
                if self.silent > 0:
                    self.silent -= 1
                else:
                    self._spawn(self._pump, client)

    def _pump(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            handshaken = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 20)
                    if not data:
                        return
                    if ready is client:
                        server.sendall(data)
                    elif handshaken and self.lose > 0 and self.skip > 0:
                        self.skip -= 1
                        client.sendall(data)
                    elif handshaken and self.lose > 0:
                        self.lose -= 1
                        self.lost += 1
                        return
                    else:
                        client.sendall(data)
                        handshaken = True

    def cut(self) -> None:
        """Break every connection; new ones are accepted."""
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop accepting; open connections end with their client."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[Proxy]:
    """A proxy before the server."""
    running = Proxy(zookeeper.hosts)
    yield running
    running.close()


def test_connections_that_are_never_answered_cost_no_session(proxy: Proxy, name: str) -> None:
    """A server that just starts may take one and forget it: three fit into the timeout."""
    config = TopologyConfig(zookeeper_timeout_secs=9.0, zookeeper_deadline_secs=30.0)
    with leading(proxy.hosts, name, config) as store:
        session = store._connection.session_id
        proxy.silent = 2
        proxy.cut()
        store.assert_leading()
        assert (0, session) == (proxy.silent, store._connection.session_id)


def test_nodes_that_are_read_at_once_are_all_answered(
    proxy: Proxy, raw: KazooClient, name: str
) -> None:
    """In the order of the question, a missing one as None, also when answers are lost."""
    names = [f"/{name}-{n}" for n in range(250)]
    for n in range(0, 250, 2):
        raw.create(names[n], str(n).encode())
    expected = [None if n % 2 else str(n).encode() for n in range(250)]
    connection = Connection(proxy.hosts, CONFIG)
    for lost in range(3):
        found = connection.get_each(names, time.monotonic() + 30)
        assert expected == [node and node.data for node in found]
        assert proxy.lost == lost
        proxy.lose = 1
    connection.close()


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_writer_that_is_killed_leaves_whole_records(
    zookeeper: EmbeddedZooKeeper, raw: KazooClient, size: int
) -> None:
    """SIGKILL at any moment: the next leader finds what was said last, or the next step."""
    name = f"killed-{size}"
    last = 0
    for n in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, zookeeper.hosts, name, str(size)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(2 + n):
            writer.stdout.readline()
        time.sleep(0.007 * n)  # another place in the next write each time
        writer.kill()
        said = writer.communicate()[0].split()
        store = ZooKeeperProgress(zookeeper.hosts, name, CONFIG)
        store.lead()
        progress = store.load()
        done = [int(txid) for what, txid in zip(said[::2], said[1::2], strict=False)
                if what == "committed"]  # fmt: skip
        assert progress.committed.txid >= max([last, *done])
        assert len(progress.batches) <= 1
        for record in (progress.committed, *progress.batches):
            assert record.txid == 0 or {"s": noise(size)} == record.spouts
        named = store._image.committed.parts if store._image else ()
        named += tuple(p for b in store._image.batches.values() for p in b.parts)  # type: ignore[union-attr]
        assert sorted(named) == sorted(raw.get_children(f"/txn/{name}/parts"))
        last = progress.committed.txid
        store.close()
    assert last > 0


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_a_write_whose_answer_was_lost_is_done_once(
    proxy: Proxy, raw: KazooClient, name: str, losses: int
) -> None:
    """The server carried it out and the connection broke: it is found done, not done again."""
    with leading(proxy.hosts, name) as store:
        lose_answers(store, proxy, losses)
        assert 2 == raw.get(f"/txn/{name}/committed")[1].version
        found = store.load()
    expected = Progress(committed=committed(2, **LARGE), quarantined=frozenset({1}))
    assert (found, reloaded(store)) == (expected, expected)


def lose_answers(store: ZooKeeperProgress, proxy: Proxy, losses: int) -> None:
    """Every kind of write, each with that many lost answers."""
    acts = [
        lambda: store.persist_start(start(1)),
        lambda: store.persist_start(start(1, attempt=1)),
        lambda: store.persist_committed(
            committed(1), QuarantineRecord(txid=1, attempt=1, error="")
        ),
        lambda: store.persist_start(start(2, **LARGE)),
        lambda: store.persist_committed(committed(2, **LARGE)),
    ]
    for act in acts:
        proxy.lose = losses
        act()
    assert proxy.lost >= len(acts)


def test_taking_leadership_survives_a_lost_answer(
    proxy: Proxy, zookeeper: EmbeddedZooKeeper, name: str
) -> None:
    """The epoch is taken once, and the leader's node belongs to the session that lives."""
    first = ZooKeeperProgress(proxy.hosts, name, CONFIG)
    first.lead()
    first.close()
    for n in range(8):
        store = ZooKeeperProgress(proxy.hosts, name, CONFIG)
        store._connection.wait(time.monotonic() + 10)
        proxy.lose, proxy.skip = 1, n
        epoch = store.lead()
        proxy.lose = 0
        store.assert_leading()
        status = read_status(zookeeper.hosts, name, CONFIG)
        assert status.leader is not None
        assert (epoch, epoch) == (status.epoch, status.leader.epoch)
        assert 2 + n == epoch
        store.close()


def test_closing_with_a_broken_connection_makes_room_at_once(
    proxy: Proxy, zookeeper: EmbeddedZooKeeper, name: str
) -> None:
    """The successor need not wait for the session to end."""
    with leading(proxy.hosts, name) as store:
        proxy.cut()
    assert not store.leading
    assert read_status(zookeeper.hosts, name, CONFIG).leader is None


def test_a_deadline_without_an_answer_leaves_no_second_guess(tmp_path: Path) -> None:
    """After it, what is durable is unknown: nothing more is written without a new load()."""
    config = TopologyConfig(zookeeper_timeout_secs=4.0, zookeeper_deadline_secs=0.5)
    with EmbeddedZooKeeper(tmp_path) as server, contextlib.ExitStack() as resources:
        store = resources.enter_context(leading(server.hosts, "t", config))
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ProgressUnavailableError):
            store.persist_start(start(1))
        server.start()
        with pytest.raises(RuntimeError, match=r"load\(\) comes first"):
            store.persist_start(start(1))


def test_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """Writes run on while the JVM is killed and started: every one is done exactly once."""
    with EmbeddedZooKeeper(tmp_path) as server, contextlib.ExitStack() as resources:
        store = resources.enter_context(leading(server.hosts, "t"))
        epoch = store.epoch
        done = threading.Event()

        def kill() -> None:
            while not done.wait(0.3):
                os.kill(server.pid, signal.SIGKILL)
                server.start()

        killer = threading.Thread(target=kill)
        killer.start()
        deadline, txid = time.monotonic() + 5, 0
        try:
            while time.monotonic() < deadline:
                txid += 1
                store.persist_start(start(txid, epoch=epoch))
                store.persist_start(start(txid, attempt=1, epoch=epoch))
                store.persist_committed(committed(txid, epoch=epoch))
        finally:
            done.set()
            killer.join()
        with bare_client(server.hosts) as raw:
            assert txid == raw.get("/txn/t/committed")[1].version
        assert 1 == store.epoch
        assert Progress(committed=committed(txid, epoch=epoch)) == store.load()


def test_a_server_that_is_away_for_longer_than_the_session(tmp_path: Path) -> None:
    """Writes wait, and go on under the same epoch when it is back."""
    config = TopologyConfig(zookeeper_timeout_secs=2.0, zookeeper_deadline_secs=30.0)
    with EmbeddedZooKeeper(tmp_path) as server, contextlib.ExitStack() as resources:
        store = resources.enter_context(leading(server.hosts, "t", config))
        os.kill(server.pid, signal.SIGKILL)
        back = threading.Timer(6.0, server.start)
        back.start()
        store.persist_start(start(1))
        store.persist_committed(committed(1))
        back.join()
        assert (1, Progress(committed=committed(1))) == (store.epoch, store.load())
