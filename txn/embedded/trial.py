"""One server of a trial: a child process that is started, waited for, and watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from txn.embedded.child import Child
from txn.embedded.folder import end_of_logs
from txn.errors import SetupError

__all__ = ["TrialServer", "make_folder"]

_POLL_SECS = 0.05


class TrialServer:
    """A server process in a folder of its own.

    Args:
        name: in messages: "server 1 at 127.0.0.1:2181".
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

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it; does not wait until it serves.

        Raises:
            SetupError: the program cannot be started.
        """
        try:
            self._child.start(command, environ=environ, umask=0o077)
        except ChildProcessError:
            raise self._failed("could not be started") from None

    def wait(self, serves: Callable[[], bool], seconds: float) -> None:
        """Wait until it serves.

        Raises:
            SetupError: it ended, or does not serve in time; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        while not serves():
            if not self.is_alive:
                raise self._failed("ended while it started")
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


def make_folder(folder: Path) -> None:
    """Make a folder that only its user may enter.

    Raises:
        SetupError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise SetupError(
            f"The folder '{folder}' for a server's data cannot be made: {error.strerror}. Name "
            "another one: --folder.",
            number="TXN-206",
        ) from error
