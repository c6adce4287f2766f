"""What a run leaves in its working folder: its log, and what it is doing at this moment.

`.txn/logs/NAME.log` has every failed attempt with its error. `.txn/runs/NAME.json` has what only
the running process knows: batches in flight by phase, lag, what holds it up, the plan. `txn run`
writes both, and nothing depends on either.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from txn.zookeeper.liveness import is_running, machine_id

__all__ = [
    "LOG_FOLDER",
    "RUNS_FOLDER",
    "FailureLog",
    "FlightNote",
    "RunNote",
    "read_note",
    "write_note",
]

LOG_FOLDER = Path(".txn/logs")
"""Where `txn run` logs, relative to the working directory."""
RUNS_FOLDER = Path(".txn/runs")
"""Where `txn run` says what it is doing, relative to the working directory."""

_LARGEST_NOTE = 4_000_000
_FRESH_SECS = 15.0
_LONGEST_ERROR = 4000
_FAILED = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) \w+ txn \[(.+) (\d+):(\d+)\] failed: (.*)"
)
_MESSAGE = re.compile(r"\[(.+) (\d+):(\d+)\] failed: (.*)", re.DOTALL)
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")
_BEGAN = "[{} 1:0] started"
"""What the first attempt of a topology says: logs outlive one that is deleted and made anew."""


class _Note(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FlightNote(_Note):
    """One open txid, as the run has it (`txn.engine.report.InFlight`)."""

    txid: int
    attempt_id: int
    phase: str
    failures: int = 0
    since: float = 0.0
    blocked: str | None = None
    blocked_since: float | None = None
    replay_of: int | None = None


class RunNote(_Note):
    """What a run says of itself, about twice a second."""

    version: Literal[1] = 1
    topology: str
    pid: int
    machine: str = ""
    """Boot and process-id namespace in which `pid` means something; empty where unknown."""
    epoch: int = 0
    at: float
    """When it was written, seconds since 1970."""
    ended: str | None = None
    """How the run ended; None: it did not, when this was written."""
    error: str | None = None
    """The error with which it ended."""
    held_up_by: str = "idle"
    waits: tuple[str, ...] = ()
    in_flight: tuple[FlightNote, ...] = ()
    lags: dict[str, dict[str, float]] = Field(default_factory=dict)
    """stream -> unit (records, bytes, files, versions, seconds) -> what is not committed."""
    planned: dict[str, dict[str, float]] = Field(default_factory=dict)
    """stream -> unit -> the part of it for which txids in flight are planned."""
    failures_logged: bool = True
    """Whether the run's log has its failed attempts; not at `--log-level error`."""
    program: str = ""
    """FILE.py:TOPOLOGY that was run; empty: not known."""
    plan: dict[str, Any] = Field(default_factory=dict)
    """`txn.operations.plan.TopologyPlan` as JSON."""

    def is_live(self, now: float) -> bool:
        """Whether the run that wrote it goes on, as far as can be told."""
        if self.ended is not None or now - self.at > _FRESH_SECS:
            return False
        return self.machine != machine_id() or is_running(self.pid)


def write_note(note: RunNote, folder: Path = RUNS_FOLDER) -> None:
    """Replace a topology's note; a reader sees the old or the new one.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".{note.topology}.{os.getpid()}"
    scratch.write_text(note.model_dump_json(), encoding="utf-8")
    scratch.replace(folder / f"{note.topology}.json")


def read_note(topology: str, folder: Path = RUNS_FOLDER) -> RunNote | None:
    """A topology's newest note; None: there is none that can be read."""
    path = folder / f"{topology}.json"
    try:
        if path.stat().st_size > _LARGEST_NOTE:
            return None
        note = RunNote.model_validate_json(path.read_bytes())
    except (OSError, ValueError, ValidationError, RecursionError):
        return None
    return note if note.topology == topology else None


class FailureLog:
    """The failed attempts in a topology's log, each told once.

    Args:
        folder: where `txn run` logs.
    """

    def __init__(self, topology: str, folder: Path = LOG_FOLDER) -> None:
        self.begins_anew = False
        """Whether what `new` told before its last call is of an earlier life of the topology."""
        self._topology = topology
        self._began = _BEGAN.format(topology)
        self._paths = (folder / f"{topology}.log.1", folder / f"{topology}.log")
        self._read: dict[Path, tuple[int, int]] = {}

    def new(self) -> list[tuple[int, int, int, str]]:
        """(txid, attempt, milliseconds since 1970, error) of those that came since the last call.

        Those before the topology's first attempt are left out: txids begin again with it. A file
        that was rotated away is read again from its beginning: the same failures come twice.
        """
        self.begins_anew = False
        failures: list[tuple[int, int, int, str]] = []
        for path in self._paths:
            with contextlib.suppress(OSError), path.open("rb") as file:
                found = os.fstat(file.fileno())
                inode, at = self._read.get(path, (0, 0))
                if inode != found.st_ino or found.st_size < at:
                    at = 0
                # A file is of one format. In text, what begins so is a line of an error.
                of_format = self._of_json if file.read(1) == b"{" else self._of_text
                file.seek(at)
                text = file.read(found.st_size - at)
                whole = text.rfind(b"\n") + 1
                self._read[path] = (found.st_ino, at + whole)
                for told in of_format(text[:whole].decode("utf-8", "replace").splitlines()):
                    if told is None:
                        self.begins_anew = True
                        failures.clear()
                    else:
                        failures.append(told)
        return failures

    def _of_text(self, lines: Iterable[str]) -> Iterator[tuple[int, int, int, str] | None]:
        """Failures, and None where a life begins.

        Errors may go on over several lines: up to one that begins with a time.
        """
        failed: re.Match[str] | None = None
        error: list[str] = []
        for line in lines:
            begins = _LINE.match(line)
            if begins is None:
                error.append(line)
                continue
            if failed is not None:
                yield _told(failed, error)
            if line[begins.end() :] == f"txn {self._began}":
                yield None
            failed = _FAILED.fullmatch(line)
            if failed is not None and failed[3] != self._topology:
                failed = None
            error = [failed[6]] if failed else []
        if failed is not None:
            yield _told(failed, error)

    def _of_json(self, lines: Iterable[str]) -> Iterator[tuple[int, int, int, str] | None]:
        """The same of `--log-format json`."""
        for line in lines:
            try:
                said = json.loads(line)
                failed = _MESSAGE.fullmatch(said["message"])
                at_ms = int(
                    datetime.fromisoformat(said["time"].replace("Z", "+00:00")).timestamp() * 1000
                )
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                continue
            if said["message"] == self._began:
                yield None
            if failed is not None and failed[1] == self._topology:
                error = failed[4].strip()[:_LONGEST_ERROR]
                yield _number(failed[2]), _number(failed[3]), at_ms, error


def _told(failed: re.Match[str], error: list[str]) -> tuple[int, int, int, str]:
    moment = datetime.fromisoformat(f"{failed[1]}.{failed[2]}").astimezone()
    at_ms = round(moment.timestamp() * 1000)
    text = "\n".join(error).strip()[:_LONGEST_ERROR]
    return _number(failed[4]), _number(failed[5]), at_ms, text


def _number(digits: str) -> int:
    """Numbers of a log that somebody has changed need not fit into the index."""
    return int(digits[:18])
