"""Write a run's notes for `txn dashboard`, and serve the page of a run."""

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
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from txn.cli.running.observers import CliObserver
from txn.dashboard.watching.run_files import RUNS_FOLDER, RunNote, write_note
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.engine.reporting.report import RunReport, RunStatus
from txn.errors import TxnError
from txn.machine.listening import Address
from txn.machine.liveness import machine_id
from txn.text import first_line

__all__ = ["RunNotes", "page_of_run"]

_AT_MOST_SECS = 0.5
_AT_LEAST_SECS = 3.0
_END_SECS = 5.0
_LAST_WORDS = 2000
"""Last bytes of the page's stderr that are kept: the run may last for months."""


class RunNotes:
    """Keeps the note of a run up to date: the state that only its process has.

    If the folder cannot be written to, the run goes on without a note.

    Args:
        plan: the plan of the topology, as JSON.
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
        self._noted: Any = None

    def update(self, status: RunStatus) -> None:
        """Write changes, at most twice a second; a standby writes nothing."""
        now = time.time()
        passed = now - self._written
        state = (
            status.committed_txid,
            status.in_flight,
            status.held_up_by,
            status.replays,
            status.published,
        )
        if status.epoch and passed >= (_AT_MOST_SECS if state != self._noted else _AT_LEAST_SECS):
            self._noted = state
            self._write(status, now)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Write the last note, which has the end of the run."""
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
        # ValueError: it has text that is not UTF-8.
        with contextlib.suppress(OSError, ValueError):
            note = RunNote(
                topology=self._topology,
                pid=os.getpid(),
                machine=machine_id(),
                epoch=status.epoch,
                at=now,
                held_up_by=status.held_up_by,
                waits=status.waits,
                in_flight=status.in_flight,
                lags={stream: lag.numbers for stream, lag in status.lags.items()},
                planned={stream: lag.numbers for stream, lag in status.planned.items()},
                published=dict(status.published),
                failures_logged=logging.getLogger("txn").isEnabledFor(logging.WARNING),
                program=self._program,
                plan=self._plan,
                ended=ended,
                error=error,
            )
            write_note(note, self._folder)


@contextlib.contextmanager
def page_of_run(
    topology: TopologyFacts, zookeeper: str, address: Address, observer: CliObserver
) -> Iterator[None]:
    """Serve the page in a process of its own while the body runs; the observer gets its address.

    The run's own process has no part in it, so a slow or failing page costs the run nothing. The
    page gets the topology's facts from the run, and does not load the user's program again.
    """
    command = [sys.executable, "-m", "txn", "dashboard", "--zookeeper", zookeeper]
    where = ["--host", address.host, "--port", str(address.port), "--of-run", "--json"]
    child = subprocess.Popen(
        [*command, *where],
        bufsize=0,  # otherwise closing a pipe waits for a pending write
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the run; the page ends with its stdin
    )
    page = (child, topology, observer)
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


def _tell(child: subprocess.Popen[bytes], topology: TopologyFacts, observer: CliObserver) -> None:
    """Send the page the topology's facts, and the observer its address or the reason for none."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with contextlib.suppress(OSError, ValueError):  # it, or the run, has ended
        # On the pipe, where no other user can see the credentials.
        child.stdin.write(f"{topology.to_line()}\n".encode())
        child.stdin.flush()
    with child.stdout as stdout, child.stderr as stderr:
        line = stdout.readline()
        if line:
            observer.note(f"The page is at {json.loads(line)['url']}")
        output = _end_of(stderr).decode("utf-8", "replace").strip()
    if not child.stdin.closed:
        what = "The page has ended" if line else "There is no page"
        # Lines above the last may report that it waits for ZooKeeper.
        why = output.splitlines()[-1].removeprefix("error: ") if output else "it gave no reason"
        observer.note(f"{what}: {why}")


def _end_of(stream: IO[bytes]) -> bytes:
    """Read a stream to its end and return its last bytes."""
    last = b""
    while piece := stream.read(65_536):
        last = (last + piece)[-_LAST_WORDS:]
    return last
