"""Every error that the project raises on purpose, in one tree.

    TxnError
    ├── FailedException             this batch failed: it is replayed (Storm's own name)
    │   ├── BatchTimeoutError       the acker saw no end of it within the message timeout
    │   ├── SourceUnavailableError  a source cannot be read now: the batch waits, uncounted
    │   │   ├── ColumnsUnknownError nobody knows a stream's columns yet: the batch waits
    │   │   └── StorageUnavailableError  nor can storage, of a source or a table
    │   ├── StagedFileError         a staged file is gone or changed before its publication
    │   └── CommitConflictError     another writer's change stands where it would publish
    ├── UserError                   the program is wrong; nothing has run or is half-written
    │   ├── TopologyError           columns, names, pairs (checked before the first batch)
    │   ├── TableRefusedError       a table not ours, or that the publisher cannot honour
    │   │   └── TableAbsentError    there is no table (yet) where one is to be read
    │   └── SetupError              Java, a port, a folder in use: the machine is not ready
    ├── BatchError                  a batch failed for good: the topology stops, resumable
    │   └── SourceChangedError      a transactional source no longer holds what was planned
    ├── StateError                  durable state that must not be guessed about
    │   ├── ProgressUnreadableError a znode is corrupt, or of an unknown format
    │   │   └── NewerFormatError    it was written by a newer release
    │   ├── RecoveryRefusedError    tables and ZooKeeper tell different stories
    │   └── TableChangedError       somebody else changed a table's rows, or replaced it
    ├── AbandonedError              a thread of a run did not come back: this process must end
    ├── FencedError                 a newer leader exists; this process must write no more
    ├── LeaderExistsError           another live process leads this topology
    ├── StorageRefusedError         storage forbids what has to be done, or knows no such place
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

    Unlike other failures it is not counted: `max_batch_attempts` does not apply, since no replay
    can mend what only the source's return can. Source: Storm's transactional partitioned spouts,
    whose replay blocks until the partition is back (Transactional-topologies.md).
    """


class ColumnsUnknownError(SourceUnavailableError):
    """The columns of an idle stream, or of a table that is queried, are not known and matter.

    The batch waits until they are. A run that is to end (`until`) does not wait for longer than
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
    """Another writer changed the table where this publication would have landed."""


class UserError(TxnError):
    """The program or the machine needs a correction; nothing ran, nothing is half-written."""


class TopologyError(UserError):
    """The topology cannot mean what it says: unknown column, duplicate name, weak pairing."""


class TableRefusedError(UserError):
    """A table is not this topology's, has other columns, or features that cannot be honoured."""


class TableAbsentError(TableRefusedError):
    """There is no table, or not yet, where one is to be read."""


class SetupError(UserError):
    """The machine is not ready: no Java, a port or folder in use, no network for the jars."""


class BatchError(TxnError):
    """A batch failed for good; the topology stops and can be resumed. Names txid and attempt."""


class SourceChangedError(BatchError):
    """A transactional source no longer holds what was planned: a replay would differ."""


class StateError(TxnError):
    """Durable state about which nothing may be guessed."""


class ProgressUnreadableError(StateError):
    """A znode, or a file of exported progress, is corrupt or of an unknown format version."""


class NewerFormatError(ProgressUnreadableError):
    """What cannot be read was written by a newer release: nothing may replace it."""


class TableChangedError(StateError):
    """Somebody else changed a table's rows, or put another table in its place."""


class RecoveryRefusedError(StateError):
    """The tables are further than ZooKeeper says; `txn recover` rebuilds ZooKeeper's state."""


class AbandonedError(TxnError):
    """A run ended without some of its threads, which are named; its process has to end.

    Leadership was given up, and nothing that those threads still do is published.
    """

    exit_code = 4
    """Of a `txn run` that ends with it."""


class FencedError(TxnError):
    """A newer leader has taken this topology; this process writes nothing more."""


class LeaderExistsError(TxnError):
    """Another live process leads this topology; the message says which."""


class StorageRefusedError(TxnError):
    """Storage refuses what is asked of it: a permission, a credential, a bucket."""


class ProgressUnavailableError(TxnError):
    """ZooKeeper did not answer within the deadline."""
