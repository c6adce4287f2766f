"""Every error that the project raises on purpose, in one tree below `TxnError`.

A message is one paragraph: what was wrong, where, what to do. Each kind of error has a number, and
txn/errors.md an entry for it: one cause, one remedy.
"""

from __future__ import annotations

import sys

__all__ = [
    "AbandonedError",
    "BatchError",
    "BatchTimeoutError",
    "ColumnsUnknownError",
    "CommitConflictError",
    "FailedException",
    "FencedError",
    "LeaderExistsError",
    "NewerFormatError",
    "ProgressUnavailableError",
    "ProgressUnreadableError",
    "RecoveryRefusedError",
    "RuleViolatedError",
    "SetupError",
    "SourceChangedError",
    "SourceUnavailableError",
    "StagedFileError",
    "StateError",
    "StorageRefusedError",
    "StorageUnavailableError",
    "TableAbsentError",
    "TableChangedError",
    "TableRefusedError",
    "TopologyError",
    "TransformError",
    "TxnError",
    "UserError",
]


class TxnError(Exception):
    """Base of every error raised on purpose by `txn`, `spouts` and `committers`.

    Args:
        args: the message.
        number: the number of its kind in txn/errors.md; None: the number of the class.
    """

    number: str = "TXN-900"
    """The number of its kind: `txn explain NUMBER` prints cause and remedy."""

    def __init__(self, *args: object, number: str | None = None) -> None:
        super().__init__(*args)
        if number is not None:
            self.number = number
        if sys.version_info >= (3, 11):
            # Tracebacks print the note below the message, which stays unchanged.
            self.add_note(f"{self.number} (`txn explain {self.number}` has cause and remedy)")


class FailedException(TxnError):  # noqa: N818 - Storm's own name
    """Raised by user code, a spout or a committer to fail the current batch: it is replayed.

    Source: `backtype.storm.topology.FailedException`. Any other exception stops the topology.
    """

    number = "TXN-501"


class BatchTimeoutError(FailedException):
    """The acker did not see the batch complete within `message_timeout_secs`."""

    number = "TXN-503"


class SourceUnavailableError(FailedException):
    """A planned source partition cannot be read for now: the batch waits for it.

    Unlike other failures it does not count towards `max_batch_attempts`: a replay cannot help
    until the source is back. Source: Storm's transactional partitioned spouts,
    whose replay blocks until the partition is back (Transactional-topologies.md).
    """

    number = "TXN-401"


class ColumnsUnknownError(SourceUnavailableError):
    """The batch needs the unknown columns of an idle stream or of a queried table.

    The batch waits until they are known; a run with `until=` waits for at most
    `message_timeout_secs`.

    Args:
        streams: the names of those streams.
    """

    number = "TXN-414"

    def __init__(self, message: str, streams: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.streams = streams


class StorageUnavailableError(SourceUnavailableError):
    """Storage of a source or a table did not answer for a while: the batch waits for it."""

    number = "TXN-700"


class StagedFileError(FailedException):
    """A staged file vanished or changed its size between its staging job and its publication."""

    number = "TXN-313"


class CommitConflictError(FailedException):
    """Another writer changed the table just before this publication."""

    number = "TXN-312"


class UserError(TxnError):
    """The program or the machine needs a correction; nothing ran, nothing is half-written."""

    number = "TXN-100"


class TopologyError(UserError):
    """The topology is wrong: an unknown column, a duplicate name, a spout too weak for a table."""

    number = "TXN-100"


class TransformError(TopologyError):
    """A transform raised an error of its own, which is the cause; names stream, file and line.

    In a batch it becomes a `BatchError` with the same cause, which names the batch too.
    """

    number = "TXN-504"


class TableRefusedError(UserError):
    """A table is not this topology's, has other columns, or has features we cannot honour."""

    number = "TXN-300"


class TableAbsentError(TableRefusedError):
    """The table to be read does not exist, or not yet."""

    number = "TXN-306"


class SetupError(UserError):
    """The machine is not ready: no Java, a port or folder in use, no network for the jars."""

    number = "TXN-200"


class BatchError(TxnError):
    """A batch failed for good; the topology stops and can be resumed. Names txid and attempt."""

    number = "TXN-500"


class SourceChangedError(BatchError):
    """A transactional source no longer holds the planned records: a replay would differ."""

    number = "TXN-402"

    LET_GO = (
        "If that cannot be, set on_exhausted='quarantine' and start the topology again: the batch "
        "is set aside, the others go on, and `txn quarantine drop` gives it up."
    )
    """The end of the message of a spout whose planned batch cannot be read any more."""


class RuleViolatedError(BatchError):
    """Rows of a batch break a rule of `Stream.expect` with `on_violation="fail"`."""

    number = "TXN-515"


class StateError(TxnError):
    """Durable state is broken or contradictory, and must not be guessed."""

    number = "TXN-800"


class ProgressUnreadableError(StateError):
    """A znode, or a file of exported progress, is corrupt or of an unknown format version."""

    number = "TXN-801"


class NewerFormatError(ProgressUnreadableError):
    """A newer release wrote this state: nothing may replace it."""

    number = "TXN-802"


class TableChangedError(StateError):
    """Another writer changed a table's rows, or put another table in its place."""

    number = "TXN-307"


class RecoveryRefusedError(StateError):
    """The tables are ahead of ZooKeeper; `txn recover` rebuilds ZooKeeper's state."""

    number = "TXN-803"


class AbandonedError(TxnError):
    """Some threads of a run never returned; the message names them, and the process must end.

    The run gave up its leadership, and nothing that these threads still do is published.
    """

    number = "TXN-513"

    exit_code = 4
    """Exit code of a `txn run` that ends with this error."""


class FencedError(TxnError):
    """A newer leader has taken this topology; this process writes nothing more."""

    number = "TXN-606"


class LeaderExistsError(TxnError):
    """Another live process leads this topology; the message names it."""

    number = "TXN-605"


class StorageRefusedError(TxnError):
    """Storage refuses access: a missing permission, a wrong credential, no such bucket."""

    number = "TXN-701"


class ProgressUnavailableError(TxnError):
    """ZooKeeper did not answer within the deadline."""

    number = "TXN-600"
