"""A child process that ends when this process does, SIGKILL included (`supervisor.py`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from txn.machine.packaged import on_disk

__all__ = ["OUTPUT", "Child"]

OUTPUT = "server.out"
"""File in its folder with what it prints."""


class Child:
    """A process and its supervisor, in a folder; may be started again.

    Args:
        folder: where it runs, and where its output goes (at the end of `server.out`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """Process id of the newest start, not of the supervisor; 0 before the first one."""

    def start(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        keep_open: Sequence[int] = (),
        umask: int = -1,
    ) -> None:
        """Start the command; does not wait until it serves.

        Args:
            command: the program and its arguments.
            environ: all of its variables; None: ours.
            keep_open: file descriptors that it inherits.
            umask: for the files that it makes; -1: ours.

        Raises:
            ChildProcessError: the program cannot be started; `server.out` says why.
        """
        with (self.folder / OUTPUT).open("ab") as out:
            self._supervisor = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(on_disk("txn.embedded", "supervisor.py")),
                    *command,
                ],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                pass_fds=keep_open,
                # It must survive a signal to our group: we may need it until we have stopped.
                start_new_session=True,
                umask=umask,
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as stdout:
            line = stdout.readline()
        if not line:
            self.stop()
            raise ChildProcessError(f"{command[0]} could not be started")
        self.pid = int(line)

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is stopped by a signal."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def supervisor(self) -> int:
        """Process id of the supervisor, which leads the session of both; 0: none was started."""
        return self._supervisor.pid if self._supervisor is not None else 0

    def stop(self) -> None:
        """Stop it cleanly, if it runs, and wait for its end. Idempotent."""
        process, self._supervisor = self._supervisor, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def kill(self) -> None:
        """SIGKILL it, if it runs, and wait for its end."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):  # only the supervisor is left
                os.kill(self.pid, signal.SIGKILL)
        self.stop()
