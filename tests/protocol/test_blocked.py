"""The coordinator while a source is away: the batch waits, uncounted, and nothing else does."""

from __future__ import annotations

import pytest

from tests.protocol.coordinator_run import MIXED, OPAQUE, TRANSACTIONAL, Run, a, record, three
from txn.protocol.events import (
    BatchFailed,
    Cancel,
    Finish,
    Halt,
    PersistStart,
    Plan,
    PlanDue,
    PlanFailed,
    Process,
    Publish,
    SchedulePlan,
    ScheduleRetry,
    StopRequested,
)

AWAY = "broker away"


def blocked(run: Run, name: str) -> tuple[object, ...]:
    """A processing attempt finds a source away."""
    return run.tell(BatchFailed(a(name), AWAY, blocked=True))


def wait_of(run: Run, txid: int) -> tuple[str | None, int, int]:
    """(what blocks a txid, attempts in a row that found it so, failures)."""
    batch = run.state.batches[txid]
    return batch.blocked, batch.waits, batch.failures


@pytest.mark.parametrize("quarantine", ["stop", "quarantine"])
def test_blocked_batch_waits_however_often(quarantine: str) -> None:
    """A source that is away uses no attempts up: the batch neither halts the run nor is emptied."""
    run = three(max_batch_attempts=2, on_exhausted=quarantine)
    for attempt_id in range(10):
        orders = blocked(run, f"1:{attempt_id}")
        retry = ScheduleRetry(a(f"1:{attempt_id + 1}"), attempt_id + 1, blocked=True)
        assert orders == (Cancel(a(f"1:{attempt_id}")), retry)
        orders = run.retry_due(f"1:{attempt_id + 1}")
        assert orders[1:] == (Process(a(f"1:{attempt_id + 1}"), {"t": 1}),)
    assert wait_of(run, 1) == (AWAY, 10, 0)


def test_blocked_planning_waits_however_often() -> None:
    """A txid that cannot be planned because a source is away waits, and is asked for again."""
    run = Run(max_batch_attempts=2)
    run.start()
    for attempt_id in range(5):
        orders = run.tell(PlanFailed(a(f"1:{attempt_id}"), AWAY, blocked=True))
        assert orders == (ScheduleRetry(a(f"1:{attempt_id + 1}"), attempt_id + 1, blocked=True),)
        orders = run.retry_due(f"1:{attempt_id + 1}")
        assert orders == (Plan(a(f"1:{attempt_id + 1}"), ("t",), {}),)
    assert wait_of(run, 1) == (AWAY, 5, 0)
    run.plan("1:5", t=1)
    assert wait_of(run, 1) == (None, 0, 0)


def test_failures_before_and_after_a_wait_are_counted() -> None:
    """The count of failures goes on where it stood when the source went away."""
    run = three(max_batch_attempts=2)
    run.failed("1:0")
    run.retry_due("1:1")
    blocked(run, "1:1")
    run.retry_due("1:2")
    assert isinstance(run.failed("1:2")[-1], Halt)


def test_back_off_of_a_second_wait_begins_anew() -> None:
    """An attempt that came through, or failed otherwise, ends the wait."""
    run = three()
    blocked(run, "1:0")
    run.retry_due("1:1")
    run.processed("1:1")
    assert wait_of(run, 1) == (None, 0, 0)
    assert blocked(run, "1:1")[-1] == ScheduleRetry(a("1:2"), 1, blocked=True)
    run.retry_due("1:2")
    run.failed("1:2")
    assert wait_of(run, 1) == (None, 0, 1)


def test_later_transactional_txids_go_on_while_one_is_blocked() -> None:
    """Their metadata is fixed: they are processed, and further ones planned, up to the limit."""
    run = three(max_spout_pending=4)
    blocked(run, "1:0")
    run.processed("2:0")
    run.plan("4:0", t=4)
    assert run.phases() == {
        "1:1": "waiting",
        "2:0": "processed",
        "3:0": "processing",
        "4:0": "processing",
    }


@pytest.mark.parametrize("streams", [OPAQUE, MIXED])
def test_opaque_batch_that_was_blocked_is_planned_anew(streams: dict[str, bool]) -> None:
    """As with any failure: later txids are dropped, and a source may leave out what is away."""
    run = three(streams)
    assert Cancel(a("3:0")) in blocked(run, "2:0")
    assert run.phases() == {"1:0": "processing", "2:1": "waiting", "3:1": "waiting"}
    before = {"o": 1}
    assert run.retry_due("2:1") == (Plan(a("2:1"), ("o",), before, is_new=False),)
    run.plan("2:1", o=7)
    assert wait_of(run, 2) == (AWAY, 1, 0), "Until it is processed: reading may fail again."


@pytest.mark.parametrize("streams", [TRANSACTIONAL, OPAQUE])
def test_stop_while_blocked_ends_the_run_well(streams: dict[str, bool]) -> None:
    """A stop does not wait for the source."""
    run = three(streams)
    blocked(run, "1:0")
    assert run.tell(StopRequested())[-1] == Finish()


def test_stop_while_a_blocked_attempt_looks_again() -> None:
    """An attempt that finds the source away after the stop is not held for another."""
    run = three()
    run.processed("1:0")
    run.tell(StopRequested())
    assert blocked(run, "1:0") == (Cancel(a("1:0")), Cancel(a("2:0")), Cancel(a("3:0")), Finish())


def test_blocked_in_its_commit_turn() -> None:
    """A spout that is away in the commit turn makes the batch wait, too; the turn comes again."""
    run = three()
    assert isinstance(run.processed("1:0")[0], Publish)
    assert blocked(run, "1:0")[0] == Cancel(a("1:0"))
    run.retry_due("1:1")
    assert isinstance(run.processed("1:1")[0], Publish)


def lacking(run: Run, name: str, *streams: str) -> tuple[object, ...]:
    """A processing attempt finds that the columns of these streams are not known."""
    return run.tell(BatchFailed(a(name), "nobody knows", True, frozenset(streams)))


def full(until: str = "forever", pending: int = 2) -> Run:
    """Recovered batches of stream "s" alone that fill the window; "t" and "u" were idle."""
    batches = tuple(record(txid, s=txid, t=None, u=None) for txid in range(1, pending + 1))
    streams = {"s": False, "t": False, "u": False}
    run = Run(streams, batches=batches, until=until, max_spout_pending=pending)
    assert not any(isinstance(order, Plan) for order in run.start())
    return run


def test_streams_that_a_full_window_waits_for_are_asked_beyond_it() -> None:
    """Each stream whose columns are waited for gets one txid of its own, and no other stream is
    asked, so that the window is exceeded by no more than there are streams.
    """
    run = full()
    question = Plan(a("3:0"), ("t", "u"), {}, is_new=False)
    assert lacking(run, "1:1", "t", "u", "gone")[-1] == question
    assert run.answer("3:0", t=None, u=None) == (SchedulePlan(idle=True),)
    assert run.tell(PlanDue())[-1].attempt == a("3:1")  # type: ignore[attr-defined]
    orders = run.plan("3:1", t=7, u=None)
    assert orders[0] == PersistStart(a("3:1"), {"s": None, "t": 7, "u": None})
    assert orders[-1] == Plan(a("4:0"), ("u",), {}, is_new=False)
    run.plan("4:0", u=8)
    assert lacking(run, "2:1", "t", "u")[-1] == ScheduleRetry(a("2:2"), 1, blocked=True)
    for name in ("1:2", "2:2"):
        run.retry_due(name)
    for name in ("1:2", "2:2", "3:1", "4:0"):
        run.processed(name)
    for name in ("1:2", "2:2", "3:1"):
        orders = run.published(name)
    assert orders[-1] == Plan(a("5:0"), ("s", "t", "u"), {"s": 2, "t": 7, "u": 8})


def test_an_idle_stream_beyond_the_window_does_not_end_a_run() -> None:
    """That one stream has nothing to read does not say that all are caught up."""
    run = full("caught_up", pending=1)
    assert lacking(run, "1:1", "t")[-1] == Plan(a("2:0"), ("t",), {}, is_new=False)
    run.retry_due("1:2")
    run.processed("1:2")
    run.published("1:2")
    assert run.answer("2:0", t=None) == (SchedulePlan(idle=True),)
    assert run.tell(PlanDue()) == (Plan(a("2:1"), ("s", "t", "u"), {"s": 1}),)
    assert run.answer("2:1", s=None, t=None, u=None) == (Finish(),)


def test_nothing_is_asked_beyond_the_window_behind_an_opaque_stream() -> None:
    """What would be planned behind a batch that waits would not be valid."""
    run = three(MIXED)
    assert not any(isinstance(order, Plan) for order in lacking(run, "1:0", "t"))
