"""The records in ZooKeeper, as pydantic models: the durable half of the coordinator's state.

One JSON object per znode, each with its format version; an unknown version or field is refused
by the reader (`ProgressUnreadableError`), never read as "no state".
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from txn.interfaces.event_time import EventTime

__all__ = [
    "FORMAT_VERSION",
    "BatchRecord",
    "ColumnsRecord",
    "CommittedRecord",
    "DropRequests",
    "EpochRecord",
    "IncarnationRecord",
    "LeaderIdentity",
    "NoticesRecord",
    "ProgramRecord",
    "Progress",
    "QuarantineRecord",
    "Record",
    "ReplayRequests",
    "RowReplayRecord",
    "StageRecord",
    "StandbyIdentity",
]

FORMAT_VERSION = 1
"""Bump when the layout or meaning of any znode changes."""

_REFUSED = " (replay refused) "


def _whole(text: str) -> str:
    """Escape lone surrogates: an error may quote a file name that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


_Words = Annotated[str, AfterValidator(_whole)]


class Record(BaseModel):
    """One node: a JSON object with its format version, parsed strictly."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that the first release with this record did not have: where they are missing, they
    have their default."""

    version: Literal[1] = 1


class CommittedRecord(Record):
    """`/txn/<topology>/committed`: everything up to `txid` is in every table."""

    LATER = frozenset({"event_time"})

    txid: int = Field(default=0, ge=0)
    """0: nothing is committed yet."""
    epoch: int = Field(default=0, ge=0)
    spouts: dict[str, Any] = Field(default_factory=dict)
    """stream -> its newest metadata as of `txid` (carried over batches in which it was idle)."""
    tables: dict[str, int] = Field(default_factory=dict)
    """committer name -> the table version that holds `txid`."""
    event_time: EventTime | None = None
    """What the watermarks of later txids follow from; None: no program had a watermark yet."""


class BatchRecord(Record):
    """`/txn/<topology>/batches/<txid>`: the START of the newest attempt of an open txid."""

    LATER = frozenset({"watermark", "dimensions"})

    txid: int = Field(ge=1)
    attempt: int = Field(ge=0)
    epoch: int = Field(ge=1)
    spouts: dict[str, Any] = Field(default_factory=dict)
    """stream -> metadata of what this txid reads; None: planned, with nothing to read."""
    opaque: list[str] = Field(default_factory=list)
    """Streams that are planned anew for each attempt; their metadata here may be out of date."""
    quarantined: _Words | None = None
    """The error for which this txid is committed empty; None for an ordinary batch."""
    replay_of: int | None = Field(default=None, ge=1)
    """The quarantined txid whose records this txid reads, without moving any stream's position;
    None: an ordinary batch."""
    watermark: int | None = None
    """Rows with an event time up to it are late in this txid: microseconds since 1970, UTC. The
    same for each attempt. None: no row is late."""
    dimensions: dict[str, int] = Field(default_factory=dict)
    """Table that a stream looks rows up in -> the version that each attempt reads."""


class QuarantineRecord(Record):
    """`/txn/<topology>/quarantine/<txid>`: a txid that was committed empty, and why.

    Deleted by the COMMITTED of the txid that replays it.
    """

    txid: int = Field(ge=1)
    attempt: int = Field(ge=0)
    spouts: dict[str, Any] = Field(default_factory=dict)
    error: _Words

    @property
    def streams(self) -> frozenset[str]:
        """The streams that the txid was to read from."""
        return frozenset(stream for stream, read in self.spouts.items() if read is not None)

    def refused(self, why: str) -> QuarantineRecord:
        """Return this record with the reason why its replay was refused, appended to its error."""
        error = self.error.partition(_REFUSED)[0] + _REFUSED + why
        return QuarantineRecord(**{**dict(self), "error": error})


class ReplayRequests(Record):
    """`/txn/<topology>/quarantine`: the quarantined txids that users want replayed.

    Written by `txn quarantine replay`, read by the leader. Txids without a quarantine record are
    ignored: they have been replayed.
    """

    replay: list[int] = Field(default_factory=list)
    """Ascending."""


class DropRequests(Record):
    """`/txn/<topology>/drops`: the quarantined txids that users have given up for good.

    Written by `txn quarantine drop`, read by the leader; created with the first request. Txids
    without a quarantine record are ignored here too.
    """

    drop: list[int] = Field(default_factory=list)
    """Ascending."""


class RowReplayRecord(Record):
    """`/txn/<topology>/row_replays/<stream>/<number>`: rows replayed from a file.

    Written by `txn rows replay` before the file appears, and never deleted, so that no later replay
    includes these rows again.
    """

    LATER = frozenset({"was"})

    stream: str
    was: str | None = None
    """The stream's former name: the rows that were set aside under it are replayed as well."""
    number: int = Field(ge=1)
    """1, 2, ... within the stream."""
    rules: dict[str, int]
    """rule -> the last txid whose rows it replays; it begins above the previous replay's last."""
    first_txid: int = Field(ge=1)
    """The first txid of any of the rows."""
    rows: int = Field(ge=1)
    file: str
    """The file's name, as the spout spells names."""
    sha256: str
    """SHA-256 of the file's content."""
    placed: bool = False
    """True once the file is known to exist."""


class ColumnsRecord(Record):
    """`/txn/<topology>/columns/<stream>`: the newest columns of a stream.

    Written before any commit that depends on them. A later run uses them while the stream is idle
    and its spout has not reported its columns yet.
    """

    stream: str
    columns: dict[str, Any]
    """The schema as Spark writes it in JSON."""


class StageRecord(BaseModel):
    """One operation of a program, as it was when a run began."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str
    """As `txn plan` shows it."""
    told: _Words
    """A description with stream and place."""
    fingerprint: str | None
    """The fingerprint of what it computes; None: unknown."""


class ProgramRecord(Record):
    """`/txn/<topology>/program`: what the newest run computes, to detect changes.

    It fits into one node. Without it, changes are not noticed, and a moved table is recognised by
    what it holds.
    """

    LATER = frozenset({"tables", "declared", "filled"})

    python: str
    """The Python that made the fingerprints; fingerprints of two Pythons cannot be compared."""
    stages: list[StageRecord] = Field(default_factory=list)
    """The operations that contain user code, upstream first."""
    changes: list[_Words] = Field(default_factory=list)
    """The newest change, in words; empty if nothing changed."""
    since: int = Field(default=0, ge=0)
    """The first txid that was not committed when that change was reported."""
    tables: dict[str, str] = Field(default_factory=dict)
    """table -> its own id (Delta's), by which it is recognised after a move; tables without an id
    are absent. A table that was moved may also have its former name."""
    declared: list[str] | None = None
    """The tables that the program names, also those that no batch has needed yet; None: an earlier
    release did not record it."""
    filled: list[str] = Field(default_factory=list)
    """Those that a start has filled with their history, and that no commit has named yet."""


class NoticesRecord(Record):
    """`/txn/<topology>/notices`: the newest notices of a run's spouts.

    For `txn status` only, and only while no later epoch exists. No leader reads it. It fits into
    one node.
    """

    epoch: int = Field(ge=1)
    """The epoch of the leader that wrote it."""
    txid: int = Field(ge=1)
    """The txid that was being planned."""
    at: str
    """The time of that planning: ISO 8601, UTC."""
    streams: dict[str, list[_Words]]
    """stream -> its notices; streams without notices are absent."""
    left_out: int = Field(default=0, ge=0)
    """The number of streams whose notices did not fit."""


class LeaderIdentity(Record):
    """`/txn/<topology>/leader`: the process that leads.

    Also stored in `epoch`, to name a leader that is gone.
    """

    host: str
    pid: int
    started: str
    """The time it took leadership: ISO 8601, UTC."""
    epoch: int = Field(ge=1)
    token: str
    """Distinguishes two leaders of one process, and our own node from another's."""
    machine: str = ""
    """Boot id and process-id namespace in which `pid` is valid; empty if unknown."""

    def __str__(self) -> str:
        return (
            f"process {self.pid} on {self.host} (leader since {self.started}, epoch {self.epoch})"
        )


class StandbyIdentity(Record):
    """`/txn/<topology>/standbys/<token>`: a process that waits for the leadership."""

    host: str
    pid: int
    since: str
    """The time it began to wait: ISO 8601, UTC."""
    machine: str = ""
    """See `LeaderIdentity.machine`."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (waiting since {self.since})"


class EpochRecord(Record):
    """`/txn/<topology>/epoch`: the fencing token. Every later write checks its znode version."""

    epoch: int = Field(ge=0)
    leader: LeaderIdentity | None = None
    """The process that took this epoch; None before the first leader."""


class IncarnationRecord(Record):
    """`/txn/<topology>/incarnation`: the id of this life of the topology.

    Created once, and again by every rebuild.

    Two ensembles may both have reached an epoch; tables remember by this id which one leads them.
    """

    id: int = Field(ge=1, lt=2**63)
    """Random: no other ensemble and no earlier life in this one has the same id."""
    takes_over: list[int] = Field(default_factory=list)
    """Ids of the incarnations that it replaces (`txn recover`, `txn import`)."""


class Progress(BaseModel):
    """A topology's whole durable state, as read at the start."""

    model_config = ConfigDict(frozen=True)

    committed: CommittedRecord = CommittedRecord()
    batches: tuple[BatchRecord, ...] = ()
    """Open batches, by ascending txid, contiguous from `committed.txid + 1`."""
    columns: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """stream -> its columns; streams that never had any are absent. See `ColumnsRecord`."""
    quarantined_streams: frozenset[str] = frozenset()
    """The streams with a quarantined txid that has not been replayed."""
    quarantined: frozenset[int] = frozenset()
    """The quarantined txids that have not been replayed."""
    program: ProgramRecord | None = None
    """What the newest run computes; None before the first leader."""
