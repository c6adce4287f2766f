"""The world of `coordinator_world`, its first half: what is durable, the books, the orders.

What must hold is checked as the orders come in. The books know nothing of phases: which attempts
live, how far each stream is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tests.protocol.coordinator_memory import Crash, Memory, Record, Row, Table, records_of
from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.protocol.coordinator import recovered_state, start, step
from txn.protocol.events import (
    Action,
    Cancel,
    CoordinatorState,
    Event,
    Finish,
    Halt,
    PersistCommitted,
    PersistStart,
    Phase,
    Plan,
    Process,
    Publish,
    SchedulePlan,
    ScheduleRetry,
    Succeed,
)
from txn.protocol.records import BatchRecord, CommittedRecord, Progress
from txn.protocol.recovery import reconcile

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


class Orders:
    """A shell that carries orders out, its durable store and tables, and the books."""

    def __init__(self, choose: Choose[Any]) -> None:
        self.choose = choose
        self.streams: dict[str, bool] = choose(TOPOLOGIES)
        self.opaque = frozenset(s for s, opaque in self.streams.items() if opaque)
        self.log = dict.fromkeys(self.streams, choose([6, 20]))
        # durable
        self.committed = 0
        self.positions: dict[str, Any] = {}
        self.starts: dict[int, BatchRecord] = {}
        self.tables = {name: Table(opaque=bool(self.opaque)) for name in TABLES}
        self.quarantine: dict[int, Mapping[str, Any]] = {}
        self.requested: set[int] = set()
        self.given_up: set[int] = set()
        """Those of them that are to be dropped."""
        # books
        self.highest_attempt: dict[int, int] = {}
        self.fixed: dict[tuple[int, str], Any] = {}
        self.ends = dict.fromkeys(self.streams, 0)
        self.set_aside: Counter[Record] = Counter()
        self.dropped: Counter[Record] = Counter()
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
            row = Row(TransactionAttempt(txid), frozenset(), read, read, True, txid)
            for table in self.tables.values():
                table.rows[txid] = row
            self.set_aside.update(records_of(read))
            self.committed, self.succeeded, self.positions, self.quarantine[txid] = 2, 2, read, read
        self.ends = dict.fromkeys(self.streams, 2)
        self.requested = set(self.choose([(), (1,), (1, 2)]))

    # --- runs --------------------------------------------------------------------------------

    def restart(self, **settings: Any) -> None:
        """Recover from what is durable, with new limits, and begin a run."""
        self.memory = Memory()
        # Commits that lag behind processing make groups.
        self.lag = self.choose([0, 12])
        near, far = self.committed + (3 if self.lag else 1), self.committed + 4
        self.until = settings.pop("until", None) or self.choose(["forever", near, far, "caught_up"])
        settings = settings or {
            "max_spout_pending": self.choose([4, 6] if self.lag else [1, 2, 3, 5]),
            "max_batch_attempts": self.choose([3, 9] if self.lag else [1, 2, 3]),
            "on_exhausted": self.choose(["stop", "quarantine"]),
            "max_group_commit": self.choose([1, 2, 3, 3, 5]),
        }
        self.config = TopologyConfig(**settings)
        self.state = self.recovered()
        self.carry_out(*start(self.state))

    def recovered(self) -> CoordinatorState:
        """Roll forward what all tables hold; hand over the rest. The books must say the same."""
        progress = Progress(
            committed=CommittedRecord(txid=self.committed, spouts=self.positions),
            batches=tuple(self.starts[txid] for txid in sorted(self.starts)),
        )
        recovered = reconcile(
            "t",
            tuple(self.streams),
            self.opaque,
            progress,
            {name: table.newest for name, table in self.tables.items()},
            skipping=() if self.opaque else TABLES,
        )
        held = [table.beyond(self.committed) for table in self.tables.values()]
        rows = min(held, key=len)
        if not self.opaque or all(found == held[0] for found in held):
            for row in rows:
                self.book_commit(row.attempt.txid, row.read)
                self.positions = dict(row.positions)
        published = {row.attempt.txid for rows in held for row in rows} - set(
            range(self.committed + 1)
        )
        assert recovered.committed.txid == self.committed
        assert recovered.committed.spouts == self.positions
        assert recovered.published == published, "Nothing that a table holds is emptied."
        for row in (row for rows in held for row in rows if row.attempt.txid in published):
            start = recovered.batches[row.attempt.txid - self.committed - 1]
            assert start.attempt >= row.attempt.attempt_id, "Attempt ids never go back."
        return recovered_state(
            recovered.committed,
            recovered.batches,
            streams=tuple(self.streams),
            opaque_streams=self.opaque,
            config=self.config,
            until=self.until,
            published=recovered.published,
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
        turn = phases.count(Phase.COMMITTING)
        assert phases[:turn] == [Phase.COMMITTING] * turn, "Commits are in txid order."
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
        assert action.attempt not in self.memory.asked, "An id means one try within a run."
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
            nothing = replay in self.given_up and not any(action.metadata.values())
            aside = self.quarantine[replay]
            assert nothing or action.metadata == aside, "It reads just what was set aside."
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
        """A commit turn begins: the next one, the only one, of all that may go together."""
        memory = self.memory
        assert memory.publishing is None, "One commit turn at a time."
        memory.publishing, memory.entered = action, False
        attempts = memory.committing()
        first = self.committed + 1
        last = first + len(attempts) - 1
        assert [at.txid for at in attempts] == list(range(first, last + 1)), "In txid order."
        assert set(attempts) <= set(memory.staged)
        assert len(attempts) <= self.config.max_group_commit
        assert len(attempts) == 1 or all(map(self.goes_with_others, attempts))
        following = [at for at in memory.staged if at.txid == last + 1]
        if all(map(self.goes_with_others, [attempts[0], *following])) and following:
            assert len(attempts) == self.config.max_group_commit, "All that are ready go together."

    def goes_with_others(self, attempt: TransactionAttempt) -> bool:
        """An ordinary txid, and in no group that failed."""
        start = self.starts[attempt.txid]
        special = start.quarantined is not None or start.replay_of is not None
        return not special and attempt.txid > self.memory.singles_until

    def do_persistcommitted(self, action: PersistCommitted) -> None:
        """COMMITTED becomes durable; every table must hold these attempts."""
        for attempt in action.attempts:
            durable = self.starts[attempt.txid]
            assert durable.attempt == attempt.attempt_id
            special = (durable.quarantined, durable.replay_of)
            assert (action.quarantined, action.replay_of) == special
            self.book_commit(attempt.txid, durable.spouts)
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
        assert [t.rows[txid].records for t in self.tables.values()] == [records] * len(TABLES)
        if replay is not None:
            aside = self.quarantine.pop(replay)
            self.set_aside.subtract(records_of(aside))
            if read != aside:
                assert replay in self.given_up
                assert not any(read.values())
                self.dropped.update(records_of(aside))
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
        assert action.attempt not in self.memory.committing()
        self.memory.running.pop(action.attempt, None)
        self.memory.staged.pop(action.attempt, None)

    def do_scheduleretry(self, action: ScheduleRetry) -> None:
        """A back-off begins."""
        self.memory.retries.add(action.attempt)

    def do_scheduleplan(self, action: SchedulePlan) -> None:
        """A timer starts; there is one, which only the question after the last commit replaces."""
        last = self.until == "caught_up" and not action.idle and not self.starts
        assert last or not self.memory.timer
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
