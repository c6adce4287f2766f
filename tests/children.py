"""Servers of the tests: child processes on loopback that end with the process that started them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from typing_extensions import Self

from txn.embedded import supervisor
from txn.machine.java import find_java

__all__ = ["LOOPBACK", "Child", "ChildServer", "free_ports", "java", "listens", "wait_until"]

LOOPBACK = "127.0.0.1"


class Child:
    """A child process; it dies with this one, SIGKILL included (`txn/embedded/supervisor.py`).

    Args:
        folder: where it runs, and where its output goes (`server.out`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start the command; `environ` is added to our own variables."""
        with (self.folder / "server.out").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, *command],
                cwd=self.folder,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            self._pid = int(stdout.readline())

    def check(self) -> None:
        """It runs, or its last words are the error."""
        assert self._process is not None
        if self._process.poll() is not None:
            said = (self.folder / name for name in ("server.out", "server.log"))
            raise AssertionError("".join(p.read_text()[-3000:] for p in said if p.exists()))

    def stop(self) -> None:
        """Stop it cleanly, if it runs, and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def kill(self) -> None:
        """SIGKILL it and wait for its end."""
        os.kill(self._pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self.stop()


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


def _ports() -> Iterator[int]:
    """The ports of this process in any order; pytest's workers have other ones each."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4
    ports = list(range(20000 + worker, 32000, 4))
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


_PORTS = _ports()


def listens(port: int, host: str = LOOPBACK) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
