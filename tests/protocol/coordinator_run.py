"""A coordinator that is told facts by the tests of `txn.protocol.coordinator`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.protocol.coordinator import recovered_state, start, step
from txn.protocol.events import (
    Action,
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Event,
    GroupFailed,
    PlanDue,
    PlanMade,
    RetryDue,
    SchedulePlan,
)
from txn.protocol.records import BatchRecord, CommittedRecord

TRANSACTIONAL = {"t": False}
OPAQUE = {"o": True}
MIXED = {"t": False, "o": True}


def a(name: str) -> TransactionAttempt:
    """The attempt that prints as `name`."""
    txid, attempt_id = name.split(":")
    return TransactionAttempt(int(txid), int(attempt_id))


class Run:
    """A coordinator that is told facts; each call returns the orders."""

    def __init__(
        self,
        streams: Mapping[str, bool] = TRANSACTIONAL,
        *,
        committed: CommittedRecord | None = None,
        batches: tuple[BatchRecord, ...] = (),
        until: Any = "forever",
        published: tuple[int, ...] = (),
        grouped: bool = True,
        max_group_commit: int = 1,
        max_spout_pending: int = 3,
        **settings: Any,
    ) -> None:
        self.streams = tuple(streams)
        self.opaque = frozenset(name for name, opaque in streams.items() if opaque)
        self.state = recovered_state(
            committed or CommittedRecord(),
            batches,
            streams=self.streams,
            opaque_streams=self.opaque,
            config=TopologyConfig(
                max_group_commit=max_group_commit, max_spout_pending=max_spout_pending, **settings
            ),
            until=until,
            published=published,
            grouped=grouped,
        )

    def start(self) -> tuple[Action, ...]:
        """Begin the run."""
        self.state, actions = start(self.state)
        return actions

    def tell(self, event: Event) -> tuple[Action, ...]:
        """One fact."""
        self.state, actions = step(self.state, event)
        return actions

    def plan(self, name: str, **metadata: Any) -> tuple[Action, ...]:
        """Answer a question; the interval is over at once."""
        actions = self.answer(name, **metadata)
        if SchedulePlan(idle=False) in actions:
            actions += self.tell(PlanDue())
        return actions

    def answer(self, name: str, **metadata: Any) -> tuple[Action, ...]:
        """Answer a question, and no more."""
        return self.tell(PlanMade(a(name), metadata))

    def processed(self, name: str) -> tuple[Action, ...]:
        """The processing phase is acked."""
        return self.tell(BatchProcessed(a(name)))

    def published(self, *names: str) -> tuple[Action, ...]:
        """The commit turn ended well; the table's version is the (last) txid."""
        *earlier, last = (a(name) for name in names)
        return self.tell(BatchPublished(last, {"table": last.txid}, tuple(earlier)))

    def group_failed(self, *names: str, published: bool = False) -> tuple[Action, ...]:
        """The commit turn of a group failed."""
        attempts = tuple(a(name) for name in names)
        return self.tell(GroupFailed(attempts, "disk on fire", published))

    def failed(self, name: str) -> tuple[Action, ...]:
        """The attempt failed."""
        return self.tell(BatchFailed(a(name), "disk on fire"))

    def retry_due(self, name: str) -> tuple[Action, ...]:
        """The back-off before this attempt is over."""
        return self.tell(RetryDue(a(name)))

    def phases(self) -> dict[str, str]:
        """Attempt -> phase of every open batch."""
        return {str(b.attempt): b.phase.value for _, b in sorted(self.state.batches.items())}


def three(streams: Mapping[str, bool] = TRANSACTIONAL, **settings: Any) -> Run:
    """A run with txids 1, 2, 3 in processing, each reading the position of its number."""
    run = Run(streams, **settings)
    run.start()
    for txid in (1, 2, 3):
        run.plan(f"{txid}:0", **dict.fromkeys(streams, txid))
    return run


def record(txid: int, attempt: int = 0, quarantined: str | None = None, **spouts: Any) -> Any:
    """An open batch as ZooKeeper has it."""
    return BatchRecord(txid=txid, attempt=attempt, epoch=1, spouts=spouts, quarantined=quarantined)


def unchanged(run: Run, event: Event) -> bool:
    """Whether the event leaves the very same state and orders nothing."""
    state, actions = step(run.state, event)
    return state is run.state and actions == ()
