"""Which of Spark's errors fail a batch, and which stop the topology.

Storm has two classes: `FailedException` fails the batch, anything else kills the worker. Spark
adds a third: an executor, a shuffle block or a job of ours was lost, which says nothing about
the user's code. Those are replayed like a FailedException.
"""

from __future__ import annotations

from txn.errors import BatchError, FailedException
from txn.events import Batch

__all__ = ["first_line", "is_lost_work", "stopped"]

LOST_WORK = (
    "ExecutorLostFailure",
    "ExecutorDeadException",
    "FetchFailed",
    "MetadataFetchFailed",
    "Lost executor",
    "executor loss",
    "Executor heartbeat timed out",
    "Remote RPC client disassociated",
    "BlockManagerId",
    "BLOCK_NOT_FOUND",
    "Checkpoint block",
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
    "Job aborted due to stage failure: Master removed our application",
    "was cancelled",
    "cancelled part of cancelled",
    "OPERATION_CANCELED",
    "Failed to get broadcast",
    "java.io.IOException: No space left",
    "org.apache.spark.shuffle",
    # Spark's Kafka source: brokers away, or records gone. The replay's look at the brokers tells.
    "org.apache.kafka.common.errors",
    "Cannot fetch record for offset",
    "KAFKA_DATA_LOSS",
    "Some data may have been lost because they are not available in Kafka",
)


def is_lost_work(error: BaseException) -> bool:
    """Whether `error` says that work was lost, not that it is wrong."""
    if isinstance(error, FailedException):
        return True
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
        return False
    text = str(error)
    return any(mark in text for mark in LOST_WORK)


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def stopped(topology: str, batch: Batch, error: BaseException) -> BatchError:
    """The error that ends a run for what no replay mends: names txid, attempt and metadata."""
    read = str(dict(batch.metadata or {}))
    result = BatchError(
        f"Batch {batch.attempt} of topology '{topology}' failed in user code or in Spark, in phase "
        f"{batch.phase.value}: {first_line(error)} It read {read[:300]}. Progress is intact: "
        "correct the cause and run again; the batch is replayed."
    )
    result.__cause__ = error
    return result
