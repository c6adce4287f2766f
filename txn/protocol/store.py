"""`ProgressStore`: all that a run asks of the place where its progress is durable.

`txn.zookeeper.ZooKeeperProgress` keeps it in ZooKeeper, `txn.testing.MemoryProgress` in memory.
tests/protocol/test_store.py is the contract as a test, and runs over both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

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

__all__ = ["ProgressStore"]


class ProgressStore(Protocol):
    """One topology's durable state, as one process reads and writes it.

    A run calls `peek` any time, `lead` once, `load` after that, then the writes, and `close` in the
    end. Any thread may call anything. After `close` nothing may be called but `close`.

    Only the leader writes. Every write is atomic, is durable when the call returns, and is refused
    as soon as a newer leader exists, however late it arrives.

    Raises:
        FencedError: by all but `peek`, `lead` and `close`: a newer leader exists. For good.
        ProgressUnavailableError: by all but `close`: no answer in time. Whether a write is
            durable is unknown then, so the run must end and another one load.
        ProgressUnreadableError: by all that reads: what is stored is damaged, or not ours.
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
    ) -> int:
        """Become the only leader. Returns the new epoch, higher than any before.

        Args:
            wait: stand by until the present leader is gone, instead of being refused.
            on_waiting: called with the leader that is waited for; None: nobody knows who leads.
            stopped: whether to wait no longer.

        Raises:
            LeaderExistsError: another process leads, and `wait` is False.
            ProgressUnavailableError: also when the wait was stopped.
        """

    def assert_leading(self, seconds: float | None = None) -> None:
        """Return once it is certain that no newer leader exists. Called before each publication.

        Args:
            seconds: how long to try; None: as long as any other call.
        """

    def load(self) -> Progress:
        """Everything that is durable, for the leader to start from."""

    def incarnation(self) -> IncarnationRecord:
        """Which life of the topology this is; the first leader begins it."""

    def requested_replay(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """The oldest quarantined txid that a user wants back, but for those of `replaying`."""

    def requested_drop(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """The oldest quarantined txid that a user has given up, but for those of `replaying`."""

    def refuse_replay(self, txid: int, why: str) -> None:
        """Withdraw the request for the replay of a quarantined txid; its record says why."""

    def persist_columns(self, record: ColumnsRecord) -> None:
        """Keep the columns of a stream.

        Raises:
            BatchError: they cannot be stored.
        """

    def persist_program(self, record: ProgramRecord) -> None:
        """Keep what the run computes, in the place of what earlier runs did."""

    def persist_notices(self, record: NoticesRecord) -> None:
        """Keep what spouts have for the user, in the place of what was kept before.

        Raises:
            ValueError: the record has another epoch than this leader's.
        """

    def persist_start(self, record: BatchRecord) -> None:
        """Keep START of an attempt; it replaces that of an earlier one.

        Raises:
            BatchError: the metadata is not JSON, or too large. Nothing was written.
            ValueError: the record has another epoch than this leader's.
        """

    def drop_open(self) -> None:
        """Forget every START that is not committed. Only if no table holds any of them."""

    def persist_committed(
        self,
        record: CommittedRecord,
        quarantine: QuarantineRecord | None = None,
        replay_of: int | None = None,
    ) -> None:
        """Keep that everything up to a txid is in every table, and drop the batches up to it.

        Args:
            quarantine: kept in the same write, when the txid was committed empty.
            replay_of: the quarantined txid that this one replayed: its record goes.

        Raises:
            BatchError, ValueError: as `persist_start`.
        """

    def close(self) -> None:
        """Give up leadership, so that the next leader need not wait. Idempotent."""
