"""The coordinator: failed batches, batches without attempts left, and how a run ends."""

from __future__ import annotations

import pytest

from tests.protocol.coordinator_run import MIXED, OPAQUE, Run, a, record, three, unchanged
from txn.protocol.events import (
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Cancel,
    Event,
    Finish,
    Halt,
    Halted,
    PersistCommitted,
    PersistStart,
    Plan,
    PlanDue,
    PlanFailed,
    PlanMade,
    Process,
    Publish,
    RetryDue,
    SchedulePlan,
    ScheduleRetry,
    StopRequested,
    Succeed,
)
from txn.protocol.records import CommittedRecord

# --- failing: transactional ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("done", "name"),
    [(["3:0"], "1:0"), (["3:0", "2:0"], "2:0"), (["3:0", "1:0"], "1:0")],
    ids=["processing", "processed", "committing"],
)
def test_transactional_failure_replays_one_txid_only(done: list[str], name: str) -> None:
    """Only the failed batch is replayed, with its metadata; later ones keep their staged work."""
    run = three()
    for other in done:
        run.processed(other)
    replay, position = str(a(name).next()), {"t": a(name).txid}
    assert run.failed(name) == (Cancel(a(name)), ScheduleRetry(a(replay), 1))
    assert run.phases()["3:0"] == "processed"
    assert run.retry_due(replay) == (
        PersistStart(a(replay), position),
        Process(a(replay), position),
    )


def test_transactional_metadata_is_fixed_even_when_idle() -> None:
    """A transactional stream's metadata, None included, is fixed by the first START."""
    run = Run({"t": False, "u": False})
    run.start()
    run.plan("1:0", t=1, u=None)
    run.failed("1:0")
    assert run.retry_due("1:1")[0] == PersistStart(a("1:1"), {"t": 1, "u": None})


def test_new_txids_are_asked_for_while_a_transactional_one_is_held() -> None:
    """A held transactional batch blocks nobody: its metadata is known."""
    run = Run()
    run.start()
    run.answer("1:0", t=1)
    run.failed("1:0")
    assert run.tell(PlanDue()) == (Plan(a("2:0"), ("t",), {"t": 1}),)


def test_failure_counts_within_the_run() -> None:
    """Each failure of a txid lengthens the back-off."""
    run = three()
    run.failed("1:0")
    run.retry_due("1:1")
    assert run.failed("1:1") == (Cancel(a("1:1")), ScheduleRetry(a("1:2"), 2))


# --- failing: opaque -------------------------------------------------------------------------


def test_opaque_failure_drops_every_later_txid() -> None:
    """When an opaque batch fails, all later ones are cancelled and wait, under higher attempts."""
    run = three(OPAQUE)
    run.processed("3:0")
    assert run.failed("2:0") == (
        Cancel(a("2:0")),
        Cancel(a("3:0")),
        ScheduleRetry(a("2:1"), 1),
    )
    assert run.phases() == {"1:0": "processing", "2:1": "waiting", "3:1": "waiting"}
    assert [run.state.batches[t].failures for t in (1, 2, 3)] == [0, 1, 0]


def test_opaque_replays_are_planned_one_after_the_other() -> None:
    """A replayed opaque txid is planned from the newest position before it, then the next one."""
    run = three(OPAQUE)
    run.failed("2:0")
    assert run.retry_due("2:1") == (Plan(a("2:1"), ("o",), {"o": 1}, is_new=False),)
    assert run.plan("2:1", o=1.5) == (
        PersistStart(a("2:1"), {"o": 1.5}),
        Process(a("2:1"), {"o": 1.5}),
        Plan(a("3:1"), ("o",), {"o": 1.5}, is_new=False),
    )


def test_stale_failure_leaves_the_live_attempt_alone() -> None:
    """A failure of an attempt that is no longer current changes nothing (Storm: hole H3)."""
    run = three(OPAQUE)
    run.failed("1:0")
    run.retry_due("1:1")
    for name in ("1:1", "2:1", "3:1"):
        run.plan(name, o=1)
    assert unchanged(run, BatchFailed(a("2:0"), "timed out at last"))


def test_question_behind_a_failed_opaque_batch_is_void() -> None:
    """An answer that was computed from metadata that no longer holds is ignored; its id is used."""
    run = Run(OPAQUE)
    run.start()
    run.plan("1:0", o=1)
    assert run.phases() == {"1:0": "processing", "2:0": "planning"}
    assert run.failed("1:0") == (Cancel(a("1:0")), ScheduleRetry(a("1:1"), 1))
    assert unchanged(run, PlanMade(a("2:0"), {"o": 2}))
    run.retry_due("1:1")
    assert run.plan("1:1", o=7)[-1] == Plan(a("2:1"), ("o",), {"o": 7})


def test_question_behind_a_failed_transactional_batch_stays_valid() -> None:
    """A transactional failure does not void the question for a later txid."""
    run = Run()
    run.start()
    run.plan("1:0", t=1)
    run.failed("1:0")
    assert run.plan("2:0", t=2)[0] == PersistStart(a("2:0"), {"t": 2})


def test_started_opaque_txid_with_nothing_to_read_is_an_empty_batch() -> None:
    """A txid that was started is committed, empty if need be."""
    run = three(OPAQUE)
    run.failed("1:0")
    run.retry_due("1:1")
    assert run.plan("1:1", o=None)[:2] == (
        PersistStart(a("1:1"), {"o": None}),
        Process(a("1:1"), {"o": None}),
    )
    assert run.processed("1:1") == (Publish(a("1:1"), {"o": None}, {}),)


def test_mixed_replay_asks_the_opaque_streams_only() -> None:
    """In a mixed topology the transactional stream keeps what START fixed."""
    run = three(MIXED)
    run.failed("2:0")
    assert run.retry_due("2:1") == (Plan(a("2:1"), ("o",), {"o": 1}, is_new=False),)
    assert run.plan("2:1", o=9)[:3] == (
        PersistStart(a("2:1"), {"t": 2, "o": 9}),
        Process(a("2:1"), {"t": 2, "o": 9}),
        Plan(a("3:1"), ("o",), {"o": 9}, is_new=False),
    )


def test_later_txid_keeps_its_own_back_off_when_an_earlier_one_fails() -> None:
    """A txid that already waits for its back-off keeps its attempt id and goes on waiting."""
    run = three(OPAQUE)
    run.failed("3:0")
    run.failed("2:0")
    assert run.phases() == {"1:0": "processing", "2:1": "waiting", "3:1": "waiting"}
    run.retry_due("2:1")
    assert run.plan("2:1", o=2)[2:] == ()
    assert run.retry_due("3:1") == (Plan(a("3:1"), ("o",), {"o": 2}, is_new=False),)


def test_failed_replanning_is_asked_again() -> None:
    """A replay whose planning fails is asked again under the next id."""
    run = three(OPAQUE)
    run.failed("1:0")
    run.retry_due("1:1")
    assert run.tell(PlanFailed(a("1:1"), "no broker")) == (ScheduleRetry(a("1:2"), 2),)


# --- exhausted -------------------------------------------------------------------------------


def test_exhausted_batch_stops_the_run() -> None:
    """Out of attempts, the run halts, naming attempt and error; other work is cancelled."""
    run = three(max_batch_attempts=1)
    assert run.failed("2:0") == (
        Cancel(a("2:0")),
        Cancel(a("1:0")),
        Cancel(a("3:0")),
        Halt("attempt 2:0 failed, the last of 1 in this run: disk on fire", a("2:0")),
    )
    assert unchanged(run, BatchProcessed(a("1:0")))


def test_exhausted_batch_does_not_touch_a_running_commit() -> None:
    """A halt never cancels a running commit turn: its files may just be becoming visible."""
    run = three(max_batch_attempts=1)
    run.processed("1:0")
    assert Cancel(a("1:0")) not in run.failed("2:0")


def test_exhausted_batch_is_committed_empty() -> None:
    """With quarantine the next attempt is empty, keeps the metadata and carries the error."""
    run = three(max_batch_attempts=1, on_exhausted="quarantine")
    assert run.failed("2:0") == (
        Cancel(a("2:0")),
        PersistStart(a("2:1"), {"t": 2}, "disk on fire"),
        Process(a("2:1"), {"t": 2}, empty=True),
    )
    for name in ("1:0", "2:1"):
        run.processed(name)
    assert run.published("1:0")[2] == Publish(a("2:1"), {"t": 2}, {"t": 2})


def test_emptied_batch_has_all_its_attempts_again_then_halts() -> None:
    """An emptied batch that fails is replayed empty; what fails even so halts the run."""
    run = three(max_batch_attempts=2, on_exhausted="quarantine")
    run.failed("2:0")
    run.retry_due("2:1")
    run.failed("2:1")
    assert run.failed("2:2") == (Cancel(a("2:2")), ScheduleRetry(a("2:3"), 1))
    assert run.retry_due("2:3")[1] == Process(a("2:3"), {"t": 2}, empty=True)
    assert isinstance(run.failed("2:3")[-1], Halt)


def test_opaque_batch_is_emptied_only_in_its_turn() -> None:
    """An opaque batch is emptied when all before it is committed: until then its range may move."""
    run = three(OPAQUE, max_batch_attempts=1, on_exhausted="quarantine")
    assert run.failed("2:0") == (Cancel(a("2:0")), Cancel(a("3:0")))
    run.processed("1:0")
    assert run.published("1:0")[2:] == (
        PersistStart(a("2:1"), {"o": 2}, "disk on fire"),
        Process(a("2:1"), {"o": 2}, empty=True),
        Plan(a("3:1"), ("o",), {"o": 2}, is_new=False),
    )


def test_quarantine_behind_a_replanned_opaque_batch_is_lifted() -> None:
    """If an earlier opaque batch is planned anew, a waiting quarantine no longer fits: it ends."""
    run = three(OPAQUE, max_batch_attempts=2, on_exhausted="quarantine")
    run.failed("2:0")
    run.retry_due("2:1")
    run.plan("2:1", o=2)
    run.failed("2:1")
    assert [b.quarantined for b in run.state.batches.values()] == [None, "disk on fire", None]
    run.failed("1:0")
    assert [b.quarantined for b in run.state.batches.values()] == [None, None, None]
    run.retry_due("1:1")
    assert run.plan("1:1", o=1.5)[-1] == Plan(a("2:2"), ("o",), {"o": 1.5}, is_new=False)


def test_batch_without_valid_metadata_cannot_be_emptied() -> None:
    """Planning that fails to the end halts even with quarantine: no records are known."""
    run = Run(max_batch_attempts=1, on_exhausted="quarantine")
    run.start()
    assert run.tell(PlanFailed(a("1:0"), "no broker")) == (
        Halt("attempt 1:0 failed, the last of 1 in this run: no broker", a("1:0")),
    )


def test_forgotten_opaque_metadata_cannot_be_set_aside() -> None:
    """A dropped batch whose planning then fails halts: its old metadata would skip records."""
    run = three(OPAQUE, max_batch_attempts=2, on_exhausted="quarantine")
    run.failed("1:0")
    run.retry_due("1:1")
    run.plan("1:1", o=0.5)
    run.tell(PlanFailed(a("2:1"), "no broker"))
    run.retry_due("2:2")
    assert isinstance(run.tell(PlanFailed(a("2:2"), "no broker"))[-1], Halt)


def test_batch_that_had_a_commit_turn_is_never_emptied() -> None:
    """After a commit turn a table may hold the txid: emptying it would leave the tables apart."""
    run = three(max_batch_attempts=1, on_exhausted="quarantine")
    run.processed("1:0")
    assert isinstance(run.failed("1:0")[-1], Halt)


def test_recovered_batch_that_a_table_holds_is_never_emptied() -> None:
    """The same after a restart, for txids that recovery found in some table."""
    run = Run(
        batches=(record(1, t=1),), published=(1,), max_batch_attempts=1, on_exhausted="quarantine"
    )
    run.start()
    assert isinstance(run.failed("1:1")[-1], Halt)


# --- the end of a run ------------------------------------------------------------------------


def test_stop_without_a_commit_turn_ends_at_once() -> None:
    """A stop cancels what is at work and finishes."""
    run = three()
    assert run.tell(StopRequested()) == (
        Cancel(a("1:0")),
        Cancel(a("2:0")),
        Cancel(a("3:0")),
        Finish(),
    )


def test_stop_lets_a_running_commit_turn_end() -> None:
    """A stop waits for the running commit turn, records it as committed, then finishes."""
    run = three()
    for name in ("1:0", "2:0"):
        run.processed(name)
    assert run.tell(StopRequested()) == ()
    assert run.processed("3:0") == ()
    assert run.published("1:0") == (
        PersistCommitted(a("1:0"), {"t": 1}, {"table": 1}),
        Succeed(a("1:0")),
        Cancel(a("2:0")),
        Cancel(a("3:0")),
        Finish(),
    )
    assert run.state.committed == 1


def test_commit_turn_that_fails_while_stopping_ends_the_run() -> None:
    """A commit that fails after a stop is left to the next run: no replay, no halt."""
    run = three(max_batch_attempts=1)
    run.processed("1:0")
    run.tell(StopRequested())
    assert run.failed("1:0") == (
        Cancel(a("1:0")),
        Cancel(a("2:0")),
        Cancel(a("3:0")),
        Finish(),
    )


def test_nothing_is_planned_or_replayed_while_stopping() -> None:
    """A stop starts nothing: answers, back-offs and intervals that come now are ignored."""
    run = Run(max_spout_pending=4)
    run.start()
    run.plan("1:0", t=1)
    run.plan("2:0", t=2)
    run.processed("1:0")
    run.failed("2:0")
    run.tell(StopRequested())
    late: list[Event] = [
        PlanMade(a("3:0"), {"t": 3}),
        PlanFailed(a("3:0"), ""),
        PlanDue(),
        RetryDue(a("2:1")),
    ]
    assert [unchanged(run, event) for event in [*late, StopRequested()]] == [True] * 5


def test_plan_due_while_stopping_changes_nothing() -> None:
    """An interval that ends after a stop asks nothing."""
    run = Run()
    run.start()
    run.answer("1:0", t=1)
    run.processed("1:0")
    run.tell(StopRequested())
    assert unchanged(run, PlanDue())


def test_until_a_txid() -> None:
    """`until=N` starts no txid above N and finishes when N is committed."""
    run = Run(until=2)
    run.start()
    run.plan("1:0", t=1)
    assert run.plan("2:0", t=2)[2:] == (SchedulePlan(idle=False),)
    for name in ("1:0", "2:0"):
        run.processed(name)
    assert Finish() not in run.published("1:0")
    assert run.published("2:0")[-1] == Finish()


def test_until_a_txid_waits_for_data() -> None:
    """`until=N` with nothing to read goes on asking."""
    run = Run(until=2)
    run.start()
    assert run.plan("1:0", t=None) == (SchedulePlan(idle=True),)


def test_until_a_committed_txid_finishes_at_once() -> None:
    """`until=N` finishes at the start when N is committed; recovered later txids stay open."""
    run = Run(committed=CommittedRecord(txid=2), batches=(record(3, t=3),), until=2)
    assert run.start() == (Finish(),)


def test_until_does_not_replay_later_txids() -> None:
    """A recovered txid above `until` is left as it is."""
    run = Run(batches=(record(1, t=1), record(2, t=2)), until=1)
    assert run.start() == (PersistStart(a("1:1"), {"t": 1}), Process(a("1:1"), {"t": 1}))


def test_caught_up_finishes_when_nothing_is_left() -> None:
    """`caught_up` finishes on "nothing to read" with nothing in flight."""
    run = Run(until="caught_up")
    run.start()
    assert run.plan("1:0", t=None) == (Finish(),)


def test_caught_up_asks_once_more_after_the_last_commit() -> None:
    """`caught_up` does not trust an answer that was given while batches were in flight."""
    run = Run(until="caught_up")
    run.start()
    run.plan("1:0", t=1)
    assert run.plan("2:0", t=None) == (SchedulePlan(idle=True),)
    run.processed("1:0")
    # At once: the run is not to last as long as an idle source is left alone.
    assert run.published("1:0")[2:] == (SchedulePlan(idle=False),)
    assert run.tell(PlanDue()) == (Plan(a("2:1"), ("t",), {"t": 1}),)
    assert run.plan("2:1", t=None) == (Finish(),)


@pytest.mark.parametrize("until", ["forever", "caught_up"])
def test_an_idle_source_is_left_alone_while_it_may_bring_more(until: str) -> None:
    """Only the end of a run is asked for before the idle source's next turn."""
    run = Run(until=until)
    run.start()
    run.plan("1:0", t=1)
    run.plan("2:0", t=2)
    run.plan("3:0", t=None)
    run.processed("1:0")
    assert [action for action in run.published("1:0") if isinstance(action, SchedulePlan)] == []
    run.processed("2:0")
    asked = [action for action in run.published("2:0") if isinstance(action, SchedulePlan)]
    assert asked == ([SchedulePlan(idle=False)] if until == "caught_up" else [])


def test_halted_halts_once_and_touches_nothing() -> None:
    """A fatal fact orders Halt and no Cancel: whoever was fenced must leave files alone."""
    run = three()
    assert run.tell(Halted("lost leadership")) == (Halt("lost leadership"),)
    assert unchanged(run, Halted("again"))


def test_nothing_is_ordered_after_the_end() -> None:
    """After Finish or Halt every event leaves the same state, and `start` orders nothing."""
    run = three()
    run.processed("1:0")
    run.tell(Halted("lost leadership"))
    late: list[Event] = [
        BatchPublished(a("1:0"), {}),
        BatchFailed(a("2:0"), ""),
        PlanDue(),
        StopRequested(),
    ]
    assert [unchanged(run, event) for event in late] == [True] * 4
    assert run.start() == ()
