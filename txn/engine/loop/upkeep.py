"""OPTIMIZE and VACUUM of a run's tables by schedule: one after the other, each in a child process.

A child, because delta-rs rewrites files in the memory of its process and cannot be interrupted: a
run that ends must not wait for it. Killing one loses nothing: no version refers to the files of an
unfinished OPTIMIZE, and VACUUM deletes file by file. A child ends when its parent has ended.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from txn.config import TopologyConfig
from txn.dataflow.graph import Sink
from txn.delta.upkeep import Operation, least_hours
from txn.engine.reporting.broadcast import Broadcast
from txn.observers import MaintenanceDone
from txn.storage.storage import Storage
from txn.text import size

__all__ = ["Upkeep"]

log = logging.getLogger("txn")

_PACKAGES = Path(__file__).parents[3]
"""The folder of the package txn, which the child must find wherever this process found it."""


class _Child(NamedTuple):
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    operation: Operation
    table: str
    began: float


class Upkeep:
    """Starts the operations that are due, and reports how they went. `step` never blocks.

    Args:
        sinks: the topology's tables; other tables than its own Delta tables are left alone.
    """

    def __init__(
        self,
        topology: str,
        sinks: Sequence[Sink],
        config: TopologyConfig,
        broadcast: Broadcast,
        monotonic: Callable[[], float],
    ) -> None:
        self._topology = topology
        own = {s.name: s.committer.storage_options for s in sinks if s.committer.lies_in_folder}
        shown = {one.name: one.storage_options for sink in sinks for one in sink.published}
        self._tables = {**own, **shown}
        self._least = least_hours(config.message_timeout_secs, config.max_batch_attempts)
        every: dict[Operation, float] = {
            "optimize": config.optimize_every_hours * 3600,
            "vacuum": config.vacuum_every_hours * 3600,
        }
        self._every = {operation: secs for operation, secs in every.items() if secs}
        self._broadcast = broadcast
        self._monotonic = monotonic
        self._next = dict.fromkeys(self._every, monotonic())
        self._waiting: deque[tuple[Operation, str]] = deque()
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._reported: set[tuple[Operation, str]] = set()

    @property
    def is_on(self) -> bool:
        """True if any operation is scheduled."""
        return bool(self._every and self._tables)

    def step(self) -> None:
        """Report the operation that has ended, and start the next one."""
        with self._lock:
            if self._stopped:
                return
            if self._child is not None:
                if self._child.process.poll() is None:
                    return
                self._report(self._child)
                self._child = None
            now = self._monotonic()
            for operation, secs in self._every.items():
                if now >= self._next[operation]:
                    self._next[operation] = now + secs
                    asked = {table for waits, table in self._waiting if waits == operation}
                    new = (table for table in self._tables if table not in asked)
                    self._waiting += [(operation, table) for table in new]
            if self._waiting:
                self._start(*self._waiting.popleft())

    def stop(self) -> None:
        """Start nothing more, and end the running operation."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            if self._child is None:
                return
            child, self._child = self._child, None
            child.process.kill()
            child.process.wait()
            _close(child)

    def _start(self, operation: Operation, table: str) -> None:
        options = dict(self._tables[table])
        order = {
            "operation": operation,
            "topology": self._topology,
            "location": Storage(table, options).uri,
            "options": options,
            "least_hours": self._least,
        }
        path = os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        process = subprocess.Popen(
            [sys.executable, "-m", "txn.engine.loop.upkeep_child"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the run, which ends it
        )
        began = self._broadcast.stamp()[0]
        self._child = _Child(process, output, operation, table, began)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # its output has the error
            process.stdin.write(json.dumps(order).encode() + b"\n")
        # The pipe stays open: its end is the end of the child.

    def _report(self, child: _Child) -> None:
        result = _read_result(child)
        about = f"[{self._topology}] {child.operation.upper()} of table {child.table}"
        kind, report = (child.operation, child.table), self._broadcast.report
        done = child.table, child.operation, child.began
        if error := result.get("error"):
            report(MaintenanceDone, *done, error=error)
            if kind not in self._reported:
                self._reported.add(kind)
                log.warning("%s: %s", about, error)
        elif result["chosen_files"]:
            what = f"{result['chosen_files']} files ({size(result['chosen_bytes'])})"
            became = result["written_files"]
            report(
                MaintenanceDone,
                *done,
                files=result["chosen_files"],
                bytes=result["chosen_bytes"],
                written_files=became,
            )
            outcome = "deleted" if became is None else f"became {became}"
            log.info("%s: %s %s", about, what, outcome)


def _read_result(child: _Child) -> dict[str, Any]:
    child.output.seek(0)
    lines = child.output.read().decode("utf-8", "replace").strip().splitlines()
    _close(child)
    try:
        result = json.loads(lines[-1])
    except (ValueError, IndexError):
        result = None
    if isinstance(result, dict):
        return result
    last = lines[-1] if lines else "nothing was said"
    return {"error": f"its process ended with code {child.process.returncode}: {last}"}


def _close(child: _Child) -> None:
    if child.process.stdin is not None:
        child.process.stdin.close()
    child.output.close()
