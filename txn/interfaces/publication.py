"""The values of a commit turn: staged files, the record of a publication, the published version.

They belong to the contracts in `txn.interfaces`; import them from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)

from txn.attempts import TransactionAttempt
from txn.interfaces.event_time import EventTime

__all__ = [
    "CHANGE_KEY",
    "COMPACTION_KEY",
    "FENCE_KEY",
    "PUBLICATION_KEY",
    "SETTLED_KEY",
    "CommitterContext",
    "Forms",
    "Member",
    "PartitionPositions",
    "Prepared",
    "Publication",
    "Published",
    "Staged",
    "StagedFile",
    "TablePublication",
    "Unasked",
    "Violations",
    "merged_violations",
    "processing_ms",
    "summed_violations",
    "waiting_ms",
]

PUBLICATION_KEY = "txn"
"""Key of a `Publication` in a table version's `commitInfo`."""
FENCE_KEY = "txn_fence"
"""Key of a fence in `commitInfo`: {"topology", "epoch", "last": {"version", "publication"},
"settled": the newest txid that was marked as final, 0 if none}."""
SETTLED_KEY = "txn_settled"
"""Key of `SettlesTxids` in `commitInfo`: {"topology", "epoch", "txid", "last": as a fence's}:
every txid up to `txid` is committed and final."""

COMPACTION_KEY = "txn_compaction"
"""Key of a compaction in `commitInfo`: {"topology", "epoch", "txids": [first, last] of its
rows, "settled", "last": as a fence's}."""

CHANGE_KEY = "txn_change"
"""Key of a change of the table's shape in `commitInfo`: {"topology", "epoch", "txid": the newest
committed one, "changes": what was changed, "settled": the same txid, "last": as a fence's}."""

Violations = Mapping[str, Mapping[str, int]]
"""Stream -> rule of `Stream.expect` -> rows that broke it."""

Forms = Mapping[str, Mapping[str, str]]
"""Stream -> rule that has set rows aside -> "raw", "own" or "foreign": `Expectation.form`."""

Unasked = Mapping[str, Mapping[str, Sequence[str]]]
"""Stream -> rule that has set rows aside -> tables that took them without asking the rule."""


def merged_violations(parts: Iterable[Violations]) -> dict[str, dict[str, int]]:
    """Join the violations of one txid from several tables, some of which may have fewer rules."""
    whole: dict[str, dict[str, int]] = {}
    for violations in parts:
        for stream, rules in violations.items():
            whole.setdefault(stream, {}).update(rules)
    return whole


def summed_violations(parts: Iterable[Violations]) -> dict[str, dict[str, int]]:
    """Add the violations of several txids."""
    whole: dict[str, dict[str, int]] = {}
    for violations in parts:
        for stream, rules in violations.items():
            total = whole.setdefault(stream, {})
            for rule, rows in rules.items():
                total[rule] = total.get(rule, 0) + rows
    return whole


@dataclass(frozen=True)
class StagedFile:
    """One Parquet file written by a job and not (yet) in a table's log."""

    path: str
    """Relative to the table's folder, with `/`."""
    size: int
    """Bytes, as the storage reported them right after the job."""
    rows: int
    """Rows, from the file's own footer."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Partition column -> value, empty for unpartitioned tables."""
    stats: str = "{}"
    """Delta's per-file statistics as JSON (numRecords, minValues, maxValues, nullCount)."""


@dataclass(frozen=True)
class Staged:
    """The files that the processing phase of one attempt wrote for one committer."""

    attempt: TransactionAttempt
    files: tuple[StagedFile, ...]
    digest: str = ""
    """Fingerprint of the rows, independent of their order and files; "" if too expensive."""
    members: tuple[Staged, ...] = ()
    """For a group of txids that become one version: the `Staged` of each, in txid order. Then
    `attempt` is that of the last txid, and `files` has those of all. Empty for one txid."""
    violations: Violations = field(default_factory=dict)
    """The rows that broke a rule in the attempt, on the way to any table."""
    unasked: Unasked = field(default_factory=dict)
    """In the table of bad rows: the tables that took the rows nevertheless."""
    forms: Forms = field(default_factory=dict)
    """In the table of bad rows: the form of the rows."""

    @classmethod
    def together(cls, members: Sequence[Staged]) -> Staged:
        """Join the files of consecutive txids for one table; a single `Staged` stays as it is."""
        if len(members) == 1:
            return members[0]
        files = tuple(file for member in members for file in member.files)
        return cls(members[-1].attempt, files, members=tuple(members))

    @property
    def rows(self) -> int:
        """Rows in all files together."""
        return sum(f.rows for f in self.files)


class PartitionPositions(BaseModel):
    """Metadata of a `PartitionedSpout`: positions to read now, and the newest of each partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read: dict[str, Any] = Field(default_factory=dict)
    """Partition -> position to read in this txid."""
    latest: dict[str, Any] = Field(default_factory=dict)
    """Partition -> newest position of this or an earlier txid, also while it is idle."""

    # Every record of a batch has the positions several times. So the JSON of `latest` leaves out
    # those in `read`, which halves it if thousands of partitions are all being read.
    @model_serializer(mode="plain")
    def _dump(self) -> dict[str, Any]:
        read = self.read
        rest = {p: at for p, at in self.latest.items() if p not in read or read[p] != at}
        return {"read": read, "latest": rest}

    @model_validator(mode="before")
    @classmethod
    def _complete_latest(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        read, latest = data.get("read"), data.get("latest", {})
        if not isinstance(read, dict) or not isinstance(latest, dict):
            return data
        return {**data, "latest": {**read, **latest}}


_EMPTY: Mapping[str, Any] = {
    "violations": {},
    "unasked": {},
    "forms": {},
    "filled_by": "",
    "watermark": None,
    "dimensions": {},
    "event_time": None,
}
"""The fields of a publication that its JSON leaves out while they have these values."""
_NEVER = object()


class _Counted(BaseModel):
    """A record with violations. Its JSON leaves them out if no rule exists."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    violations: dict[str, dict[str, int]] = Field(default_factory=dict)
    """stream -> rule -> rows of this txid that broke it; a rule that saw no row is left out."""

    unasked: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    """stream -> rule that has set rows of this txid aside -> tables that took them nevertheless,
    because the rule is not on their path. Only in the table of bad rows; a rule that is left out
    set nothing aside."""

    forms: dict[str, dict[str, str]] = Field(default_factory=dict)
    """stream -> rule that has set rows of this txid aside -> their form, "raw", "own" or "foreign"
    (`Expectation.form`). Like `unasked`, only in the table of bad rows."""

    watermark: int | None = None
    """The txid's watermark: rows with an event time up to it are late. Microseconds since 1970,
    UTC. None: no row is late."""

    dimensions: dict[str, int] = Field(default_factory=dict)
    """Table that a stream looks rows up in -> the version that the txid has read."""

    # Plain mode, because a wrapping serializer copies thousands of positions first.
    @model_serializer(mode="plain")
    def _dump_without_empty(self) -> dict[str, Any]:
        return {name: value for name, value in self if value != _EMPTY.get(name, _NEVER)}


class Member(_Counted):
    """One txid of a group, with the fields of a publication of its own."""

    txid: int
    attempt_id: int
    read: dict[str, Any] = Field(default_factory=dict)
    rows: int = 0
    digest: str = ""


class Publication(_Counted):
    """The record in every append to a table's log (in `commitInfo`, key `txn`).

    It is enough to rebuild the coordinator's state from a table alone (`txn recover`).
    """

    format: int = 1
    topology: str
    epoch: int
    """The leader's fencing token; 1 or more. 0: see `lost`."""
    first_txid: int
    last_txid: int
    """First and last txid that this one version holds (equal unless commits were grouped)."""
    attempt_id: int
    """Attempt id of `last_txid`."""
    spouts: dict[str, Any] = Field(default_factory=dict)
    """stream -> its newest metadata as of `last_txid` (JSON of the spout's pydantic model)."""
    read: dict[str, Any] = Field(default_factory=dict)
    """stream -> the metadata that this txid itself read; None for an idle stream."""
    rows: int = 0
    """Rows staged for this table by the processing phase."""
    digest: str = ""
    """`Staged.digest`: the same for an identical replay."""
    timings_ms: dict[str, float] = Field(default_factory=dict)
    """phase -> milliseconds, of this attempt up to its publication."""
    quarantined: str | None = None
    """The error that caused the txid to be published empty; None for an ordinary one. A group never
    contains such a txid, nor its replay."""
    replay_of: int | None = None
    """The quarantined txid that it replays."""
    filled_by: str = ""
    """In a table that gets its history: the user's code that computed the rows, as
    `txn.dataflow.stages.code_above` identifies it."""
    event_time: EventTime | None = None
    """What the watermarks of txids after `last_txid` follow from; None: no program had one yet, or
    the table gets its history."""
    members: tuple[Member, ...] = ()
    """Group commit: every txid from `first_txid` to `last_txid`, ascending; then `read` is that of
    the last txid, `rows` are those of all, and `digest`, `violations`, `unasked` and `forms`
    are empty. Empty for one txid."""

    @model_validator(mode="after")
    def _check_txids(self) -> Publication:
        """Check that the txids are possible in a run, without counting up to a forged number."""
        own = [member.txid for member in self.members] or [self.last_txid]
        if self.first_txid < 1 or self.epoch < 0:
            raise ValueError("its txids or its epoch are invalid")
        counted = list(range(self.first_txid, self.first_txid + len(own)))
        if own != counted or own[-1] != self.last_txid:
            raise ValueError("it does not hold the txids that it names")
        return self

    @property
    def txids(self) -> tuple[Member, ...]:
        """One `Member` for each txid that it holds, grouped or not."""
        if self.members:
            return self.members
        own = Member(
            txid=self.last_txid,
            attempt_id=self.attempt_id,
            read=self.read,
            rows=self.rows,
            digest=self.digest,
            violations=self.violations,
            unasked=self.unasked,
            forms=self.forms,
            watermark=self.watermark,
            dimensions=self.dimensions,
        )
        return (own,)

    @classmethod
    def lost(cls, topology: str, txid: int) -> Publication:
        """A stand-in if the commit file of `txid`, the newest one, was cleaned out of the log.

        It is enough to go on after `txid` only if the coordinator has that txid as committed.
        """
        return cls(topology=topology, epoch=0, first_txid=txid, last_txid=txid, attempt_id=0)

    @property
    def is_lost(self) -> bool:
        """True if only the txid is known."""
        return self.epoch == 0


@dataclass(frozen=True)
class Prepared:
    """The entry that a commit turn will append to one table's log."""

    staged: Staged
    adds: tuple[StagedFile, ...]
    """Files that the new version adds; every one exists in storage with this size."""
    removes: tuple[Any, ...] = ()
    """Files of the read version that the new version drops (the committer's own type)."""
    read_version: int = -1
    """The table version from which this was computed; the append must become the next one."""
    skipped: bool = False
    """True if the table already holds this txid from an identical, earlier attempt."""


@dataclass(frozen=True)
class Published:
    """A publication as read back from the table's log after the append."""

    version: int
    """Table version that holds the txid."""
    files: tuple[StagedFile, ...] = ()
    """Every file that this version adds, as the log has it."""
    skipped: bool = False
    prepared: Prepared | None = None
    """The `Prepared` that was published, if an OPTIMIZE made another one necessary."""
    table_files: int | None = None
    """Files of the whole table now; None: not known. For display only."""
    table_bytes: int | None = None
    """Bytes of these files."""


@dataclass(frozen=True)
class CommitterContext:
    """The topology and leader that publish; a committer gets it once per run."""

    topology: str
    epoch: int
    incarnation: int = 0
    """Id of this life of the topology in its ensemble; 0: unknown, and not checked."""
    takes_over: frozenset[int] = frozenset()
    """The replaced incarnations: this one may take over their tables."""
    first_txid: int = 1
    """The first txid that a table made in this run can hold."""
    dropped_columns: tuple[str, ...] = ()
    """The columns that the settings give up, each as TABLE:COLUMN."""
    rebuilt_tables: tuple[str, ...] = ()
    """The tables that the settings allow to rebuild."""


def processing_ms(timings_ms: Mapping[str, float]) -> float:
    """The time of a batch's processing in milliseconds, from `Publication.timings_ms`.

    It leaves out `processing`, the wait until Spark had room for the batch.
    """
    return sum(timings_ms.get(station, 0.0) for station in ("staged", "processed"))


def waiting_ms(timings_ms: Mapping[str, float]) -> float:
    """The time that a batch waited for Spark and for its commit turn, in milliseconds."""
    return sum(timings_ms.get(station, 0.0) for station in ("processing", "turn"))


@dataclass(frozen=True)
class TablePublication:
    """One publication in one table's log."""

    version: int
    """Table version that holds it."""
    publication: Publication
    timestamp_ms: int
    """When it was appended, milliseconds since 1970; 0 if that is unknown."""
    of_skipping: bool = False
    """True if the table skipped replays then: what it records may be a dead attempt's plan."""
