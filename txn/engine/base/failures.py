"""Sort Spark's errors: those that fail a batch, make it wait, or stop the topology.

Storm has two classes: `FailedException` fails the batch, anything else kills the worker. Spark
adds two: an executor, a shuffle block or a job of txn was lost, and storage that did not answer
for a moment. Neither is the fault of the user's code. The first is replayed like a
FailedException, the second waits like a batch whose source is away. An error of a task itself,
from a record that cannot be parsed or a user's function, stops the topology in every plan alike.

The types and conditions of the exceptions in the chain of causes decide. The text of an error
matters in three places: if Spark describes a lost task by a line only, if Java describes a fault by
the operating system's own words only, and for the path of a missing file, which shows whether it
was a job's own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from enum import Enum

from txn.errors import (
    BatchError,
    BatchTimeoutError,
    CommitConflictError,
    FailedException,
    SourceUnavailableError,
    StagedFileError,
    TransformError,
    TxnError,
)
from txn.observers import FailureCause
from txn.spark.causes import Cause, causes, is_of_spark

__all__ = [
    "Blame",
    "cause_of",
    "is_away",
    "is_lost_work",
    "is_of_batch",
    "is_refused",
    "judged",
]

LOST_CONDITIONS = (
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "INTERNAL_ERROR_BROADCAST",
    "INTERNAL_ERROR_EXECUTOR",
    "INTERNAL_ERROR_SHUFFLE",
    "KAFKA_DATA_LOSS",
    "OPERATION_CANCELED",
    "SPARK_JOB_CANCELLED",
    "UNABLE_TO_ACQUIRE_MEMORY",
)
LOST_TYPES = (
    "java.nio.channels.ClosedByInterruptException",
    "java.util.concurrent.CancellationException",
    "org.apache.spark.ExecutorDeadException",
    "org.apache.spark.TaskKilledException",
    "org.apache.spark.executor.CommitDeniedException",
    "org.apache.spark.shuffle.FetchFailedException",
    "org.apache.spark.storage.BlockNotFoundException",
    "org.apache.spark.storage.BlockSavedOnDecommissionedBlockManagerException",
)
LOST_PACKAGES = ("org.apache.kafka.common.errors.",)
"""Brokers are away, or records are gone; the replay asks the brokers which."""
_LOST_MESSAGES = re.compile(
    r"Failed to get broadcast_\d+|Cannot fetch (record for offset|offset|records in) "
    r"|Some data may have been lost because they are not available in Kafka"
    r"|Could not compute split, block \S+ of RDD \d+ not found"
)
"""Spark's words for lost blocks, and its Kafka source's for lost records, in Java's own exceptions;
matched at the beginning of a message, which never has the text of a record."""

_TASK_REASON = re.compile(
    r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\)(?: \([^)]*\))?: (.*)"
)
_LOST_REASONS = re.compile(
    r"(ExecutorLostFailure|FetchFailed|TaskKilled|TaskResultLost|TaskCommitDenied|Resubmitted"
    r"|UnknownReason|org\.apache\.spark\.shuffle\.\w*FetchFailedException)\b"
)
_UNDER_WAY = "/_temporary/"
"""In the path of every file that a job has not committed yet: it is txn's, even if deleted."""
_ABORTED = "Job aborted due to stage failure: "
_LOST_STAGES = re.compile(
    r"(Master removed our application"
    r"|\w+Stage \d+ .*has failed the maximum allowable number of times"
    r"|Aborting TaskSet \S+ because task \d+ .*cannot run anywhere"
    r"|Authorized committer )"
)

AWAY_TYPES = (
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "java.net.http.HttpTimeoutException",
    "javax.net.ssl.SSLException",
    "org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException",
    "org.apache.hadoop.fs.s3a.AWSClientIOException",
    "org.apache.hadoop.fs.s3a.AWSNoResponseException",
    "org.apache.hadoop.fs.s3a.AWSServiceThrottledException",
    "org.apache.hadoop.fs.s3a.AWSStatus500Exception",
    "org.apache.hadoop.hdfs.BlockMissingException",
    "org.apache.hadoop.ipc.RetriableException",
    "org.apache.hadoop.ipc.StandbyException",
    "software.amazon.awssdk.core.exception.RetryableException",
)
"""Storage, or the way to it, fails for a moment; subclasses included."""
REFUSED_TYPES = (
    "java.nio.file.AccessDeniedException",
    "javax.net.ssl.SSLHandshakeException",
    "javax.net.ssl.SSLPeerUnverifiedException",
    "org.apache.hadoop.fs.s3a.CredentialInitializationException",
    "org.apache.hadoop.fs.s3a.UnknownStoreException",
    "org.apache.hadoop.security.AccessControlException",
)
"""Access was refused: waiting does not help, also if other errors wrap these."""
_AWAY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_FAULTS = frozenset(
    os.strerror(number)
    for number in (
        errno.EAGAIN,
        errno.EBUSY,
        errno.EIO,
        errno.ELOOP,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.ESTALE,
        errno.ETIMEDOUT,
    )
)
"""Error numbers of a disk or a mount that fails for a moment."""
_IO = "java.io.IOException"
_FS = "org.apache.hadoop.fs.FSError"
_OUT_OF_MEMORY = "java.lang.VirtualMachineError"
_CAUSES: dict[type[TxnError], FailureCause] = {
    BatchTimeoutError: "timeout",
    StagedFileError: "staged_file",
    CommitConflictError: "conflict",
    FailedException: "failed",
}
_CLIENTS = ("deltalake", "kazoo", "pyarrow")
"""Modules whose errors, in this process, are those of storage or ZooKeeper."""


class Blame(Enum):
    """The verdict on a chain of causes."""

    LOST = "lost"
    """Work was lost: the batch is replayed, and the attempt counts."""
    AWAY = "away"
    """A source or storage cannot be reached for now: the batch waits, and nothing counts."""
    WRONG = "wrong"
    """The records, the user's code, or a permission: the topology stops."""


def judged(chain: Sequence[Cause]) -> Blame:
    """Return the verdict on a chain of causes. Lost work is replayed, whatever lies below it."""
    if any(map(_is_lost, chain)):
        return Blame.LOST
    if any(_is_a(cause, REFUSED_TYPES) for cause in chain):
        return Blame.WRONG
    return Blame.AWAY if any(map(_is_away, chain)) else Blame.WRONG


def is_lost_work(error: BaseException) -> bool:
    """Return whether a replay may help: work was lost, or storage is away."""
    return isinstance(error, FailedException) or judged(causes(error)) is not Blame.WRONG


def is_away(error: BaseException) -> bool:
    """Return whether `error` means that a source or storage cannot be reached now."""
    away = isinstance(error, SourceUnavailableError)
    return away or judged(causes(error)) is Blame.AWAY


def cause_of(error: BaseException) -> FailureCause:
    """The cause of an attempt's failure, as observers get it."""
    for kind, cause in _CAUSES.items():
        if isinstance(error, kind):
            return cause
    return "lost_work" if judged(causes(error)) is Blame.LOST else "error"


def is_of_batch(error: BaseException) -> bool:
    """Return whether the user's code or the records failed, so that other batches may pass.

    Lost records are such a failure. Errors of the program, of storage, of the machine and of
    clients would meet every batch.
    """
    if isinstance(error, TransformError):
        return True
    if isinstance(error, TxnError):
        return isinstance(error, BatchError)
    chain = causes(error)
    if not chain:
        module = type(error).__module__.split(".")[0]
        outside = isinstance(error, OSError | MemoryError) or module in _CLIENTS
        return isinstance(error, Exception) and not outside and not is_of_spark(error)
    if any(is_refused(cause) or _is_a(cause, (_OUT_OF_MEMORY,)) for cause in chain):
        return False
    # A file of the source that cannot be read to its end counts as a bad record.
    reads = any(cause.condition.startswith("FAILED_READ_FILE") for cause in chain)
    return reads or not any(_is_a(cause, (_IO, _FS)) for cause in chain)


def is_refused(cause: Cause) -> bool:
    """Return whether access was refused: neither waiting nor a replay helps."""
    return _is_a(cause, REFUSED_TYPES) or _has_error_number(cause, errno.EACCES)


def _is_lost(cause: Cause) -> bool:
    if cause.condition.startswith(LOST_CONDITIONS) or _is_a(cause, LOST_TYPES):
        return True
    if any(kind.startswith(LOST_PACKAGES) for kind in cause.types):
        return True
    if _is_a(cause, (_IO, _FS)) and _has_error_number(cause, errno.ENOSPC):
        return True
    if _is_a(cause, ("java.io.FileNotFoundException",)) and _UNDER_WAY in cause.message:
        return True
    return not cause.condition and bool(
        _LOST_MESSAGES.match(_strip_exceptions(cause.message)) or _is_lost_stage(cause.message)
    )


def _is_lost_stage(message: str) -> bool:
    """Return whether a stage was aborted because the outcome of a task is unknown."""
    if not message.startswith(_ABORTED):
        return False
    line = message.removeprefix(_ABORTED)
    if _LOST_STAGES.match(line):
        return True
    reason = _TASK_REASON.search(line.partition("\n")[0])
    return reason is not None and _LOST_REASONS.match(reason[1]) is not None


def _is_away(cause: Cause) -> bool:
    if _is_a(cause, AWAY_TYPES) or cause.status in _AWAY_STATUS:
        return True
    return _is_a(cause, (_IO,)) and any(fault in cause.message for fault in _FAULTS)


def _is_a(cause: Cause, types: tuple[str, ...]) -> bool:
    return any(kind in types for kind in cause.types)


def _has_error_number(cause: Cause, number: int) -> bool:
    return os.strerror(number) in cause.message


def _strip_exceptions(message: str) -> str:
    """A message without the names of exceptions in front of it."""
    return re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", message)
