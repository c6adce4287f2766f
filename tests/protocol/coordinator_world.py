"""Random histories of the coordinator against a world that keeps its own, simpler books.

The world is a shell without Spark and ZooKeeper: a durable store, two tables, sources that are
logs of integers. It carries the orders out, may crash between any two of them, and reports facts
in any order, late, twice and about dead attempts. Its books know nothing of phases: which attempts
live, how far each stream is committed. What must hold is checked as the orders come in; at the end
everything is drained, and every record must be in exactly one committed txid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.protocol.coordinator_memory import Crash
from tests.protocol.coordinator_orders import TABLES, Choose, Orders
from txn.attempts import TransactionAttempt
from txn.protocol.coordinator import step
from txn.protocol.events import (
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Event,
    Finish,
    GroupFailed,
    PlanDue,
    PlanFailed,
    PlanMade,
    PlanRefused,
    RetryDue,
    StopRequested,
)


class World(Orders):
    """A shell, its durable store and tables, its sources, and the books that judge them."""

    # --- facts -------------------------------------------------------------------------------

    def answer(self, most: int = 3, *, greedy: bool = False) -> None:
        """What is wanted back out of the quarantine answers a question, else the spouts do."""
        attempt = self.choose(list(self.memory.questions))
        plan = self.memory.questions.pop(attempt)
        wanted = (self.requested & set(self.quarantine)) - plan.replaying
        if plan.is_new and wanted:
            replay = min(wanted)
            given_up = replay in self.given_up
            read = dict.fromkeys(self.streams) if given_up else self.quarantine[replay]
            self.tell(PlanMade(attempt, read, replay))
            return
        metadata: dict[str, Any] = {}
        for stream in plan.streams:
            low = plan.previous[stream][1] if stream in plan.previous else 0
            size = most if greedy else self.choose(range(most + 1))
            high = min(low + size, self.log[stream])
            metadata[stream] = [low, high] if high > low else None
        if plan.is_new and not any(metadata.values()):
            self.memory.asked.discard(attempt)  # that was no try
        self.tell(PlanMade(attempt, metadata))

    def fail_planning(self) -> None:
        """The spouts cannot answer."""
        attempt = self.choose(list(self.memory.questions))
        plan, blocked = self.memory.questions.pop(attempt), self.choose([False, True])
        if plan.is_new and blocked:
            self.memory.asked.discard(attempt)  # nor was that
        self.tell(PlanFailed(attempt, "no broker", blocked=blocked))

    def refuse_planning(self) -> None:
        """A spout raises what no replay mends: nothing is asked from here on."""
        attempt = self.choose(list(self.memory.questions))
        self.memory.questions.pop(attempt)
        self.tell(PlanRefused(attempt, "no such column"))

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
        if memory.publishing and memory.publishing.earlier and failed in memory.committing():
            self.fail_group(failed)
            return
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

    def fail_group(self, one: TransactionAttempt) -> None:
        """The turn of a group fails: nobody is blamed, and each of it has a turn of its own."""
        memory, group = self.memory, self.memory.committing()
        published = memory.entered or self.choose([True, False])
        failures = {txid: batch.failures for txid, batch in self.state.batches.items()}
        memory.publishing, memory.singles_until = None, group[-1].txid
        later = {at for at in memory.at_work() if at.txid > group[-1].txid}
        if published:
            for attempt in group:
                del memory.staged[attempt]
            if self.opaque:
                memory.questions.clear()
        told = [GroupFailed(group, "disk on fire", published)]
        told += [BatchFailed(one, "disk on fire")] if published else []
        self.tell(self.choose(told))
        for txid, batch in self.state.batches.items():
            assert batch.failures <= failures.get(txid, 0), "Nothing is counted."
        assert published or memory.ended or set(group) <= memory.at_work(), "Staged work is kept."
        assert (self.opaque and published) or memory.ended or later <= memory.at_work()

    def publish_a_table(self) -> None:
        """One table gets the batch, or the group."""
        self.publish_to(self.choose(TABLES))

    def publish_to(self, name: str) -> None:
        """One version of one table."""
        assert self.memory.publishing is not None
        self.memory.entered = True
        self.tables[name].publish(self.memory.publishing, self.memory.staged)

    def finish_publishing(self) -> None:
        """The commit turn ends well."""
        *earlier, attempt = self.memory.committing()
        self.memory.publishing = None
        for one in (*earlier, attempt):
            del self.memory.staged[one]
        self.tell(BatchPublished(attempt, dict.fromkeys(TABLES, attempt.txid), tuple(earlier)))

    def is_published(self) -> bool:
        """Whether every table holds the batch whose turn it is, by this attempt or its equal."""
        turn = self.memory.committing()
        return bool(turn) and all(table.holds(turn) for table in self.tables.values())

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
        """A user wants back what was quarantined, or gives it up."""
        txid = self.choose(sorted(self.quarantine))
        self.requested.add(txid)
        if self.choose([False, False, True]):
            self.given_up.add(txid)

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
            PlanRefused(attempt, "late"),
            BatchProcessed(attempt),
            BatchFailed(attempt, "late"),
            BatchPublished(attempt, {}),
            GroupFailed((attempt,), "late", published=True),
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
        steps = self.steps_forward()
        commits = [self.publish_a_table, self.finish_publishing]
        likely = steps * 3 + [step for step in steps if step not in commits] * self.lag
        likely += [self.grow, self.tell_stale, self.tell_stale]
        likely += [self.fail_batch] * bool(self.memory.at_work())
        likely += [self.fail_planning] * bool(self.memory.questions)
        likely += [self.request_replay] * bool(self.quarantine)
        rare = [self.light_fuse, self.light_fuse, self.stop]
        rare += [self.refuse_planning] * bool(self.memory.questions)
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
        self.restart(max_spout_pending=4, until="caught_up")
        for _ in range(1000):
            if self.memory.ended:
                break
            forward = self.steps_forward()
            if forward[0] == self.answer:
                self.answer(greedy=True)
            elif forward[0] in (self.publish_a_table, self.finish_publishing):
                self.tables_in_turn()
            else:
                forward[0]()
        assert self.memory.ended == Finish()
        everything = Counter((s, i) for s, length in self.log.items() for i in range(length))
        for table in self.tables.values():
            held = Counter(record for row in table.rows.values() for record in row.records)
            found = held + self.set_aside + self.dropped
            assert found == everything, "Every record in exactly one txid, or given up."

    def tables_in_turn(self) -> None:
        """A commit turn without incidents."""
        for name in TABLES:
            self.publish_to(name)
        self.finish_publishing()


def live_through(choose: Choose[Any], moves: int) -> World:
    """One history, drained; every record was found in one txid."""
    world = World(choose)
    for _ in range(moves):
        world.move()
    world.drain()
    return world
