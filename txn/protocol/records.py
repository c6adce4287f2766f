"""The records in ZooKeeper, as pydantic models: the durable half of the coordinator's state.

One JSON object per znode, each with its format version; an unknown version or field is refused
by the reader (`ProgressUnreadableError`), never read as "no state".
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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
    """One node: a JSON object that says its format version, and is read strictly."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1] = 1


class CommittedRecord(Record):
    """`/txn/<topology>/committed`: everything up to `txid` is in every table."""

    txid: int = Field(default=0, ge=0)
    """0: nothing was committed yet."""
    epoch: int = Field(default=0, ge=0)
    spouts: dict[str, Any] = Field(default_factory=dict)
    """stream -> its newest metadata as of `txid` (carried over batches in which it was idle)."""
    tables: dict[str, int] = Field(default_factory=dict)
    """committer name -> the table version that holds `txid`."""


class BatchRecord(Record):
    """`/txn/<topology>/batches/<txid>`: the START of the newest attempt of an open txid."""

    txid: int = Field(ge=1)
    attempt: int = Field(ge=0)
    epoch: int = Field(ge=1)
    spouts: dict[str, Any] = Field(default_factory=dict)
    """stream -> metadata of what this txid reads; None: planned, and nothing to read there."""
    opaque: list[str] = Field(default_factory=list)
    """Streams whose metadata here may be out of date, since they are planned anew per attempt."""
    quarantined: _Words | None = None
    """The error for which this txid is committed empty; None for an ordinary batch."""
    replay_of: int | None = Field(default=None, ge=0)
    """The quarantined txid whose records this txid reads, without moving any stream's position;
    None: an ordinary batch; 0: a replay, but of which txid is no longer known (`txn recover`)."""

    LATER: ClassVar[frozenset[str]] = frozenset({"replay_of"})
    """Fields that a node of an earlier release lacks, and then means the default by that."""


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
        """Those of which it was to read something."""
        return frozenset(stream for stream, read in self.spouts.items() if read is not None)

    def refused(self, why: str) -> QuarantineRecord:
        """The record after its replay was refused: why, behind the error that emptied the txid."""
        error = self.error.partition(_REFUSED)[0] + _REFUSED + why
        return QuarantineRecord(**{**dict(self), "error": error})


class ReplayRequests(Record):
    """`/txn/<topology>/quarantine`: the quarantined txids that users want replayed.

    Written by `txn quarantine replay`, read by the leader. A txid without a quarantine record
    means nothing: it has been replayed since.
    """

    replay: list[int] = Field(default_factory=list)
    """Ascending."""


class DropRequests(Record):
    """`/txn/<topology>/drops`: the quarantined txids that users have given up for good.

    Written by `txn quarantine drop`, read by the leader; not there before the first. A node of its
    own, because an earlier release refuses an unknown field of `ReplayRequests`. As there, a txid
    without a quarantine record means nothing.
    """

    drop: list[int] = Field(default_factory=list)
    """Ascending."""


class RowReplayRecord(Record):
    """`/txn/<topology>/row_replays/<stream>/<number>`: rows set aside that go in again as a file.

    Written by `txn rows replay` before the file appears, and never deleted: no later replay stands
    for these rows.
    """

    stream: str
    number: int = Field(ge=1)
    """1, 2, ... of the stream."""
    rules: dict[str, int]
    """rule -> the last txid of the rows that it stands for; the first is above all before it."""
    first_txid: int = Field(ge=1)
    """The first txid of any of the rows."""
    rows: int = Field(ge=1)
    file: str
    """Its name, as the spout spells names."""
    sha256: str
    """Of the file's content."""
    placed: bool = False
    """Whether the file is known to have appeared."""


class ColumnsRecord(Record):
    """`/txn/<topology>/columns/<stream>`: the columns that a stream has had last.

    Written before anything is committed that depends on them. A later run uses them while the
    stream is idle and its spout has not reported its columns yet.
    """

    stream: str
    columns: dict[str, Any]
    """The schema as Spark writes it in JSON."""


class StageRecord(BaseModel):
    """One operation of a program, as a run has begun with it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str
    """As `txn plan` shows it."""
    told: _Words
    """In words, with stream and place."""
    fingerprint: str | None
    """Of what it computes; None: unknown."""


class ProgramRecord(Record):
    """`/txn/<topology>/program`: what the newest run computes, so that a change can be told.

    Nothing follows from it: a run goes on whatever it says. It fits into one node.
    """

    python: str
    """The Python that made the fingerprints; those of another one cannot be compared."""
    stages: list[StageRecord] = Field(default_factory=list)
    """The operations with something of the user's in them, upstream first."""
    changes: list[_Words] = Field(default_factory=list)
    """The newest change, in words; empty: there was none."""
    since: int = Field(default=0, ge=0)
    """The first txid that was not committed when that change was told."""


class NoticesRecord(Record):
    """`/txn/<topology>/notices`: what the spouts of a run last had for the user.

    Only for `txn status`, and only while no later epoch exists: nothing follows from it, and no
    leader reads it at its start. It fits into one node.
    """

    epoch: int = Field(ge=1)
    """Of the leader that wrote it."""
    txid: int = Field(ge=1)
    """The txid that was being planned."""
    at: str
    """When that was: ISO 8601, UTC."""
    streams: dict[str, list[_Words]]
    """stream -> its notices, of those streams that have any."""
    left_out: int = Field(default=0, ge=0)
    """How many streams have notices that had no room."""


class LeaderIdentity(Record):
    """`/txn/<topology>/leader`: which process leads.

    Also kept in `epoch`, to name a leader that is gone.
    """

    host: str
    pid: int
    started: str
    """When it took leadership: ISO 8601, UTC."""
    epoch: int = Field(ge=1)
    token: str
    """Tells two leaders of one process, and one's own node from another's."""
    machine: str = ""
    """Boot and process-id namespace in which `pid` means something; empty where unknown."""

    def __str__(self) -> str:
        return (
            f"process {self.pid} on {self.host} (leader since {self.started}, epoch {self.epoch})"
        )


class StandbyIdentity(Record):
    """`/txn/<topology>/standbys/<token>`: a process that waits for the leadership."""

    host: str
    pid: int
    since: str
    """When it began to wait: ISO 8601, UTC."""
    machine: str = ""
    """As a leader's."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (waiting since {self.since})"


class EpochRecord(Record):
    """`/txn/<topology>/epoch`: the fencing token. Every later write checks its znode version."""

    epoch: int = Field(ge=0)
    leader: LeaderIdentity | None = None
    """The process that took this epoch; None before the first leader."""


class IncarnationRecord(Record):
    """`/txn/<topology>/incarnation`: which life of the topology this is.

    Made once, and anew by whoever rebuilds.

    Two ensembles may both have come to an epoch; tables remember by this which one leads them.
    """

    id: int = Field(ge=1, lt=2**63)
    """Random: no other ensemble, and no earlier life in this one, has it."""
    takes_over: list[int] = Field(default_factory=list)
    """Ids of the incarnations that it replaces (`txn recover`, `txn import`)."""


class Progress(BaseModel):
    """All of a topology's durable state as read at start."""

    model_config = ConfigDict(frozen=True)

    committed: CommittedRecord = CommittedRecord()
    batches: tuple[BatchRecord, ...] = ()
    """Open batches, by ascending txid, contiguous from `committed.txid + 1`."""
    columns: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """stream -> its columns, of those streams that have had any; see `ColumnsRecord`."""
    quarantined_streams: frozenset[str] = frozenset()
    """The streams of which some txid was committed empty, and not replayed since."""
    quarantined: frozenset[int] = frozenset()
    """Those txids."""
    program: ProgramRecord | None = None
    """What the newest run computes; None: no leader of this release has been."""
