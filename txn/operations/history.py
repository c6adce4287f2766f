"""The history of a topology, read from its tables' logs.

Every publication is one version of each table (`txn.delta.log`). Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from txn.interfaces.publication import merged_violations
from txn.notebook.charts import TxidFacts
from txn.operations.table_logs import table_log
from txn.positions import describe
from txn.protocol.stream_names import Renamed, rename_keys
from txn.text import event_time

if TYPE_CHECKING:
    from txn.interfaces import Committer, TablePublication
    from txn.operations.table_logs import PublicationLog

__all__ = [
    "HistoryEntry",
    "history",
    "history_of",
]


@dataclass(frozen=True)
class HistoryEntry:
    """One txid, merged from all tables."""

    txid: int
    attempt_id: int
    epoch: int
    committed: bool
    """False: some table holds it, but it is not committed in ZooKeeper yet."""
    read: Mapping[str, Any] = field(default_factory=dict)
    """stream -> metadata of what this txid read; None for an idle stream."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """table -> rows staged for it."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """table -> version that holds the txid."""
    violations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """stream -> rule -> rows that broke it (`Stream.expect`)."""
    watermark: int | None = None
    """Rows with an event time up to this one were late: microseconds since 1970, UTC."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Table that a stream looks rows up in -> the version that it has read."""
    timestamp_ms: int = 0
    """Time of the last append to any of the tables, milliseconds since 1970."""
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    """station -> milliseconds since the station before it, up to the commit turn, of the attempt
    that was published."""
    quarantined: str | None = None
    """The error for which it was committed empty; None: it was not quarantined."""
    replay_of: int | None = None
    """The quarantined txid that it replays or gives up."""
    lost: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the given-up txid's input, as far back as the logs go."""

    @property
    def gives_up(self) -> bool:
        """True if it gives up a quarantined txid: it reads nothing in its place."""
        return bool(self.replay_of) and all(read is None for read in self.read.values())

    def facts(self) -> TxidFacts:
        """Return the facts for a chart; its commit turn ends when the last table holds it."""
        seconds = {mark: ms / 1000 for mark, ms in self.timings_ms.items()}
        ended, rows = self.timestamp_ms / 1000, sum(self.rows.values())
        return TxidFacts(self.txid, ended, seconds, rows, self.quarantined is not None)

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        return {
            "txid": self.txid,
            "attempt": self.attempt_id,
            "epoch": self.epoch,
            "committed": self.committed,
            "quarantined": self.quarantined,
            "replay_of": self.replay_of,
            "gives_up": self.gives_up,
            "lost": dict(self.lost),
            "published_at_ms": self.timestamp_ms,
            "read": {stream: describe(metadata) for stream, metadata in self.read.items()},
            "metadata": dict(self.read),
            "rows": dict(self.rows),
            "tables": dict(self.tables),
            "violations": {stream: dict(rules) for stream, rules in self.violations.items()},
            "watermark": None if self.watermark is None else event_time(self.watermark),
            "dimensions": dict(self.dimensions),
            "timings_ms": dict(self.timings_ms),
        }


def history(
    topology: str,
    tables: Iterable[str],
    committed: int | None = None,
    limit: int | None = None,
    committers: Mapping[str, Committer] | None = None,
    renamed: Renamed | None = None,
) -> list[HistoryEntry]:
    """Merge a topology's newest txids from its tables' logs, newest first.

    Args:
        committed: ZooKeeper's committed txid; later ones are marked as not committed. None:
            unknown; a txid then counts as committed if all tables hold it.
        limit: the most txids to return; None: all.
        committers: table -> its committer, from a program.
        renamed: the streams that the program has renamed.
    """
    logs = {table: table_log(table, (committers or {}).get(table)) for table in tables}
    entries = history_of(topology, logs, committed, limit)
    return [_by_present_names(entry, renamed) for entry in entries] if renamed else entries


def history_of(
    topology: str,
    logs: Mapping[str, PublicationLog],
    committed: int | None = None,
    limit: int | None = None,
) -> list[HistoryEntry]:
    """Do as `history`, with open logs: table -> its log."""
    by_txid: dict[int, dict[str, TablePublication]] = {}
    for table, log in logs.items():
        above: int | None = None
        for entry in _newest(log, topology, limit):
            first, last = entry.publication.first_txid, entry.publication.last_txid
            # A replay publishes txids again and takes back all that came with them: the newest
            # version counts.
            for txid in range(first, last + 1 if above is None else min(last + 1, above)):
                by_txid.setdefault(txid, {})[table] = entry
            above = first if above is None else min(above, first)
    newest = sorted(by_txid, reverse=True)[:limit]
    if committed is None:
        committed = max((t for t in newest if len(by_txid[t]) == len(logs)), default=0)
    entries = [_entry(txid, by_txid[txid], committed) for txid in newest]
    return [
        replace(entry, lost=_read_by(entry.replay_of, topology, logs)) if entry.gives_up else entry
        for entry in entries
    ]


def _by_present_names(entry: HistoryEntry, renamed: Renamed) -> HistoryEntry:
    return replace(
        entry,
        read=rename_keys(renamed, entry.read),
        violations=rename_keys(renamed, entry.violations),
        lost=rename_keys(renamed, entry.lost),
    )


def _newest(log: PublicationLog, topology: str, limit: int | None) -> Iterator[TablePublication]:
    publications = (entry for entry in log.publications() if entry.publication.topology == topology)
    first = next(publications, None)
    if first is None:
        return
    yield first
    # One txid more than asked for: the tables may differ by one in the newest.
    lowest = 0 if limit is None else first.publication.last_txid - limit
    yield from takewhile(lambda entry: entry.publication.last_txid >= lowest, publications)


def _entry(txid: int, entries: Mapping[str, TablePublication], committed: int) -> HistoryEntry:
    parts = {
        table: next(m for m in entry.publication.txids if m.txid == txid)
        for table, entry in entries.items()
    }
    table = max(entries, key=lambda t: (entries[t].publication.epoch, parts[t].attempt_id))
    publication = entries[table].publication
    return HistoryEntry(
        txid=txid,
        attempt_id=parts[table].attempt_id,
        epoch=publication.epoch,
        committed=txid <= committed,
        read=parts[table].read,
        rows={table: part.rows for table, part in parts.items()},
        tables={table: entry.version for table, entry in entries.items()},
        violations=merged_violations(part.violations for part in parts.values()),
        watermark=parts[table].watermark,
        dimensions=parts[table].dimensions,
        timestamp_ms=max(entry.timestamp_ms for entry in entries.values()),
        timings_ms=publication.timings_ms,
        quarantined=publication.quarantined,
        replay_of=publication.replay_of,
    )


def _read_by(
    txid: int | None, topology: str, logs: Mapping[str, PublicationLog]
) -> Mapping[str, Any]:
    """Return the metadata of a quarantined txid's input. Such a txid is in no group."""
    for log in logs.values():
        publications = (entry.publication for entry in log.publications())
        earlier = (
            one for one in publications if one.topology == topology and one.last_txid <= (txid or 0)
        )
        newest = next(earlier, None)
        if newest is not None and newest.last_txid == txid:
            return newest.read
    return {}
