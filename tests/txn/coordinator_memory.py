"""What the world of `coordinator_world` is made of: what a crash wipes, and what a table holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txn.attempts import TransactionAttempt
from txn.events import (
    Action,
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Plan,
    PlanFailed,
    PlanMade,
    Process,
    Publish,
    RetryDue,
)

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


@dataclass
class Memory:
    """What a crash wipes: work and questions that are out, by attempt."""

    questions: dict[TransactionAttempt, Plan] = field(default_factory=dict)
    running: dict[TransactionAttempt, Process] = field(default_factory=dict)
    staged: dict[TransactionAttempt, Process] = field(default_factory=dict)
    publishing: Publish | None = None
    retries: set[TransactionAttempt] = field(default_factory=set)
    timer: bool = False
    asked: set[TransactionAttempt] = field(default_factory=set)
    stopping: bool = False
    ended: Action | None = None

    def at_work(self) -> set[TransactionAttempt]:
        """Attempts that run, have staged files, or commit."""
        committing = {self.publishing.attempt} if self.publishing else set()
        return set(self.running) | set(self.staged) | committing

    def live(self) -> set[tuple[type, TransactionAttempt]]:
        """The facts that may still be news."""
        facts: list[tuple[type, TransactionAttempt]] = []
        facts += [(kind, at) for at in self.questions for kind in (PlanMade, PlanFailed)]
        facts += [(BatchProcessed, at) for at in self.running]
        facts += [(BatchFailed, at) for at in self.at_work()]
        facts += [(RetryDue, at) for at in self.retries]
        if self.publishing:
            facts.append((BatchPublished, self.publishing.attempt))
        return set(facts)


def records_of(metadata: Mapping[str, Any]) -> frozenset[Record]:
    """The records that a batch's metadata describes."""
    ranges = [(stream, span) for stream, span in metadata.items() if span is not None]
    return frozenset((stream, i) for stream, (low, high) in ranges for i in range(low, high))
