"""The events of a run as they happen, and the contract of the observers that receive them.

    class Slow:
        def observe(self, event: RunEvent) -> None:
            if isinstance(event, StationEnded) and event.seconds > 10:
                print(event.station, *event.attempts, event.table or "", event.seconds)

    topology.run(spark, observers=[Slow()])

Every part of a run sends its events into one stream, and everything that shows a run reads it: the
run's own report and log, and observers. An observer gets the events in order, in its own thread,
from a bounded queue: one that is slow, hangs or raises costs the run nothing and misses events,
which are counted and reported (docs/observers.md).

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
"""A station of a batch, in order. plan: the spouts decide what to read; start: START is written;
process: the processing phase, which contains emit (the spouts' DataFrames and the transforms) and
stage (a table's files); ack: the ledger is zero; turn: the commit turn, which contains prepare and
publish of each table; commit: COMMITTED is written; success: the spouts are informed; clean_up:
scratch files are deleted. prepare and publish are reported for all tables together, without a table
name, and for each table."""

FailureCause = Literal[
    "failed", "timeout", "lost_work", "conflict", "staged_file", "ledger", "error"
]
"""The cause of an attempt's failure. failed: a spout, a transform or a committer raised
FailedException; timeout: no progress in time; lost_work: Spark lost an executor or a job; conflict:
another writer was faster; staged_file: a staged file is gone or changed; ledger: a planned part was
not read, or a staged file is not in a table's log; error: any other error."""


@dataclass(frozen=True)
class RunEvent:
    """Something that happened in a run.

    An observer may keep it, but must not change its values, such as metadata: the run uses the same
    objects.
    """

    at: float
    """The time of the event, seconds since the epoch."""
    topology: str
    epoch: int
    """The leader's epoch; 0 before this process leads."""

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON-able values, with its name as `event`, such as `station_ended`.

        One attempt becomes `txid` and `attempt`; several become a list of "txid:attempt" under
        `attempts`.
        """
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        values: dict[str, Any] = {"event": name}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, TransactionAttempt):
                values |= {"txid": value.txid, "attempt": value.attempt_id}
            else:
                values[item.name] = _plain(value)
        return values


class Observer(Protocol):
    """The protocol of an observer for `Topology.start(observers=[...])`."""

    def observe(self, event: RunEvent) -> None:
        """Take an event.

        Called in this observer's own thread, for one event after the other, in order. It may be
        slow: the run does not wait. While 5,000 events wait, further ones are dropped, and
        `EventsDropped` takes their place. Its exceptions are logged, and the next event follows all
        the same. `RunEnded` is the last event and is never dropped; the run waits at most five
        seconds for it to be taken, and then leaves the observer behind. An observer that returns
        later gets only `RunEnded`, and no events that waited before it. Ignore unknown events: a
        later release may add some.
        """


# --- the run ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunBegan(RunEvent):
    """The run was requested; nothing is led, checked or read yet. The first event."""

    until: str
    """"forever", "caught_up" or a txid."""
    streams: tuple[str, ...]
    tables: tuple[str, ...]
    """In the order in which they publish."""
    standby: bool
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """stream -> the places that it reads (`NamesLocations`); streams without known places are
    absent."""


@dataclass(frozen=True)
class StandingBy(RunEvent):
    """A standby is ready and waits for the leader to end; sent again for every new leader."""

    leader: Mapping[str, Any] | None
    """"host", "pid", "started", "epoch" of the leader; None: unknown."""


@dataclass(frozen=True)
class LeadershipWon(RunEvent):
    """This process leads. Its epoch is that of all later events."""


@dataclass(frozen=True)
class RunStarted(RunEvent):
    """Everything is checked and recovered, and the first batch may be planned."""

    committed_txid: int
    """Includes txids that were rolled forward; each of them has a `BatchCommitted`."""
    open_txids: tuple[int, ...]
    """Txids that an earlier run started and did not commit: they are replayed."""
    quarantined_txids: tuple[int, ...] = ()
    """Txids that earlier runs committed empty, and that were not replayed."""


@dataclass(frozen=True)
class LeadershipInDoubt(RunEvent):
    """The session is lost, or ZooKeeper has not answered for its timeout.

    Nothing is published until it is certain that no other process leads.
    """


@dataclass(frozen=True)
class LeadershipConfirmed(RunEvent):
    """This process still leads after all."""


@dataclass(frozen=True)
class LeadershipLost(RunEvent):
    """Another process leads; this run ends."""

    error: str


Bound = Literal["source", "processing", "commit", "away", "replay", "idle"]
"""The bottleneck of a run. source: planning; processing: Spark; commit: the tables and ZooKeeper;
away: a source or storage is unavailable; replay: a back-off after a failure, or a stream with
unknown columns; idle: there is nothing to read."""


@dataclass(frozen=True)
class BoundChanged(RunEvent):
    """The run's bottleneck has changed."""

    bound: str
    """A `Bound`; "ended": the run ends."""
    before: str | None
    """The bottleneck until now; None: this is the first."""
    seconds: float
    """The time that it lasted."""


@dataclass(frozen=True)
class BackPressureBegan(RunEvent):
    """Planning waits: as many txids are in flight as `max_spout_pending` allows."""

    in_flight: int


@dataclass(frozen=True)
class BackPressureEnded(RunEvent):
    """There is room for another txid."""

    seconds: float
    """The time without room."""


@dataclass(frozen=True)
class RunEnded(RunEvent):
    """The run is over, and leadership is given up. The last event; never dropped."""

    ended: str
    """"caught_up", "until", "stopped", or "error"."""
    error: str | None
    """Its class and first line."""
    number: str | None
    """The error's number, such as "TXN-402"; `txn explain` prints cause and remedy."""
    committed_txid: int
    seconds: float
    """From `RunBegan` on."""


# --- an attempt ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StationBegan(RunEvent):
    """Some attempts reached a station.

    Not sent for plan, because an idle source is asked again and again, nor for ack, which takes no
    time.
    """

    attempts: tuple[TransactionAttempt, ...]
    """One attempt, or those of a group that share a job or a commit turn, in txid order."""
    station: Station
    table: str | None = None
    """The table of stage, prepare and publish."""
    spark_tags: tuple[str, ...] = ()
    """Tags of the Spark jobs that the station starts."""


@dataclass(frozen=True)
class StationEnded(RunEvent):
    """Some attempts left a station, successfully or with an error."""

    attempts: tuple[TransactionAttempt, ...]
    station: Station
    began: float
    """The time when they reached it, seconds since the epoch."""
    table: str | None = None
    spark_tags: tuple[str, ...] = ()
    error: str | None = None
    """The class and first line of the exception. Another event reports if it fails the attempt: a
    group that fails in a station is tried again one by one."""

    @property
    def seconds(self) -> float:
        """The time at the station."""
        return max(0.0, self.at - self.began)


@dataclass(frozen=True)
class AttemptBegan(RunEvent):
    """START of an attempt is durable: its records are fixed, and its txid will be committed."""

    attempt: TransactionAttempt
    planned_at: float
    """The time of the plan, seconds since the epoch."""
    metadata: Mapping[str, Any]
    """stream -> what it reads, as the spout's own JSON; None: nothing."""
    failures: int
    """Failed attempts of the txid in this run, or since its batch was emptied."""
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
    """Its class and first line."""
    phase: str
    """The phase of the failure: "planning", "processing", "processed" or "committing"."""
    ends_run: bool = False


@dataclass(frozen=True)
class AttemptBlocked(RunEvent):
    """An attempt found a source or storage unavailable, or lacks columns.

    This is not a failure: the batch waits, and tries again.
    """

    attempt: TransactionAttempt
    error: str
    times: int
    """Attempts of the txid in a row that found it unavailable before; 0: this is the first."""


@dataclass(frozen=True)
class BatchUnblocked(RunEvent):
    """The batch no longer waits: its source, storage or columns are available."""

    attempt: TransactionAttempt
    seconds: float
    """The time that the batch has waited."""


@dataclass(frozen=True)
class ReplayScheduled(RunEvent):
    """A txid is replayed after a back-off, or polls its unavailable source again."""

    attempt: TransactionAttempt
    """The next attempt."""
    failures: int
    """Failures of the txid in this run; for a blocked one, the number of its polls."""
    after: float
    """Seconds until then."""
    blocked: bool


@dataclass(frozen=True)
class AttemptCancelled(RunEvent):
    """An attempt is dead: it failed, or an earlier txid failed on which its plan depends."""

    attempt: TransactionAttempt


@dataclass(frozen=True)
class GroupDissolved(RunEvent):
    """The commit turn of a group failed, cause unknown: each txid is committed by itself."""

    attempts: tuple[TransactionAttempt, ...]
    error: str


# --- commits ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class TablePublished(RunEvent):
    """Some txids are in a table's log."""

    attempts: tuple[TransactionAttempt, ...]
    """All of them become one version."""
    table: str
    version: int
    rows: int | None
    """Rows in the files that the version adds; None: not in its log."""
    bytes: int
    files: int
    skipped: bool
    """True if the table already held them, from an identical attempt."""
    table_files: int | None = None
    """Files of the whole table after it; None: unknown to the committer."""
    table_bytes: int | None = None
    """Bytes of these files."""


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
    """stream -> records that it read; None: unknown to the spout."""
    input_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """stream -> bytes in the source; None: unknown to the spout."""
    rows_written: Mapping[str, int | None] = field(default_factory=dict)
    """table -> rows in the files that its version adds; None: not in its log. The rows of a group's
    version are at its last txid."""
    violations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """stream -> rule -> rows that broke it; each has a `BadRows`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """stream -> what it read, as in `AttemptBegan`."""
    watermark: int | None = None
    """Rows with an event time up to this one were late in it: microseconds since 1970, UTC. None:
    no row was."""
    newest_event: int | None = None
    """The newest event time of all streams as of it, in the same unit; None: not known."""
    quarantined: bool = False
    """True if it was committed empty."""
    replay_of: int | None = None
    """The quarantined txid whose records it has read, which is no longer in quarantine."""
    rolled_forward: bool = False
    """True if an earlier run published it and ended before COMMITTED, and this run found it at its
    start. Sent right after `RunStarted`, with the facts in the tables' logs."""


@dataclass(frozen=True)
class BadRows(RunEvent):
    """Rows of a committed txid broke a rule (`Stream.expect`)."""

    attempt: TransactionAttempt
    stream: str
    rule: str
    rows: int
    set_aside: bool
    """True: they went to the table of bad rows; False: they were dropped, or kept."""
    kept: bool = False
    """True: they are late, and went on as others (`Stream.watermark`)."""


@dataclass(frozen=True)
class Quarantined(RunEvent):
    """A txid was committed empty; `txn quarantine` replays it."""

    attempt: TransactionAttempt
    error: str


# --- beside the batches ----------------------------------------------------------------------


@dataclass(frozen=True)
class LagChanged(RunEvent):
    """The uncommitted part of a source has changed."""

    stream: str
    lag: Lag | None
    """Everything that is not committed, `planned` included. None: no longer known."""
    planned: Lag | None = None
    """The part of `lag` that txids in flight will read."""


@dataclass(frozen=True)
class NoticesChanged(RunEvent):
    """A spout's notices for the user have changed."""

    stream: str
    notices: tuple[str, ...]


@dataclass(frozen=True)
class MaintenanceDone(RunEvent):
    """Maintenance of a table has ended. Not sent if there was nothing to do."""

    table: str
    operation: Literal["compaction", "optimize", "vacuum", "publish"]
    began: float
    """Seconds since the epoch."""
    error: str | None = None
    files: int | None = None
    """Files that were rewritten or deleted; None: unknown."""
    bytes: int | None = None
    """Bytes of those files."""
    written_files: int | None = None
    """Files that replace them."""
    txid: int | None = None
    """Of "publish": the txid that the table shows at least."""


@dataclass(frozen=True)
class RequestEnded(RunEvent):
    """ZooKeeper or storage answered a request of the run, or failed to.

    For storage, only requests of the driver itself: Spark's tasks and delta-rs have their own
    clients.
    """

    service: Literal["zookeeper", "storage"]
    operation: str
    """For ZooKeeper "get", "get_children", "get_acls", "exists", "sync" or "multi"; for storage a
    method of `txn.storage.store.Store`, such as "put_if_absent"."""
    seconds: float
    error: str | None = None
    """The name of the exception instead of an answer."""


@dataclass(frozen=True)
class EventsDropped(RunEvent):
    """This observer was too slow: `count` events are missing here. Sent to it alone."""

    count: int


def _plain(value: Any) -> Any:
    if isinstance(value, TransactionAttempt):
        return str(value)
    if isinstance(value, Lag):
        return {unit: number for unit, number in vars(value).items() if number is not None}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return value
