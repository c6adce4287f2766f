"""What happens in a run, as it happens: the contract of observers, and the events they are told.

    class Slow:
        def observe(self, event: RunEvent) -> None:
            if isinstance(event, StationEnded) and event.seconds > 10:
                print(event.station, *event.attempts, event.table or "", event.seconds)

    topology.run(spark, observers=[Slow()])

Every part of a run tells what it does to one stream, and everything that shows a run reads it: the
run's own report and log, and observers. An observer is told on a thread of its own, in the order
in which things were told, by way of a queue that has an end: one that is slow, hangs or raises
costs the run nothing and misses events, which are counted and told (docs/observers.md).

All times are seconds since the epoch, from the clock of the run; durations are seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

from txn.attempts import TransactionAttempt
from txn.interfaces import Lag

__all__ = [
    "AttemptBegan",
    "AttemptBlocked",
    "AttemptCancelled",
    "AttemptFailed",
    "BackPressureBegan",
    "BackPressureEnded",
    "BadRows",
    "BatchCommitted",
    "BatchUnblocked",
    "Bound",
    "BoundChanged",
    "EventsDropped",
    "FailureCause",
    "GroupDissolved",
    "LagChanged",
    "LeadershipConfirmed",
    "LeadershipInDoubt",
    "LeadershipLost",
    "LeadershipWon",
    "MaintenanceDone",
    "NoticesChanged",
    "Observer",
    "Quarantined",
    "ReplayScheduled",
    "RequestEnded",
    "RunBegan",
    "RunEnded",
    "RunEvent",
    "RunStarted",
    "StandingBy",
    "Station",
    "StationBegan",
    "StationEnded",
    "TablePublished",
]

Station = Literal[
    "plan",
    "start",
    "process",
    "emit",
    "stage",
    "ack",
    "turn",
    "prepare",
    "publish",
    "commit",
    "success",
    "clean_up",
]
"""A station of a batch, in the order in which it passes them. plan: the spouts are asked what to
read; start: START is written; process: the processing phase, with emit (the spouts' DataFrames and
the transforms) and stage (a table's files) in it; ack: the ledger is zero; turn: the commit turn,
with prepare and publish of each table in it; commit: COMMITTED is written; success: the spouts are
told; clean_up: scratch files are deleted. prepare and publish are told of all tables together, with
no table named, and of each of them."""

FailureCause = Literal[
    "failed", "timeout", "lost_work", "conflict", "staged_file", "ledger", "error"
]
"""Why an attempt failed. failed: a spout, a transform or a committer raised FailedException;
timeout: no progress in time; lost_work: Spark lost an executor or a job; conflict: another writer
was faster; staged_file: a staged file is gone or changed; ledger: something that was planned was
not read, or something staged is not in a table's log; error: any other error."""


@dataclass(frozen=True)
class RunEvent:
    """Something that happened in a run.

    An observer may keep it. It must not change what hangs on it, such as metadata: the run uses
    the same objects.
    """

    at: float
    """When, seconds since the epoch."""
    topology: str
    epoch: int
    """The leader's epoch; 0 before this process leads."""

    def to_json(self) -> dict[str, Any]:
        """The event as JSON-able values, with its name as `event`, such as `station_ended`.

        An attempt is told as `txid` and `attempt`; several as a list of "txid:attempt" under
        `attempts`.
        """
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        told: dict[str, Any] = {"event": name}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, TransactionAttempt):
                told |= {"txid": value.txid, "attempt": value.attempt_id}
            else:
                told[each.name] = _plain(value)
        return told


class Observer(Protocol):
    """What `Topology.start(observers=[...])` takes: any object with this method."""

    def observe(self, event: RunEvent) -> None:
        """Take an event.

        Called on a thread of this observer's own, one event after the other, in the order in which
        they were told. It may take its time: the run does not wait. While 5,000 events wait,
        further ones are dropped, and `EventsDropped` stands in their place. What it raises is
        logged, and the next event comes all the same. `RunEnded` is the last event and is never
        dropped; the run waits five seconds at most until it was taken, and then leaves the
        observer behind; when it comes back, it is told that, and nothing of what waited before it.
        Events of kinds that a later release adds are to be passed over.
        """


# --- the run ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunBegan(RunEvent):
    """The run was asked for; nothing is led, checked or read yet. The first event."""

    until: str
    """"forever", "caught_up" or a txid."""
    streams: tuple[str, ...]
    tables: tuple[str, ...]
    """In the order in which they publish."""
    standby: bool
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """stream -> the places that it reads, as `Spout.locations` says; a stream whose spout does not
    say is not in it."""


@dataclass(frozen=True)
class StandingBy(RunEvent):
    """A standby is ready and waits for the leader to end; again when that has changed."""

    leader: Mapping[str, Any] | None
    """"host", "pid", "started", "epoch" of the leader; None: nobody knows who leads."""


@dataclass(frozen=True)
class LeadershipWon(RunEvent):
    """This process leads. Its epoch is that of all later events."""


@dataclass(frozen=True)
class RunStarted(RunEvent):
    """Everything is checked and recovered, and the first batch may be planned."""

    committed_txid: int
    """Those that are rolled forward included; `BatchCommitted` tells each of them."""
    open_txids: tuple[int, ...]
    """Txids that an earlier run has started and not committed: they are replayed."""
    quarantined_txids: tuple[int, ...] = ()
    """Txids that earlier runs have committed empty, and that were not replayed since."""


@dataclass(frozen=True)
class LeadershipInDoubt(RunEvent):
    """The session is lost, or ZooKeeper has not answered for its timeout.

    Nothing is published until it is certain that nobody else leads.
    """


@dataclass(frozen=True)
class LeadershipConfirmed(RunEvent):
    """This process still leads after all."""


@dataclass(frozen=True)
class LeadershipLost(RunEvent):
    """Another process leads; this run ends."""

    error: str


Bound = Literal["source", "processing", "commit", "away", "replay", "idle"]
"""What holds a run up. source: planning; processing: Spark; commit: the tables and ZooKeeper; away:
a source, or storage, cannot be reached; replay: a back-off after a failure, or a stream whose
columns nobody knows yet; idle: there is nothing to read."""


@dataclass(frozen=True)
class BoundChanged(RunEvent):
    """Something else holds the run up from now on."""

    bound: str
    """A `Bound`; "ended": the run ends."""
    before: str | None
    """What held it up until now; None: this is the first."""
    seconds: float
    """For how long it did."""


@dataclass(frozen=True)
class BackPressureBegan(RunEvent):
    """Planning waits: as many txids are in flight as `max_spout_pending` allows."""

    in_flight: int


@dataclass(frozen=True)
class BackPressureEnded(RunEvent):
    """There is room for another txid."""

    seconds: float
    """For how long there was none."""


@dataclass(frozen=True)
class RunEnded(RunEvent):
    """The run is over, and leadership is given up. The last event; never dropped."""

    ended: str
    """"caught_up", "until", "stopped", or "error"."""
    error: str | None
    """Its kind and first line."""
    number: str | None
    """Of the error, such as "TXN-402"; `txn explain` has cause and remedy."""
    committed_txid: int
    seconds: float
    """From `RunBegan` on."""


# --- an attempt ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StationBegan(RunEvent):
    """Some attempts came to a station.

    Not told of plan, since a source that has nothing is asked again and again, nor of ack, which
    takes no time.
    """

    attempts: tuple[TransactionAttempt, ...]
    """One, or those of a group that share a job or a commit turn, in txid order."""
    station: Station
    table: str | None = None
    """Of stage, prepare and publish."""
    spark_tags: tuple[str, ...] = ()
    """Tags of the Spark jobs that are started there."""


@dataclass(frozen=True)
class StationEnded(RunEvent):
    """Some attempts have left a station, well or with an error."""

    attempts: tuple[TransactionAttempt, ...]
    station: Station
    began: float
    """When they came to it, seconds since the epoch."""
    table: str | None = None
    spark_tags: tuple[str, ...] = ()
    error: str | None = None
    """The kind and first line of what was raised there. Whether it fails the attempt, another event
    says: a group that fails in a station is done again one by one."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, self.at - self.began)


@dataclass(frozen=True)
class AttemptBegan(RunEvent):
    """START of an attempt is durable: what it reads is decided, and its txid will be committed."""

    attempt: TransactionAttempt
    planned_at: float
    """When it was known what to read, seconds since the epoch."""
    metadata: Mapping[str, Any]
    """stream -> what it reads, as the spout's own JSON; None: nothing."""
    failures: int
    """How many attempts of the txid have failed in this run, or since its batch was emptied."""
    replay_of: int | None
    """The quarantined txid whose records it reads again."""
    quarantined: str | None
    """The error for which the batch is emptied."""


@dataclass(frozen=True)
class AttemptFailed(RunEvent):
    """An attempt failed: it is replayed, quarantined, or ends the run."""

    attempt: TransactionAttempt
    cause: FailureCause
    error: str
    """Its kind and first line."""
    phase: str
    """The phase in which it was: "planning", "processing", "processed" or "committing"."""
    ends_run: bool = False


@dataclass(frozen=True)
class AttemptBlocked(RunEvent):
    """An attempt found a source or storage away, or lacks columns.

    Nothing has failed: the batch waits, and looks again.
    """

    attempt: TransactionAttempt
    error: str
    times: int
    """How many attempts of the txid in a row have found it away before; 0: this is the first."""


@dataclass(frozen=True)
class BatchUnblocked(RunEvent):
    """What the batch waited for is there."""

    attempt: TransactionAttempt
    seconds: float
    """For how long the batch has waited."""


@dataclass(frozen=True)
class ReplayScheduled(RunEvent):
    """A txid is replayed after a back-off, or looks again whether its source is back."""

    attempt: TransactionAttempt
    """The next one."""
    failures: int
    """Failures of the txid in this run; of a blocked one, how often it has looked."""
    after: float
    """Seconds until then."""
    blocked: bool


@dataclass(frozen=True)
class AttemptCancelled(RunEvent):
    """An attempt is dead: it failed, or an earlier txid did from which its plan followed."""

    attempt: TransactionAttempt


@dataclass(frozen=True)
class GroupDissolved(RunEvent):
    """The commit turn of a group failed, cause unknown: each txid is committed by itself."""

    attempts: tuple[TransactionAttempt, ...]
    error: str


# --- what is committed -----------------------------------------------------------------------


@dataclass(frozen=True)
class TablePublished(RunEvent):
    """A table's log holds some txids."""

    attempts: tuple[TransactionAttempt, ...]
    """All of them become one version."""
    table: str
    version: int
    rows: int | None
    """Rows in the files that the version adds; None: its log does not say."""
    bytes: int
    files: int
    skipped: bool
    """The table held them already, from an identical attempt."""
    table_files: int | None = None
    """Files of the whole table from now on; None: the committer does not know."""
    table_bytes: int | None = None
    """Of these files."""


@dataclass(frozen=True)
class BatchCommitted(RunEvent):
    """COMMITTED of a txid is durable: it is in every table, once, and stays there."""

    attempt: TransactionAttempt
    group: tuple[TransactionAttempt, ...]
    """The attempts that were committed together, this one included, in txid order."""
    rows: Mapping[str, int]
    """table -> rows staged for it (partial aggregates count as rows here)."""
    tables: Mapping[str, int]
    """table -> version that holds the txid."""
    input_records: Mapping[str, int | None] = field(default_factory=dict)
    """stream -> records that it read; None: the spout cannot know."""
    input_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """stream -> bytes as they lie in the source; None: the spout does not know."""
    rows_written: Mapping[str, int | None] = field(default_factory=dict)
    """table -> rows in the files that its version adds; None: its log does not say. A group's
    version is told at its last txid."""
    violations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """stream -> rule -> rows that broke it; `BadRows` tells each of them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """stream -> what it read, as in `AttemptBegan`."""
    quarantined: bool = False
    """It was committed empty."""
    replay_of: int | None = None
    """The quarantined txid whose records it has read, and which is out of quarantine now."""
    rolled_forward: bool = False
    """An earlier run has published it and ended before COMMITTED; this one found it when it began.
    Told right after `RunStarted`, with what the tables' logs have of it."""


@dataclass(frozen=True)
class BadRows(RunEvent):
    """Rows of a committed txid broke a rule (`Stream.expect`)."""

    attempt: TransactionAttempt
    stream: str
    rule: str
    rows: int
    set_aside: bool
    """They went to the table of bad rows; False: they were dropped."""


@dataclass(frozen=True)
class Quarantined(RunEvent):
    """A txid was committed empty; `txn quarantine` replays it."""

    attempt: TransactionAttempt
    error: str


# --- beside the batches ----------------------------------------------------------------------


@dataclass(frozen=True)
class LagChanged(RunEvent):
    """What of a source is not committed is another number than before."""

    stream: str
    lag: Lag | None
    """What no txid is planned for yet, and `planned`. None: no longer known."""
    planned: Lag | None = None
    """The part of `lag` for which txids in flight are planned."""


@dataclass(frozen=True)
class NoticesChanged(RunEvent):
    """A spout has noticed something for the user, or no longer has."""

    stream: str
    notices: tuple[str, ...]


@dataclass(frozen=True)
class MaintenanceDone(RunEvent):
    """Maintenance of a table has ended; that there was nothing to do is not told."""

    table: str
    operation: Literal["compaction", "optimize", "vacuum"]
    began: float
    """Seconds since the epoch."""
    error: str | None = None
    files: int | None = None
    """Files that were rewritten or deleted; None: not known."""
    bytes: int | None = None
    """Of those files."""
    written_files: int | None = None
    """Files that they became."""


@dataclass(frozen=True)
class RequestEnded(RunEvent):
    """ZooKeeper or storage answered a request of the run, or failed to.

    Of storage those that the driver makes itself: Spark's tasks and delta-rs have clients of their
    own.
    """

    service: Literal["zookeeper", "storage"]
    operation: str
    """Of ZooKeeper "get", "get_children", "get_acls", "exists", "sync" or "multi"; of storage a
    method of `txn.storage.store.Store`, such as "put_if_absent"."""
    seconds: float
    error: str | None = None
    """The name of the exception that came in place of an answer."""


@dataclass(frozen=True)
class EventsDropped(RunEvent):
    """This observer was too slow: so many events are missing here. Told to it alone."""

    count: int


def _plain(value: Any) -> Any:
    """A field's value as JSON-able values."""
    if isinstance(value, TransactionAttempt):
        return str(value)
    if isinstance(value, Lag):
        return {unit: number for unit, number in vars(value).items() if number is not None}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return value
