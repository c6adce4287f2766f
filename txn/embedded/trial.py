"""Servers for trials: child processes in a folder that one command at a time uses."""

from __future__ import annotations

import contextlib
import fcntl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from txn.embedded.child import OUTPUT, Child
from txn.embedded.folder import IN_USE, end_of_logs, try_lock
from txn.errors import SetupError

__all__ = ["Trial", "TrialServer"]

_POLL_SECS = 0.05
_LOCK_SECS = 5.0
"""The servers of a command that was killed end within this time."""
_MARK = "trial"
"""File in a trial's folder: what it is for."""


class TrialServer:
    """A server process in a folder of its own.

    Args:
        name: in messages: "ZooKeeper server 1 at 127.0.0.1:2181".
        folder: holds its configuration, its data and its logs.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._child = Child(folder)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child.is_alive

    def start(self, command: Sequence[str], environ: Mapping[str, str], lock: IO[bytes]) -> None:
        """Start it; does not wait until it serves.

        Args:
            lock: of the trial's folder, which it holds for as long as it runs.

        Raises:
            SetupError: the program cannot be started.
        """
        (self.folder / OUTPUT).unlink(missing_ok=True)
        try:
            self._child.start(command, environ=environ, keep_open=[lock.fileno()], umask=0o077)
        except ChildProcessError:
            raise self._failed("could not be started") from None

    def wait(self, serves: Callable[[], bool], seconds: float) -> None:
        """Wait until it serves.

        Raises:
            SetupError: it ended, or does not serve in time; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        # It may have ended while another server answers at its port.
        while not serves() or not self.is_alive:
            if not self.is_alive:
                raise self._failed("ended during its start")
            if time.monotonic() >= deadline:
                raise self._failed(f"did not serve within {seconds:g} s")
            time.sleep(_POLL_SECS)

    def stop(self) -> None:
        """Stop it, if it runs, and wait for its end. Idempotent."""
        self._child.stop()

    def _failed(self, problem: str) -> SetupError:
        self.stop()
        lines = "\n".join(f"  {line}" for line in end_of_logs(self.folder))
        return SetupError(
            f"The {self.name} {problem}. The end of its log is below, the whole is in "
            f"'{self.folder / 'server.log'}'.\n{lines}",
            number="TXN-208",
        )


class Trial(ABC):
    """Servers in a folder. What is in it stays, and belongs to servers of the same kind and number.

    Args:
        folder: made if necessary; only its user may enter it.
        purpose: what it is for, as its mark says: "3 ZooKeeper servers".
        servers: all of them.
    """

    def __init__(self, folder: Path, purpose: str, servers: Sequence[TrialServer]) -> None:
        self.folder = folder.absolute()
        self.servers = servers
        self.purpose = purpose

    def start(self) -> None:
        """Start all servers and wait until each serves.

        Raises:
            SetupError: no Java, a port or the folder is in use, the folder is not a trial's or one
                of other servers, or a server ended during its start.
        """
        self.prepare()
        self._make_folder()
        with self._locked() as lock:
            self.launch(lock)

    def stop(self) -> None:
        """Stop all servers and wait for their ends."""
        for server in self.servers:
            server.stop()

    @abstractmethod
    def prepare(self) -> None:
        """Refuse what can be refused before anything is made or started."""

    @abstractmethod
    def launch(self, lock: IO[bytes]) -> None:
        """Configure the servers in the folder, start them, and wait until they serve."""

    def _make_folder(self) -> None:
        mark = self.folder / _MARK
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                self.folder.chmod(0o700)
            if not any(self.folder.iterdir()):
                mark.write_text(self.purpose, "utf-8")
            purpose = mark.read_text("utf-8") if mark.is_file() else None
        except OSError as error:
            raise self._refused(f"cannot be used: {error.strerror}") from error
        if purpose is None:
            raise self._refused("has other files in it, and is no folder of a trial")
        if purpose != self.purpose:
            raise self._refused(f"has the data of {purpose}, not of {self.purpose}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Hold the folder's lock during a start; then its servers hold it."""
        deadline = time.monotonic() + _LOCK_SECS
        with (self.folder / "lock").open("ab") as lock:
            while not try_lock(lock, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise self._refused("is in use by another process", IN_USE)
                time.sleep(_POLL_SECS)
            yield lock

    def _refused(self, why: str, number: str = "TXN-206") -> SetupError:
        return SetupError(
            f"The folder '{self.folder}' {why}. Name another one: --folder.", number=number
        )
