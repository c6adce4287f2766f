"""The contracts of durable ends: committers, and the states that can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.errors import TopologyError
from txn.interfaces.aggregate import Aggregate
from txn.interfaces.publication import (
    CommitterContext,
    Prepared,
    Publication,
    Published,
    Staged,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Committer", "Semantics", "State", "StoredRows"]


class Semantics(str, Enum):
    """What a state table can absorb. Source: `org.apache.storm.trident.state.State`.

    TRANSACTIONAL tables skip a replay (it is identical), OPAQUE tables revert it to the previous
    value first (it may differ), NON_TRANSACTIONAL tables apply it again (at least once).
    """

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non_transactional"


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
