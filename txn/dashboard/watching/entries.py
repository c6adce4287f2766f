"""The entries of an index of table logs: versions, txids with their parts, and filters for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from txn.delta.commits import Commit
from txn.interfaces.publication import Violations

__all__ = [
    "Filter",
    "IndexedTxid",
    "Only",
    "Page",
    "Part",
    "Unreadable",
    "Version",
    "fits",
    "kind_of",
    "txids_of",
]

Only = Literal["all", "open", "quarantined", "replayed", "failed", "broken", "grouped"]
"""Kinds of txids. open: not committed in ZooKeeper; replayed: published by a later attempt than the
first, or a replay of a quarantined txid; failed: an attempt failed; broken: rows broke
a rule; grouped: one version has several txids."""


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
    processing_ms: float
    waiting_ms: float
    """Time that it waited for Spark and for its commit turn."""
    records: int | None
    """Records that it read; None: the metadata of a stream does not say."""
    bytes: int | None
    """Bytes that it read; None: the metadata of a stream does not say."""
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
    """"publication", "fence", "settled", "compaction", "change" (of the shape), "maintenance" (no
    rows came or went), "created", "foreign" (a change by another writer) or "unreadable"."""
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
    for kind in ("fence", "settled", "compaction", "change"):
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
    numbers += [txid for txid in txids_of(commit) if txid is not None]
    if publication is not None:
        numbers += [publication.epoch, publication.replay_of or 0]
        numbers += [n for m in publication.txids for n in (m.txid, m.attempt_id, m.rows)]
        if not all(map(math.isfinite, publication.timings_ms.values())):
            return False
    return all(abs(number) < 2**63 for number in numbers)


def txids_of(commit: Commit) -> tuple[int | None, int | None]:
    """Return first and last txid that a version holds or folds; None: it has none."""
    if commit.publication is not None:
        return commit.publication.first_txid, commit.publication.last_txid
    if commit.compaction is not None:
        first, last = commit.compaction["txids"]
        return int(first), int(last)
    return None, commit.settled_txid or None
