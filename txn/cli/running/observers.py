"""Observers of a run: the contract, one for pipes and one for programs.

They print values (`RunStatus`, `BatchReport`) and have no access to the run itself; the loop that
calls them is in `txn.cli.running.driver`. `txn.cli.running.live_view` is the third observer,
for terminals.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from txn.cli.words import batch_line, broken_rules, ending, standing_by
from txn.config.location import resolve
from txn.engine.reporting.report import (
    BatchReport,
    InFlight,
    RunReport,
    RunStatus,
    Standby,
    Timeline,
)
from txn.interfaces.publication import Violations
from txn.text import printable

__all__ = ["CliObserver", "JsonLines", "PlainLines", "RunInfo"]

_WAITING_EVENT_SECS = 1.0
_NOTHING = {"committed_txid": None, "batches_committed": 0, "rows_staged": 0, "replays": 0}
"""The figures of a run that was refused: what is committed is unknown."""


@dataclass(frozen=True)
class RunInfo:
    """The facts that do not change while a topology runs."""

    topology: str
    epoch: int
    zookeeper: str
    """As the user wrote it."""
    until: str
    committed_txid: int
    """The txid committed before this run."""

    @property
    def progress(self) -> str:
        """Say where the progress is."""
        folder = resolve(self.zookeeper).folder
        return f"zookeeper {self.zookeeper if folder is None else folder.absolute()}"


class CliObserver(ABC):
    """Observes a run: the loop in `txn.cli.running.driver` calls it, on one thread."""

    def starting(self, topology: str, step: str) -> None:
        """Called when a step of the start begins, such as "starting Spark's Java"."""

    def refused(self, topology: str, error: BaseException) -> None:
        """Called when the start fails or is interrupted; the caller prints the error."""

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Called when ready and waiting for the leader to end; again when the leader changes."""

    @abstractmethod
    def started(self, info: RunInfo) -> None:
        """Called when the topology leads, has recovered and runs."""

    @abstractmethod
    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Called several times a second with a snapshot, and the news since the last call.

        Args:
            batches: newly committed batches, in txid order.
            failures: new failures, each "txid:attempt: reason".
        """

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a message to the user, in one line."""

    @abstractmethod
    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Called when the run is over, with its error if it failed."""

    def close(self) -> None:
        """Called last, even if nothing was started. Idempotent."""

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, *_: object) -> None:
        self.close()


class _Blocked:
    """Detects batches that begin or cease to wait for a source that does not answer."""

    def __init__(self) -> None:
        self._txids: set[int] = set()

    def changes(self, status: RunStatus) -> tuple[list[InFlight], list[int]]:
        """Return (newly blocked, txids no longer blocked) since the last call."""
        blocked = [batch for batch in status.in_flight if batch.blocked]
        begun = [batch for batch in blocked if batch.txid not in self._txids]
        ceased = sorted(self._txids - {batch.txid for batch in blocked})
        self._txids = {batch.txid for batch in blocked}
        return begun, ceased


class PlainLines(CliObserver):
    """One line per committed batch, failure and wait, for pipes and log files."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._blocked = _Blocked()

    def starting(self, topology: str, step: str) -> None:
        """Print one line."""
        self._print(f"{topology}: {step}")

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Print one line."""
        self._print(standing_by(topology, standby))

    def started(self, info: RunInfo) -> None:
        """Print the facts of the run."""
        self._print(
            f"{info.topology}: running, epoch {info.epoch}, from txid {info.committed_txid + 1}, "
            f"until {info.until}, {info.progress}"
        )

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Print a line for each event."""
        begun, ceased = self._blocked.changes(status)
        for held in begun:
            why = " ".join((held.blocked or "").split())
            self._print(f"{status.topology}: blocked {held.txid}:{held.attempt_id}: {why}")
        for unblocked in ceased:
            self._print(f"{status.topology}: txid {unblocked} is no longer blocked")
        for failure in failures:
            self._print(f"{status.topology}: failed {' '.join(failure.split())}")
        for batch in batches:
            self._print(f"{status.topology}: committed {batch.attempt}: {batch_line(batch)}")
            if batch.quarantined:
                self._print(f"{status.topology}: quarantined {batch.attempt}: committed empty")
            if broken := broken_rules(batch.violations):
                self._print(f"{status.topology}: broken rules in {batch.attempt}: {broken}")

    def note(self, text: str) -> None:
        """Print one line."""
        self._print(text)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Print how the run ended; the caller prints an error."""
        if error is None:
            for line in ending(report):
                self._print(line)

    def _print(self, line: str) -> None:
        print(printable(line), file=self._out, flush=True)


class JsonLines(CliObserver):
    """One JSON object per line, each an event.

    The events: starting (a step of the start), standby, started, committed, failed, blocked,
    unblocked, waiting (which stage waits for which; at most once a second), note, ended.

    Args:
        wall: seconds since the epoch; the `at` of every event.
    """

    def __init__(self, out: IO[str], wall: Callable[[], float] = time.time) -> None:
        self._out = out
        self._wall = wall
        self._blocked = _Blocked()
        self._waits: tuple[str, ...] = ()
        self._waits_printed_at = float("-inf")

    def starting(self, topology: str, step: str) -> None:
        """Print event `starting`."""
        self._print("starting", {"topology": topology, "step": step})

    def refused(self, topology: str, error: BaseException) -> None:
        """Print event `ended`, as of a run that committed nothing."""
        stopped = isinstance(error, KeyboardInterrupt)
        how = {"ended": "stopped" if stopped else "error", **_error(None if stopped else error)}
        self._print("ended", how | {"topology": topology} | _NOTHING)

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Print event `standby`."""
        self._print("standby", {"topology": topology, **vars(standby)})

    def started(self, info: RunInfo) -> None:
        """Print event `started`."""
        self._print("started", vars(info))

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Print events `blocked`, `unblocked`, `failed`, `committed`, and each second `waiting`."""
        begun, ceased = self._blocked.changes(status)
        for waiting in begun:
            fields = {"txid": waiting.txid, "attempt": waiting.attempt_id, "error": waiting.blocked}
            self._print("blocked", {**fields, "since": waiting.blocked_since})
        for unblocked in ceased:
            self._print("unblocked", {"txid": unblocked})
        for failure in failures:
            attempt, _, error = failure.partition(": ")
            txid, _, attempt_id = attempt.partition(":")
            self._print("failed", {"txid": int(txid), "attempt": int(attempt_id), "error": error})
        for batch in batches:
            self._print(
                "committed",
                {
                    "txid": batch.attempt.txid,
                    "attempt": batch.attempt.attempt_id,
                    "rows": dict(batch.rows),
                    "input_records": dict(batch.read.records),
                    "input_bytes": dict(batch.read.bytes),
                    "rows_written": dict(batch.written),
                    "quarantined": batch.quarantined,
                    "tables": dict(batch.tables),
                    "ms": Timeline(dict(batch.times)).durations_ms(),
                    **_violations(batch.violations),
                },
            )

        now = self._wall()
        if status.waits != self._waits and now >= self._waits_printed_at + _WAITING_EVENT_SECS:
            self._waits, self._waits_printed_at = status.waits, now
            held = {"held_up_by": status.held_up_by, "waits": list(status.waits)}
            self._print("waiting", {**held, **_lags(status)})

    def note(self, text: str) -> None:
        """Print event `note`."""
        self._print("note", {"text": text})

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Print event `ended`, with the error if there was one."""
        self._print(
            "ended",
            {
                "ended": "error" if error is not None else report.ended,
                **_error(error),
                "committed_txid": status.committed_txid,
                "batches_committed": report.batches_committed,
                **vars(report.totals),
                **_lags(status),
                "rows_committed": report.rows_staged,
                "replays": report.replays,
                **_violations(report.violations),
                "seconds": round(status.seconds, 3),
                "bound_seconds": {
                    bound: round(seconds, 3) for bound, seconds in report.bound_seconds.items()
                },
            },
        )

    def _print(self, event: str, fields: Mapping[str, Any]) -> None:
        line = json.dumps({"event": event, "at": round(self._wall(), 3), **fields})
        print(line, file=self._out, flush=True)


def _error(error: BaseException | None) -> dict[str, Any]:
    words = None if error is None else f"{type(error).__name__}: {error}"
    return {"error": words, "number": getattr(error, "number", None)}


def _lags(status: RunStatus) -> dict[str, dict[str, dict[str, float]]]:
    """Return the lag and the planned part of it: stream -> unit -> number."""
    return {
        "lag": {stream: lag.numbers for stream, lag in status.lags.items()},
        "planned": {stream: lag.numbers for stream, lag in status.planned.items()},
    }


def _violations(violations: Violations) -> dict[str, Any]:
    """Return the field of an event; no field in a topology without rules."""
    by_stream = {stream: dict(rules) for stream, rules in violations.items()}
    return {"violations": by_stream} if by_stream else {}
