"""Random histories of the coordinator against a world that keeps its own, simpler books.

The world is a shell without Spark and ZooKeeper: a durable store, two tables, sources that are
logs of integers. It carries the orders out, may crash between any two of them, and reports facts
in any order, late, twice and about dead attempts. Its books know nothing of phases: which attempts
live, how far each stream is committed. What must hold is checked as the orders come in; at the end
everything is drained, and every record must be in exactly one committed txid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tests.txn.coordinator_memory import Crash, Memory, Record, Row, records_of
from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.coordinator import recovered_state, start, step
from txn.events import (
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
    StopRequested,
    Succeed,
)
from txn.records import BatchRecord, CommittedRecord

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]

TOPOLOGIES: list[dict[str, bool]] = [
    {"t": False},
    {"o": True},
    {"t": False, "o": True},
    {"t": False, "u": False},
]
"""stream -> whether it is opaque."""
TABLES = ("a", "b")


class World:
    """A shell, its durable store and tables, its sources, and the books that judge them."""

    def __init__(self, choose: Choose[Any]) -> None:
        self.choose = choose
        self.streams: dict[str, bool] = choose(TOPOLOGIES)
        self.opaque = frozenset(s for s, opaque in self.streams.items() if opaque)
        self.log = dict.fromkeys(self.streams, 6)
        # durable
        self.committed = 0
        self.positions: dict[str, Any] = {}
        self.starts: dict[int, BatchRecord] = {}
        self.tables: dict[str, dict[int, Row]] = {name: {} for name in TABLES}
        self.quarantine: dict[int, Mapping[str, Any]] = {}
        self.requested: set[int] = set()
        # books
        self.highest_attempt: dict[int, int] = {}
        self.fixed: dict[tuple[int, str], Any] = {}
        self.ends = dict.fromkeys(self.streams, 0)
        self.set_aside: Counter[Record] = Counter()
        self.succeeded = 0
        self.seen: list[TransactionAttempt] = [TransactionAttempt(1)]
        self.fuse: int | None = None
        if choose([True, False]):
            self.begin_with_quarantined_txids()
        self.restart()

    def begin_with_quarantined_txids(self) -> None:
        """Txids 1 and 2 are committed empty; one record of every stream in each."""
        for txid in (1, 2):
            read = {stream: [txid - 1, txid] for stream in self.streams}
            row = Row(TransactionAttempt(txid), frozenset(), read, read, quarantined=True)
            for table in self.tables.values():
                table[txid] = row
            self.set_aside.update(records_of(read))
            self.committed, self.succeeded, self.positions, self.quarantine[txid] = 2, 2, read, read
        self.ends = dict.fromkeys(self.streams, 2)
        self.requested = set(self.choose([(), (1,), (1, 2)]))

    # --- runs --------------------------------------------------------------------------------

    def restart(self, **settings: Any) -> None:
        """Recover from what is durable, with new limits, and begin a run."""
        self.memory = Memory()
        near, far = self.committed + 1, self.committed + 4
        self.until = settings.pop("until", None) or self.choose(["forever", near, far, "caught_up"])
        settings = settings or {
            "max_spout_pending": self.choose([1, 2, 3, 5]),
            "max_batch_attempts": self.choose([1, 2, 3]),
            "on_exhausted": self.choose(["stop", "quarantine"]),
        }
        self.config = TopologyConfig(**settings)
        self.state = self.recovered()
        self.carry_out(*start(self.state))

    def recovered(self) -> CoordinatorState:
        """Roll forward what all tables hold; hand over the rest."""
        txid = self.committed + 1
        held = [table[txid] for table in self.tables.values() if txid in table]
        same = len({row.attempt for row in held}) == 1 or not self.opaque
        if len(held) == len(TABLES) and same:
            self.book_commit(txid, held[0].read)
            self.positions = dict(held[0].positions)
            held = []
        return recovered_state(
            CommittedRecord(txid=self.committed, spouts=self.positions),
            list(self.starts.values()),
            streams=tuple(self.streams),
            opaque_streams=self.opaque,
            config=self.config,
            until=self.until,
            published=[txid] if held else [],
        )

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
            assert self.memory.ended is None, "Nothing is ordered after Finish or Halt."
            getattr(self, f"do_{type(action).__name__.lower()}")(action)
        self.check_state()

    def check_state(self) -> None:
        """What holds of every state."""
        txids = sorted(self.state.batches)
        phases = [self.state.batches[txid].phase for txid in txids]
        assert txids == [self.committed + 1 + i for i in range(len(txids))]
        assert phases.count(Phase.PLANNING) <= 1
        assert Phase.COMMITTING not in phases[1:]
        assert len(self.state.next_attempts) <= 1
        assert len(self.memory.questions) <= 1, "At most one txid is being planned."
        live = [attempt.txid for attempt in self.memory.at_work()]
        assert len(live) == len(set(live)), "One attempt of a txid is at work."

    # --- orders ------------------------------------------------------------------------------

    def do_plan(self, action: Plan) -> None:
        """A question goes out; all smaller txids must be durable."""
        txid = action.attempt.txid
        assert txid == self.committed + 1 or txid - 1 in self.starts
        assert set(action.streams) == set(self.opaque if txid in self.starts else self.streams)
        assert action.is_new == (txid not in self.starts)
        replays = {start.replay_of for start in self.starts.values()} - {None}
        assert action.replaying == replays
        assert txid not in self.starts or self.starts[txid].replay_of is None
        assert action.attempt not in self.memory.asked, "An id is given away once within a run."
        assert action.attempt not in self.memory.retries, "A back-off is kept."
        self.memory.asked.add(action.attempt)
        self.seen.append(action.attempt)
        self.memory.questions[action.attempt] = action

    def do_persiststart(self, action: PersistStart) -> None:
        """START becomes durable."""
        txid, attempt_id = action.attempt.txid, action.attempt.attempt_id
        assert txid == self.committed + 1 or txid - 1 in self.starts
        assert attempt_id > self.highest_attempt.get(txid, -1), "Attempt ids never go back."
        assert not isinstance(self.until, int) or txid <= self.until
        assert action.attempt not in self.memory.retries, "A back-off is kept."
        assert not self.memory.stopping, "A stop starts nothing."
        if txid not in self.starts:
            assert len(self.starts) < self.config.max_spout_pending
        if action.quarantined and self.opaque and action.replay_of is None:
            assert txid == self.committed + 1
        replay = action.replay_of
        if replay is not None:
            assert action.metadata == self.quarantine[replay], "It reads just what was set aside."
            others = [start for t, start in self.starts.items() if t != txid]
            assert replay not in [start.replay_of for start in others], "One replay at a time."
        for stream in set(self.streams) - self.opaque:
            first = self.fixed.setdefault((txid, stream), action.metadata[stream])
            assert action.metadata[stream] == first, "The first START fixes the metadata."
        self.seen.append(action.attempt)
        self.highest_attempt[txid] = attempt_id
        self.starts[txid] = BatchRecord(
            txid=txid,
            attempt=attempt_id,
            epoch=1,
            spouts=dict(action.metadata),
            quarantined=action.quarantined,
            replay_of=replay,
        )

    def do_process(self, action: Process) -> None:
        """Work begins; its START must be durable."""
        durable = self.starts[action.attempt.txid]
        assert (durable.attempt, durable.spouts) == (action.attempt.attempt_id, action.metadata)
        assert action.empty == (durable.quarantined is not None)
        self.memory.running[action.attempt] = action

    def do_publish(self, action: Publish) -> None:
        """A commit turn begins; it must be the next one, and the only one."""
        assert action.attempt.txid == self.committed + 1, "Commits are in txid order."
        assert self.memory.publishing is None, "One commit turn at a time."
        assert action.attempt in self.memory.staged
        self.memory.publishing = action

    def do_persistcommitted(self, action: PersistCommitted) -> None:
        """COMMITTED becomes durable; every table must hold this attempt."""
        txid = action.attempt.txid
        durable = self.starts[txid]
        assert durable.attempt == action.attempt.attempt_id
        assert (action.quarantined, action.replay_of) == (durable.quarantined, durable.replay_of)
        self.book_commit(txid, durable.spouts)
        self.positions = dict(action.positions)
        ends = {stream: span[1] for stream, span in self.positions.items()}
        assert {**dict.fromkeys(self.streams, 0), **ends} == self.ends

    def book_commit(self, txid: int, read: Mapping[str, Any]) -> None:
        """Enter a commit in the books: ranges follow each other, tables hold what was read.

        What a replay read was set aside before; its record goes with the commit.
        """
        assert txid == self.committed + 1, "Commits are in txid order."
        quarantined, replay = self.starts[txid].quarantined, self.starts[txid].replay_of
        for stream, span in read.items():
            if span is not None and replay is None:
                assert span[0] == self.ends[stream], "Batches neither overlap nor leave gaps."
                self.ends[stream] = span[1]
        records = frozenset() if quarantined else records_of(read)
        assert [t[txid].records for t in self.tables.values()] == [records] * len(TABLES)
        if replay is not None:
            assert read == self.quarantine.pop(replay)
            self.set_aside.subtract(records_of(read))
        if quarantined:
            self.quarantine[txid] = read
            self.set_aside.update(records_of(read))
        self.committed = txid
        self.starts.pop(txid, None)

    def do_succeed(self, action: Succeed) -> None:
        """Success may be missed by a crash, and is never early or repeated."""
        assert self.succeeded < action.attempt.txid <= self.committed
        self.succeeded = action.attempt.txid

    def do_cancel(self, action: Cancel) -> None:
        """Work ends; its late facts are dead from now on."""
        committing = self.memory.publishing
        assert committing is None or committing.attempt != action.attempt
        self.memory.running.pop(action.attempt, None)
        self.memory.staged.pop(action.attempt, None)

    def do_scheduleretry(self, action: ScheduleRetry) -> None:
        """A back-off begins."""
        self.memory.retries.add(action.attempt)

    def do_scheduleplan(self, action: SchedulePlan) -> None:
        """A timer starts; there is one."""
        assert not self.memory.timer
        self.memory.timer = True

    def do_finish(self, action: Finish) -> None:
        """The run ends well, for a reason, and not during a commit turn."""
        assert self.memory.publishing is None
        reached = isinstance(self.until, int) and self.committed >= self.until
        wanted = self.requested & set(self.quarantine)
        caught_up = self.until == "caught_up" and not self.starts and not wanted
        assert self.memory.stopping or reached or caught_up
        self.memory.ended = action

    def do_halt(self, action: Halt) -> None:
        """The run ends with an error."""
        self.memory.ended = action

    # --- facts -------------------------------------------------------------------------------

    def answer(self, most: int = 3, *, greedy: bool = False) -> None:
        """What is wanted back out of the quarantine answers a question, else the spouts do."""
        attempt = self.choose(list(self.memory.questions))
        plan = self.memory.questions.pop(attempt)
        wanted = (self.requested & set(self.quarantine)) - plan.replaying
        if plan.is_new and wanted:
            replay = min(wanted)
            self.tell(PlanMade(attempt, self.quarantine[replay], replay))
            return
        metadata: dict[str, Any] = {}
        for stream in plan.streams:
            low = plan.previous[stream][1] if stream in plan.previous else 0
            size = most if greedy else self.choose(range(most + 1))
            high = min(low + size, self.log[stream])
            metadata[stream] = [low, high] if high > low else None
        self.tell(PlanMade(attempt, metadata))

    def fail_planning(self) -> None:
        """The spouts cannot answer."""
        attempt = self.choose(list(self.memory.questions))
        del self.memory.questions[attempt]
        self.tell(PlanFailed(attempt, "no broker", blocked=self.choose([False, True])))

    def finish_processing(self) -> None:
        """A batch is staged and acked."""
        attempt = self.choose(list(self.memory.running))
        self.memory.staged[attempt] = self.memory.running.pop(attempt)
        self.tell(BatchProcessed(attempt))

    def fail_batch(self) -> None:
        """An attempt fails; with opaque streams, what came after it is dead too.

        A replay of what was quarantined stands for itself: it neither takes others with it nor
        goes with them.
        """
        failed = self.choose(sorted(self.memory.at_work()))
        memory = self.memory
        memory.running.pop(failed, None)
        memory.staged.pop(failed, None)
        if memory.publishing and memory.publishing.attempt == failed:
            memory.publishing = None
        replays = {txid for txid, start in self.starts.items() if start.replay_of is not None}
        spreads = self.opaque and failed.txid not in replays
        if spreads:
            memory.questions = {
                at: plan for at, plan in memory.questions.items() if at.txid < failed.txid
            }
        standing = {at for at in memory.at_work() if at.txid in replays or not spreads}
        self.tell(BatchFailed(failed, "disk on fire", blocked=self.choose([False, False, True])))
        assert memory.ended or standing <= memory.at_work(), (
            "What does not follow from a failed batch stands."
        )
        if spreads:
            later = {at.txid for at in memory.at_work() if failed.txid < at.txid}
            assert later <= replays, "Every later txid is dropped when an opaque batch fails."

    def publish_a_table(self) -> None:
        """One table gets the batch."""
        self.publish_to(self.choose(TABLES))

    def publish_to(self, name: str) -> None:
        """The guards: opaque tables revert what is not committed, others keep what they hold."""
        publish = self.memory.publishing
        assert publish is not None
        attempt = publish.attempt
        process = self.memory.staged[attempt]
        table = self.tables[name]
        if self.opaque:
            for txid in [txid for txid in table if txid >= attempt.txid]:
                del table[txid]
        records = frozenset() if process.empty else records_of(process.metadata)
        row = Row(attempt, records, publish.positions, publish.metadata, process.empty)
        table.setdefault(attempt.txid, row)

    def finish_publishing(self) -> None:
        """The commit turn ends well."""
        assert self.memory.publishing is not None
        attempt = self.memory.publishing.attempt
        self.memory.publishing = None
        del self.memory.staged[attempt]
        self.tell(BatchPublished(attempt, dict.fromkeys(TABLES, attempt.txid)))

    def is_published(self) -> bool:
        """Whether every table holds the batch whose turn it is, by this attempt or its equal."""
        if self.memory.publishing is None:
            return False
        attempt = self.memory.publishing.attempt
        held = [table.get(attempt.txid) for table in self.tables.values()]
        return all(row and (row.attempt == attempt or not self.opaque) for row in held)

    def end_back_off(self) -> None:
        """A back-off is over."""
        attempt = self.choose(sorted(self.memory.retries))
        self.memory.retries.remove(attempt)
        self.tell(RetryDue(attempt))

    def end_interval(self) -> None:
        """The emit interval is over."""
        self.memory.timer = False
        self.tell(PlanDue())

    def grow(self) -> None:
        """New records arrive at a source."""
        self.log[self.choose(list(self.log))] += self.choose([1, 2, 5])

    def request_replay(self) -> None:
        """A user wants back what was quarantined."""
        self.requested.add(self.choose(sorted(self.quarantine)))

    def light_fuse(self) -> None:
        """The process is going to die after so many more orders."""
        self.fuse = self.choose([0, 0, 1, 2, 3, 5])

    def stop(self) -> None:
        """Somebody asks for a clean stop; questions and timers mean nothing from now on."""
        self.memory.questions.clear()
        self.memory.retries.clear()
        self.memory.timer = False
        self.memory.stopping = True
        self.tell(StopRequested())

    def tell_stale(self) -> None:
        """A late, repeated or misdirected fact: it must change nothing at all."""
        attempt = self.choose(self.seen[-12:])
        attempt = self.choose([attempt, attempt, attempt.next()])
        events: list[Event] = [
            PlanMade(attempt, dict.fromkeys(self.streams, 1)),
            PlanFailed(attempt, "late"),
            BatchProcessed(attempt),
            BatchFailed(attempt, "late"),
            BatchPublished(attempt, {}),
            RetryDue(attempt),
        ]
        event = self.choose(events if self.memory.timer else [*events, PlanDue()])
        if self.memory.ended or (type(event), attempt) not in self.memory.live():
            state, actions = step(self.state, event)
            assert (state is self.state, actions) == (True, ())

    # --- histories ---------------------------------------------------------------------------

    def steps_forward(self) -> list[Callable[[], None]]:
        """The facts that bring the work on."""
        memory = self.memory
        possible = [
            (self.answer, memory.questions),
            (self.finish_processing, memory.running),
            (self.publish_a_table, memory.publishing and not self.is_published()),
            (self.finish_publishing, self.is_published()),
            (self.end_back_off, memory.retries),
            (self.end_interval, memory.timer),
        ]
        return [fact for fact, condition in possible if condition]

    def move(self) -> None:
        """Something happens."""
        if self.memory.ended:
            self.tell_stale()
            self.survive(self.restart)
            return
        likely = self.steps_forward() * 3
        likely += [self.grow, self.tell_stale, self.tell_stale]
        likely += [self.fail_batch] * bool(self.memory.at_work())
        likely += [self.fail_planning] * bool(self.memory.questions)
        likely += [self.request_replay] * bool(self.quarantine)
        rare = [self.light_fuse, self.light_fuse, self.stop]
        self.survive(self.choose(rare if self.choose(range(25)) == 0 else likely))

    def survive(self, happening: Callable[[], None]) -> None:
        """A crash is followed by a restart, which may crash too."""
        try:
            happening()
        except Crash:
            self.fuse = self.choose([None, None, None, 0, 1, 2, 4])
            self.survive(self.restart)

    def drain(self) -> None:
        """Restart without limits, let everything succeed, and count the records."""
        self.choose, self.fuse = (lambda options: options[0]), None
        self.restart(max_spout_pending=3, until="caught_up")
        for _ in range(1000):
            if self.memory.ended:
                break
            forward = self.steps_forward()
            if forward[0] == self.answer:
                self.answer(greedy=True)
            elif self.memory.publishing:
                self.tables_in_turn()
            else:
                forward[0]()
        assert self.memory.ended == Finish()
        everything = Counter((s, i) for s, length in self.log.items() for i in range(length))
        for table in self.tables.values():
            held = Counter(record for row in table.values() for record in row.records)
            assert held + self.set_aside == everything, "Every record in exactly one txid."

    def tables_in_turn(self) -> None:
        """A commit turn without incidents."""
        for name in TABLES:
            self.publish_to(name)
        self.finish_publishing()


def live_through(choose: Choose[Any], moves: int) -> None:
    """One history."""
    world = World(choose)
    for _ in range(moves):
        world.move()
    world.drain()
