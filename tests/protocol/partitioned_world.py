"""A shell without Spark and ZooKeeper around a real partitioned spout, and books that judge it.

The spout plans (`PartitionedSpout.initialize_transaction`) and reads; recovery is
`txn.protocol.recovery.reconcile`; two tables hold rows. The world knows nothing of positions: it
looks at the rows in the tables. At each commit the rows of each partition must be the next ones of
that partition, without gap and without repetition; at the end all of them must have been counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spouts.memory import MemoryPartitionedSpout
from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.errors import SourceUnavailableError
from txn.interfaces import PartitionPositions, Publication, SpoutKind
from txn.protocol.coordinator import recovered_state, start, step
from txn.protocol.events import (
    Action,
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Cancel,
    CoordinatorState,
    Event,
    Finish,
    Halt,
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
    Succeed,
)
from txn.protocol.records import BatchRecord, CommittedRecord, Progress
from txn.protocol.recovery import reconcile

Choose = Callable[[Sequence[Any]], Any]
Take = Callable[[TransactionAttempt, str, int], int]
Record = tuple[str, int]
TABLES = ("a", "b")
STREAM = "s"


class Crash(Exception):  # noqa: N818 - not an error of the world's
    """The process dies between two orders."""


class Uneven(MemoryPartitionedSpout):
    """Takes of each partition as many of the rows there are as `take` says, per attempt."""

    def __init__(self, take: Take, kind: SpoutKind) -> None:
        super().__init__({}, "p string, i int", take_per_partition=10**6, kind=kind)
        self.take = take

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> dict[str, int] | None:
        """As much of the rest of the partition as `take` says; 0: as if it were missing."""
        position = super().plan_partition(attempt, partition, previous)
        if position is None:
            return None
        size = self.take(attempt, partition, position["end"] - position["start"])
        return {**position, "end": position["start"] + size} if size else None


@dataclass
class Memory:
    """What a crash wipes: everything that is out, by attempt."""

    questions: dict[TransactionAttempt, Plan] = field(default_factory=dict)
    running: dict[TransactionAttempt, Process] = field(default_factory=dict)
    staged: dict[TransactionAttempt, list[Record]] = field(default_factory=dict)
    turn: Publish | None = None
    retries: list[TransactionAttempt] = field(default_factory=list)
    timer: bool = False
    ended: Action | None = None


class World:
    """One topology of one partitioned stream: its shell, durable store, tables and books.

    Args:
        take: (attempt, partition, rows there) -> how many of them a plan takes.
        pending: `max_spout_pending`.
    """

    def __init__(self, kind: SpoutKind, take: Take, *, pending: int = 3, attempts: int = 99):
        self.opaque = kind is SpoutKind.OPAQUE
        self.spout = Uneven(take, kind)
        # Groups are the matter of `coordinator_world`.
        self.config = TopologyConfig(
            max_spout_pending=pending, max_batch_attempts=attempts, max_group_commit=1
        )
        self.committed = CommittedRecord()
        self.starts: dict[int, BatchRecord] = {}
        self.tables: dict[str, dict[int, tuple[Publication, list[Record]]]] = {
            name: {} for name in TABLES
        }
        self.sizes: dict[str, int] = {}
        self.removed: set[str] = set()
        self.counted: Counter[str] = Counter()
        self.dead: list[TransactionAttempt] = []
        self.fuse: int | None = None

    # --- the source --------------------------------------------------------------------------

    def add(self, name: str, size: int) -> None:
        """A partition of `size` rows comes to be."""
        self.sizes[name] = size
        self.spout.add_partition(name, [(name, i) for i in range(size)])

    def take_away(self, name: str) -> None:
        """A partition is removed for a while."""
        self.removed.add(name)
        self.spout.remove_partition(name)

    def give_back(self, name: str) -> None:
        """It is there again, under its old name."""
        self.removed.discard(name)
        self.spout.add_partition(name, [(name, i) for i in range(self.sizes[name])])

    # --- runs --------------------------------------------------------------------------------

    def restart(self, until: Any = "forever") -> None:
        """Recover from what is durable, and begin a run."""
        self.memory = Memory()
        opaque = frozenset({STREAM} if self.opaque else ())
        batches = tuple(self.starts[txid] for txid in sorted(self.starts))
        progress = Progress(committed=self.committed, batches=batches)
        newest = {name: max(held, default=0) for name, held in self.tables.items()}
        found = {n: (txid, self.tables[n][txid][0]) if txid else None for n, txid in newest.items()}
        recovered = reconcile("t", (STREAM,), opaque, progress, found)
        if recovered.roll_forward:
            self.commit(recovered.committed)
        state = recovered_state(
            recovered.committed,
            recovered.batches,
            streams=(STREAM,),
            opaque_streams=opaque,
            config=self.config,
            until=until,
            published=recovered.published,
        )
        self.carry_out(*start(state))

    def tell(self, event: Event) -> None:
        """One fact, and all that follows from it."""
        self.carry_out(*step(self.state, event))

    def carry_out(self, state: CoordinatorState, actions: Sequence[Action]) -> None:
        """The orders, one by one, up to a crash."""
        self.state = state
        for action in actions:
            if self.fuse == 0:
                raise Crash
            self.fuse = None if self.fuse is None else self.fuse - 1
            self.order(action)

    def order(self, action: Action) -> None:
        """One order."""
        memory = self.memory
        match action:
            case Plan():
                memory.questions[action.attempt] = action
            case PersistStart():
                self.persist_start(action)
            case Process():
                memory.running[action.attempt] = action
            case Publish():
                assert memory.turn is None, "One commit turn at a time."
                memory.turn = action
            case PersistCommitted():
                txid, positions = action.attempt.txid, dict(action.positions)
                self.commit(CommittedRecord(txid=txid, epoch=1, spouts=positions))
            case Cancel():
                memory.running.pop(action.attempt, None)
                memory.staged.pop(action.attempt, None)
                self.dead.append(action.attempt)
            case SchedulePlan():
                memory.timer = True
            case ScheduleRetry():
                memory.retries.append(action.attempt)
            case Finish() | Halt():
                memory.ended = action
            case _:
                assert isinstance(action, Succeed)

    def persist_start(self, action: PersistStart) -> None:
        """START becomes durable; a transactional plan is the one that it was."""
        txid = action.attempt.txid
        assert txid == self.committed.txid + 1 or txid - 1 in self.starts
        before = self.starts.get(txid)
        if before is not None and not self.opaque:
            assert before.spouts == dict(action.metadata), "Fixed with the first START."
        self.starts[txid] = BatchRecord(
            txid=txid,
            attempt=action.attempt.attempt_id,
            epoch=1,
            spouts=dict(action.metadata),
            opaque=[STREAM] if self.opaque else [],
        )

    def commit(self, record: CommittedRecord) -> None:
        """COMMITTED becomes durable; the books count the rows in the tables."""
        assert record.txid == self.committed.txid + 1, "Commits are in txid order."
        rows = [sorted(table[record.txid][1]) for table in self.tables.values()]
        assert rows[0] == rows[1], "Both tables hold the same rows of a txid."
        for partition, index in rows[0]:
            assert index == self.counted[partition], "The next row of its partition."
            self.counted[partition] += 1
        self.committed = record
        self.starts.pop(record.txid, None)

    # --- facts -------------------------------------------------------------------------------

    def answer(self) -> None:
        """The spout answers the question that is out; what it says goes through JSON."""
        attempt, question = self.memory.questions.popitem()
        stored = question.previous.get(STREAM)
        previous = None if stored is None else PartitionPositions.model_validate(stored)
        answer = self.spout.initialize_transaction(attempt, previous)
        said = None if answer is None else json.loads(answer.model_dump_json())
        self.tell(PlanMade(attempt, {STREAM: said}))

    def fail_planning(self) -> None:
        """The spout cannot answer."""
        attempt, _ = self.memory.questions.popitem()
        self.tell(PlanFailed(attempt, "no broker"))

    def process(self, attempt: TransactionAttempt) -> None:
        """A batch is read and staged, or waits for a partition that is away."""
        order = self.memory.running.pop(attempt)
        stored = order.metadata.get(STREAM)
        metadata = PartitionPositions.model_validate(stored or {})
        try:
            rows = self.spout.rows_at(attempt, metadata.read)
        except SourceUnavailableError as error:
            self.tell(BatchFailed(attempt, str(error), blocked=True))
            return
        assert self.spout.planned_rows(metadata) == len(rows)
        self.memory.staged[attempt] = rows
        self.tell(BatchProcessed(attempt))

    def fail(self, attempt: TransactionAttempt) -> None:
        """An attempt at work fails."""
        self.memory.running.pop(attempt, None)
        self.memory.staged.pop(attempt, None)
        if self.memory.turn is not None and self.memory.turn.attempt == attempt:
            self.memory.turn = None
        self.memory.questions = {
            at: plan
            for at, plan in self.memory.questions.items()
            if not (self.opaque and at.txid > attempt.txid)
        }
        self.tell(BatchFailed(attempt, "disk on fire"))

    def publish_to(self, name: str) -> None:
        """One table gets the batch whose turn it is: opaque tables revert, others keep."""
        turn = self.memory.turn
        assert turn is not None
        txid, rows, table = turn.attempt.txid, self.memory.staged[turn.attempt], self.tables[name]
        publication = Publication(
            topology="t",
            epoch=1,
            first_txid=txid,
            last_txid=txid,
            attempt_id=turn.attempt.attempt_id,
            spouts=dict(turn.positions),
            read=dict(turn.metadata),
        )
        if not self.opaque and txid in table:
            assert table[txid][1] == rows, "A transactional replay is identical."
            return
        table[txid] = (publication, rows)

    def is_published(self) -> bool:
        """Whether every table holds the batch whose turn it is, by this attempt or its equal."""
        turn = self.memory.turn
        if turn is None:
            return False
        held = [table.get(turn.attempt.txid) for table in self.tables.values()]
        return all(
            row is not None and (not self.opaque or row[0].attempt_id == turn.attempt.attempt_id)
            for row in held
        )

    def finish_turn(self) -> None:
        """The commit turn ends well."""
        turn = self.memory.turn
        assert turn is not None
        self.memory.turn = None
        del self.memory.staged[turn.attempt]
        self.tell(BatchPublished(turn.attempt, dict.fromkeys(TABLES, turn.attempt.txid)))

    def commit_turn(self) -> None:
        """A commit turn without incidents."""
        for name in TABLES:
            self.publish_to(name)
        self.finish_turn()

    def retry(self, attempt: TransactionAttempt) -> None:
        """A back-off is over."""
        self.memory.retries.remove(attempt)
        self.tell(RetryDue(attempt))

    def end_interval(self) -> None:
        """The emit interval is over."""
        self.memory.timer = False
        self.tell(PlanDue())

    def tell_late(self, attempt: TransactionAttempt) -> None:
        """Facts about an attempt that is dead: they must change nothing at all."""
        facts: list[Event] = [
            BatchFailed(attempt, "late"),
            BatchProcessed(attempt),
            BatchPublished(attempt, {}),
            RetryDue(attempt),
        ]
        for event in facts:
            state, actions = step(self.state, event)
            assert (state is self.state, actions) == (True, ()), "Late is harmless."

    def at_work(self) -> list[TransactionAttempt]:
        """Attempts that run, have staged rows, or have their commit turn."""
        return sorted({*self.memory.running, *self.memory.staged})

    # --- to the end --------------------------------------------------------------------------

    def settle(self, before_each: Callable[[], None] = lambda: None) -> None:
        """Everything succeeds until the run has ended."""
        for _ in range(1000):
            before_each()
            memory = self.memory
            if memory.ended is not None:
                return
            if memory.questions:
                self.answer()
            elif memory.retries:
                self.retry(memory.retries[0])
            elif memory.running:
                self.process(min(memory.running))
            elif memory.turn is not None:
                self.commit_turn()
            elif memory.timer:
                self.end_interval()
        raise AssertionError("The world does not come to an end.")

    def drain(self) -> None:
        """Bring every partition back, take all there is, and hold the tables against the source."""
        self.fuse = None
        for name in sorted(self.removed):
            self.give_back(name)
        for name in self.sizes:
            self.spout.set_disabled(name, False)
        self.spout.take = lambda attempt, partition, size: min(size, 4)
        self.restart(until="caught_up")
        self.settle()
        assert self.memory.ended == Finish()
        everything = Counter((name, i) for name, size in self.sizes.items() for i in range(size))
        for table in self.tables.values():
            assert Counter(row for _, rows in table.values() for row in rows) == everything


class History:
    """Random moves in a world.

    Args:
        choose: picks one of a sequence.
    """

    def __init__(self, kind: SpoutKind, choose: Choose) -> None:
        self.choose = choose
        self.world = World(
            kind,
            lambda attempt, partition, size: self.choose(range(min(size, 3) + 1)),
            pending=choose([1, 2, 3, 3]),
            attempts=choose([1, 2, 99]),
        )
        self.away: set[str] = set()
        for name in choose([["p5"], ["p3", "p5"], ["p3", "p5", "p7"]]):
            self.world.add(name, choose([1, 4, 9]))
        self.survive(self.world.restart)

    def survive(self, happening: Callable[[], None]) -> None:
        """A crash is followed by a restart, which may crash too."""
        try:
            happening()
        except Crash:
            self.world.fuse = self.choose([None, None, 0, 1, 2, 4])
            self.survive(self.world.restart)

    def change_source(self) -> None:
        """A partition goes, comes back, or comes to be: before, between or behind the others."""
        world, name = self.world, self.choose([*self.world.sizes, "new"])
        if name == "new":
            free = sorted({f"p{n}" for n in range(10)} - set(world.sizes))
            if free:
                world.add(self.choose(free), self.choose([0, 1, 3, 6]))
        elif name in world.removed:
            world.give_back(name)
        elif name in self.away:
            self.away.discard(name)
            world.spout.set_disabled(name, False)
        elif self.choose([True, True, False]):
            self.away.add(name)
            world.spout.set_disabled(name, True)
        else:
            world.take_away(name)

    def move(self) -> None:
        """Something happens."""
        world, memory, choose = self.world, self.world.memory, self.choose
        if memory.ended is not None:
            self.survive(world.restart)
            return
        possible: list[Callable[[], None]] = [self.change_source]
        if memory.questions:
            possible += [world.answer] * 4 + [world.fail_planning]
        if memory.running:
            possible += [lambda: world.process(choose(sorted(memory.running)))] * 3
        if memory.retries:
            possible += [lambda: world.retry(choose(memory.retries))] * 3
        if memory.timer:
            possible += [world.end_interval] * 3
        if memory.turn is not None:
            published = world.is_published()
            turn = world.finish_turn if published else lambda: world.publish_to(choose(TABLES))
            possible += [turn] * 4
        if world.at_work():
            possible.append(lambda: world.fail(choose(world.at_work())))
        if world.dead:
            possible.append(lambda: world.tell_late(choose(world.dead[-6:])))
        happening = choose(possible)
        if choose(range(20)) == 0:
            world.fuse = choose([0, 0, 1, 2, 4])
        self.survive(happening)


def live_through(kind: SpoutKind, choose: Choose, moves: int) -> World:
    """One history, drained and judged."""
    history = History(kind, choose)
    for _ in range(moves):
        history.move()
    history.world.drain()
    return history.world
