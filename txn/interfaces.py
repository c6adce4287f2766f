"""The contracts that plugins implement: spouts, aggregates, states, committers.

`spouts` and `committers` import this module, `txn.attempts` and `txn.errors`, and nothing else
of `txn`. Nothing here imports Spark: its types appear in annotations only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from txn.attempts import TransactionAttempt
from txn.commit_files import BROKEN, actions_of, info_of, json_object, read_whole
from txn.delta_features import refused_features
from txn.errors import TopologyError
from txn.locations import file_system, is_local, local_path, normal
from txn.observations import observed
from txn.own_session import (
    DEFAULT,
    computing_session,
    moved,
    own_session,
    same_setting,
    settings_of,
    to_write,
)
from txn.publications import (
    COMPACTION_KEY,
    FENCE_KEY,
    PUBLICATION_KEY,
    SETTLED_KEY,
    CommitterContext,
    Member,
    PartitionPositions,
    Prepared,
    Publication,
    Published,
    Staged,
    StagedFile,
)
from txn.storage_retry import is_momentary, is_refusal, retried

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "BROKEN",
    "COMPACTION_KEY",
    "DEFAULT",
    "FENCE_KEY",
    "PUBLICATION_KEY",
    "SETTLED_KEY",
    "Aggregate",
    "Committer",
    "CommitterContext",
    "Keeper",
    "Member",
    "PartitionPositions",
    "PartitionedSpout",
    "Prepared",
    "Publication",
    "Published",
    "Semantics",
    "Spout",
    "SpoutKind",
    "Staged",
    "StagedFile",
    "State",
    "StoredRows",
    "actions_of",
    "combined",
    "computing_session",
    "file_system",
    "info_of",
    "is_local",
    "is_momentary",
    "is_refusal",
    "json_object",
    "local_path",
    "merged",
    "moved",
    "normal",
    "observed",
    "own_session",
    "partials_over",
    "read_whole",
    "refused_features",
    "retried",
    "same_setting",
    "settings_of",
    "to_write",
]

M = TypeVar("M", bound=BaseModel)


class SpoutKind(str, Enum):
    """What a spout promises about replays. Source: Storm's three spout kinds, Trident-spouts.md.

    TRANSACTIONAL: the batch of a txid is the same on every replay.
    OPAQUE: a replay may differ, but every record is in exactly one *successful* txid.
    NON_TRANSACTIONAL: nothing is promised.
    """

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non_transactional"


class Semantics(str, Enum):
    """What a state table can absorb. Source: `org.apache.storm.trident.state.State`.

    TRANSACTIONAL tables skip a replay (it is identical), OPAQUE tables revert it to the previous
    value first (it may differ), NON_TRANSACTIONAL tables apply it again (at least once).
    """

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non_transactional"


class Keeper(ABC):
    """Keeps for spouts what grows beyond a position, so that the position only names it.

    What is kept lies beside the topology's tables, unchanged for good, under the digest of its own
    bytes: whoever has the tables has it, on whatever machine and whatever becomes of ZooKeeper.
    """

    @abstractmethod
    def keep(self, content: bytes) -> str | None:
        """Keep these bytes; their name, once they are durable. The same bytes have the same name.

        None: they are kept nowhere for now, because no table is there yet or the storage does not
        answer. A spout then carries what it has in its position, and tries again later.
        """

    @abstractmethod
    def kept(self, name: str) -> bytes:
        """The bytes that were kept under a name.

        Raises:
            OSError, StorageUnavailableError, StorageRefusedError: no table has them of those that
                answer, and one does not.
            ProgressUnreadableError: no table has them.
        """


class Spout(ABC, Generic[M]):
    """A source of micro-batches. Inherit, set `kind` and `metadata_type`, implement two methods.

    Which process: every method runs in the driver; `emit_batch` returns a lazy DataFrame, so the
    reading itself happens on Spark's executors. Source: `ITridentSpout` (its coordinator's half is
    `initialize_transaction` and `success`, its emitter's half `emit_batch`).

    Threads: `initialize_transaction` and `success` are never called concurrently with each other;
    `emit_batch` may be called from several threads at once, for different attempts.
    """

    kind: SpoutKind
    metadata_type: type[M]
    packages: tuple[str, ...] = ()
    """Maven packages that its reading needs in the Spark session (`delta_session(packages=)`)."""

    def keep_with(self, keeper: Keeper) -> None:
        """Take note of where to keep what positions should not grow with. May be ignored.

        Called once per run, before `open`.
        """

    def open(self, spark: SparkSession, previous: M | None) -> StructType | None:
        """Get ready. Called once per run by the driver, after `keep_with`.

        Args:
            previous: metadata of the newest committed or started txid in which this spout had
                something to read; None on the very first run.

        Returns:
            The schema of what `emit_batch` will return, so that columns can be checked before
            anything runs; None when it cannot be known yet (then they are checked with the first
            batch's DataFrame, before any job). Until then a batch of another stream that is
            joined with this one may have to wait. What a stream had once is kept for later runs.
        """
        return None

    def find_schema(self, spark: SparkSession) -> StructType | None:
        """The schema of what `emit_batch` will return, if it has become known since `open`.

        Asked while nothing was emitted yet and another stream's batch waits for these columns; by
        any thread, again and again. None: still not known.

        Raises:
            SourceUnavailableError: the source is away for now.
        """
        return None

    @abstractmethod
    def initialize_transaction(self, attempt: TransactionAttempt, previous: M | None) -> M | None:
        """Decide which records the batch of this txid has; describe them, do not read them.

        Who and how often: the coordinator; once per txid for a transactional spout, once per
        attempt for an opaque or non-transactional one. Already durable: everything up to
        `previous`. What it returns is durable in ZooKeeper *before* `emit_batch` is called. May
        repeat: a crash before it is durable asks again, with the same `previous`.

        Args:
            previous: the newest metadata of a smaller txid (committed or in flight), or None.

        Returns:
            The metadata, or None when there is nothing to read now. For a txid that was already
            started, None makes an empty batch; otherwise the question is asked again later.

        Raises:
            FailedException: the source cannot say now; asked again after a back-off.
        """

    @abstractmethod
    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: M
    ) -> DataFrame:
        """The records that `metadata` describes, as a lazy DataFrame.

        Who and how often: the processing phase, once per attempt, and once more when a Spark job
        that several attempts shared has failed; `metadata` is durable by then.
        A transactional spout returns the same rows for the same metadata on every attempt. Not
        promised: that the DataFrame is read, or read only once.

        Raises:
            FailedException: this attempt cannot be read; the batch is replayed.
            SourceUnavailableError: the source is away for now; the batch waits for it, and no
                attempt is counted.
            SourceChangedError: a transactional source no longer holds what was planned.
        """

    def planned_parts(self, metadata: M) -> Sequence[str]:
        """Names of the source partitions or files of a batch: one acker edge each."""
        return ["batch"]

    def parts_read(self, batch: DataFrame, metadata: M) -> Sequence[str]:
        """Names of the parts that `batch` really reads; compared with `planned_parts`."""
        return self.planned_parts(metadata)

    def planned_rows(self, metadata: M) -> int | None:
        """How many rows `metadata` stands for, where known; `verify="rows"` counts them."""
        return None

    def set_batch_target(self, share: float) -> None:
        """How large the next new batches should be, within the user's caps. May be ignored.

        Called by the planner's thread before `initialize_transaction` of a new txid.

        Args:
            share: 0.0 (as small as allowed: caught up, latency counts) to 1.0 (the cap: behind,
                throughput counts).
        """

    def commit(self, attempt: TransactionAttempt, metadata: M) -> None:
        """The commit turn of this attempt begins; nothing of it is published yet.

        Who and how often: the commit turn, strictly in txid order, once per turn of the attempt: of
        its own, or of a group that shares one. An attempt whose group failed has another turn.
        Source: `ICommitterTridentSpout.Emitter.commit`.

        Raises:
            FailedException: the attempt must not be committed; the batch is replayed.
        """

    def success(self, txid: int) -> None:
        """The txid is committed, durably, everywhere. May be missed by a crash, never early."""

    def close(self) -> None:
        """The run ended. May be missed by a crash."""


class PartitionedSpout(Spout[PartitionPositions]):
    """A spout over named partitions, each with its own position. Inherit and implement three.

    Source: `IPartitionedTridentSpout` and `IOpaquePartitionedTridentSpout`; unlike Storm, all
    positions of a txid are decided by the coordinator and durable before anything is read.
    A position is JSON: what `plan_partition` returns is what `emit_partitions` gets.
    """

    metadata_type = PartitionPositions

    @abstractmethod
    def get_partitions(self) -> list[str]:
        """The partitions that exist now. Asked at every planning; names are durable."""

    @abstractmethod
    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> Any | None:
        """The next position of one partition; None: nothing to read, its last position stays.

        Args:
            previous: the partition's latest position of an earlier txid, None if it had none.
        """

    @abstractmethod
    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """The records of the given partitions at the given positions, as a lazy DataFrame."""

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: PartitionPositions | None
    ) -> PartitionPositions | None:
        """Plan every partition; None when none of them has anything to read."""
        latest = dict(previous.latest) if previous else {}
        read: dict[str, Any] = {}
        for partition in self.get_partitions():
            position = self.plan_partition(attempt, partition, latest.get(partition))
            if position is not None:
                read[partition] = position
        if not read:
            return None
        return PartitionPositions(read=read, latest={**latest, **read})

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: PartitionPositions
    ) -> DataFrame:
        """`emit_partitions` over what was planned."""
        return self.emit_partitions(spark, attempt, metadata.read)

    def planned_parts(self, metadata: PartitionPositions) -> Sequence[str]:
        """One edge per partition that has something to read."""
        return sorted(metadata.read)


class Aggregate(ABC):
    """An aggregation that can be kept as running state. Source: Trident's `CombinerAggregator`.

    Everything is a Spark SQL expression, so no row ever reaches Python. `combine` must be
    associative and commutative: rows reach it in no order.
    """

    column: str | None = None
    """The input column, for validation and error messages; None when it reads no column."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every input column, for validation: `column`, unless a subclass reads several."""
        return () if self.column is None else (self.column,)

    @abstractmethod
    def partial(self) -> Column:
        """Aggregate expression over the rows of one group of one batch (Trident: `init`)."""

    @abstractmethod
    def combine(self, stored: Column, partial: Column) -> Column:
        """Scalar expression joining two partial results of one key; either may be SQL NULL."""

    def partial_of(self, kinds: Mapping[str, DataType]) -> Column:
        """`partial` over input columns of known types (by name), where the types matter.

        Raises:
            TopologyError: a type that the aggregate cannot take.
        """
        return self.partial()

    def combine_as(self, stored: Column, partial: Column, kind: DataType) -> Column:
        """`combine` for values of the type `kind`, where the type matters."""
        return self.combine(stored, partial)

    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        """Aggregate expression over several partials of one key: the partial of all their rows.

        Used where txids are taken together: by group commit, and by tables that keep partials. The
        default applies `combine` to them one after the other, in the order of txids; where
        SQL has an aggregate function for it (sum, max), that is many times faster.

        Args:
            txid: the txid of each partial.
            kind: the type of `partial`.
        """
        from pyspark.sql import functions as sf

        entry = sf.struct(txid.alias("txid"), partial.alias("partial"))
        partials = sf.transform(sf.sort_array(sf.collect_list(entry)), lambda one: one["partial"])
        return sf.reduce(
            partials,
            sf.lit(None).cast(kind),
            lambda left, right: self.combine(left, right).cast(kind),
        )

    @abstractmethod
    def zero(self) -> Column:
        """The partial of no rows at all: what a global aggregate has for an empty batch."""

    def initial(self, partial: Column) -> Column:
        """What is stored for a key that has nothing stored yet."""
        return partial

    def result(self, stored: Column) -> Column:
        """What readers see of the stored value: a sketch's estimate, an average's quotient."""
        return stored


def partials_over(rows: DataFrame, aggregates: Mapping[str, Aggregate]) -> dict[str, Column]:
    """Value -> `partial_of` over these rows, or `partial` where a subclass has one of its own.

    Raises:
        TopologyError: a type that an aggregate cannot take.
    """
    exact = {field.name: field.dataType for field in rows.schema}
    lower = {name.lower(): kind for name, kind in exact.items()}
    named = {name for aggregate in aggregates.values() for name in aggregate.columns}
    # By the names that the aggregates use; what Spark has to find is left out.
    found = {name: exact.get(name, lower.get(name.lower())) for name in named}
    kinds = {name: kind for name, kind in found.items() if kind is not None}
    return {
        name: aggregate.partial_of(kinds)
        if _speaks_for(aggregate, "partial_of", "partial")
        else aggregate.partial()
        for name, aggregate in aggregates.items()
    }


def combined(aggregate: Aggregate, stored: Column, partial: Column, kind: DataType) -> Column:
    """`combine_as`, or `combine` where a subclass has one of its own; of the type `kind`."""
    if _speaks_for(aggregate, "combine_as", "combine"):
        return aggregate.combine_as(stored, partial, kind).cast(kind)
    return aggregate.combine(stored, partial).cast(kind)


def merged(aggregate: Aggregate, partial: Column, txid: Column, kind: DataType) -> Column:
    """`merge`, or what `combine` says where a subclass has one of its own; of the type `kind`."""
    # Where something else is stored than partials, `combine` says nothing about two partials.
    stores_other = type(aggregate).initial is not Aggregate.initial
    if stores_other or _speaks_for(aggregate, "merge", "combine"):
        return aggregate.merge(partial, txid, kind).cast(kind)
    return Aggregate.merge(aggregate, partial, txid, kind).cast(kind)


def _speaks_for(aggregate: Aggregate, special: str, plain: str) -> bool:
    """Whether no class has overridden `plain` since `special` was defined: it would be ignored."""
    line = type(aggregate).__mro__
    special_at, plain_at = (
        next(place for place, one in enumerate(line) if name in vars(one))
        for name in (special, plain)
    )
    return special_at <= plain_at


@dataclass(frozen=True)
class StoredRows:
    """Rows out of a table's files, which Spark reads as late as a job needs them."""

    rows: DataFrame
    missing: Callable[[], str | None] = lambda: None
    """Asked when the job has failed: a file of them that is gone from storage; None: none is."""


class Committer(ABC):
    """The durable end of a stream: stages in parallel, publishes in txid order.

    Source: Storm's `ICommitter` bolts and Trident's `State.beginCommit/commit`, with a rollback
    that those lack. Order of calls in one run: `open`, `fence`, then per attempt `stage` (any
    thread, several at once), and per txid, strictly in order and never concurrently for one
    committer, `prepare` and `publish`. `discard` may come at any time for an attempt that died.
    """

    name: str
    """Where the table lies, as the user wrote it; unique within a topology."""
    semantics: Semantics
    storage_options: Mapping[str, str] = MappingProxyType({})
    """Credentials and endpoints with which the table's log can be read, for delta-rs."""

    lies_in_folder: bool = False
    """Whether `name` is a folder into whose files executors write, and whose files this process
    reads. Where executors are elsewhere, such a folder must be one that they share."""

    def physical_id(self) -> str | None:
        """What tells the table from any other, wherever it lies; None: not there, or not known.

        No two committers of a run may have the same: they would be two names of one table.
        """
        return None

    @property
    def groups(self) -> bool:
        """Whether one version may hold several txids (group commit); False: one version each."""
        return True

    @abstractmethod
    def required_columns(self) -> Sequence[str]:
        """Columns of the incoming stream that this committer names (for validation)."""

    @abstractmethod
    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """What is to be staged out of a batch's rows: the rows, or partial aggregates.

        Args:
            batch: the rows of one batch.
            count_as: name of one more bigint column, saying how many rows of the batch each
                partial stands for (`verify="rows"`); the pipeline drops it before `stage`.
        """

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """`batch`, as far as `partials` needs it, when further columns of its stream are unknown.

        Every row is there; in the columns that are missing, every value is NULL.

        Returns:
            A DataFrame that `partials` takes: `batch` itself where the table needs no more than
            its columns, or with NULLs for those that the existing table has besides. None: what
            is missing cannot be told, and the batch waits until it is known.
        """
        return None

    @abstractmethod
    def open(
        self, spark: SparkSession, context: CommitterContext, schema: StructType | None
    ) -> None:
        """Create the table, or check that the existing one is ours and fits. Writes no data.

        Args:
            schema: schema of the DataFrames that `partials` returns; None while it is not known:
                then an existing table is attached and a missing one is left for the next call.

        Raises:
            TableRefusedError: other columns, another topology's, or unknown Delta features.
        """

    @abstractmethod
    def fence(self) -> None:
        """Append an empty version carrying our epoch: older leaders' appends now lose.

        Raises:
            FencedError: the table already holds a newer epoch.
        """

    @abstractmethod
    def last_publication(self) -> tuple[int, Publication] | None:
        """(table version, publication) of the newest publication in the log; None if none."""

    @abstractmethod
    def stage(self, partials: DataFrame, attempt: TransactionAttempt) -> Staged:
        """Run the job that writes `partials` (of `self.partials`) where no reader sees it."""

    def stage_together(self, group: Sequence[tuple[DataFrame, TransactionAttempt]]) -> list[Staged]:
        """`stage` for several attempts, in one job where that is cheaper: one answer for each.

        Raises:
            Exception: nothing of the group is staged for certain; each is then staged alone.
        """
        return [self.stage(partials, attempt) for partials, attempt in group]

    @abstractmethod
    def prepare(self, staged: Staged, publication: Publication) -> Prepared:
        """Compute the next version's files, applying the guard of `semantics`. May run Spark.

        Group commit: `staged.members` and `publication.members` name every txid of the group; all
        of them become one version, which an opaque replay reverts as a whole and of which a
        transactional replay skips txid by txid.

        `publication.first_txid` is committed + 1: everything the table holds at or above it comes
        from an attempt that never finished.

        Raises:
            StagedFileError: a staged file is gone or changed.
            FencedError: the table holds a newer epoch.
        """

    @abstractmethod
    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Append the prepared version on condition that it is the next one; read it back.

        Raises:
            StagedFileError: a file to be added is gone or changed.
            CommitConflictError: somebody else changed rows meanwhile.
            FencedError: a newer epoch stands in the log.
        """

    @abstractmethod
    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete what a dead attempt staged. Best effort; never touches published files."""

    def changes_schema(self, partials: StructType) -> StructType:
        """Columns of `changes`, given those of the partials; TopologyError: it has none."""
        raise TopologyError(f"Table {self.name} has no new values: only a state table has.")

    def values_schema(self, partials: StructType) -> StructType:
        """Columns that readers of a state see, given those of the partials; TopologyError: none.

        A state query finds its columns here; more than keys and values may be among them.
        """
        return self.changes_schema(partials)

    def require_changes(self) -> None:
        """Refuse, when the topology is built, new values that this table cannot tell.

        Raises:
            TopologyError: it has no `changes`, or columns of them would have the same name.
        """
        if type(self).changes is Committer.changes:
            raise TopologyError(f"Table {self.name} has no new values: only a state table has.")

    def changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """What this txid changes (Trident: `newValuesStream`); between `prepare` and `publish`.

        One row per key that the
        batch touched: keys, values, `prev_<value>` as of txid - 1 (NULL: the key is new). The same
        for an identical replay that the table skips.
        """
        raise TopologyError(f"Table {self.name} has no new values: only a state table has.")

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows | None:
        """Keys and values as of `txid`, the newest committed one, for a query; on any thread.

        Nothing of a later txid is among them, whatever the table holds already. They are to be
        found in the newest files that have them: VACUUM deletes others. While it looks, a later
        txid may be committed: it is then asked again.

        Args:
            exact: as of `txid` itself; False: an older committed txid will do.

        Returns:
            None: this committer cannot say. Then `State.snapshot` is asked.
        """
        return None

    def committed(self, attempt: TransactionAttempt) -> None:
        """The txid is durable everywhere: scratch files of it may go. Best effort."""

    def maintain(self, committed: int) -> Callable[[], None] | None:
        """Work on the table that no commit turn waits for, such as compaction.

        Called again and again on a thread of its own, never twice at once for one committer; may
        run Spark jobs. What is staged here must be harmless if nothing more comes of it: the
        process may die at any point.

        Args:
            committed: the newest txid that is durable everywhere; no later row may be touched.

        Returns:
            What makes the work visible: called between two commit turns, on their thread, so it
            appends to the log and does nothing else. None: there is nothing to do.
        """
        return None

    def keep(self, name: str, content: bytes) -> bool:
        """Keep a spout's bytes beside the table for good; False: it cannot, or not yet.

        Where they are kept already nothing happens. They are durable when this comes back, they
        are not part of the table, and no clean-up of it takes them.

        Raises:
            OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
        """
        return False

    def kept(self, name: str) -> bytes | None:
        """What `keep` was given under a name; None: there is no such thing.

        Raises:
            OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
        """
        return None

    def settle(self, txid: int) -> None:
        """Nothing follows `txid` for now: mark it in the table as final.

        Called when the run is idle or ends, so that readers of the table's log can tell a txid
        that may still be replayed from one that may not. May be missed by a crash.
        """

    def close(self) -> None:
        """The run ended."""


class State(ABC):
    """What `persistent_aggregate` takes: a place that can hold running values by key."""

    path: str
    """Where it lies; equal to the `name` of the committers that it binds."""

    @abstractmethod
    def bind(self, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Committer:
        """The committer that keeps `aggregates` (value column -> aggregate) per `keys`.

        Args:
            keys: grouping columns; empty for one global row.

        Raises:
            TopologyError: reserved or repeated column names, an unknown layout or semantics.
        """

    @abstractmethod
    def snapshot(
        self,
        spark: SparkSession,
        version: int | None,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Keys and values (`Aggregate.result` applied) as of a table version; None: the newest.

        Raises:
            TableAbsentError: there is no such table (yet).
            TableRefusedError: there is no such version.
        """

    def newest(
        self, spark: SparkSession, aggregates: Mapping[str, Aggregate] | None = None
    ) -> StoredRows:
        """Keys and values as of the newest version, for a topology that does not keep this state.

        Raises:
            TableRefusedError: there is no such table.
        """
        return StoredRows(self.snapshot(spark, None, aggregates))
