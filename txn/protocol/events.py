"""The vocabulary of the coordinator: its state, the events it receives, the orders it gives.

Everything here is a frozen value that pickles and compares. Events are facts, named in the past
tense; actions are orders. `txn.protocol.coordinator.step` maps (state, event) to (state, actions);
the shell (`txn.engine.loop.pipeline`) carries the actions out **in the order in which they are
returned**, and stops at the first one that raises, so an act never precedes what protects it.

Metadata is opaque here: JSON-able values by stream name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from txn.attempts import TransactionAttempt
from txn.interfaces.event_time import EventTime, NewestTimes
from txn.protocol.event_time import WatermarkRule

__all__ = [
    "Action",
    "Batch",
    "BatchFailed",
    "BatchProcessed",
    "BatchPublished",
    "Cancel",
    "CoordinatorState",
    "Event",
    "Finish",
    "GroupFailed",
    "Halt",
    "Halted",
    "Metadata",
    "PersistCommitted",
    "PersistStart",
    "Phase",
    "Plan",
    "PlanDue",
    "PlanFailed",
    "PlanMade",
    "PlanRefused",
    "Process",
    "Publish",
    "RetryDue",
    "SchedulePlan",
    "ScheduleRetry",
    "StopRequested",
    "Succeed",
]

Metadata = Mapping[str, Any]


class Phase(str, Enum):
    """The phase of one txid. `txn.protocol.transitions` has every transition."""

    WAITING = "waiting"  # failed or dropped: to be planned/started again (after its back-off)
    PLANNING = "planning"  # a spout is being asked what an attempt of this txid shall read
    PROCESSING = "processing"  # START is durable; Spark is at work
    PROCESSED = "processed"  # everything staged and acked; waits for its commit turn
    COMMITTING = "committing"  # its commit turn: one at a time, of one txid or of a group


@dataclass(frozen=True)
class Batch:
    """One open txid, with everything that the coordinator knows of it."""

    attempt: TransactionAttempt
    """The current attempt; events of any other attempt change nothing."""
    phase: Phase
    metadata: Metadata | None = None
    """stream -> metadata or None (idle) as of the newest START; None before the first START.

    A stream without valid metadata is missing: the answer of an opaque stream is dropped as soon as
    an earlier batch is planned anew, because it followed from that batch.
    """
    started: bool = False
    """True once a START of this txid is durable: from then on it is committed, at worst empty."""
    failures: int = 0
    """Failed attempts within this run, without those whose source was unavailable."""
    blocked: str | None = None
    """The error of an unavailable source; kept while attempts poll it."""
    waits: int = 0
    """Attempts in a row that found a source unavailable."""
    held: bool = False
    """WAITING only: True until RetryDue ends the back-off."""
    quarantined: str | None = None
    """The error for which it is processed as an empty batch."""
    replay_of: int | None = None
    """The quarantined txid whose records it reads: fixed by its START, no stream's position."""
    had_turn: bool = False
    """A commit turn of this txid has begun: some table may hold it, so it is never emptied."""
    lacks: frozenset[str] = frozenset()
    """Streams whose unknown columns it waits for; kept while attempts try again."""
    refused: str | None = None
    """WAITING only: the error for which nothing from this txid on is planned in this run. The txids
    before it are committed; then the run ends with this error."""
    asks: frozenset[str] | None = None
    """The only streams to ask for this txid beyond `max_spout_pending`; None: all streams."""
    watermark: int | None = None
    """Its watermark, as its first START has it; None as well before that."""
    newest_times: NewestTimes = field(default_factory=dict)
    """The newest event times of its rows, once they are processed."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """`BatchRecord.dimensions`: a table's version is that of the first START with the table."""


@dataclass(frozen=True)
class CoordinatorState:
    """The whole state of the protocol. Never changed in place."""

    committed: int
    """Newest txid that is durable in every table and in ZooKeeper; 0 at the very beginning."""
    positions: Metadata
    """stream -> newest metadata as of `committed`, carried over idle batches."""
    opaque_streams: frozenset[str]
    """Streams whose metadata is planned again for every attempt (opaque, non-transactional)."""
    streams: tuple[str, ...]
    max_spout_pending: int
    max_batch_attempts: int
    event_time: EventTime | None = None
    """Event time as of `committed`."""
    watermark_rules: tuple[WatermarkRule, ...] = ()
    max_group_commit: int = 1
    """Consecutive txids that one commit turn may publish together."""
    ungrouped_until: int = 0
    """Up to this txid, each has its own turn, because a group with them failed."""
    quarantine: bool = False
    """True: an exhausted batch is committed empty; False: it stops the topology."""
    until: int | None = None
    """Start no txid above this one, and finish when it is committed."""
    until_caught_up: bool = False
    """Finish once no spout has anything to read and nothing is in flight."""
    batches: Mapping[int, Batch] = field(default_factory=dict)
    """txid -> Batch, contiguous from committed + 1."""
    plan_idle: bool = False
    """The last question for a new txid was answered "nothing"; ask again on PlanDue."""
    plan_scheduled: bool = False
    """A SchedulePlan is out; no new txid is asked for before its PlanDue."""
    next_attempts: Mapping[int, int] = field(default_factory=dict)
    """txid -> attempt id of the next question, for a txid that was asked for but never started."""
    stopping: bool = False
    """Start nothing new; finish what has its commit turn, then Finish."""
    ended: bool = False
    """Finish or Halt was ordered; every later event changes nothing."""


# --- events: facts ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanMade:
    """The spouts answered for `attempt`. `metadata` has every asked stream; None: nothing."""

    attempt: TransactionAttempt
    metadata: Metadata
    """stream -> metadata, or None where the stream has nothing to read now."""
    replay_of: int | None = None
    """The quarantined txid whose record is the answer, because its replay was requested; None:
    the spouts answered."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Table that a stream looks rows up in -> its newest version."""


@dataclass(frozen=True)
class PlanFailed:
    """A spout raised FailedException while it planned `attempt`."""

    attempt: TransactionAttempt
    error: str
    blocked: bool = False
    """True: a source is unavailable (SourceUnavailableError); the batch waits, uncounted."""


@dataclass(frozen=True)
class PlanRefused:
    """A spout raised an error while it planned `attempt`, and no replay can solve it."""

    attempt: TransactionAttempt
    error: str


@dataclass(frozen=True)
class PlanDue:
    """The emit interval, or the wait of idle spouts, is over."""


@dataclass(frozen=True)
class BatchProcessed:
    """The acker's ledger of the processing phase of `attempt` reached zero."""

    attempt: TransactionAttempt
    newest_times: NewestTimes = field(default_factory=dict)
    """The newest event times of its rows."""


@dataclass(frozen=True)
class BatchFailed:
    """An attempt failed: FailedException, lost executor, timeout, XOR mismatch, failed commit."""

    attempt: TransactionAttempt
    error: str
    blocked: bool = False
    """True: a source is unavailable (SourceUnavailableError); the batch waits, uncounted."""
    lacks: frozenset[str] = frozenset()
    """The streams whose columns it waits for."""


@dataclass(frozen=True)
class BatchPublished:
    """Every table holds `attempt` and the commit ledger is zero but for COMMITTED itself."""

    attempt: TransactionAttempt
    """The last one of a group."""
    tables: Mapping[str, int]
    """committer name -> table version."""
    earlier: tuple[TransactionAttempt, ...] = ()
    """The other attempts of a group, in txid order."""


@dataclass(frozen=True)
class GroupFailed:
    """The commit turn of a group failed; which txid caused it is unknown."""

    attempts: tuple[TransactionAttempt, ...]
    """All attempts of the group, in txid order."""
    error: str
    published: bool
    """True: some table may hold the group. False: no table holds it, nor will."""


@dataclass(frozen=True)
class RetryDue:
    """The back-off of a failed attempt is over; `attempt` is the one named in ScheduleRetry."""

    attempt: TransactionAttempt


@dataclass(frozen=True)
class StopRequested:
    """The user asked for a clean stop (Ctrl-C, SIGTERM, `.stop()`)."""


@dataclass(frozen=True)
class Halted:
    """An error that no replay can solve: user code, lost leadership, unreadable state."""

    error: str


Event = (
    PlanMade
    | PlanFailed
    | PlanRefused
    | PlanDue
    | BatchProcessed
    | BatchFailed
    | BatchPublished
    | GroupFailed
    | RetryDue
    | StopRequested
    | Halted
)


# --- actions: orders -------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Ask the spouts for `attempt`; answer with PlanMade or PlanFailed."""

    attempt: TransactionAttempt
    streams: tuple[str, ...]
    """The only streams to ask; the others keep the metadata of their START."""
    previous: Metadata
    """stream -> newest metadata of a smaller txid; absent if it has none."""
    is_new: bool = True
    """True: all streams are asked about a txid without a START, so it may become the replay of a
    quarantined one."""
    replaying: frozenset[int] = frozenset()
    """Quarantined txids whose replay is in flight: this txid must not replay them again."""


@dataclass(frozen=True)
class SchedulePlan:
    """Answer with PlanDue after the emit interval; replaces an earlier SchedulePlan."""

    idle: bool
    """True: the spouts had nothing to read; False: only the interval between starts is due."""


@dataclass(frozen=True)
class PersistStart:
    """Make START(attempt, metadata) durable: one ZooKeeper multi. Precedes its Process."""

    attempt: TransactionAttempt
    metadata: Metadata
    quarantined: str | None = None
    """The error for which the batch is emptied."""
    replay_of: int | None = None
    """The quarantined txid whose records it reads."""
    watermark: int | None = None
    """The txid's watermark."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Table that a stream looks rows up in -> the version to read."""


@dataclass(frozen=True)
class Process:
    """Run the processing phase of `attempt`; answer with BatchProcessed or BatchFailed."""

    attempt: TransactionAttempt
    metadata: Metadata
    empty: bool = False
    """True: stage nothing, read nothing (a quarantined batch)."""
    watermark: int | None = None
    """The txid's watermark."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """As in `PersistStart`."""
    watermark_before: int | None = None
    """The watermark of the txid before."""


@dataclass(frozen=True)
class Publish:
    """Run the commit turn of `attempt`; answer with BatchPublished or BatchFailed.

    For a group, one version of every table holds all its txids; the answer is then BatchPublished
    with all of them, or GroupFailed.
    """

    attempt: TransactionAttempt
    """The last one of a group."""
    metadata: Metadata
    positions: Metadata
    """stream -> newest metadata as of this txid, for every table's log."""
    earlier: tuple[tuple[TransactionAttempt, Metadata], ...] = ()
    """The other attempts of a group and what they read, in txid order."""
    watermarks: Mapping[int, int] = field(default_factory=dict)
    """txid -> its watermark, of each txid of the turn that has one."""
    dimensions: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """txid -> the dimensions that it reads, of each txid of the turn that reads any."""
    event_time: EventTime | None = None
    """Event time as of this txid, for every table's log."""

    @property
    def members(self) -> tuple[tuple[TransactionAttempt, Metadata], ...]:
        """Every attempt of the turn and what it read, in txid order."""
        return (*self.earlier, (self.attempt, self.metadata))


@dataclass(frozen=True)
class PersistCommitted:
    """Move `committed` to this txid and drop its batch node: one multi. Precedes its Succeed.

    In the same multi, the nodes of a whole group are dropped, an emptied batch is entered as
    quarantined, and the quarantined txid that was replayed is deleted.
    """

    attempt: TransactionAttempt
    """The last one of a group."""
    positions: Metadata
    tables: Mapping[str, int]
    quarantined: str | None = None
    """The error for which the batch was emptied."""
    replay_of: int | None = None
    """The quarantined txid that the batch has replayed."""
    earlier: tuple[TransactionAttempt, ...] = ()
    """The other attempts of a group, in txid order."""
    event_time: EventTime | None = None
    """Event time as of this txid."""

    @property
    def attempts(self) -> tuple[TransactionAttempt, ...]:
        """Every attempt that it commits, in txid order."""
        return (*self.earlier, self.attempt)


@dataclass(frozen=True)
class Succeed:
    """Tell the spouts that the txid is durable everywhere, and clean up after it."""

    attempt: TransactionAttempt


@dataclass(frozen=True)
class Cancel:
    """Stop the work of an attempt that is no longer current; delete what it staged."""

    attempt: TransactionAttempt


@dataclass(frozen=True)
class ScheduleRetry:
    """Answer with RetryDue(attempt) after the back-off for that many failures."""

    attempt: TransactionAttempt
    failures: int
    """Failures, or attempts in a row that found a source unavailable; 1 or more."""
    blocked: bool = False
    """True: it waits for an unavailable source, and polls it soon."""


@dataclass(frozen=True)
class Finish:
    """End the run successfully: nothing is left to do."""


@dataclass(frozen=True)
class Halt:
    """End the run with an error; durable state is intact and the topology can be resumed."""

    error: str
    attempt: TransactionAttempt | None = None


Action = (
    Plan
    | SchedulePlan
    | PersistStart
    | Process
    | Publish
    | PersistCommitted
    | Succeed
    | Cancel
    | ScheduleRetry
    | Finish
    | Halt
)
