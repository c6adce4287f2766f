"""Servers as child processes: killed, stopped and started again, and gone when the harness is."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from txn.embedded.child import Child

__all__ = ["Server", "children", "send"]


class Server:
    """One server process in a folder, under our supervisor: it ends when the harness does.

    Args:
        command: gives the command line at each start.
        folder: its working directory; what it says goes to `server.out` there.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        folder: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self._command = command
        self._environ = {**os.environ, **(environ or {})}
        self._child = Child(folder)

    def start(self) -> None:
        """Start it; does not wait until it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._child.start(self._command(), environ=self._environ)

    @property
    def pid(self) -> int:
        """Its process id, or that of its last life."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs (or is stopped by a signal)."""
        return self._child.is_alive

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        send(self.pid, number)

    def kill(self) -> None:
        """SIGKILL it, and what it has started; wait for its end."""
        self.send(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it and what it has started, cleanly if it can. Idempotent."""
        leader = self._child.supervisor
        if not leader:
            return
        self.send(signal.SIGCONT)
        self._child.stop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)  # a worker's executors


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a process; False when there is none."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def children(parent: int, mark: bytes) -> list[int]:
    """Processes that `parent` has started and whose command line has `mark` in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and mark in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it ended meanwhile
    return sorted(found)
