"""Servers of the tests: child processes on loopback that end with the process that started them."""

from __future__ import annotations

import itertools
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from typing_extensions import Self

from txn.embedded import child
from txn.embedded.child import OUTPUT
from txn.machine.java import find_java
from txn.machine.listening import LOOPBACK, listens

__all__ = [
    "ENSEMBLE_PORTS",
    "LOOPBACK",
    "Child",
    "ChildServer",
    "free_ports",
    "java",
    "listens",
    "port_below",
    "wait_until",
]


class Child(child.Child):
    """A child process, and what a test asks of it."""

    def start(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start the command; `environ` is added to our own variables."""
        super().start(command, environ={**os.environ, **(environ or {})})

    def check(self) -> None:
        """It runs, or its last words are the error."""
        if not self.is_alive:
            texts = (self.folder / name for name in (OUTPUT, "server.log"))
            raise AssertionError("".join(p.read_text()[-3000:] for p in texts if p.exists()))


class ChildServer(ABC):
    """A server in a folder, a child process for the time of a `with` block.

    Args:
        folder: holds its data, its configuration and its output.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._child = Child(folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it answers."""

    def stop(self) -> None:
        """Stop it cleanly, if it runs, and wait for its end."""
        self._child.stop()

    def kill(self) -> None:
        """SIGKILL it and wait for its end."""
        self._child.kill()


def java(jars: Iterable[Path], flags: Sequence[str], main: str, *arguments: str) -> list[str]:
    """The command that runs a class out of some jars."""
    classpath = os.pathsep.join(str(jar) for jar in jars)
    return [str(find_java()), *flags, "-cp", classpath, main, *arguments]


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Poll until `condition()` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Free ports below those of outgoing connections (see txn.embedded.folder), each given once:
    many wait for their server while other servers start.
    """
    found: list[int] = []
    while len(found) < count:
        port = next(_PORTS)
        if not listens(port):
            found.append(port)
    return found


ENSEMBLE_PORTS = tuple(n + above for above in (0, 707, 1707) for n in range(3))
"""The ports of a trial's three ZooKeeper servers, counted from the first one."""


def port_below(*others: int) -> int:
    """A free port above which those are free, too, that are so much higher."""
    for _ in range(100):
        (port,) = free_ports(1)
        if not any(listens(port + more) for more in others):
            return port
    raise AssertionError("no ports are free")


def _ports() -> Iterator[int]:
    """The ports of this process in any order; pytest's workers have other ones each."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4
    ports = list(range(20000 + worker, 32000, 4))
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


_PORTS = _ports()
