"""The files of a run in its home: its log, and a note with its current state.

`.txn/logs/NAME.log` has every failed attempt with its error. `.txn/runs/NAME.json` has the state
that only the running process has: batches in flight by phase, lag, bottleneck, plan. `txn run`
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

from txn.engine.reporting.report import InFlight
from txn.machine.liveness import is_running, machine_id

__all__ = ["LOG_FOLDER", "RUNS_FOLDER", "FailureLog", "RunNote", "read_note", "write_note"]

LOG_FOLDER = Path(".txn/logs")
"""The folder for the logs of `txn run` in a home."""
RUNS_FOLDER = Path(".txn/runs")
"""The folder for the notes of `txn run` in a home."""

_LARGEST_NOTE = 4_000_000
_FRESH_SECS = 15.0
_LONGEST_ERROR = 4000
_FAILED = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) \w+ txn \[(.+) (\d+):(\d+)\] failed: (.*)"
)
_MESSAGE = re.compile(r"\[(.+) (\d+):(\d+)\] failed: (.*)", re.DOTALL)
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")
_BEGAN = "[{} 1:0] started"
"""Message of a topology's first attempt: a log outlives a topology that is made anew."""


class RunNote(BaseModel):
    """The state of a run, which it writes about twice a second."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    topology: str
    pid: int
    machine: str = ""
    """Boot and process-id namespace in which `pid` is valid; empty where unknown."""
    epoch: int = 0
    at: float
    """Time of writing, seconds since 1970."""
    ended: str | None = None
    """The way in which the run ended; None: it had not ended when this was written."""
    error: str | None = None
    """The error with which it ended."""
    held_up_by: str = "idle"
    waits: tuple[str, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    lags: dict[str, dict[str, float]] = Field(default_factory=dict)
    """stream -> unit (records, bytes, files, versions, seconds) -> amount not committed."""
    planned: dict[str, dict[str, float]] = Field(default_factory=dict)
    """stream -> unit -> the part of the lag that txids in flight cover."""
    published: dict[str, int | None] = Field(default_factory=dict)
    """published table -> the txid that it shows, 0 if none; None: unknown."""
    failures_logged: bool = True
    """True if the run's log has its failed attempts; False at `--log-level error`."""
    program: str = ""
    """FILE.py:TOPOLOGY that was run; empty: unknown."""
    plan: dict[str, Any] = Field(default_factory=dict)
    """`txn.operations.plan.TopologyPlan` as JSON."""

    def is_live(self, now: float) -> bool:
        """True if the run that wrote it seems to go on."""
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
    """Read a topology's newest note; None: it is missing or unreadable."""
    path = folder / f"{topology}.json"
    try:
        if path.stat().st_size > _LARGEST_NOTE:
            return None
        note = RunNote.model_validate_json(path.read_bytes())
    except (OSError, ValueError, ValidationError, RecursionError):
        return None
    return note if note.topology == topology else None


class FailureLog:
    """The failed attempts in a topology's log, each returned once."""

    def __init__(self, topology: str, folder: Path = LOG_FOLDER) -> None:
        self.begins_anew = False
        """True if failures returned before the last call of `new` are of an earlier incarnation."""
        self._topology = topology
        self._began = _BEGAN.format(topology)
        self._paths = (folder / f"{topology}.log.1", folder / f"{topology}.log")
        self._read: dict[Path, tuple[int, int]] = {}

    def new(self) -> list[tuple[int, int, int, str]]:
        """Return (txid, attempt, milliseconds since 1970, error) of failures since the last call.

        Skips those before the topology's first attempt, with which txids begin again. Reads a
        file that was rotated away again from its beginning: the same failures come twice.
        """
        self.begins_anew = False
        failures: list[tuple[int, int, int, str]] = []
        for path in self._paths:
            with contextlib.suppress(OSError), path.open("rb") as file:
                stat = os.fstat(file.fileno())
                inode, at = self._read.get(path, (0, 0))
                if inode != stat.st_ino or stat.st_size < at:
                    at = 0
                # A file has one format. In a text log, only a line of an error begins with a brace.
                parse = self._parse_json if file.read(1) == b"{" else self._parse_text
                file.seek(at)
                text = file.read(stat.st_size - at)
                whole = text.rfind(b"\n") + 1
                self._read[path] = (stat.st_ino, at + whole)
                for failure in parse(text[:whole].decode("utf-8", "replace").splitlines()):
                    if failure is None:
                        self.begins_anew = True
                        failures.clear()
                    else:
                        failures.append(failure)
        return failures

    def _parse_text(self, lines: Iterable[str]) -> Iterator[tuple[int, int, int, str] | None]:
        """Yield failures, and None where an incarnation begins.

        An error may have several lines: it ends before one that begins with a time.
        """
        failed: re.Match[str] | None = None
        error: list[str] = []
        for line in lines:
            begins = _LINE.match(line)
            if begins is None:
                error.append(line)
                continue
            if failed is not None:
                yield _failure(failed, error)
            if line[begins.end() :] == f"txn {self._began}":
                yield None
            failed = _FAILED.fullmatch(line)
            if failed is not None and failed[3] != self._topology:
                failed = None
            error = [failed[6]] if failed else []
        if failed is not None:
            yield _failure(failed, error)

    def _parse_json(self, lines: Iterable[str]) -> Iterator[tuple[int, int, int, str] | None]:
        """Yield the same from a log of `--log-format json`."""
        for line in lines:
            try:
                entry = json.loads(line)
                failed = _MESSAGE.fullmatch(entry["message"])
                at_ms = int(
                    datetime.fromisoformat(entry["time"].replace("Z", "+00:00")).timestamp() * 1000
                )
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                continue
            if entry["message"] == self._began:
                yield None
            if failed is not None and failed[1] == self._topology:
                error = failed[4].strip()[:_LONGEST_ERROR]
                yield _number(failed[2]), _number(failed[3]), at_ms, error


def _failure(failed: re.Match[str], error: list[str]) -> tuple[int, int, int, str]:
    moment = datetime.fromisoformat(f"{failed[1]}.{failed[2]}").astimezone()
    at_ms = round(moment.timestamp() * 1000)
    text = "\n".join(error).strip()[:_LONGEST_ERROR]
    return _number(failed[4]), _number(failed[5]), at_ms, text


def _number(digits: str) -> int:
    """Parse a number; an edited log may have one too large for the index."""
    return int(digits[:18])
