"""`ProgressStore`: the interface of the store in which a run's progress is durable.

`txn.zookeeper.ZooKeeperProgress` stores it in ZooKeeper, `txn.testing.MemoryProgress` in memory.
tests/protocol/test_store.py tests the contract over both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from txn.errors import TopologyError
from txn.protocol.records import (
    BatchRecord,
    ColumnsRecord,
    CommittedRecord,
    IncarnationRecord,
    LeaderIdentity,
    NoticesRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
)

__all__ = ["ProgressStore", "check_topology_name"]

_LONGEST_NAME = 200
# ZooKeeper refuses these in paths; with "/" the path would leave the topology's own node.
_FORBIDDEN = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class ProgressStore(Protocol):
    """One topology's durable state, as one process reads and writes it.

    A run calls `peek` at any time, `lead` once, then `load`, then the writes, and `close` at the
    end. Every method may be called in any thread. After `close`, only `close` may be called.

    Only the leader writes. Every write is atomic, is durable when the call returns, and is refused
    as soon as a newer leader exists, however late it arrives.

    Raises:
        FencedError: by all but `peek`, `lead` and `close`: a newer leader exists. Final.
        ProgressUnavailableError: by all but `close`: no answer in time. A write may or may not be
            durable then, so the run must end and another one load.
        ProgressUnreadableError: by all that reads: the stored data is damaged or foreign.
    """

    on_lost: Callable[[], None] | None
    """Called when the leadership may be lost. Publish nothing until `assert_leading` returns."""

    @property
    def epoch(self) -> int:
        """The epoch that `lead` returned.

        Raises:
            RuntimeError: `lead` was not called.
        """

    def peek(self) -> Progress:
        """Read the durable state without leading; empty for an unknown topology."""

    def lead(
        self,
        *,
        wait: bool = False,
        on_waiting: Callable[[LeaderIdentity | None], None] | None = None,
        stopped: Callable[[], bool] = ...,
        program: str = "",
    ) -> int:
        """Become the only leader. Returns the new epoch, higher than any before.

        Args:
            wait: stand by until the present leader is gone, instead of raising.
            on_waiting: called with the present leader; None: the leader is unknown.
            stopped: returns True to end the wait.
            program: the id of this process's program, shown while it waits.

        Raises:
            LeaderExistsError: another process leads, and `wait` is False.
            ProgressUnavailableError: also when the wait was stopped.
        """

    def assert_leading(self, seconds: float | None = None) -> None:
        """Return once it is certain that no newer leader exists. Called before each publication.

        Args:
            seconds: the longest time to try; None: as long as any other call.
        """

    def load(self) -> Progress:
        """Return the whole durable state, from which the leader starts."""

    def incarnation(self) -> IncarnationRecord:
        """Return the id of this life of the topology; the first leader creates it."""

    def requested_replay(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """Return the oldest quarantined txid that a user wants replayed, except `replaying`."""

    def requested_drop(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """Return the oldest quarantined txid that a user has dropped, except `replaying`."""

    def refuse_replay(self, txid: int, why: str) -> None:
        """Withdraw the request to replay a quarantined txid; write the reason into its record."""

    def persist_columns(self, record: ColumnsRecord) -> None:
        """Store the columns of a stream.

        Raises:
            BatchError: they cannot be stored.
        """

    def persist_program(self, record: ProgramRecord) -> None:
        """Store what the run computes; replaces the record of earlier runs."""

    def persist_notices(self, record: NoticesRecord) -> None:
        """Store the spouts' notices; replaces the earlier record.

        Raises:
            ValueError: the record has another epoch than this leader's.
        """

    def persist_start(self, record: BatchRecord) -> None:
        """Store the START of an attempt; replaces that of an earlier attempt.

        Raises:
            BatchError: the metadata is not JSON, or too large. Nothing was written.
            ValueError: the record has another epoch than this leader's.
        """

    def drop_open(self) -> None:
        """Delete every START that is not committed. Call only if no table holds any of them."""

    def persist_committed(
        self,
        record: CommittedRecord,
        quarantine: QuarantineRecord | None = None,
        replay_of: int | None = None,
    ) -> None:
        """Store that every table holds everything up to a txid; delete the batches up to it.

        Args:
            quarantine: stored in the same write, if the txid was committed empty.
            replay_of: the quarantined txid that this one replayed; its record is deleted.

        Raises:
            BatchError, ValueError: as `persist_start`.
        """

    def rebuild(
        self,
        record: CommittedRecord,
        *,
        at_least: int,
        takes_over: Iterable[int] = (),
        forget: bool = False,
    ) -> int:
        """Lead, and replace `committed` and all batches by `record`: `txn recover`, `txn import`.

        Works with missing and unreadable data too; deletes unreadable quarantine records and all
        requests to drop. The topology begins a new incarnation. Call `load` afterwards.

        Args:
            record: the state in the tables; its `epoch` is replaced by the one taken here.
            at_least: the smallest epoch to take: the tables' newest epoch + 1.
            takes_over: the incarnations that led the tables, besides the present one.
            forget: delete all of the present incarnation except its epoch: quarantine, requests,
                columns, program, notices and replays of rows.

        Returns:
            The new epoch.

        Raises:
            NewerFormatError: a newer release wrote the data; nothing is replaced.
            LeaderExistsError, ProgressUnreadableError, ProgressUnavailableError: as `lead`.
        """

    def close(self) -> None:
        """Give up leadership, so that the next leader need not wait. Idempotent."""


def check_topology_name(name: str) -> str:
    """Return `name`, if it can be one ZooKeeper path component.

    Raises:
        TopologyError: it is empty, too long, "." or "..", or has a forbidden character.
    """
    if not name or len(name) > _LONGEST_NAME or name in (".", "..") or _FORBIDDEN.search(name):
        raise TopologyError(
            f"A topology cannot be called {name!r}: the name becomes one component of a ZooKeeper "
            f"path. Use 1 to {_LONGEST_NAME} characters without '/', control characters or "
            "private-use characters, and not '.' or '..'.",
            number="TXN-104",
        )
    return name
