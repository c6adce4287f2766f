"""Which attempts are staged together, and what becomes of a group that fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txn.attempts import TransactionAttempt
from txn.engine.base.attempt import LiveAttempt, Staging
from txn.engine.base.killpoints import observe
from txn.engine.loop.processing_phases import JOB_SECS, ProcessingQueue
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.processing import Processing
from txn.errors import ColumnsUnknownError, FailedException
from txn.interfaces import Staged
from txn.protocol.ledgers import ProcessingLedger
from txn.testing import ManualClock


def live_of(txid: int) -> LiveAttempt:
    """An attempt that has not begun."""
    attempt = TransactionAttempt(txid)
    return LiveAttempt(attempt, {}, f"tag-{txid}", ProcessingLedger(lambda: 1, {}))


def txids(groups: Sequence[tuple[list[LiveAttempt], bool]]) -> list[list[int]]:
    """The txids of each group."""
    return [[live.attempt.txid for live in group] for group, _ in groups]


def test_attempts_that_wait_are_taken_together_oldest_first() -> None:
    """A free job takes what waits, by txid, and no more than a group may have."""
    queue = ProcessingQueue(jobs=1, group=3, slots=4, clock=ManualClock())
    for txid in (4, 2, 1, 3, 5):
        queue.add(live_of(txid))
    first = list(queue.take())
    assert txids(first) == [[1, 2, 3]]
    assert not list(queue.take()), "the only job is busy"
    queue.ended(first[0][0])
    assert txids(list(queue.take())) == [[4, 5]]


def test_each_batch_gets_one_task_while_there_are_enough_batches() -> None:
    """One batch for two slots may use both; two batches get one each, queued or at work."""
    queue = ProcessingQueue(jobs=2, group=1, slots=2, clock=ManualClock())
    queue.add(live_of(1))
    assert [crowded for _, crowded in queue.take()] == [False]
    queue.add(live_of(2))
    assert [crowded for _, crowded in queue.take()] == [True], "with the one at work there are two"


def test_dead_attempts_neither_wait_nor_hold_up_others() -> None:
    """A cancelled attempt is not taken, and one that hangs leaves its job to the living."""
    queue = ProcessingQueue(jobs=1, group=2, slots=2, clock=ManualClock())
    hanging, dropped, next_one = (live_of(txid) for txid in (1, 2, 3))
    queue.add(hanging)
    list(queue.take())
    queue.add(dropped)
    queue.add(next_one)
    assert not list(queue.take())
    hanging.cancelled.set()
    dropped.cancelled.set()
    assert txids(list(queue.take())) == [[3]]


def test_a_job_takes_as_many_as_it_can_do_in_a_few_seconds() -> None:
    """One a slot while nothing is known; then as the last group went, from one to the most."""
    clock = ManualClock()
    queue = ProcessingQueue(jobs=1, group=8, slots=2, clock=clock)
    for txid in range(1, 40):
        queue.add(live_of(txid))
    sizes = []
    for secs_each in (0.1, JOB_SECS / 4, JOB_SECS / 4, 2 * JOB_SECS, 0.1, 0.1):
        ((group, _),) = queue.take()
        sizes.append(len(group))
        clock.advance(secs_each * len(group))
        queue.ended(group)
    assert sizes == [2, 8, 4, 4, 1, 8]


def test_a_group_that_was_cancelled_says_nothing_of_the_next() -> None:
    """How long an attempt hung is no measure of what a txid takes."""
    clock = ManualClock()
    queue = ProcessingQueue(jobs=1, group=4, slots=4, clock=clock)
    for txid in range(1, 10):
        queue.add(live_of(txid))
    ((group, _),) = queue.take()
    clock.advance(100 * JOB_SECS)
    group[0].cancelled.set()
    queue.ended(group)
    assert [len(group) for group, _ in queue.take()] == [4]


class Station:
    """Stands in for tables and emissions: stages what it is asked to, or fails as told."""

    def __init__(
        self,
        *,
        poisoned: int | None = None,
        joint_fails: bool = False,
        waits: Sequence[int] = (),
    ) -> None:
        self.poisoned, self.joint_fails, self.waits = poisoned, joint_fails, waits
        self.early = (SimpleNamespace(name="t"),)
        self.late: tuple[Any, ...] = ()
        self.has_event_time = False
        self.jobs: list[list[int]] = []
        self.discarded: list[int] = []
        self.events: list[tuple[str, int]] = []
        self.errors: dict[int, BaseException] = {}
        self.spans: list[Any] = []

    def emit(self, attempt: TransactionAttempt, *_: Any, one_task: bool) -> Any:
        """An emission that knows its attempt."""
        if attempt.txid == self.poisoned:
            raise FailedException("poisoned")
        return SimpleNamespace(
            attempt=attempt,
            one_task=one_task,
            reading=nullcontext,
            evaluation=SimpleNamespace(),
            newest_times={},
        )

    def require_columns(self, emission: Any) -> None:
        """Some have to wait."""
        if emission.attempt.txid in self.waits:
            raise ColumnsUnknownError("nobody knows")

    def stage(self, _: Any, emissions: Sequence[Any]) -> list[Staging]:
        """One job."""
        self.jobs.append([emission.attempt.txid for emission in emissions])
        if self.joint_fails and len(emissions) > 1:
            raise OSError("lost")
        return [Staging(Staged(emission.attempt, ()), {}) for emission in emissions]

    def explain(self, _attempt: Any, _metadata: Any, error: BaseException) -> BaseException:
        """The spouts have nothing to say of an error."""
        return error

    def check_read(self, _: Any) -> None:
        """What was read is what was planned."""

    def release(self, attempt: TransactionAttempt) -> None:
        """Nothing is kept here."""

    def discard(self, attempt: TransactionAttempt) -> None:
        """Its files go."""
        self.discarded.append(attempt.txid)

    def tagged(self, *_: Any) -> AbstractContextManager[None]:
        """No tags here."""
        return nullcontext()

    def check_settings(self) -> None:
        """They are what they were."""

    def run(self, lives: Sequence[LiveAttempt]) -> None:
        """Run the phase of a group, and keep what is told."""
        stand_in = cast("Any", self)
        outcomes = Told(self.events, self.errors)
        told = Broadcast("t", lambda: 0.0)
        told.read_by(self.spans.append)
        processing = Processing(stand_in, stand_in, stand_in, stand_in, told)
        processing.run(lives, outcomes, one_task=False)


@dataclass
class Told:
    """The outcomes of a phase, as they came."""

    events: list[tuple[str, int]]
    errors: dict[int, BaseException]

    def staged(self, live: LiveAttempt, table: str, staging: Staging) -> None:
        """One table."""
        self.events.append(("staged", live.attempt.txid))

    def emitted(self, live: LiveAttempt, _: Any) -> None:
        """All of them."""
        self.events.append(("emitted", live.attempt.txid))

    def failed(self, live: LiveAttempt, error: BaseException) -> None:
        """None of them, it may be."""
        self.errors[live.attempt.txid] = error


def test_a_group_is_one_job() -> None:
    """Three attempts are staged by one job per table, and each is told of."""
    station = Station()
    station.run([live_of(txid) for txid in (1, 2, 3)])
    assert station.jobs == [[1, 2, 3]]
    assert station.events == [
        *(("staged", txid) for txid in (1, 2, 3)),
        *(("emitted", txid) for txid in (3, 2, 1)),
    ]
    assert not station.discarded


@pytest.mark.parametrize("poisoned", [1, 2, 3])
def test_who_fails_in_a_group_fails_alone(poisoned: int) -> None:
    """The attempt that cannot be read fails; the others of its group are staged one by one."""
    station = Station(poisoned=poisoned)
    station.run([live_of(txid) for txid in (1, 2, 3)])
    others = [txid for txid in (1, 2, 3) if txid != poisoned]
    assert station.jobs == [[txid] for txid in others]
    assert [txid for what, txid in station.events if what == "emitted"] == others
    assert list(station.errors) == [poisoned]


@pytest.mark.parametrize("joint_fails", [False, True])
def test_who_waits_for_columns_holds_up_nobody(joint_fails: bool) -> None:
    """It is told of once, and the others of its group are staged by one job, which may fail."""
    station = Station(waits=[2], joint_fails=joint_fails)
    station.run([live_of(txid) for txid in (1, 2, 3)])
    assert station.jobs == [[1, 3], *([[1], [3]] if joint_fails else [])]
    assert [type(error) for error in station.errors.values()] == [ColumnsUnknownError]
    assert {txid for what, txid in station.events if what == "emitted"} == {1, 3}
    assert station.discarded.count(2) == 1


def test_a_lost_joint_job_blames_nobody() -> None:
    """What a failed joint job staged is discarded, and each attempt is staged by its own job."""
    station = Station(joint_fails=True)
    station.run([live_of(txid) for txid in (1, 2)])
    assert station.jobs == [[1, 2], [1], [2]]
    assert station.discarded == [1, 2]
    assert not station.errors


def test_an_attempt_that_fails_after_the_job_of_its_group_fails_alone() -> None:
    """An error once everything is staged reaches neither the caller nor the rest of the group."""

    def fail(point: str, attempt: TransactionAttempt) -> None:
        if point == "after-staging" and attempt.txid == 2:
            raise FailedException("once")

    station = Station()
    stop = observe(fail)
    try:
        station.run([live_of(txid) for txid in (1, 2, 3)])
    finally:
        stop()
    assert station.jobs == [[1, 2, 3]]
    assert [txid for what, txid in station.events if what == "emitted"] == [3, 1]
    assert list(station.errors) == [2]


def test_a_cancelled_attempt_is_left_out_of_its_group() -> None:
    """Only the living are staged, and nothing is told of the dead."""
    station = Station()
    lives = [live_of(txid) for txid in (1, 2, 3)]
    lives[1].cancelled.set()
    station.run(lives)
    assert station.jobs == [[1, 3]]
    assert ("emitted", 2) not in station.events
