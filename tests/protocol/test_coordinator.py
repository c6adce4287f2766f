"""The coordinator: planning, committing, stale events, restart.

docs/coordinator.md lists every rule with its tests.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.protocol.coordinator_run import (
    MIXED,
    OPAQUE,
    TRANSACTIONAL,
    Run,
    a,
    record,
    three,
    unchanged,
)
from txn.errors import StateError
from txn.protocol.coordinator import step
from txn.protocol.events import (
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    CoordinatorState,
    Event,
    PersistCommitted,
    PersistStart,
    Phase,
    Plan,
    PlanDue,
    PlanFailed,
    PlanMade,
    Process,
    Publish,
    RetryDue,
    SchedulePlan,
    ScheduleRetry,
    Succeed,
)
from txn.protocol.records import CommittedRecord

# --- planning and starting -------------------------------------------------------------------


def test_run_begins_with_a_question() -> None:
    """A new topology asks all its streams for txid 1, attempt 0."""
    assert Run(MIXED).start() == (Plan(a("1:0"), ("t", "o"), {}),)


def test_start_is_durable_before_anything_is_read() -> None:
    """START stands before the processing that it protects; then the next txid is scheduled."""
    run = Run()
    run.start()
    assert run.answer("1:0", t=[0, 10]) == (
        PersistStart(a("1:0"), {"t": [0, 10]}),
        Process(a("1:0"), {"t": [0, 10]}),
        SchedulePlan(idle=False),
    )


def test_next_txid_is_asked_for_when_the_interval_is_over() -> None:
    """N+1 is asked for after N's START, on PlanDue, with N's metadata as `previous`."""
    run = Run()
    run.start()
    run.answer("1:0", t=[0, 10])
    assert run.tell(PlanDue()) == (Plan(a("2:0"), ("t",), {"t": [0, 10]}),)


def test_plan_due_without_a_question_pending_changes_nothing() -> None:
    """At most one txid is being planned: a second PlanDue asks nothing."""
    run = Run()
    run.start()
    assert unchanged(run, PlanDue())


def test_no_new_txid_while_max_spout_pending_are_open() -> None:
    """No new txid is asked for while `max_spout_pending` are open; a commit makes room.

    Trident row 14.
    """
    run = three()
    assert [run.processed("1:0"), len(run.state.batches)] == [
        (Publish(a("1:0"), {"t": 1}, {"t": 1}),),
        3,
    ]
    assert run.published("1:0")[-1] == Plan(a("4:0"), ("t",), {"t": 3})


def test_interval_is_kept_when_room_comes_early() -> None:
    """Room does not replace PlanDue: both are needed for a new txid."""
    run = Run(max_spout_pending=1)
    run.start()
    run.answer("1:0", t=1)
    run.processed("1:0")
    assert run.published("1:0")[2:] == ()
    assert run.tell(PlanDue()) == (Plan(a("2:0"), ("t",), {"t": 1}),)


def test_nothing_to_read_makes_no_txid() -> None:
    """A txid that was never started leaves no trace when every stream has nothing to read."""
    run = Run(MIXED)
    run.start()
    assert run.plan("1:0", t=None, o=None) == (SchedulePlan(idle=True),)
    assert (run.state.batches, run.state.plan_idle) == ({}, True)


def test_next_question_for_the_same_txid_has_a_higher_attempt() -> None:
    """An attempt id given away in a question is not used again within the run."""
    run = Run()
    run.start()
    run.plan("1:0", t=None)
    assert run.tell(PlanDue()) == (Plan(a("1:1"), ("t",), {}),)
    assert run.plan("1:1", t=5)[0] == PersistStart(a("1:1"), {"t": 5})
    assert run.state.next_attempts == {}
    assert not run.state.plan_idle


def test_one_stream_with_data_makes_a_txid() -> None:
    """Idle streams ride along as None, and their position is carried over them."""
    run = Run(MIXED, committed=CommittedRecord(txid=4, spouts={"t": 40, "o": 50}))
    assert run.start() == (Plan(a("5:0"), ("t", "o"), {"t": 40, "o": 50}),)
    run.answer("5:0", t=None, o=60)
    assert run.tell(PlanDue()) == (Plan(a("6:0"), ("t", "o"), {"t": 40, "o": 60}),)
    assert run.processed("5:0") == (Publish(a("5:0"), {"t": None, "o": 60}, {"t": 40, "o": 60}),)


def test_answer_for_other_streams_is_an_error() -> None:
    """An answer must name exactly the streams that were asked; a missing one is not "nothing"."""
    run = Run(MIXED)
    run.start()
    with pytest.raises(ValueError, match=r"1:0 answers for the streams \['t'\]"):
        run.tell(PlanMade(a("1:0"), {"t": 1}))


def test_failed_planning_is_asked_again_after_a_back_off() -> None:
    """A spout that cannot answer is asked again, under the next attempt id, after the back-off."""
    run = Run()
    run.start()
    assert run.tell(PlanFailed(a("1:0"), "no broker")) == (ScheduleRetry(a("1:1"), 1),)
    assert unchanged(run, PlanDue())
    assert run.retry_due("1:1") == (Plan(a("1:1"), ("t",), {}),)


def test_nothing_is_asked_behind_a_txid_without_metadata() -> None:
    """N+1 is asked for only when N has metadata, whatever else becomes possible.

    Trident row 13.
    """
    run = Run()
    run.start()
    run.plan("1:0", t=1)
    run.tell(PlanFailed(a("2:0"), "no broker"))
    run.processed("1:0")
    assert run.published("1:0")[2:] == ()
    assert run.phases() == {"2:1": "waiting"}


# --- committing ------------------------------------------------------------------------------


def test_commits_are_in_txid_order() -> None:
    """A batch that is processed early waits for its turn; turns follow each other directly.

    Trident row 4.
    """
    run = three()
    assert run.processed("2:0") == ()
    assert run.processed("1:0") == (Publish(a("1:0"), {"t": 1}, {"t": 1}),)
    assert run.published("1:0")[:3] == (
        PersistCommitted(a("1:0"), {"t": 1}, {"table": 1}),
        Succeed(a("1:0")),
        Publish(a("2:0"), {"t": 2}, {"t": 2}),
    )


def test_one_commit_turn_at_a_time() -> None:
    """While a batch commits, the next processed one waits."""
    run = three()
    run.processed("1:0")
    assert run.processed("2:0") == ()
    assert run.phases() == {"1:0": "committing", "2:0": "processed", "3:0": "processing"}


def test_committed_txids_leave_the_state() -> None:
    """Memory is bounded: of committed txids only the number and the positions remain."""
    run = Run(max_spout_pending=1)
    run.start()
    for txid in range(1, 50):
        run.plan(f"{txid}:0", t=txid)
        run.processed(f"{txid}:0")
        run.published(f"{txid}:0")
    assert run.state.committed == 49
    assert run.state.positions == {"t": 49}
    assert (len(run.state.batches), len(run.state.next_attempts)) == (1, 0)


# --- stale and foreign events ----------------------------------------------------------------

STALE = [
    PlanMade(a("3:0"), {"t": 3}),
    PlanMade(a("4:7"), {"t": 3}),
    PlanFailed(a("3:0"), "late"),
    BatchProcessed(a("2:0")),
    BatchProcessed(a("2:1")),
    BatchProcessed(a("9:0")),
    BatchPublished(a("2:0"), {}),
    BatchPublished(a("1:1"), {}),
    BatchFailed(a("2:1"), "late"),
    BatchFailed(a("9:0"), "late"),
    RetryDue(a("2:0")),
    RetryDue(a("9:0")),
]


@pytest.mark.parametrize("event", STALE, ids=lambda e: f"{type(e).__name__} {e.attempt}")
def test_event_of_a_dead_attempt_changes_nothing(event: Event) -> None:
    """An event of a dead or unknown attempt, or out of phase, returns the very same state."""
    run = three()
    run.processed("2:0")
    assert unchanged(run, event)


def test_failure_while_planning_or_waiting_changes_nothing() -> None:
    """BatchFailed belongs to attempts at work; a question fails by PlanFailed."""
    run = Run()
    run.start()
    assert unchanged(run, BatchFailed(a("1:0"), "late"))
    run.tell(PlanFailed(a("1:0"), "no broker"))
    assert unchanged(run, BatchFailed(a("1:1"), "early"))


def test_retry_due_for_a_batch_that_is_not_held_changes_nothing() -> None:
    """RetryDue ends a back-off; a batch that waits for an earlier one has none."""
    run = three(OPAQUE)
    run.failed("1:0")
    assert unchanged(run, RetryDue(a("2:1")))


def test_unknown_event_is_an_error() -> None:
    """What is not in the vocabulary is a TypeError, also after the end."""
    run = Run()
    with pytest.raises(TypeError, match="not an event"):
        run.tell("hello")  # type: ignore[arg-type]


def test_state_is_a_value() -> None:
    """A step leaves its argument as it was."""
    run = three(MIXED)
    before = copy.deepcopy(run.state)
    step(run.state, BatchFailed(a("1:0"), "disk on fire"))
    assert run.state == before


# --- restart ---------------------------------------------------------------------------------


def test_transactional_restart_replays_all_open_txids_at_once() -> None:
    """Recovered transactional batches start in order, above their durable attempt ids.

    Trident row 12.
    """
    run = Run(
        committed=CommittedRecord(txid=4, spouts={"t": 4}),
        batches=(record(5, 2, t=5), record(6, 0, t=6)),
    )
    assert run.start() == (
        PersistStart(a("5:3"), {"t": 5}),
        Process(a("5:3"), {"t": 5}),
        PersistStart(a("6:1"), {"t": 6}),
        Process(a("6:1"), {"t": 6}),
        Plan(a("7:0"), ("t",), {"t": 6}),
    )


def test_opaque_restart_plans_open_txids_one_after_the_other() -> None:
    """Recovered opaque batches are planned anew from the committed position on, in order."""
    run = Run(
        OPAQUE,
        committed=CommittedRecord(txid=4, spouts={"o": 4}),
        batches=(record(5, 2, o=5), record(6, 0, o=6)),
    )
    assert run.start() == (Plan(a("5:3"), ("o",), {"o": 4}, is_new=False),)
    assert run.plan("5:3", o=4.5)[2:] == (Plan(a("6:1"), ("o",), {"o": 4.5}, is_new=False),)


def test_restart_with_a_lower_limit_replays_all_and_asks_for_none() -> None:
    """Recovered batches beyond `max_spout_pending` are replayed; new ones wait for room."""
    run = Run(batches=tuple(record(t, t=t) for t in (1, 2, 3)), max_spout_pending=2)
    assert [type(action) for action in run.start()] == [PersistStart, Process] * 3


def test_stream_new_since_the_start_is_idle_in_recovered_txids() -> None:
    """A transactional stream that a durable START does not know reads nothing in that txid."""
    run = Run({"t": False, "u": False}, batches=(record(1, t=1),))
    assert run.start()[0] == PersistStart(a("1:1"), {"t": 1, "u": None})


def test_opaque_stream_new_since_the_start_is_asked_with_the_others() -> None:
    """An opaque stream that a durable START does not know is asked for the replay."""
    run = Run(MIXED, batches=(record(1, t=1),))
    assert run.start() == (Plan(a("1:1"), ("o",), {}, is_new=False),)


@pytest.mark.parametrize("streams", [TRANSACTIONAL, OPAQUE], ids=["transactional", "opaque"])
def test_recovered_quarantine_stays(streams: Mapping[str, bool]) -> None:
    """An emptied batch is emptied after a restart too, with the metadata that it sets aside."""
    (stream,) = streams
    run = Run(streams, batches=(record(1, 5, "disk on fire", **{stream: 1}),))
    assert run.start()[:2] == (
        PersistStart(a("1:6"), {stream: 1}, "disk on fire"),
        Process(a("1:6"), {stream: 1}, empty=True),
    )


def test_recovered_opaque_quarantine_out_of_turn_is_lifted() -> None:
    """Opaque metadata behind an open batch may be out of date; nothing is set aside by it."""
    run = Run(OPAQUE, batches=(record(1, o=1), record(2, 5, "disk on fire", o=2)))
    run.start()
    assert run.plan("1:1", o=1)[-1] == Plan(a("2:6"), ("o",), {"o": 1}, is_new=False)


def test_gap_between_open_txids_is_refused() -> None:
    """Open txids that do not follow each other from committed + 1 are not guessed about."""
    with pytest.raises(StateError, match=r"txid 1 is committed and that \[3\] are open"):
        Run(committed=CommittedRecord(txid=1), batches=(record(3, t=3),))


def test_recovered_state_takes_its_limits_from_the_config() -> None:
    """Limits and the treatment of exhausted batches come from `TopologyConfig`."""
    run = Run(MIXED, max_spout_pending=7, max_batch_attempts=2, on_exhausted="quarantine")
    assert run.state == CoordinatorState(
        committed=0,
        positions={},
        opaque_streams=frozenset({"o"}),
        streams=("t", "o"),
        max_spout_pending=7,
        max_batch_attempts=2,
        quarantine=True,
    )


def test_phases_have_readable_names() -> None:
    """A phase compares with its name, as status displays show it."""
    assert [phase.value for phase in Phase] == [
        "waiting",
        "planning",
        "processing",
        "processed",
        "committing",
    ]


def test_docs_name_tests_that_exist() -> None:
    """Every test that docs/coordinator.md names for an invariant is there."""
    here = Path(__file__)
    named = re.findall(
        r"`(test_\w+)`", (here.parents[2] / "docs/coordinator.md").read_text(encoding="utf-8")
    )
    sources = here.parent.glob("test_*.py")
    defined = re.findall(r"def (test_\w+)", "".join(s.read_text(encoding="utf-8") for s in sources))
    assert len(named) > 40
    assert sorted(set(named) - set(defined)) == []
