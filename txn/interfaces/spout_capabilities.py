"""The optional capabilities of spouts. A spout that has the method has the capability.

The engine finds a capability by `isinstance`, which looks for the name in the object and its class,
and from Python 3.12 on ignores `__getattr__`. A subclass gives a capability up with `lag = None`.
All methods run in the driver. `metadata` is of the spout's own `metadata_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from txn.attempts import TransactionAttempt
from txn.interfaces.inlet import Inlet
from txn.interfaces.spout import Keeper, Lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "ChecksCommits",
    "ChecksReads",
    "ChecksReplays",
    "CountsBytes",
    "CountsRows",
    "ExplainsFailures",
    "FindsSchema",
    "NamesLocations",
    "ReportsLag",
    "ReportsNotices",
    "ReportsPlannedLag",
    "SizesBatches",
    "StartsHere",
    "TakesCorrections",
    "TellsBatchSize",
    "UsesKeeper",
]

# --- planning ------------------------------------------------------------------------------------


@runtime_checkable
class UsesKeeper(Protocol):
    """Receives the keeper, for bytes that positions should not carry: once per run, before `open`.

    Without it, what grows stays in the metadata.
    """

    def keep_with(self, keeper: Keeper) -> None: ...


@runtime_checkable
class FindsSchema(Protocol):
    """Returns the schema of `emit_batch`, if it has become known since `open`; else None.

    Called while nothing was emitted yet and another stream's batch waits for these columns; on
    any thread, again and again. Without it, that batch waits for the first batch of this stream.

    Raises:
        SourceUnavailableError: the source is away for now.
    """

    def find_schema(self, spark: SparkSession) -> StructType | None: ...


@runtime_checkable
class SizesBatches(Protocol):
    """Sets the size of the next new batches, within the user's caps.

    Called by the planner's thread before `initialize_transaction` of a new txid.

    Args:
        share: 0.0 (as small as allowed: caught up, latency counts) to 1.0 (the cap: behind,
            throughput counts).
    """

    def set_batch_target(self, share: float) -> None: ...


@runtime_checkable
class TellsBatchSize(Protocol):
    """Tells how large a txid of it is, for `txn plan`. Asked before `open`."""

    def batch_size_in_words(self) -> str: ...


@runtime_checkable
class StartsHere(Protocol):
    """Tells whether what it reads depends on the working directory, as a relative path does.

    The progress of its topology then lies in the working directory, too (`txn.config.home`).
    """

    def starts_here(self) -> bool: ...


@runtime_checkable
class ChecksReplays(Protocol):
    """Returns the part of a quarantined txid that can still be read, before it is replayed.

    Who and how often: the coordinator, on the thread of `initialize_transaction`, before the
    replay is durable. Check without reading a record. An error refuses the replay: the txid
    stays quarantined, with the error. Without this method, a replay that cannot be read fails
    its attempts first.

    Returns:
        `metadata`; for a spout that is not transactional, the part of it that is left.

    Raises:
        SourceChangedError: its records are gone.
        SourceUnavailableError: the source is away for now; asked again later.
    """

    def readable(self, attempt: TransactionAttempt, metadata: Any) -> Any: ...


# --- reading and committing ----------------------------------------------------------------------


@runtime_checkable
class ChecksReads(Protocol):
    """Checks, after jobs have read the records of `metadata`, that they were the planned ones.

    For a source that may change between `emit_batch` and the reading, which is lazy. Who and how
    often: once per attempt on the thread that has staged its rows, or on several threads for
    attempts that were staged together; again in the commit turn, if tables are staged there that
    read the stream. Nothing of the attempt is published yet, and later changes of the source no
    longer matter.

    Raises:
        FailedException: something else may have been read; the batch is replayed.
    """

    def check_read(self, attempt: TransactionAttempt, metadata: Any) -> None: ...


@runtime_checkable
class ExplainsFailures(Protocol):
    """Finds out whether the source made a Spark job fail that reads `metadata`.

    Who and how often: the processing phase, once for an attempt that failed in Spark while
    nothing was away or lost. Nothing of the attempt is published.

    Raises:
        FailedException: the next attempt reads it in another way.
        BatchError: the part that cannot be read, and the way out; replaces Spark's error.
    """

    def read_failed(self, attempt: TransactionAttempt, metadata: Any) -> None: ...


@runtime_checkable
class ChecksCommits(Protocol):
    """Takes note that the commit turn of an attempt begins; nothing of it is published yet.

    Who and how often: the commit turn, strictly in txid order, once per turn of the attempt,
    alone or in a group. An attempt whose group failed gets another turn.
    Source: `ICommitterTridentSpout.Emitter.commit`.

    Raises:
        FailedException: the attempt must not be committed; the batch is replayed.
    """

    def commit(self, attempt: TransactionAttempt, metadata: Any) -> None: ...


# --- facts for users: after an error, which is logged once, the fact is not known ----------------


@runtime_checkable
class CountsRows(Protocol):
    """Returns the number of rows in the batch of `metadata`; None: not known. Reports show it.

    `verify="rows"` compares it with the rows that Spark reads, so it is exact or None. Called
    on several threads while batches wait for it, so answer from `metadata` alone. An answer for a
    report that takes more than a second means None.
    """

    def planned_rows(self, metadata: Any) -> int | None: ...


@runtime_checkable
class CountsBytes(Protocol):
    """Returns the number of bytes that the batch has in the source; called as `planned_rows`."""

    def planned_bytes(self, metadata: Any) -> int | None: ...


@runtime_checkable
class ReportsLag(Protocol):
    """Returns the amount that the source had beyond `newest` when that was planned.

    Who and how often: a thread for it, after each answer of `initialize_transaction` for a new
    txid. Planning waits for it, but no longer than a second, so answer from the facts that this
    call has collected. The live view shows it; and while all sources lag by zeros, the next
    txid is planned when no batch is being processed, with all records that have come by then.
    A late answer is logged once, and the spout is asked again a minute later at the earliest.

    Args:
        newest: the newest metadata of any txid, or None.

    Returns:
        None if it is not known. A source with nothing to read lags by zeros.
    """

    def lag(self, newest: Any | None) -> Lag | None: ...


@runtime_checkable
class ReportsPlannedLag(Protocol):
    """Returns the amount that the batch of `metadata` took from `lag`, in the units of `lag`.

    Users see as lag the sum of `lag` and this amount of each txid that is not committed. Called as
    `planned_rows`. Without it, a batch took its `planned_rows` and `planned_bytes`.
    """

    def planned_lag(self, metadata: Any) -> Lag: ...


@runtime_checkable
class ReportsNotices(Protocol):
    """Returns messages for the user about the source now, such as that it has nothing to read.

    One line each, naming the source and the way out; empty if no message is due. `txn status`
    shows the newest ones. Called as `lag`. Each change of them is one write to ZooKeeper, so leave
    out details that change each time.
    """

    def notices(self) -> Sequence[str]: ...


@runtime_checkable
class NamesLocations(Protocol):
    """Returns the places that it reads, as URIs or local paths without a secret; for lineage.

    A topic is `kafka://HOST:PORT/TOPIC`. Empty if it has none to name. Called once per run, at
    its begin; the run waits a second at most.
    """

    def locations(self) -> Sequence[str]: ...


@runtime_checkable
class TakesCorrections(Protocol):
    """Returns the entry for corrected records, which `txn rows replay` asks for; None: no entry."""

    def inlet(self) -> Inlet | None: ...
