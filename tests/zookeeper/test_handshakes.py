"""What is known of kazoo's tries to connect, with this release of kazoo."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.children import free_ports, wait_until
from txn.embedded import EmbeddedZooKeeper
from txn.zookeeper.client.session import Session


@contextmanager
def session(hosts: str, timeout: float = 3.0) -> Iterator[Session]:
    """A session that is not waited for."""
    begun = Session(hosts, {"timeout": timeout}, lambda _: None)
    try:
        yield begun
    finally:
        begun.stop()


@contextmanager
def accepting(then: Callable[[socket.socket], object]) -> Iterator[tuple[str, list[float]]]:
    """A server that is none: its address, and when it was connected to."""
    times: list[float] = []
    clients: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                clients.append(listening.accept()[0])
                times.append(time.monotonic())
                then(clients[-1])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}", times
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in clients:
                client.close()


@pytest.mark.parametrize(("asked", "granted"), [(6.0, 6.0), (0.5, 1.0), (1000.0, 120.0)])
def test_the_granted_timeout_is_known_once_connected(
    zookeeper: EmbeddedZooKeeper, asked: float, granted: float
) -> None:
    """A server has a least and a largest one; before, there is none."""
    with session(zookeeper.hosts, asked) as begun:
        wait_until(lambda: begun.client.connected, "a connection")
        assert (begun.timeout_secs, begun.reason) == (granted, "")


def test_why_a_server_cannot_be_reached_is_known() -> None:
    """Nobody listens there, or its name has no address."""
    with session(f"127.0.0.1:{free_ports(1)[0]}") as begun:
        wait_until(lambda: begun.reason, "a first try")
        assert (begun.reason, begun.timeout_secs) == ("Connection refused", 0.0)
    with session("no-such-host.invalid:2181,nor-this.invalid:2181") as begun:
        wait_until(lambda: begun.reason, "a first try")
        assert begun.reason == "no address is known for no-such-host.invalid, nor-this.invalid"


def test_a_server_that_never_answers_is_left_after_a_third_of_the_timeout() -> None:
    """However few servers there are; so three tries fit into a session's timeout."""
    with accepting(lambda _: None) as (hosts, times), session(hosts, 3.0) as begun:
        wait_until(lambda: len(times) >= 3, "three tries")
        assert begun.reason == "socket time-out during read"
        assert times[2] - times[0] < 2 * 3.0


def test_a_server_that_hangs_up_is_named_as_such() -> None:
    """As ZooKeeper does where its data are older than what the client has seen."""
    with accepting(socket.socket.close) as (hosts, _), session(hosts) as begun:
        wait_until(lambda: begun.reason, "a first try")
        assert begun.reason in ("socket connection broken", "Connection reset by peer")
