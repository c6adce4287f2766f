"""Adaptive batches: what planning sees, as a share between the user's caps."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryPartitionedSpout
from txn.attempts import TransactionAttempt
from txn.dataflow.graph import Source
from txn.engine.work.batch_target import ANSWERS_IN_A_ROW, FIRST_STEP, BatchTarget, BatchTargets
from txn.engine.work.spouts import Spouts
from txn.protocol.events import Plan

ANSWERS = st.lists(st.sampled_from(["full", "room", "idle"]), max_size=60)


def after(answers: list[str], target: BatchTarget | None = None) -> BatchTarget:
    """The target after these answers of a spout: with a full window, with room in it, or none."""
    target = target or BatchTarget()
    for answer in answers:
        known = answer == "full"
        target = target.idle() if answer == "idle" else target.answered(window_full=known)
    return target


class Told(MemoryPartitionedSpout):
    """A spout that remembers its targets."""

    def __init__(self) -> None:
        super().__init__({}, "v int", take_per_partition=1)
        self.shares: list[float] = []

    def set_batch_target(self, share: float) -> None:
        self.shares.append(share)


def test_a_run_begins_with_the_smallest_batches():
    """Before anything is known, latency counts."""
    assert BatchTarget().share == 0.0


def test_a_full_window_doubles_the_share_up_to_the_cap():
    """Five doublings lie between the smallest step and the user's cap."""
    shares = [after(["full"] * count).share for count in range(1, 8)]
    assert shares == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 1.0, 1.0]


def test_answers_without_a_pause_count_as_behind():
    """With room in the window, the first answers in a row change nothing, and the next ones do."""
    shares = [after(["room"] * count).share for count in range(1, ANSWERS_IN_A_ROW + 2)]
    assert shares == [0.0, 0.0, FIRST_STEP, 2 * FIRST_STEP]


def test_a_pause_begins_the_row_anew():
    """A source that has something to read now and then is not ahead of the planning."""
    assert after(["room", "room", "idle"] * 20).share == 0.0


def test_an_idle_spout_falls_back_step_by_step():
    """Nothing to read halves the share, and below the smallest step it is zero."""
    full = BatchTarget(1.0, answers=9)
    shares = [after(["idle"] * count, full).share for count in range(1, 7)]
    assert shares == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 0.0, 0.0]


@settings(deadline=None)
@given(ANSWERS)
def test_the_share_stays_between_nothing_and_the_cap(answers: list[str]):
    """Whatever a spout answers, its target is a share, and zero or at least the first step."""
    share = after(answers).share
    assert share == 0.0 or FIRST_STEP <= share <= 1.0


@settings(deadline=None)
@given(ANSWERS)
def test_from_anywhere_five_full_windows_reach_the_cap_and_five_pauses_the_least(answers):
    """No history keeps a stream from the cap while it is behind, or small once caught up."""
    target = after(answers)
    assert (after(["full"] * 5, target).share, after(["idle"] * 5, target).share) == (1.0, 0.0)


@settings(deadline=None)
@given(ANSWERS, st.sampled_from(["full", "room"]))
def test_something_to_read_never_makes_batches_smaller(answers: list[str], answer: str):
    """Only a spout with nothing to read falls back."""
    target = after(answers)
    assert after([answer], target).share >= target.share >= after(["idle"], target).share


def test_each_stream_has_a_target_of_its_own():
    """A stream that is caught up falls back while another one is behind."""
    spouts: dict[str, Any] = {"busy": Told(), "quiet": Told()}
    targets = BatchTargets(spouts)
    for _ in range(3):
        targets.apply()
        targets.learn({"busy": {"x": 1}, "quiet": None}, window_full=True)
    assert spouts["busy"].shares == [0.0, 1 / 16, 1 / 8]
    assert spouts["quiet"].shares == [0.0, 0.0, 0.0]


def test_a_stream_that_was_not_asked_keeps_its_target():
    """A question for some of the streams says nothing of the others."""
    targets = BatchTargets({"a": Told(), "b": Told()})
    targets.learn({"a": {}, "b": {}}, window_full=True)
    targets.learn({"a": {}}, window_full=True)
    assert (targets.share("a"), targets.share("b")) == (1 / 8, 1 / 16)


def question(txid: int, *, is_new: bool = True) -> Plan:
    """What the coordinator asks for the first attempt of a txid."""
    return Plan(TransactionAttempt(txid), ("s",), {}, is_new=is_new)


def test_the_planner_tells_the_target_before_each_new_txid():
    """And learns from the answer; a txid that is planned anew is none of its business."""
    spout = Told()
    spouts = Spouts("t", [Source("s", spout)])
    for txid in (1, 2):
        spout.add_partition(f"p{txid}", [(1,)])
        assert spouts.plan(question(txid), window_full=True)["s"] is not None
    spouts.plan(question(2, is_new=False), window_full=True)
    assert spout.shares == [0.0, 1 / 16]
    spout.set_disabled("p1", True)
    spout.set_disabled("p2", True)
    for _ in range(2):
        assert spouts.plan(question(3), window_full=True) == {"s": None}
    assert spout.shares[2:] == [1 / 8, 1 / 16]
