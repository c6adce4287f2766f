"""What happened in a run: one JSON object a line, each with its `kind`.

All times (`at`, `until`) are seconds since 1970.

- run: seed, command, machine, minutes, records, session_secs, and
  tables: {name: {stream, shape, semantics, of}}; `of`: the other stream that its rows depend on
- input: stream, part, start, first, step, count. The record at position `start + i` of a part is
  `first + i * step`
- fault: fault, at, until, and what it hit: life, victim, server, point, ...
- missing: fault, why. A kind of fault that this machine does not allow
- driver: life, and what: start, leading (epoch), commit (txid), replays (count), point, error,
  report, stuck, end (code, error, message)
- read: table, version, committed, and what the reader saw; see `tests.chaos.reader`
- version: table, version, at, epoch (None: not ours), and
  publication: None or {first, last, members}
- rows: table, txid, rows: [[number, key, value], ...]. An append table in the end; below a join, a
  query or new values [[number, what it met], ...]
- state: table, rows: [[key, n, total, top], ...]. A state table in the end
- zookeeper: epoch, committed, open (txids with a START and no COMMITTED), quarantined
- end: at, seconds

`members` of a publication are [{txid, attempt, reads: {stream: [[part, start, end], ...]}}]; `end`
is None where a part is read as a whole.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Event", "History", "read_history"]

Event = dict[str, Any]


class History:
    """Writes events to a file as they happen. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()

    def add(self, kind: str, **fields: Any) -> Event:
        """Write an event down; `at` is now unless it is given."""
        event = {"kind": kind, "at": round(time.time(), 3), **fields}
        self.write(event)
        return event

    def write(self, event: Event) -> None:
        """Write an event down as it is."""
        line = json.dumps(event, separators=(",", ":"))
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Nothing is written after this."""
        with self._lock:
            self._file.close()


def read_history(path: Path) -> Iterator[Event]:
    """The events of a file; a last line that was cut off is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
