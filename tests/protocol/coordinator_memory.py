"""What the world of `coordinator_world` is made of: what a crash wipes, and what tables hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txn.attempts import TransactionAttempt
from txn.interfaces import Publication
from txn.protocol.events import (
    Action,
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Plan,
    PlanFailed,
    PlanMade,
    PlanRefused,
    Process,
    Publish,
    RetryDue,
)
from txn.protocol.order_records import publication_of

Record = tuple[str, int]


class Crash(Exception):  # noqa: N818 - not an error of the world's
    """The process dies between two orders."""


@dataclass(frozen=True)
class Row:
    """What a table holds of one txid."""

    attempt: TransactionAttempt
    records: frozenset[Record]
    positions: Mapping[str, Any]
    read: Mapping[str, Any]
    quarantined: bool
    first: int
    """First txid of the version that brought it: an opaque table gives a version back whole."""


class Table:
    """A table with the guard of its semantics.

    Args:
        opaque: takes back what is not committed before it applies a replay; else what it holds
            already is kept, and skipped in a replay.
    """

    def __init__(self, *, opaque: bool) -> None:
        self.opaque = opaque
        self.rows: dict[int, Row] = {}
        self.newest: tuple[int, Publication] | None = None
        """(version, publication) that its log would have."""

    def publish(self, publish: Publish, staged: Mapping[TransactionAttempt, Process]) -> None:
        """One version with every txid of a commit turn."""
        first = publish.members[0][0].txid
        if self.opaque:
            for txid in [txid for txid in self.rows if txid >= first]:
                assert first <= self.rows.pop(txid).first, "A group is taken back whole."
        version = 1 if self.newest is None else self.newest[0] + 1
        new = False
        for attempt, metadata in publish.members:
            empty = staged[attempt].empty
            records = frozenset() if empty else records_of(metadata)
            row = Row(attempt, records, publish.positions, metadata, empty, first)
            new |= self.rows.setdefault(attempt.txid, row) is row
        if new:
            self.newest = version, publication_of(publish, "t", 1, {})

    def holds(self, members: Iterable[TransactionAttempt]) -> bool:
        """Whether it holds every one of these attempts, or its equal."""
        rows = [(at, self.rows.get(at.txid)) for at in members]
        return all(row and (row.attempt == at or not self.opaque) for at, row in rows)

    def beyond(self, txid: int) -> list[Row]:
        """What it holds of later txids, in their order."""
        return [self.rows[t] for t in sorted(self.rows) if t > txid]


@dataclass
class Memory:
    """What a crash wipes: work and questions that are out, by attempt."""

    questions: dict[TransactionAttempt, Plan] = field(default_factory=dict)
    running: dict[TransactionAttempt, Process] = field(default_factory=dict)
    staged: dict[TransactionAttempt, Process] = field(default_factory=dict)
    publishing: Publish | None = None
    entered: bool = False
    """Some table may hold what is being published."""
    singles_until: int = 0
    """A group up to this txid has failed."""
    retries: set[TransactionAttempt] = field(default_factory=set)
    timer: bool = False
    asked: set[TransactionAttempt] = field(default_factory=set)
    stopping: bool = False
    ended: Action | None = None

    def at_work(self) -> set[TransactionAttempt]:
        """Attempts that run, have staged files, or commit."""
        return set(self.running) | set(self.staged) | set(self.committing())

    def committing(self) -> tuple[TransactionAttempt, ...]:
        """The attempts whose commit turn runs."""
        return tuple(at for at, _ in self.publishing.members) if self.publishing else ()

    def live(self) -> set[tuple[type, TransactionAttempt]]:
        """The facts that may still be news; of a group's end, only in the words of all of it."""
        facts: list[tuple[type, TransactionAttempt]] = []
        facts += [
            (kind, at) for at in self.questions for kind in (PlanMade, PlanFailed, PlanRefused)
        ]
        facts += [(BatchProcessed, at) for at in self.running]
        facts += [(BatchFailed, at) for at in self.at_work()]
        facts += [(RetryDue, at) for at in self.retries]
        if self.publishing and not self.publishing.earlier:
            facts.append((BatchPublished, self.publishing.attempt))
        return set(facts)


def records_of(metadata: Mapping[str, Any]) -> frozenset[Record]:
    """The records that a batch's metadata describes."""
    ranges = [(stream, span) for stream, span in metadata.items() if span is not None]
    return frozenset((stream, i) for stream, (low, high) in ranges for i in range(low, high))
