"""An index of one topology's entries in its tables' logs, on disk: newest first, and bounded.

A log has a file per version, and 100,000 of them cannot be read for every question. So
`LogFollower` reads each once, and SQLite keeps its contents here, with memory bounded by the page
cache. The logs stay the truth: the index is thrown away when its owner ends.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from txn.dashboard.watching.entries import (
    Filter,
    IndexedTxid,
    Page,
    Part,
    Unreadable,
    Version,
    kind_of,
    txids_of,
)
from txn.dashboard.watching.index_database import IndexDatabase
from txn.dashboard.watching.index_search import COLUMNS, indexed_txid, search
from txn.delta.commits import Commit
from txn.interfaces.publication import (
    Member,
    Publication,
    Violations,
    processing_ms,
    waiting_ms,
)
from txn.positions import amounts_read, describe, read_of
from txn.text import printable

__all__ = ["LogIndex"]

_LONGEST_SEARCH = 100_000
"""Characters of a txid's metadata that can be searched."""
_LONGEST_READ = 300
_KEPT_FAILURES = 20_000


class LogIndex:
    """The index of one topology. Safe from any thread.

    Args:
        path: path of its file, which must not exist.
    """

    def __init__(self, path: Path, topology: str) -> None:
        self.topology = topology
        self._database = IndexDatabase(path)
        self._above: dict[int, int] = {}
        """Table -> the lowest txid published by the versions that are indexed so far."""

    def close(self) -> None:
        """Close all connections; the file stays with its owner."""
        self._database.close()

    # --- entries of the logs -----------------------------------------------------------------

    def add_newer(self, table: int, commits: Sequence[Commit | Unreadable]) -> None:
        """Add versions that follow all those indexed, in ascending order."""
        with self._database.writing() as write:
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
        with self._database.writing() as write:
            touched: set[int] = set()
            for commit, publication in self._added(write, table, commits):
                above = self._above.get(table)
                touched.update(self._add_publication(write, table, commit, publication, above))
                first = publication.first_txid
                self._above[table] = first if above is None else min(above, first)
            _recount(write, touched)

    def forget(self, table: int) -> None:
        """Remove all entries of a table: another table has taken its place."""
        with self._database.writing() as write:
            had = write.execute("SELECT txid FROM parts WHERE tab = ?", (table,)).fetchall()
            write.execute("DELETE FROM parts WHERE tab = ?", (table,))
            write.execute("DELETE FROM versions WHERE tab = ?", (table,))
            _recount(write, (txid for (txid,) in had))
            self._above.pop(table, None)

    def let_go(self, table: int, below: int) -> None:
        """Remove a table's versions below one, and the txids that no other table has."""
        with self._database.writing() as write:
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
        with self._database.writing() as write:
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
        with self._database.writing() as write:
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
        first, last = txids_of(commit)
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
        with self._database.reading() as ask:
            return search(ask, span, conditions, before, limit)

    def txid(self, txid: int) -> tuple[IndexedTxid, tuple[Part, ...]] | None:
        """Return one txid and its part of each table; None: it is not in the index."""
        with self._database.reading() as ask:
            row = ask.execute(f"SELECT {COLUMNS} FROM txids t WHERE txid = ?", (txid,)).fetchone()
            parts = ask.execute(
                "SELECT tab, version, attempt, epoch, rows, violations FROM parts WHERE txid = ? "
                "ORDER BY tab",
                (txid,),
            ).fetchall()
        if row is None:
            return None
        return indexed_txid(row), tuple(
            Part(table, version, attempt, epoch, rows, json.loads(violations or "{}"))
            for table, version, attempt, epoch, rows, violations in parts
        )

    def failures(
        self, txid: int | None = None, limit: int = 100
    ) -> list[tuple[int, int, int, str]]:
        """Return (txid, attempt, milliseconds since 1970, error), newest first: of one or all."""
        where = "" if txid is None else "WHERE txid = ? "
        return self._database.ask(
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
        rows = self._database.ask(
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
        rows = self._database.ask(
            "SELECT * FROM versions WHERE kind IN ('foreign', 'unreadable') "
            "ORDER BY at_ms DESC, version DESC LIMIT ?",
            limit,
        )
        return [Version(*row) for row in rows]

    def version_of(self, table: int, txid: int) -> int | None:
        """Return the version with a table's newest txid up to this one; None: unknown."""
        rows = self._database.ask(
            "SELECT version FROM parts WHERE tab = ? AND txid <= ? ORDER BY txid DESC LIMIT 1",
            table,
            txid,
        )
        return rows[0][0] if rows else None

    def published(self, table: int, version: int) -> tuple[int, int] | None:
        """Return first and last txid that a table's version published; None: none, or unknown."""
        rows = self._database.ask(
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
        ((low, high),) = self._database.ask(
            f"SELECT (SELECT min(txid) FROM {source}), (SELECT max(txid) FROM {source})", *values
        )
        return None if low is None else (low, high)

    def rows_by_table(self, txids: int) -> dict[int, int]:
        """Return table -> rows staged for it by the newest txids."""
        # +tab: without it SQLite takes the index by table, for the order, and reads all of it.
        rows = self._database.ask(
            "SELECT tab, total(rows) FROM parts WHERE txid > (SELECT max(txid) FROM txids) - ? "
            "GROUP BY +tab",
            txids,
        )
        return {table: int(count) for table, count in rows}

    def times_ms(self) -> tuple[int, int]:
        """Return the times of the oldest and newest txid, milliseconds since 1970; 0: none."""
        ((first, last),) = self._database.ask(
            "SELECT (SELECT min(at_ms) FROM txids WHERE at_ms > 0), (SELECT max(at_ms) FROM txids)"
        )
        return first or 0, last or 0

    def rate(self, now_ms: int, span_ms: int) -> tuple[int, int, int | None, int | None]:
        """Return (rows, txids, records read, bytes read) of the newest `span_ms`.

        None: unknown for one of the txids. By the publisher's clock: if it is ahead, the newest
        txid gives the time.
        """
        newest = self._database.ask("SELECT at_ms FROM txids ORDER BY txid DESC LIMIT 1")
        until = max(now_ms, newest[0][0] if newest else 0)
        ((rows, txids, *read),) = self._database.ask(
            f"SELECT total(rows), count(*), {_READ} FROM txids WHERE at_ms > ? AND at_ms <= ?",
            until - span_ms,
            until,
        )
        return int(rows), txids, *(None if count is None else int(count) for count in read)

    def series(self, since_ms: int, until_ms: int, bucket_ms: int) -> list[tuple[Any, ...]]:
        """Return totals by time, for charts.

        Returns:
            (milliseconds since 1970 at which a bucket begins, txids, rows, greatest milliseconds
            from planning to the commit turn, mean milliseconds of processing and of waiting,
            records and bytes read or None, lowest and highest epoch).
        """
        return self._database.ask(
            "SELECT (at_ms / ?) * ? AS bucket, count(*), total(rows), "
            f"max(total_ms), avg(processing_ms), avg(waiting_ms), {_READ}, min(epoch), max(epoch) "
            "FROM txids WHERE at_ms >= ? AND at_ms <= ? GROUP BY bucket ORDER BY bucket",
            *(bucket_ms, bucket_ms, since_ms, until_ms),
        )


_READ = ", ".join(
    f"CASE count(*) WHEN count({column}) THEN total({column}) END"
    for column in ("records", "bytes")
)
_ADD_VERSION = "INSERT OR REPLACE INTO versions VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_TXID = """
INSERT INTO txids VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(txid) DO UPDATE SET
  attempt=excluded.attempt, epoch=excluded.epoch, rows=rows+excluded.rows, read=excluded.read,
  timings=excluded.timings, total_ms=excluded.total_ms, processing_ms=excluded.processing_ms,
  waiting_ms=excluded.waiting_ms, records=excluded.records, bytes=excluded.bytes,
  quarantined=excluded.quarantined, replay_of=excluded.replay_of,
  first=excluded.first, last=excluded.last,
  at_ms=max(at_ms, excluded.at_ms)
"""
_SELECT_ATTEMPTS = "SELECT txid, epoch, attempt FROM txids WHERE txid BETWEEN ? AND ?"


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
    read = "; ".join(
        f"{name} {describe(metadata)}"
        for name, metadata in member.read.items()
        if metadata is not None
    )
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
        waiting_ms(timings),
        *amounts_read(member.read.values()),
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
