"""What a run says of itself for `txn dashboard`, and the page that a run brings along."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from txn.cli.observers import CliObserver
from txn.engine.report import RunReport, RunStatus
from txn.errors import TxnError
from txn.machine.listening import Address
from txn.operations.watching.known import Known
from txn.operations.watching.run_files import RUNS_FOLDER, FlightNote, RunNote, write_note
from txn.text import first_line
from txn.zookeeper.liveness import machine_id

__all__ = ["RunNotes", "page_of_run"]

_AT_MOST_SECS = 0.5
_AT_LEAST_SECS = 3.0
_END_SECS = 5.0
_LAST_WORDS = 2000
"""Bytes of what the page says on stderr that are kept: the run may last for months."""


class RunNotes:
    """Keeps the note of a run up to date: what only its process knows, at this moment.

    A folder that cannot be written to costs the run nothing: there is no note then.

    Args:
        plan: of the topology, as JSON.
        program: its FILE.py:TOPOLOGY.
    """

    def __init__(
        self,
        topology: str,
        plan: Mapping[str, Any],
        folder: Path = RUNS_FOLDER,
        program: str = "",
    ) -> None:
        self._topology = topology
        self._program = program
        self._plan = dict(plan)
        self._folder = folder
        self._written = 0.0
        self._said: Any = None

    def update(self, status: RunStatus) -> None:
        """Note what has changed, at most twice a second; nothing of a standby."""
        now = time.time()
        passed = now - self._written
        said = (status.committed_txid, status.in_flight, status.held_up_by, status.replays)
        if status.epoch and passed >= (_AT_MOST_SECS if said != self._said else _AT_LEAST_SECS):
            self._said = said
            self._write(status, now)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """The last note says how the run ended."""
        if status.epoch:
            how = "error" if error is not None else report.ended
            number = f" [{error.number}]" if isinstance(error, TxnError) else ""
            why = None if error is None else f"{first_line(error)}{number}"
            over = replace(status, in_flight=(), waits=())
            self._write(over, time.time(), how, why)

    def _write(
        self, status: RunStatus, now: float, ended: str | None = None, error: str | None = None
    ) -> None:
        self._written = now
        # ValueError: it has text that is no UTF-8.
        with contextlib.suppress(OSError, ValueError):
            note = RunNote(
                topology=self._topology,
                pid=os.getpid(),
                machine=machine_id(),
                epoch=status.epoch,
                at=now,
                held_up_by=status.held_up_by,
                waits=status.waits,
                in_flight=tuple(FlightNote(**asdict(flight)) for flight in status.in_flight),
                lags={stream: lag.numbers for stream, lag in status.lags.items()},
                planned={stream: lag.numbers for stream, lag in status.planned.items()},
                failures_logged=logging.getLogger("txn").isEnabledFor(logging.WARNING),
                program=self._program,
                plan=self._plan,
                ended=ended,
                error=error,
            )
            write_note(note, self._folder)


@contextlib.contextmanager
def page_of_run(
    known: Known, zookeeper: str, address: Address, observer: CliObserver
) -> Iterator[None]:
    """The page, in a process of its own, while the body runs; the observer is told its address.

    The run's own process has no part in it, so a page that is slow or fails costs the run nothing.
    It is told what the run knows of the topology, and does not load the user's program again.
    """
    command = [sys.executable, "-m", "txn", "dashboard", "--zookeeper", zookeeper]
    where = ["--host", address.host, "--port", str(address.port), "--of-run", "--json"]
    child = subprocess.Popen(
        [*command, *where],
        bufsize=0,  # else, closing a pipe waits for whoever writes to it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the run's; the page ends with its stdin
    )
    page = (child, known, observer)
    teller = threading.Thread(target=_tell, args=page, name="txn-page", daemon=True)
    teller.start()
    try:
        yield
    finally:
        assert child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended before
            child.stdin.close()
        try:
            child.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        teller.join(_END_SECS)


def _tell(child: subprocess.Popen[bytes], known: Known, observer: CliObserver) -> None:
    """Tell the page what is known, and the observer its address, or why there is none."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with contextlib.suppress(OSError, ValueError):  # it, or the run, has ended
        # On the pipe, where no other user sees the credentials that are in it.
        child.stdin.write(f"{known.to_line()}\n".encode())
        child.stdin.flush()
    with child.stdout as stdout, child.stderr as stderr:
        line = stdout.readline()
        if line:
            observer.note(f"The page is at {json.loads(line)['url']}")
        said = _end_of(stderr).decode("utf-8", "replace").strip()
    if not child.stdin.closed:
        what = "The page has ended" if line else "There is no page"
        # Above the last line it may have said that it waits for ZooKeeper.
        why = said.splitlines()[-1].removeprefix("error: ") if said else "it gave no reason"
        observer.note(f"{what}: {why}")


def _end_of(stream: IO[bytes]) -> bytes:
    """The last of what comes out of a stream until its end."""
    last = b""
    while piece := stream.read(65_536):
        last = (last + piece)[-_LAST_WORDS:]
    return last
