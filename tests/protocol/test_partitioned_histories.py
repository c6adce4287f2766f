"""Partitioned spouts under the coordinator: random histories, the original document's scenario,
and the holes of Storm that partitions fell into. See `partitioned_world` for the books.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocol.partitioned_world import World, live_through
from tests.protocol.scenarios.language import attempt_of as a
from txn.attempts import TransactionAttempt
from txn.interfaces import SpoutKind
from txn.protocol.events import Finish

KINDS = (SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)
BOTH = pytest.mark.parametrize("kind", KINDS)
HISTORIES = 1000


@BOTH
def test_every_record_of_every_partition_is_counted_once(kind: SpoutKind) -> None:
    """Partitions that go, come back and are added while batches are in flight, fail and crash:
    every record is in exactly one committed txid.

    Trident row 11.
    """
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        try:
            world = live_through(kind, chance.choice, chance.randrange(40))
            assert world.memory.ended == Finish()
        except BaseException:
            print(f"again: live_through({kind}, chance.choice, ...) with random.Random({seed})")
            raise


@BOTH
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data(), moves=st.integers(0, 25))
def test_small_histories(kind: SpoutKind, data: st.DataObject, moves: int) -> None:
    """The same over choices that Hypothesis makes, so that what it finds comes out short."""

    def choose(options: Sequence[Any]) -> Any:
        return options[data.draw(st.integers(0, len(options) - 1))]

    assert live_through(kind, choose, moves).memory.ended == Finish()


# --- the scenario of the original document ----------------------------------------------------


def three_in_flight(kind: SpoutKind, take: Any, size: int = 200) -> World:
    """One partition; txids 1, 2, 3 are processed, and nothing is committed yet."""
    world = World(kind, take)
    world.add("p", size)
    world.restart(until=3)
    for txid in (1, 2, 3):
        world.answer()
        if world.memory.timer:
            world.end_interval()
        world.process(TransactionAttempt(txid, 0))
    assert [str(attempt) for attempt in world.at_work()] == ["1:0", "2:0", "3:0"]
    return world


def ranges(world: World) -> list[tuple[int, int]]:
    """First and last record of each committed txid, counted from 1."""
    table = [rows for _, (_, rows) in sorted(world.tables["a"].items())]
    return [(rows[0][1] + 1, rows[-1][1] + 1) for rows in table]


def shorter_replay_of_the_first(attempt: TransactionAttempt, _: str, size: int) -> int:
    return min(size, 40 if attempt.txid == 1 and attempt.attempt_id else 50)


STEPS = 10
"""The replay takes so many: a back-off, three plans, three stagings, three commits."""


@pytest.mark.parametrize("late", list(permutations(["1:0", "2:0", "3:0"])), ids=" ".join)
def test_a_shorter_replay_moves_the_later_batches_whenever_late_failures_come(
    late: tuple[str, ...],
) -> None:
    """If opaque batch A was 1-50 and B 51-100, and A is replayed as 1-40, then B becomes 41-90,
    whatever the order of late failures.

    Trident row 68.
    """
    world = three_in_flight(SpoutKind.OPAQUE, shorter_replay_of_the_first)
    world.fail(a("1:0"))
    told: list[str] = []

    def late_failures() -> None:
        # Each leaves the very same state, so telling all of them before each step, in this order,
        # is as good as telling each at any one moment.
        for name in late:
            world.tell_late(a(name))
            told.append(name)

    world.settle(late_failures)
    assert told == list(late) * (STEPS + 1)
    assert ranges(world) == [(1, 40), (41, 90), (91, 140)]


@BOTH
def test_whichever_batches_fail_in_whichever_order_the_ranges_follow_each_other(
    kind: SpoutKind,
) -> None:
    """Each of three batches in flight fails up to three times, in every order, each opaque replay
    shorter than the one before: no record is skipped or counted twice.
    """

    def shrinking(attempt: TransactionAttempt, _: str, size: int) -> int:
        return min(size, 50 - 10 * min(attempt.attempt_id, 4))

    for failing in product((1, 2, 3), repeat=3):
        world = three_in_flight(kind, shrinking)
        for txid in failing:
            world.fail(next(at for at in world.at_work() if at.txid == txid))
            advance_until(world, lambda w: bool(w.memory.turn) and len(w.at_work()) == 3)
        world.settle()
        found = ranges(world)
        assert world.memory.ended == Finish()
        assert [low for low, _ in found] == [1, found[0][1] + 1, found[1][1] + 1]
        if kind is SpoutKind.TRANSACTIONAL:
            assert found == [(1, 50), (51, 100), (101, 150)]


def advance_until(world: World, reached: Callable[[World], bool]) -> None:
    """Step by step on, without a commit."""
    for _ in range(100):
        memory = world.memory
        if reached(world):
            return
        if memory.questions:
            world.answer()
        elif memory.retries:
            world.retry(memory.retries[0])
        elif memory.running:
            world.process(min(memory.running))
        else:
            world.end_interval()
    raise AssertionError("The world does not come so far.")


# --- holes of Storm ---------------------------------------------------------------------------


@BOTH
def test_a_txid_that_had_nothing_to_read_is_asked_for_again_before_any_later_one(
    kind: SpoutKind,
) -> None:
    """Storm's hole H2: with partition p away txid 2 has nothing to read; once p is back the next
    question is about txid 2 again, so no txid is started without the one before it.
    """
    world = World(kind, lambda attempt, partition, size: min(size, 10))
    world.add("p", 30)
    world.restart(until="caught_up")
    world.answer()
    world.spout.set_disabled("p", True)
    world.end_interval()
    assert [str(attempt) for attempt in world.memory.questions] == ["2:0"]
    world.answer()
    assert list(world.starts) == [1]
    world.spout.set_disabled("p", False)
    world.end_interval()
    assert [str(attempt) for attempt in world.memory.questions] == ["2:0"]
    world.answer()
    assert [world.starts[txid].spouts["s"]["read"]["p"] for txid in (1, 2)] == [
        {"start": 0, "end": 10},
        {"start": 10, "end": 20},
    ]
    world.drain()


def test_a_late_failure_does_not_knock_out_the_attempt_that_lives() -> None:
    """Storm's hole H3: after 1:0 failed, 2:0's late failure arrives while 2:1 and 3:1 live; Storm
    drops 2:1 and keeps 3:1, which skips records 91-100.
    """
    world = three_in_flight(SpoutKind.OPAQUE, shorter_replay_of_the_first)
    world.fail(a("1:0"))
    replays = [a("1:1"), a("2:1"), a("3:1")]
    advance_until(world, lambda w: w.at_work() == replays)
    world.tell_late(a("2:0"))
    assert world.at_work() == replays
    world.settle()
    assert ranges(world) == [(1, 40), (41, 90), (91, 140)]


@BOTH
def test_a_partition_added_before_the_others_does_not_repeat_what_is_in_flight(
    kind: SpoutKind,
) -> None:
    """Storm's hole H8: p0 is added before p1 and p2 while txid 1, which read them, is in flight;
    txid 2 reads p0 from its start, and p1 and p2 from where txid 1 ends.

    Trident row 69.
    """
    world = World(kind, lambda attempt, partition, size: min(size, 10))
    for name in ("p1", "p2"):
        world.add(name, 15)
    world.restart()
    world.answer()
    world.add("p0", 15)
    world.end_interval()
    world.answer()
    assert world.committed.txid == 0
    assert world.starts[2].spouts["s"]["read"] == {
        "p0": {"start": 0, "end": 10},
        "p1": {"start": 10, "end": 15},
        "p2": {"start": 10, "end": 15},
    }
    world.drain()


def test_a_transactional_replay_keeps_its_partitions_and_an_opaque_one_has_those_of_now() -> None:
    """A partition added between two attempts of a txid is in the replay of an opaque spout only.

    Trident row 67.
    """
    found = {}
    for kind in KINDS:
        world = World(kind, lambda attempt, partition, size: min(size, 10))
        world.add("p1", 10)
        world.restart()
        world.answer()
        world.process(a("1:0"))
        world.add("p0", 10)
        world.fail(a("1:0"))
        world.retry(a("1:1"))
        if kind is SpoutKind.OPAQUE:
            world.answer()
        found[kind] = sorted(world.starts[1].spouts["s"]["read"])
        world.drain()
    assert found == {SpoutKind.TRANSACTIONAL: ["p1"], SpoutKind.OPAQUE: ["p0", "p1"]}


def everything_once(world: World) -> None:
    """Each thing that can happen, once, as long as the run has not ended."""
    memory = world.memory
    for attempt in list(memory.retries):
        world.retry(attempt)
    for attempt in sorted(memory.running):
        world.process(attempt)
    if memory.turn is not None:
        world.commit_turn()
    if memory.questions:
        world.answer()
    if memory.timer and memory.ended is None:
        world.end_interval()


@BOTH
def test_a_partition_that_is_away_at_a_replay(kind: SpoutKind) -> None:
    """A transactional batch waits for its partition, and nothing overtakes its commit; an opaque
    one goes on without it, and a later txid reads it from its last committed position.
    """
    world = World(kind, lambda attempt, partition, size: min(size, 5), attempts=3)
    world.add("p0", 10)
    world.add("p1", 10)
    world.restart(until="caught_up")
    world.answer()
    world.fail(a("1:0"))
    world.spout.set_disabled("p1", True)
    for _ in range(20):
        everything_once(world)
    waits = kind is SpoutKind.TRANSACTIONAL
    assert (world.counted["p0"], world.counted["p1"]) == ((0, 0) if waits else (10, 0))
    assert (world.memory.ended is None) == waits
    assert (2 in world.starts) == waits
    if waits:
        # Attempts that only waited are not counted: this one is the second of three that may fail.
        world.spout.set_disabled("p1", False)
        advance_until(world, lambda w: w.memory.turn is not None)
        world.fail(world.at_work()[0])
        assert world.memory.ended is None
    world.drain()
