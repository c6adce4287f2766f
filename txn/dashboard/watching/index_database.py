"""The SQLite file of an index: its tables, and connections for one writer and many readers."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txn.interfaces.publication import Violations, merged_violations

__all__ = ["IndexDatabase"]

_SCHEMA = """
CREATE TABLE txids(
  txid INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL,
  at_ms INTEGER NOT NULL, rows INTEGER NOT NULL, read TEXT NOT NULL,
  timings TEXT NOT NULL, total_ms REAL NOT NULL, processing_ms REAL NOT NULL,
  waiting_ms REAL NOT NULL, records INTEGER, bytes INTEGER,
  quarantined TEXT, replay_of INTEGER, broken INTEGER NOT NULL,
  first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE INDEX txids_at ON txids(
  at_ms, rows, total_ms, processing_ms, waiting_ms, records, bytes, epoch);
CREATE TABLE words(txid INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE parts(
  txid INTEGER, tab INTEGER, version INTEGER NOT NULL, attempt INTEGER NOT NULL,
  epoch INTEGER NOT NULL, rows INTEGER NOT NULL, violations TEXT NOT NULL,
  PRIMARY KEY(txid, tab)) WITHOUT ROWID;
CREATE INDEX parts_tab ON parts(tab, txid);
CREATE TABLE versions(
  tab INTEGER, version INTEGER, at_ms INTEGER NOT NULL, kind TEXT NOT NULL,
  operation TEXT NOT NULL, writer TEXT NOT NULL, first INTEGER, last INTEGER,
  adds INTEGER NOT NULL, bytes INTEGER NOT NULL, removes INTEGER NOT NULL, rows INTEGER,
  PRIMARY KEY(tab, version)) WITHOUT ROWID;
CREATE INDEX versions_kind ON versions(kind, tab, version);
CREATE TABLE failures(
  txid INTEGER, attempt INTEGER, at_ms INTEGER NOT NULL, error TEXT NOT NULL,
  PRIMARY KEY(txid, attempt, error)) WITHOUT ROWID;
CREATE INDEX failures_at ON failures(at_ms);
"""
_CACHE_KB = 4096
"""Page cache of one connection; every concurrent question has one."""
_MOST_FREE = 4
"""Most idle connections that are kept; each has three files open."""


class IndexDatabase:
    """A new file with empty tables. Safe from any thread.

    Args:
        path: path of the file, which must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._write_lock = threading.Lock()
        self._free: list[sqlite3.Connection] = []
        """Idle connections."""
        self._closed = False
        self._lending = threading.Lock()
        # One connection for all writers: each has a cache, and every table has a thread.
        self._writer = self._connected()
        self._writer.create_aggregate("broken_rows", 1, _BrokenRows)
        with self.writing() as write:
            write.executescript(_SCHEMA)

    def close(self) -> None:
        """Close all connections; the file stays with its owner."""
        with self._lending:
            self._closed = True
            while self._free:
                self._free.pop().close()
        with self._write_lock:
            self._writer.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection to one reader at a time.

        Not one per thread: a server's threads come and go, and would leave theirs behind.
        """
        with self._lending:
            if self._closed:
                raise sqlite3.ProgrammingError("The index is closed.")
            idle = self._free.pop() if self._free else None
        connection = idle or self._connected()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lending:
            if self._closed or len(self._free) >= _MOST_FREE:
                connection.close()
            else:
                self._free.append(connection)

    def _connected(self) -> sqlite3.Connection:
        made = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = OFF")
        made.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        made.create_function("casefold", 1, str.casefold)  # SQLite's lower() knows ASCII only
        return made

    def ask(self, question: str, *values: Any) -> list[Any]:
        """Return all rows of an answer."""
        with self.reading() as connection:
            return connection.execute(question, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for writing, in one transaction."""
        with self._write_lock, self._writer:
            yield self._writer


class _BrokenRows:
    """An aggregate for SQLite: the rows of a txid that broke a rule."""

    def __init__(self) -> None:
        self._violations: list[Violations] = []

    def step(self, violations: Any) -> None:
        """Add one table's violations, as JSON."""
        self._violations.append(json.loads(violations))

    def finalize(self) -> int:
        """Return the sum over all tables; a rule that two tables have counts once."""
        merged = merged_violations(self._violations)
        return sum(rows for rules in merged.values() for rows in rules.values())
