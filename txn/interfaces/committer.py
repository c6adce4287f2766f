"""The contracts of durable ends: committers, and states that can be queried."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.changes import Expiry
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

__all__ = ["WATERMARK", "Committer", "KeysReader", "Semantics", "State", "StoredRows"]

WATERMARK = "txn_watermark"
"""The column of `Committer.takes_watermark`."""

KeysReader = Callable[["DataFrame", bool], "DataFrame | None"]
"""A function of a DataFrame of a state's key columns, with each key once, and of a bool: True if a
key has a NULL. Returns the rows with these keys (NULL equals NULL), or None if it does not compare
columns of these names and types."""


class Semantics(str, Enum):
    """The handling of replays by a state table. Source: `org.apache.storm.trident.state.State`.

    TRANSACTIONAL tables skip a replay (it is identical), OPAQUE tables revert it to the previous
    value first (it may differ), NON_TRANSACTIONAL tables apply it again (at least once).
    """

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non_transactional"


@dataclass(frozen=True)
class StoredRows:
    """Rows from a table's files, which Spark reads only when a job needs them."""

    rows: DataFrame
    missing: Callable[[], str | None] = lambda: None
    """Called after the job failed; returns a file that is missing from storage, or None."""
    of_keys: KeysReader | None = None
    """Reads the part of `rows` that has some keys; None: reading all of them costs no more."""


class Committer(ABC):
    """The durable end of a stream: stages in parallel, publishes in txid order.

    Source: Storm's `ICommitter` bolts and Trident's `State.beginCommit/commit`, with a rollback
    that they lack. Order of calls in one run: `open`, `fence`, then per attempt `stage` (any
    thread, several at once), and per txid, strictly in order and never concurrently for one
    committer, `prepare` and `publish`. `discard` may come at any time for an attempt that died.
    What else a table can do is in `txn.interfaces.committer_capabilities`.
    """

    name: str
    """The table's path, as the user wrote it; unique within a topology."""
    semantics: Semantics
    storage_options: Mapping[str, str] = MappingProxyType({})
    """Credentials and endpoints for everything that reads or writes the table."""

    prepare_reads: bool = True
    """True if `prepare` runs Spark jobs or asks storage; such tables are prepared side by side."""

    publish_waits: bool = True
    """True if `publish` waits for another machine: such tables are published side by side, each on
    a thread of its own; of the others, a few at once."""

    lies_in_folder: bool = False
    """True if `name` is a folder in which executors write files that this process reads. Executors
    on other machines must share that folder."""

    takes_watermark: bool = False
    """True if the rows that `partials` gets have one more column, `WATERMARK`: that of the txid,
    microseconds since 1970, UTC."""

    changes_without_rows: bool = False
    """True if new values may have rows in a txid that brings the table none."""

    @property
    def groups(self) -> bool:
        """True if one version may hold several txids (group commit); False: one version each."""
        return True

    @abstractmethod
    def required_columns(self) -> Sequence[str]:
        """Columns of the incoming stream that this committer names (for validation)."""

    @abstractmethod
    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """The DataFrame to stage for a batch's rows: the rows, or partial aggregates.

        Args:
            batch: the rows of one batch.
            count_as: name of an extra bigint column with the number of rows of the batch that each
                partial stands for (`verify="rows"`); the pipeline drops it before `stage`.
        """

    @abstractmethod
    def open(
        self, spark: SparkSession, context: CommitterContext, schema: StructType | None
    ) -> None:
        """Create the table, or check that the existing one fits this topology. Writes no data.

        Args:
            schema: schema of the DataFrames that `partials` returns. None while it is not known:
                then open an existing table, and leave a missing one for the next call.

        Raises:
            TableRefusedError: other columns, another topology's table, or unknown Delta features.
        """

    @abstractmethod
    def fence(self) -> None:
        """Append an empty version with this run's epoch, so that appends of older leaders fail.

        Raises:
            FencedError: the table already holds a newer epoch.
        """

    @abstractmethod
    def last_publication(self) -> tuple[int, Publication] | None:
        """(table version, publication) of the newest publication in the log, or None."""

    @abstractmethod
    def stage(self, partials: DataFrame, attempt: TransactionAttempt) -> Staged:
        """Run the job that writes `partials` (of `self.partials`) where no reader sees it."""

    @abstractmethod
    def prepare(self, staged: Staged, publication: Publication) -> Prepared:
        """Compute the next version's files, applying the guard of `semantics`. May run Spark.

        Group commit: `staged.members` and `publication.members` name every txid of the group. They
        become one version: an opaque replay reverts it as a whole, a transactional replay skips
        it txid by txid.

        `publication.first_txid` is committed + 1: all rows of the table from there on come from an
        attempt that never finished.

        Raises:
            StagedFileError: a staged file is gone or changed.
            FencedError: the table holds a newer epoch.
        """

    @abstractmethod
    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Append the prepared version, if it is still the next one; read it back.

        Raises:
            StagedFileError: a file to be added is gone or changed.
            CommitConflictError: another writer changed rows meanwhile.
            FencedError: the log has a newer epoch.
        """

    @abstractmethod
    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete the staged files of a dead attempt. Best effort; never touches published files."""

    def close(self) -> None:
        """Release resources at the end of the run."""


class State(ABC):
    """The argument of `persistent_aggregate`: a place that can hold running values by key."""

    path: str
    """The path of its table; equal to the `name` of the committers that it binds."""

    @abstractmethod
    def bind(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        *,
        expiry: Expiry | None = None,
    ) -> Committer:
        """The committer that keeps `aggregates` (value column -> aggregate) per `keys`.

        Args:
            keys: grouping columns; empty for one global row.
            expiry: when keys end; None: never. A state without this argument has no such rule.

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
            TableAbsentError: the table does not exist (yet).
            TableRefusedError: the version does not exist.
        """

    def newest(
        self, spark: SparkSession, aggregates: Mapping[str, Aggregate] | None = None
    ) -> StoredRows:
        """Keys and values as of the newest version, for a topology that does not keep this state.

        Raises:
            TableRefusedError: the table does not exist.
        """
        return StoredRows(self.snapshot(spark, None, aggregates))
