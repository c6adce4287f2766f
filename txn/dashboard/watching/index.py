"""An index of one topology's entries in its tables' logs, on disk: newest first, and bounded.

A log has a file per version, and 100,000 of them cannot be read for every question. So
`LogFollower` reads each once, and SQLite keeps its contents here, with memory bounded by the page
cache. The logs stay the truth: the index is thrown away when its owner ends.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from txn.delta.commits import Commit
from txn.interfaces.publication import (
    Member,
    Publication,
    Violations,
    merged_violations,
    processing_ms,
)
from txn.text import describe, printable, read_of

__all__ = [
    "Filter",
    "IndexedTxid",
    "LogIndex",
    "Only",
    "Page",
    "Part",
    "Unreadable",
    "Version",
    "fits",
    "kind_of",
]

Only = Literal["all", "open", "quarantined", "replayed", "failed", "broken", "grouped"]
"""Kinds of txids. open: not committed in ZooKeeper; replayed: published by a later attempt than the
first, or a replay of a quarantined txid; failed: an attempt failed; broken: rows broke
a rule; grouped: one version has several txids."""

_SCHEMA = """
CREATE TABLE txids(
  txid INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, epoch INTEGER NOT NULL,
  at_ms INTEGER NOT NULL, rows INTEGER NOT NULL, read TEXT NOT NULL,
  timings TEXT NOT NULL, total_ms REAL NOT NULL, processing_ms REAL NOT NULL,
  quarantined TEXT, replay_of INTEGER, broken INTEGER NOT NULL,
  first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE INDEX txids_at ON txids(at_ms, rows, total_ms, processing_ms);
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
_STEP = 64
"""Txids in the first step of a search: their descriptions may be long."""
_LONGEST_STEP = 4096
_STEP_SECS = 0.02
"""A step that takes longer is followed by a shorter one."""
_SEARCH_SECS = 0.12
"""Most seconds that one request searches; its answer tells where to go on."""
_LONGEST_SEARCH = 100_000
"""Characters of a txid's metadata that can be searched."""
_LONGEST_READ = 300
_KEPT_FAILURES = 20_000


@dataclass(frozen=True)
class Part:
    """One table's part of a txid."""

    table: int
    """Number of the table."""
    version: int
    attempt_id: int
    epoch: int
    rows: int
    violations: Violations
    """stream -> rule -> rows that broke it, for the streams that feed this table."""


@dataclass(frozen=True)
class IndexedTxid:
    """One txid, merged from all tables."""

    txid: int
    attempt_id: int
    epoch: int
    at_ms: int
    """Time of the last append to any of the tables, milliseconds since 1970."""
    rows: int
    """Rows staged for it, of all tables."""
    read: str
    """What it read, in a few words."""
    timings_ms: Mapping[str, float]
    """station -> milliseconds since the station before it, up to the commit turn, of the attempt
    that was published."""
    total_ms: float
    quarantined: str | None
    """The error for which it was committed empty."""
    replay_of: int | None
    broken: int
    """Rows of it that broke a rule."""
    first: int
    """First txid of the group that was committed with it."""
    last: int
    failures: int = 0
    """The number of its failed attempts in the log."""


@dataclass(frozen=True)
class Version:
    """One version of a table."""

    table: int
    version: int
    at_ms: int
    kind: str
    """"publication", "fence", "settled", "compaction", "maintenance" (no rows came or went),
    "created", "foreign" (a change by another writer) or "unreadable"."""
    operation: str
    writer: str
    first: int | None
    last: int | None
    """First and last txid that it holds or folds."""
    files_added: int
    bytes_added: int
    files_removed: int
    rows_added: int | None
    """None: the log has no count."""


@dataclass(frozen=True)
class Unreadable:
    """A version whose commit file cannot be parsed."""

    version: int
    why: str


@dataclass(frozen=True)
class Filter:
    """Conditions for txids, all of which must hold."""

    text: str = ""
    """A txid, a range such as 120-140, or a part of a file's name, a partition or an error."""
    only: Only = "all"
    table: int | None = None
    committed: int = 0
    """ZooKeeper's committed txid, for `open`."""


@dataclass(frozen=True)
class Page:
    """Some txids, newest first."""

    txids: tuple[IndexedTxid, ...]
    before: int | None
    """The next page has txids below this one; None: there are no more now."""


def kind_of(commit: Commit, topology: str) -> str:
    """Return the kind of a version; see `Version.kind`."""
    if commit.publication is not None:
        return "publication" if commit.publication.topology == topology else "foreign"
    for kind in ("fence", "settled", "compaction"):
        if getattr(commit, kind) is not None:
            return kind
    if commit.version == 0:
        return "created"
    if commit.token is not None or not (commit.data_change or commit.metadata_change):
        return "maintenance"
    return "foreign"


def fits(commit: Commit) -> bool:
    """True if a version's numbers fit into the index. Nothing else in a log limits them."""
    publication = commit.publication
    numbers = [sum(add.size for add in commit.adds), sum(add.rows for add in commit.adds)]
    numbers += [txid for txid in _txids_of(commit) if txid is not None]
    if publication is not None:
        numbers += [publication.epoch, publication.replay_of or 0]
        numbers += [n for m in publication.txids for n in (m.txid, m.attempt_id, m.rows)]
        if not all(map(math.isfinite, publication.timings_ms.values())):
            return False
    return all(abs(number) < 2**63 for number in numbers)


class LogIndex:
    """The index of one topology. Safe from any thread.

    Args:
        path: path of its file, which must not exist.
        topology: the topology's name.
    """

    def __init__(self, path: Path, topology: str) -> None:
        self.topology = topology
        self._path = path
        self._lock = threading.Lock()
        self._free: list[sqlite3.Connection] = []
        """Idle connections."""
        self._closed = False
        self._lending = threading.Lock()
        self._above: dict[int, int] = {}
        # One connection for all writers: each has a cache, and every table has a thread.
        self._writer = self._connected()
        self._writer.create_aggregate("broken_rows", 1, _BrokenRows)
        with self._writing() as write:
            write.executescript(_SCHEMA)

    def close(self) -> None:
        """Close all connections; the file stays with its owner."""
        with self._lending:
            self._closed = True
            while self._free:
                self._free.pop().close()
        with self._lock:
            self._writer.close()

    # --- entries of the logs -----------------------------------------------------------------

    def add_newer(self, table: int, commits: Sequence[Commit | Unreadable]) -> None:
        """Add versions that follow all those indexed, in ascending order."""
        with self._writing() as write:
            touched: set[int] = set()
            for commit, publication in self._added(write, table, commits):
                first = publication.first_txid
                # A replay publishes txids again, and takes back all that came with them.
                taken = write.execute(
                    "SELECT txid FROM parts WHERE tab = ? AND txid >= ?", (table, first)
                ).fetchall()
                write.execute("DELETE FROM parts WHERE tab = ? AND txid >= ?", (table, first))
                touched.update(txid for (txid,) in taken)
                touched.update(self._add_publication(write, table, commit, publication))
                self._above[table] = min(self._above.get(table, first), first)
            _recount(write, touched)

    def add_older(self, table: int, commits: Sequence[Commit | Unreadable]) -> None:
        """Add versions that precede all those indexed, in descending order."""
        with self._writing() as write:
            touched: set[int] = set()
            for commit, publication in self._added(write, table, commits):
                above = self._above.get(table)
                touched.update(self._add_publication(write, table, commit, publication, above))
                first = publication.first_txid
                self._above[table] = first if above is None else min(above, first)
            _recount(write, touched)

    def forget(self, table: int) -> None:
        """Remove all entries of a table: another table has taken its place."""
        with self._writing() as write:
            had = write.execute("SELECT txid FROM parts WHERE tab = ?", (table,)).fetchall()
            write.execute("DELETE FROM parts WHERE tab = ?", (table,))
            write.execute("DELETE FROM versions WHERE tab = ?", (table,))
            _recount(write, (txid for (txid,) in had))
            self._above.pop(table, None)

    def let_go(self, table: int, below: int) -> None:
        """Remove a table's versions below one, and the txids that no other table has."""
        with self._writing() as write:
            (last,) = write.execute(
                "SELECT max(last) FROM versions WHERE tab = ? AND version < ? "
                "AND kind = 'publication'",
                (table, below),
            ).fetchone()
            write.execute("DELETE FROM versions WHERE tab = ? AND version < ?", (table, below))
            which = "FROM parts WHERE tab = ? AND txid <= ? AND version < ?"
            had = write.execute(f"SELECT txid {which}", (table, last, below)).fetchall()
            write.execute(f"DELETE {which}", (table, last, below))
            _recount(write, (txid for (txid,) in had))

    def add_failures(self, failures: Iterable[tuple[int, int, int, str]]) -> None:
        """Add failed attempts (txid, attempt, milliseconds since 1970, error); keeps the newest."""
        with self._writing() as write:
            write.executemany(
                "INSERT OR REPLACE INTO failures VALUES(?, ?, ?, ?)",
                [(*attempt, printable(error)) for *attempt, error in failures],
            )
            write.execute(
                "DELETE FROM failures WHERE at_ms < (SELECT at_ms FROM failures "
                "ORDER BY at_ms DESC LIMIT 1 OFFSET ?)",
                (_KEPT_FAILURES - 1,),
            )

    def forget_failures(self) -> None:
        """Remove all failed attempts: they are of an earlier incarnation of the topology."""
        with self._writing() as write:
            write.execute("DELETE FROM failures")

    def _added(
        self, write: sqlite3.Connection, table: int, commits: Sequence[Commit | Unreadable]
    ) -> Iterator[tuple[Commit, Publication]]:
        """Add each version; yields those with a publication of this topology."""
        for commit in commits:
            self._add_version(write, table, commit)
            if isinstance(commit, Unreadable):
                continue
            publication = commit.publication
            if publication is not None and publication.topology == self.topology:
                yield commit, publication

    def _add_version(
        self, write: sqlite3.Connection, table: int, commit: Commit | Unreadable
    ) -> None:
        if isinstance(commit, Unreadable):
            unknown = (None, None, 0, 0, 0, None)
            why = printable(commit.why)
            row = (table, commit.version, 0, "unreadable", why, "", *unknown)
            write.execute(_ADD_VERSION, row)
            return
        kind = kind_of(commit, self.topology)
        first, last = _txids_of(commit)
        rows = [add.rows for add in commit.adds]
        row_count = sum(rows) if all(count >= 0 for count in rows) else None
        size = sum(add.size for add in commit.adds)
        what = (first, last, len(commit.adds), size, len(commit.removes), row_count)
        who = (commit.timestamp_ms, kind, printable(commit.operation), printable(commit.writer))
        write.execute(_ADD_VERSION, (table, commit.version, *who, *what))

    def _add_publication(
        self,
        write: sqlite3.Connection,
        table: int,
        commit: Commit,
        publication: Publication,
        above: int | None = None,
    ) -> list[int]:
        """Add its txids below `above`. Returns those whose rows broke rules.

        Facts that all tables share are taken from the first: there may be many tables.
        """
        members = [m for m in publication.txids if above is None or m.txid < above]
        version, epoch, at_ms = commit.version, publication.epoch, commit.timestamp_ms
        write.executemany(
            "INSERT OR REPLACE INTO parts VALUES(?, ?, ?, ?, ?, ?, ?)",
            [
                (m.txid, table, version, m.attempt_id, epoch, m.rows, _json(m.violations))
                for m in members
            ],
        )
        span = (publication.first_txid, publication.last_txid)
        attempts = {txid: attempt for txid, *attempt in write.execute(_SELECT_ATTEMPTS, span)}
        fresh = [m for m in members if [epoch, m.attempt_id] > attempts.get(m.txid, [])]
        write.executemany(_ADD_TXID, [_row(m, publication, at_ms) for m in fresh])
        words = [(m.txid, _words(m, publication)) for m in fresh]
        write.executemany("INSERT OR REPLACE INTO words VALUES(?, ?)", words)
        added = {m.txid for m in fresh}
        write.executemany(
            "UPDATE txids SET rows = rows + ?, at_ms = max(at_ms, ?) WHERE txid = ?",
            [
                (m.rows, at_ms if attempts[m.txid] == [epoch, m.attempt_id] else 0, m.txid)
                for m in members
                if m.txid not in added
            ],
        )
        return [m.txid for m in members if m.violations]

    # --- questions ---------------------------------------------------------------------------

    def page(self, conditions: Filter, before: int | None = None, limit: int = 100) -> Page:
        """Find the newest matching txids below `before`: at most `limit`, and in bounded time.

        A search that finds little stops after a moment: `Page.before` tells where to go on.
        """
        span = self.span()
        if span is None:
            return Page((), None)
        with self._reading() as ask:
            return _searched(ask, span, _conditions(conditions), before, limit)

    def txid(self, txid: int) -> tuple[IndexedTxid, tuple[Part, ...]] | None:
        """Return one txid and its part of each table; None: it is not in the index."""
        with self._reading() as ask:
            row = ask.execute(f"SELECT {_COLUMNS} FROM txids t WHERE txid = ?", (txid,)).fetchone()
            parts = ask.execute(
                "SELECT tab, version, attempt, epoch, rows, violations FROM parts WHERE txid = ? "
                "ORDER BY tab",
                (txid,),
            ).fetchall()
        if row is None:
            return None
        return _indexed(row), tuple(
            Part(table, version, attempt, epoch, rows, json.loads(violations or "{}"))
            for table, version, attempt, epoch, rows, violations in parts
        )

    def failures(
        self, txid: int | None = None, limit: int = 100
    ) -> list[tuple[int, int, int, str]]:
        """Return (txid, attempt, milliseconds since 1970, error), newest first: of one or all."""
        where = "" if txid is None else "WHERE txid = ? "
        return self._asked(
            f"SELECT txid, attempt, at_ms, error FROM failures {where}"
            "ORDER BY at_ms DESC, txid DESC, attempt DESC LIMIT ?",
            *(() if txid is None else (txid,)),
            limit,
        )

    def versions(
        self, table: int, before: int | None = None, limit: int = 100, kind: str | None = None
    ) -> list[Version]:
        """Return a table's versions below `before`, newest first."""
        where, values = ("AND kind = ? ", [kind]) if kind else ("", [])
        rows = self._asked(
            f"SELECT * FROM versions WHERE tab = ? AND version < ? {where}"
            "ORDER BY version DESC LIMIT ?",
            table,
            2**62 if before is None else before,
            *values,
            limit,
        )
        return [Version(*row) for row in rows]

    def strange(self, limit: int = 100) -> list[Version]:
        """Return versions that neither the topology nor plain maintenance made, newest first."""
        rows = self._asked(
            "SELECT * FROM versions WHERE kind IN ('foreign', 'unreadable') "
            "ORDER BY at_ms DESC, version DESC LIMIT ?",
            limit,
        )
        return [Version(*row) for row in rows]

    def version_of(self, table: int, txid: int) -> int | None:
        """Return the version with a table's newest txid up to this one; None: unknown."""
        rows = self._asked(
            "SELECT version FROM parts WHERE tab = ? AND txid <= ? ORDER BY txid DESC LIMIT 1",
            table,
            txid,
        )
        return rows[0][0] if rows else None

    def published(self, table: int, version: int) -> tuple[int, int] | None:
        """Return first and last txid that a table's version published; None: none, or unknown."""
        rows = self._asked(
            "SELECT first, last FROM versions WHERE tab = ? AND version = ? "
            "AND kind = 'publication'",
            table,
            version,
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def span(self, table: int | None = None) -> tuple[int, int] | None:
        """Return the lowest and the highest indexed txid, of all tables or of one."""
        source = "txids" if table is None else "parts WHERE tab = ?1"
        values = () if table is None else (table,)
        # Two queries: for both in one SQLite reads every entry.
        ((low, high),) = self._asked(
            f"SELECT (SELECT min(txid) FROM {source}), (SELECT max(txid) FROM {source})", *values
        )
        return None if low is None else (low, high)

    def rows_by_table(self, txids: int) -> dict[int, int]:
        """Return table -> rows staged for it by the newest txids."""
        # +tab: without it SQLite takes the index by table, for the order, and reads all of it.
        rows = self._asked(
            "SELECT tab, total(rows) FROM parts WHERE txid > (SELECT max(txid) FROM txids) - ? "
            "GROUP BY +tab",
            txids,
        )
        return {table: int(count) for table, count in rows}

    def newest_version(self, table: int, kind: str) -> Version | None:
        """Return a table's newest version of a kind; None: none is indexed."""
        versions = self.versions(table, None, 1, kind)
        return versions[0] if versions else None

    def times_ms(self) -> tuple[int, int]:
        """Return the times of the oldest and newest txid, milliseconds since 1970; 0: none."""
        ((first, last),) = self._asked(
            "SELECT (SELECT min(at_ms) FROM txids WHERE at_ms > 0), (SELECT max(at_ms) FROM txids)"
        )
        return first or 0, last or 0

    def rate(self, now_ms: int, span_ms: int) -> tuple[int, int]:
        """Return (rows, txids) that were published within the newest `span_ms`.

        By the publisher's clock: if it is ahead, the newest txid gives the time.
        """
        newest = self._asked("SELECT at_ms FROM txids ORDER BY txid DESC LIMIT 1")
        until = max(now_ms, newest[0][0] if newest else 0)
        ((rows, txids),) = self._asked(
            "SELECT total(rows), count(*) FROM txids WHERE at_ms > ? AND at_ms <= ?",
            until - span_ms,
            until,
        )
        return int(rows), txids

    def series(self, since_ms: int, until_ms: int, bucket_ms: int) -> list[tuple[Any, ...]]:
        """Return totals by time, for charts.

        Returns:
            (milliseconds since 1970 at which a bucket begins, txids, rows, mean and greatest
            milliseconds from planning to the commit turn, mean milliseconds of processing,
            without the wait before it).
        """
        return self._asked(
            "SELECT (at_ms / ?) * ? AS bucket, count(*), total(rows), avg(total_ms), "
            "max(total_ms), avg(processing_ms) FROM txids WHERE at_ms >= ? AND at_ms <= ? "
            "GROUP BY bucket ORDER BY bucket",
            *(bucket_ms, bucket_ms, since_ms, until_ms),
        )

    # --- connections -------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
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

    def _asked(self, question: str, *values: Any) -> list[Any]:
        with self._reading() as ask:
            return ask.execute(question, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._writer:
            yield self._writer


_ADD_VERSION = "INSERT OR REPLACE INTO versions VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_TXID = """
INSERT INTO txids VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(txid) DO UPDATE SET
  attempt=excluded.attempt, epoch=excluded.epoch, rows=rows+excluded.rows, read=excluded.read,
  timings=excluded.timings, total_ms=excluded.total_ms, processing_ms=excluded.processing_ms,
  quarantined=excluded.quarantined, replay_of=excluded.replay_of,
  first=excluded.first, last=excluded.last,
  at_ms=max(at_ms, excluded.at_ms)
"""
_SELECT_ATTEMPTS = "SELECT txid, epoch, attempt FROM txids WHERE txid BETWEEN ? AND ?"
_COLUMNS = (
    "txid, attempt, epoch, at_ms, rows, read, timings, total_ms, quarantined, replay_of, broken, "
    "first, last, (SELECT count(*) FROM failures f WHERE f.txid = t.txid)"
)


def _indexed(row: Sequence[Any]) -> IndexedTxid:
    txid, attempt, epoch, at_ms, rows, read, timings, *rest = row
    return IndexedTxid(txid, attempt, epoch, at_ms, rows, read, json.loads(timings), *rest)


def _recount(write: sqlite3.Connection, txids: Iterable[int]) -> None:
    """Add up the rows of txids again; removes those that no table has any more."""
    chosen = [(txid,) for txid in txids]
    write.executemany(
        "UPDATE txids SET rows = (SELECT total(rows) FROM parts WHERE parts.txid = txids.txid), "
        "broken = coalesce((SELECT broken_rows(violations) FROM parts "
        "WHERE parts.txid = txids.txid AND violations <> ''), 0) WHERE txid = ?",
        chosen,
    )
    write.executemany(
        "DELETE FROM txids WHERE txid = ? "
        "AND NOT EXISTS (SELECT 1 FROM parts WHERE parts.txid = txids.txid)",
        chosen,
    )
    write.executemany(
        "DELETE FROM words WHERE txid = ? "
        "AND NOT EXISTS (SELECT 1 FROM txids WHERE txids.txid = words.txid)",
        chosen,
    )


def _row(member: Member, publication: Publication, at_ms: int) -> tuple[Any, ...]:
    timings = publication.timings_ms
    read = "; ".join(f"{name} {describe(metadata)}" for name, metadata in member.read.items())
    return (
        member.txid,
        member.attempt_id,
        publication.epoch,
        at_ms,
        member.rows,
        read if len(read) <= _LONGEST_READ else f"{read[:_LONGEST_READ]}...",
        json.dumps(timings),
        sum(timings.values()),
        processing_ms(timings),
        publication.quarantined and printable(publication.quarantined),
        publication.replay_of,
        0,
        publication.first_txid,
        publication.last_txid,
    )


def _words(member: Member, publication: Publication) -> str:
    """Return the text that a search covers."""
    texts = [*_strings(member.read), publication.quarantined or ""]
    return printable("\n".join(texts)).casefold()[:_LONGEST_SEARCH]


def _json(violations: Violations) -> str:
    return json.dumps(violations) if violations else ""


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


def _strings(value: Any) -> Iterator[str]:
    """Yield every name and text in a spout's metadata."""
    waiting: list[Any] = [value]
    while waiting:
        one = read_of(waiting.pop())
        if isinstance(one, Mapping):
            yield from (str(key) for key in one)
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, str):
            yield one


def _txids_of(commit: Commit) -> tuple[int | None, int | None]:
    if commit.publication is not None:
        return commit.publication.first_txid, commit.publication.last_txid
    if commit.compaction is not None:
        first, last = commit.compaction["txids"]
        return int(first), int(last)
    return None, commit.settled_txid or None


def _searched(
    ask: sqlite3.Connection,
    span: tuple[int, int],
    conditions: tuple[str, list[Any]],
    before: int | None,
    limit: int,
) -> Page:
    """Return a page of matching txids, searched in steps sized by their duration."""
    (lowest, highest), (where, values) = span, conditions
    top = highest + 1 if before is None else before
    txids: list[IndexedTxid] = []
    now = time.monotonic()
    ends = now + _SEARCH_SECS
    step = _STEP if where else highest + 1
    while top > lowest and len(txids) < limit:
        began, bottom = now, max(lowest, top - step)
        rows = ask.execute(
            f"SELECT {_COLUMNS} FROM txids t WHERE txid >= ?1 AND txid < ?2{where} "
            "ORDER BY txid DESC LIMIT ?",
            (bottom, top, *values, limit - len(txids)),
        ).fetchall()
        txids += map(_indexed, rows)
        top = txids[-1].txid if len(txids) >= limit else bottom
        now = time.monotonic()
        if now >= ends:
            break
        step = max(1, step // 2) if now - began > _STEP_SECS else min(_LONGEST_STEP, step * 2)
    return Page(tuple(txids), top if top > lowest else None)


def _conditions(conditions: Filter) -> tuple[str, list[Any]]:
    """Return SQL after WHERE, and its values; ?1 is the first txid, ?2 the one after the last."""
    where, values = {
        "all": ("", []),
        "open": (" AND txid > ?", [conditions.committed]),
        "quarantined": (" AND quarantined IS NOT NULL", []),
        "replayed": (" AND (attempt > 0 OR replay_of IS NOT NULL)", []),
        "failed": (" AND EXISTS (SELECT 1 FROM failures f WHERE f.txid = t.txid)", []),
        "broken": (" AND broken > 0", []),
        "grouped": (" AND last > first", []),
    }[conditions.only]
    values = [*values]
    if conditions.table is not None:
        where += " AND EXISTS (SELECT 1 FROM parts p WHERE p.txid = t.txid AND p.tab = ?)"
        values.append(conditions.table)
    text = conditions.text.strip()
    if not text:
        return where, values
    first, dash, last = text.partition("-")
    low, high = _txid(first), _txid(last if dash else first)
    # "2013-01" is not a range but a part of a file's name.
    if low is not None and high is not None and low <= high:
        return f"{where} AND txid BETWEEN ? AND ?", [*values, low, high]
    text = text.casefold()
    where += (
        " AND txid IN (SELECT txid FROM words WHERE txid >= ?1 AND txid < ?2 AND instr(text, ?) "
        "UNION ALL "
        "SELECT txid FROM failures WHERE txid >= ?1 AND txid < ?2 AND instr(casefold(error), ?))"
    )
    return where, [*values, text, text]


def _txid(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
