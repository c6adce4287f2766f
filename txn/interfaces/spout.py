"""The contracts of sources: spouts, and the keeper that stores bytes for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from txn.attempts import TransactionAttempt
from txn.interfaces.publication import PartitionPositions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "NOT_PARSED",
    "UNREAD",
    "Keeper",
    "Lag",
    "PartitionedSpout",
    "Spout",
    "SpoutKind",
    "Unparsed",
    "undeclared",
]

M = TypeVar("M", bound=BaseModel)

NOT_PARSED = "record that does not parse"
"""Words of an error that a spout raises in a Spark job (`raise_error`) for such a record."""

UNREAD = "the file cannot be read: "
"""Prefix of the reason of a row that stands for a whole file, not for a record."""


class SpoutKind(str, Enum):
    """A spout's promise about replays. Source: Storm's three spout kinds, Trident-spouts.md.

    TRANSACTIONAL: the batch of a txid is the same on every replay.
    OPAQUE: a replay may differ, but every record is in exactly one *successful* txid.
    NON_TRANSACTIONAL: nothing is promised.
    """

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non_transactional"


class Keeper(ABC):
    """Stores bytes that are too large for a spout's position, which then only names them.

    They stay beside the topology's tables, unchanged for good, under the digest of their content.
    So every process that reaches the tables can read them, on any machine and without ZooKeeper.
    """

    @abstractmethod
    def keep(self, content: bytes) -> str | None:
        """Store these bytes; return their name once they are durable. Equal bytes, equal name.

        Returns None if they cannot be stored now, because no table exists yet or the storage does
        not answer. The spout then keeps them in its position and tries again later.
        """

    @abstractmethod
    def kept(self, name: str) -> bytes:
        """The bytes that were stored under a name.

        Raises:
            OSError, StorageUnavailableError, StorageRefusedError: no table that answers has them,
                and at least one does not answer.
            ProgressUnreadableError: no table has them.
        """


@dataclass(frozen=True)
class Unparsed:
    """The marks of a spout for records that do not parse, and their treatment.

    The DataFrames of `emit_batch` then have every such record, with two columns that streams hide.
    """

    on_violation: Literal["drop", "set_aside"]
    """The same as for a rule of `Stream.expect`: they are counted, and dropped or set aside."""
    text: str
    """Name of the column with the record's text in the source; NULL if it parses."""
    position: str
    """Name of the column with the position of every record, such as its file."""
    form: str
    """The format that the records should have, such as "csv"."""
    beside: int = 0
    """Number of the stream's last columns that are not read from the record's text."""
    reason: str | None = None
    """Name of a third such column, with the problem of a record; None: the engine names the columns
    without a value."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that streams hide."""
        return (self.text, self.position, *([self.reason] if self.reason else []))


@dataclass(frozen=True)
class Lag:
    """The amount of a source that is left to do, or a part of it. None: the spout does not know it.

    A spout reports the records beyond the newest plan. A run reports everything that is not
    committed (`RunStatus.lags`): these and the plans of the txids in flight.
    """

    records: int | None = None
    bytes: int | None = None
    """Bytes in the source's own form."""
    files: int | None = None
    versions: int | None = None
    """Versions of a table."""
    seconds: float | None = None
    """Seconds for which the next batch has been due."""
    partitions: Mapping[str, int] | None = None
    """Partition -> its records of `records`."""

    @property
    def numbers(self) -> dict[str, float]:
        """Unit ("records", "bytes", ...) -> amount of the whole source; only known amounts."""
        amounts = {unit: n for unit, n in vars(self).items() if unit != "partitions"}
        return {unit: n for unit, n in amounts.items() if n is not None}

    @property
    def is_nothing(self) -> bool:
        """True if the source certainly has nothing left."""
        return bool(self.numbers) and not any(self.numbers.values())


class Spout(ABC, Generic[M]):
    """A source of micro-batches. Inherit, set `kind` and `metadata_type`, implement two methods.

    What else a source can do, such as report its lag, is in `txn.interfaces.spout_capabilities`.
    Which process: every method runs in the driver; `emit_batch` returns a lazy DataFrame, so the
    reading itself happens on Spark's executors. Source: `ITridentSpout` (its coordinator's half is
    `initialize_transaction` and `success`, its emitter's half `emit_batch`).

    Threads: `initialize_transaction` and `success` are never called concurrently with each other;
    `emit_batch` may be called from several threads at once, for different attempts.
    """

    kind: SpoutKind
    metadata_type: type[M]
    packages: tuple[str, ...] = ()
    """Maven packages that reading needs in the Spark session (`delta_session(packages=)`)."""
    unparsed: Unparsed | None = None
    """Marks of the records that do not parse; None: such a record is an error."""
    begins_alike: bool = False
    """True if a first batch that is planned anew misses no record of the one planned before: the
    source keeps all its records, and always begins with the same ones."""

    def open(self, spark: SparkSession, previous: M | None) -> StructType | None:
        """Prepare for the run. Called once per run by the driver.

        Args:
            previous: metadata of the newest committed or started txid in which this spout had
                something to read; None on the very first run.

        Returns:
            The schema of the DataFrames of `emit_batch`, so that columns can be checked before
            anything runs. None if it is not known yet: then columns are checked with the first
            batch's DataFrame, before any job, and until then a batch of another stream that is
            joined with this one may have to wait. Known columns are stored for later runs.
        """
        return None

    @abstractmethod
    def initialize_transaction(self, attempt: TransactionAttempt, previous: M | None) -> M | None:
        """Choose the records of this txid's batch; describe them, do not read them.

        Who and how often: the coordinator; once per txid for a transactional spout, once per
        attempt for an opaque or non-transactional one. Already durable: everything up to
        `previous`. The result is durable in ZooKeeper *before* `emit_batch` is called. May
        repeat: after a crash before that, it is called again with the same `previous`.

        Args:
            previous: the newest metadata of a smaller txid (committed or in flight), or None.

        Returns:
            The metadata, or None if there is nothing to read now. For a txid that was already
            started, None makes an empty batch; otherwise the method is called again later.

        Raises:
            FailedException: the source cannot answer now; called again after a back-off.
        """

    @abstractmethod
    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: M
    ) -> DataFrame:
        """The records that `metadata` describes, as a lazy DataFrame.

        Who and how often: the processing phase, once per attempt, and once more if a Spark job
        that several attempts shared has failed; `metadata` is durable by then.
        A transactional spout returns the same rows for the same metadata on every attempt. Not
        promised: that the DataFrame is read, or read only once.

        Raises:
            FailedException: this attempt cannot be read; the batch is replayed.
            SourceUnavailableError: the source is away for now; the batch waits for it, and this
                counts no attempt.
            SourceChangedError: a transactional source no longer holds the planned records.
        """

    def planned_parts(self, metadata: M) -> Sequence[str]:
        """Names of the source partitions or files of a batch: one acker edge each."""
        return ["batch"]

    def parts_read(self, batch: DataFrame, metadata: M) -> Sequence[str]:
        """Names of the parts that `batch` really reads; compared with `planned_parts`."""
        return self.planned_parts(metadata)

    def success(self, txid: int) -> None:
        """Note that the txid is durable everywhere. Never early; a crash may skip this call."""

    def close(self) -> None:
        """Release resources at the end of the run. A crash may skip this call."""


class PartitionedSpout(Spout[PartitionPositions]):
    """A spout over named partitions, each with its own position. Inherit and implement three.

    Source: `IPartitionedTridentSpout` and `IOpaquePartitionedTridentSpout`; unlike Storm, all
    positions of a txid are decided by the coordinator and durable before anything is read.
    A position is JSON; `emit_partitions` gets the one that `plan_partition` returned.
    """

    metadata_type = PartitionPositions

    @abstractmethod
    def get_partitions(self) -> list[str]:
        """The partitions that exist now. Called at every planning; names are durable."""

    @abstractmethod
    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> Any | None:
        """The next position of one partition. None: nothing to read, and the last one stays.

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
        """`emit_partitions` over the planned positions."""
        return self.emit_partitions(spark, attempt, metadata.read)

    def planned_parts(self, metadata: PartitionPositions) -> Sequence[str]:
        """One edge per partition that has something to read."""
        return sorted(metadata.read)


def undeclared(spout: Spout[Any]) -> str | None:
    """Name what the class of a spout lacks, `kind` or `metadata_type`; None if it has both."""
    kind, model = getattr(spout, "kind", None), getattr(spout, "metadata_type", None)
    if not isinstance(kind, SpoutKind):
        wrong = f"kind must be a SpoutKind, which decides the guarantee, and is {kind!r}"
    elif not isinstance(model, type) or not issubclass(model, BaseModel):
        wrong = f"metadata_type must be a pydantic model, and is {model!r}"
    else:
        return None
    return f"{type(spout).__name__}.{wrong}"
