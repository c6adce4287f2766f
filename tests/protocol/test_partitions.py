"""A partitioned spout under the coordinator: what each attempt reads of which partition."""

from __future__ import annotations

from itertools import permutations

import pytest

from spouts.memory import MemoryPartitionedSpout
from tests.protocol.scenarios.language import Play, attempt_of
from txn.attempts import TransactionAttempt
from txn.interfaces import PartitionPositions, SpoutKind
from txn.protocol.events import BatchFailed, Event, Plan, PlanDue, PlanMade, Process, RetryDue

KINDS = (SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)
BOTH = pytest.mark.parametrize("kind", KINDS)
Spans = dict[str, tuple[int, int]]


class Spout(MemoryPartitionedSpout):
    """Takes fifty rows of a partition, but forty for a replay of txid 1."""

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: dict[str, int] | None
    ) -> dict[str, int] | None:
        """Plan the next rows; see the class."""
        position = super().plan_partition(attempt, partition, previous)
        if position and attempt.txid == 1 and attempt.attempt_id:
            return {**position, "end": min(position["end"], position["start"] + 40)}
        return position


class Run:
    """A coordinator over one stream, whose spout answers every question at once."""

    def __init__(self, kind: SpoutKind, **sizes: int) -> None:
        self.stream = "o" if kind is SpoutKind.OPAQUE else "t"
        self.spout = Spout({}, "i int", take_per_partition=50, kind=kind)
        for name, size in sizes.items():
            self.add(name, size)
        self.read: dict[str, Spans] = {}
        """Attempt -> the rows of each partition that it reads."""
        self.play = Play({"streams": self.stream})
        self.play.do_start([], {})
        self._follow()

    def add(self, name: str, size: int) -> None:
        self.spout.add_partition(name, [(i,) for i in range(size)])

    def tell(self, *events: Event) -> None:
        for event in events:
            self.play.hear(event)
            self._follow()

    def fail(self, name: str) -> None:
        """Let an attempt fail, and its back-off be over."""
        attempt = attempt_of(name)
        self.tell(BatchFailed(attempt, "disk on fire"), RetryDue(attempt.next()))

    def _follow(self) -> None:
        for order in self.play.orders:
            match order:
                case Plan():
                    self.tell(PlanMade(order.attempt, {self.stream: self._plan(order)}))
                case Process():
                    positions = PartitionPositions.model_validate(order.metadata[self.stream])
                    spans = {p: (at["start"], at["end"]) for p, at in positions.read.items()}
                    self.read[str(order.attempt)] = spans

    def _plan(self, order: Plan) -> object:
        stored = order.previous.get(self.stream)
        previous = None if stored is None else PartitionPositions.model_validate(stored)
        plan = self.spout.initialize_transaction(order.attempt, previous)
        return None if plan is None else plan.model_dump(mode="json")


@pytest.mark.parametrize("late", list(permutations(["1:0", "2:0", "3:0"])), ids=" ".join)
def test_a_shorter_replay_moves_the_later_batches_whenever_late_failures_come(
    late: tuple[str, ...],
) -> None:
    """If opaque batch A was 1-50 and B 51-100, and A is replayed as 1-40, then B becomes 41-90,
    whatever the order of late failures.

    Trident row 68.
    """
    run = Run(SpoutKind.OPAQUE, p=200)
    run.tell(PlanDue(), PlanDue())
    assert run.read == {"1:0": {"p": (0, 50)}, "2:0": {"p": (50, 100)}, "3:0": {"p": (100, 150)}}
    run.read.clear()
    failures = [BatchFailed(attempt_of(name), "late") for name in late]
    run.tell(BatchFailed(attempt_of("1:0"), "disk on fire"))
    assert run.play.hear(*failures) == ["unchanged"] * 3
    run.tell(RetryDue(attempt_of("1:1")))
    assert run.play.hear(*failures) == ["unchanged"] * 3
    assert run.read == {"1:1": {"p": (0, 40)}, "2:1": {"p": (40, 90)}, "3:1": {"p": (90, 140)}}


@BOTH
def test_a_partition_added_before_the_others_does_not_repeat_what_is_in_flight(
    kind: SpoutKind,
) -> None:
    """Storm's hole H8: p0 is added before p1 and p2 while txid 1, which read them, is in flight;
    txid 2 reads p0 from its start, and p1 and p2 from where txid 1 ends.

    Trident row 69.
    """
    run = Run(kind, p1=60, p2=60)
    run.add("p0", 60)
    run.tell(PlanDue())
    assert run.read == {
        "1:0": {"p1": (0, 50), "p2": (0, 50)},
        "2:0": {"p0": (0, 50), "p1": (50, 60), "p2": (50, 60)},
    }


def test_a_transactional_replay_keeps_its_partitions_and_an_opaque_one_has_those_of_now() -> None:
    """A partition added between two attempts of a txid is in the replay of an opaque spout only.

    Trident row 67.
    """
    read = {}
    for kind in KINDS:
        run = Run(kind, p1=10)
        run.add("p0", 10)
        run.fail("1:0")
        read[kind] = run.read["1:1"]
    assert read == {
        SpoutKind.TRANSACTIONAL: {"p1": (0, 10)},
        SpoutKind.OPAQUE: {"p0": (0, 10), "p1": (0, 10)},
    }


@BOTH
def test_a_partition_that_is_away_at_a_replay(kind: SpoutKind) -> None:
    """A transactional replay still asks for its partition; an opaque one goes on without it, and a
    later txid reads it from its last committed position.

    Trident row 11.
    """
    run = Run(kind, p0=10, p1=10)
    run.spout.set_disabled("p1", True)
    run.fail("1:0")
    if kind is SpoutKind.TRANSACTIONAL:
        assert run.read["1:1"] == {"p0": (0, 10), "p1": (0, 10)}
        return
    assert run.read["1:1"] == {"p0": (0, 10)}
    run.spout.set_disabled("p1", False)
    run.tell(PlanDue())
    assert run.read["2:0"] == {"p1": (0, 10)}
