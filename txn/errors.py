"""Every error that the project raises on purpose, in one tree.

    TxnError
    ├── FailedException             this batch failed: it is replayed (Storm's own name)
    │   ├── BatchTimeoutError       the acker saw no end of it within the message timeout
    │   ├── SourceUnavailableError  a source cannot be read now: the batch waits, uncounted
    │   │   ├── ColumnsUnknownError a stream's columns are not known yet: the batch waits
    │   │   └── StorageUnavailableError  storage of a source or table does not answer: it waits
    │   ├── StagedFileError         a staged file is gone or changed before its publication
    │   └── CommitConflictError     another writer changed the table just before it published
    ├── UserError                   the program is wrong; nothing has run or is half-written
    │   ├── TopologyError           columns, names, pairs (checked before the first batch)
    │   ├── TableRefusedError       a table is not ours, or has features we cannot honour
    │   │   └── TableAbsentError    the table to be read does not exist (yet)
    │   └── SetupError              Java, a port, a folder in use: the machine is not ready
    ├── BatchError                  a batch failed for good: the topology stops, resumable
    │   ├── SourceChangedError      a transactional source has lost or changed planned records
    │   └── RuleViolatedError       rows break a rule with on_violation="fail"
    ├── StateError                  durable state is broken or contradictory: never guess
    │   ├── ProgressUnreadableError a znode is corrupt, or of an unknown format
    │   │   └── NewerFormatError    it was written by a newer release
    │   ├── RecoveryRefusedError    tables and ZooKeeper contradict each other
    │   └── TableChangedError       another writer changed a table's rows, or replaced it
    ├── AbandonedError              a thread of a run never returned: this process must end
    ├── FencedError                 a newer leader exists; this process must write no more
    ├── LeaderExistsError           another live process leads this topology
    ├── StorageRefusedError         storage denies access, or the bucket does not exist
    └── ProgressUnavailableError    ZooKeeper could not be reached within the deadline

A message is one paragraph: what was wrong, where, what to do.
"""

from __future__ import annotations

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
    "TxnError",
    "UserError",
]


class TxnError(Exception):
    """Base of every error raised on purpose by `txn`, `spouts` and `committers`."""


class FailedException(TxnError):  # noqa: N818 - Storm's own name
    """Raised by user code, a spout or a committer to fail the current batch: it is replayed.

    Source: `backtype.storm.topology.FailedException`. Any other exception stops the topology.
    """


class BatchTimeoutError(FailedException):
    """The acker did not see the batch complete within `message_timeout_secs`."""


class SourceUnavailableError(FailedException):
    """A planned source partition cannot be read for now: the batch waits for it.

    Unlike other failures it does not count towards `max_batch_attempts`: a replay cannot help
    until the source is back. Source: Storm's transactional partitioned spouts,
    whose replay blocks until the partition is back (Transactional-topologies.md).
    """


class ColumnsUnknownError(SourceUnavailableError):
    """The batch needs the columns of an idle stream, or of a queried table, and nobody knows them.

    The batch waits until they are known; a run with `until=` waits for at most
    `message_timeout_secs`.

    Args:
        streams: the names of those streams.
    """

    def __init__(self, message: str, streams: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.streams = streams


class StorageUnavailableError(SourceUnavailableError):
    """Storage of a source or a table did not answer for a while: the batch waits for it."""


class StagedFileError(FailedException):
    """A staged file vanished or changed its size between its staging job and its publication."""


class CommitConflictError(FailedException):
    """Another writer changed the table just before this publication."""


class UserError(TxnError):
    """The program or the machine needs a correction; nothing ran, nothing is half-written."""


class TopologyError(UserError):
    """The topology is wrong: an unknown column, a duplicate name, a spout too weak for a table."""


class TableRefusedError(UserError):
    """A table is not this topology's, has other columns, or has features we cannot honour."""


class TableAbsentError(TableRefusedError):
    """The table to be read does not exist, or not yet."""


class SetupError(UserError):
    """The machine is not ready: no Java, a port or folder in use, no network for the jars."""


class BatchError(TxnError):
    """A batch failed for good; the topology stops and can be resumed. Names txid and attempt."""


class SourceChangedError(BatchError):
    """A transactional source no longer holds the planned records: a replay would differ."""


class RuleViolatedError(BatchError):
    """Rows of a batch break a rule of `Stream.expect` with `on_violation="fail"`."""


class StateError(TxnError):
    """Durable state is broken or contradictory, and must not be guessed."""


class ProgressUnreadableError(StateError):
    """A znode, or a file of exported progress, is corrupt or of an unknown format version."""


class NewerFormatError(ProgressUnreadableError):
    """A newer release wrote this state: nothing may replace it."""


class TableChangedError(StateError):
    """Another writer changed a table's rows, or put another table in its place."""


class RecoveryRefusedError(StateError):
    """The tables are further than ZooKeeper says; `txn recover` rebuilds ZooKeeper's state."""


class AbandonedError(TxnError):
    """Some threads of a run never returned; the message names them, and the process must end.

    The run gave up its leadership, and nothing that these threads still do is published.
    """

    exit_code = 4
    """Exit code of a `txn run` that ends with this error."""


class FencedError(TxnError):
    """A newer leader has taken this topology; this process writes nothing more."""


class LeaderExistsError(TxnError):
    """Another live process leads this topology; the message names it."""


class StorageRefusedError(TxnError):
    """Storage refuses access: a missing permission, a wrong credential, no such bucket."""


class ProgressUnavailableError(TxnError):
    """ZooKeeper did not answer within the deadline."""
