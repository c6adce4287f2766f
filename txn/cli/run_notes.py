"""What a run says of itself for `txn dashboard`, and the page that a run brings along."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from txn.cli.observers import Observer, RunInfo
from txn.engine.report import BatchReport, RunReport, RunStatus, Standby
from txn.operations.watching.run_files import RUNS_FOLDER, FlightNote, RunNote, write_note
from txn.text import first_line
from txn.zookeeper.liveness import machine_id

__all__ = ["NotedRun", "page_of_run"]

_AT_MOST_SECS = 0.5
_AT_LEAST_SECS = 3.0
_END_SECS = 5.0


class NotedRun(Observer):
    """Passes everything on to another observer, and keeps the run's note up to date.

    A folder that cannot be written to costs the run nothing: there is no note then.

    Args:
        plan: of the topology, as JSON.
    """

    def __init__(
        self,
        observer: Observer,
        topology: str,
        plan: Mapping[str, Any],
        folder: Path = RUNS_FOLDER,
    ) -> None:
        self._observer = observer
        self._topology = topology
        self._plan = dict(plan)
        self._folder = folder
        self._written = 0.0
        self._said: Any = None

    def starting(self, topology: str) -> None:
        """Passed on."""
        self._observer.starting(topology)

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Passed on: a standby has nothing to say of the run."""
        self._observer.standing_by(topology, standby)

    def started(self, info: RunInfo) -> None:
        """Passed on."""
        self._observer.started(info)

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Note what has changed, at most twice a second."""
        self._observer.update(status, batches, failures)
        now = time.time()
        passed = now - self._written
        said = (status.committed_txid, status.in_flight, status.held_up_by, status.replays)
        if status.epoch and passed >= (_AT_MOST_SECS if said != self._said else _AT_LEAST_SECS):
            self._said = said
            self._write(self._noted(status, now))

    def note(self, text: str) -> None:
        """Passed on."""
        self._observer.note(text)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """The last note says how the run ended."""
        if status.epoch:
            how = "error" if error is not None else report.ended
            told = {"ended": how, "error": None if error is None else first_line(error)}
            last = self._noted(status, time.time())
            self._write(last.model_copy(update={**told, "in_flight": (), "waits": ()}))
        self._observer.ended(report, status, error)

    def close(self) -> None:
        """Passed on."""
        self._observer.close()

    def _noted(self, status: RunStatus, now: float) -> RunNote:
        return RunNote(
            topology=self._topology,
            pid=os.getpid(),
            machine=machine_id(),
            epoch=status.epoch,
            at=now,
            held_up_by=status.held_up_by,
            waits=status.waits,
            in_flight=tuple(FlightNote(**asdict(flight)) for flight in status.in_flight),
            lags={stream: lag.numbers for stream, lag in status.lags.items()},
            replays=status.replays,
            input_records=status.totals.input_records,
            input_bytes=status.totals.input_bytes,
            plan=self._plan,
        )

    def _write(self, note: RunNote) -> None:
        self._written = note.at
        with contextlib.suppress(OSError):
            write_note(note, self._folder)


@contextlib.contextmanager
def page_of_run(
    target: str, zookeeper: str, host: str, port: int, observer: Observer
) -> Iterator[None]:
    """The page, in a process of its own, while the body runs; the observer is told its address.

    The run's own process has no part in it, so a page that is slow or fails costs the run nothing.
    """
    command = [sys.executable, "-m", "txn", "dashboard", target, "--zookeeper", zookeeper]
    where = ["--host", host, "--port", str(port), "--of-run", "--json"]
    child = subprocess.Popen(
        [*command, *where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the run's; the page ends with its stdin
    )
    teller = threading.Thread(target=_tell, args=(child, observer), name="txn-page", daemon=True)
    teller.start()
    try:
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        teller.join(_END_SECS)


def _tell(child: subprocess.Popen[bytes], observer: Observer) -> None:
    """Its address, or why there is none."""
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout as stdout, child.stderr as stderr:
        line = stdout.readline()
        if line:
            observer.note(f"The page is at {json.loads(line)['url']}")
        said = stderr.read().decode("utf-8", "replace").strip()
    if not line:
        observer.note(f"There is no page: {said or 'it has ended at once'}")
