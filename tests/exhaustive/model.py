"""A small world around the real core: every event that may come next, from any state.

Real are `coordinator.step` and `recovered_state`, `recovery.reconcile`, `require_newer`, `judge`
and the guard of transactional and opaque tables (`committers.guard`). Modelled are ZooKeeper
(an epoch, COMMITTED, one node per open txid; every write checks the epoch), tables (a log of
fences and publications, and the records of each txid), up to two processes, and one append that is
under way. What happens within a process between two durable writes is one move; a crash may come
after each write. Faults cost from a budget, so that there are finitely many states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import committers.publishing.log
import committers.table_committer
import txn.engine.running
import txn.engine.start
from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.delta.commits import Commit
from txn.errors import CommitConflictError, TxnError
from txn.interfaces import Member, Publication, Semantics
from txn.protocol import coordinator
from txn.protocol.events import (
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Cancel,
    CoordinatorState,
    Event,
    Finish,
    GroupFailed,
    Halt,
    PersistCommitted,
    PersistStart,
    Plan,
    PlanDue,
    PlanFailed,
    PlanMade,
    PlanRefused,
    Process,
    Publish,
    RetryDue,
    SchedulePlan,
    ScheduleRetry,
    Succeed,
)
from txn.protocol.records import BatchRecord, CommittedRecord, Progress
from txn.protocol.rules import positions_before

__all__ = ["Broken", "Model", "Scope", "State"]

Range = tuple[int, int] | None
"""The records that a txid reads: from, up to and without; None: none."""
Try = tuple[int, int, Range, str | None]
"""One attempt with what it reads: txid, attempt id, records, the error for which it is emptied."""
Pub = tuple[int, tuple[Try, ...]]
"""A publication: epoch, members."""
Entry = tuple[int, tuple[Try, ...]]
"""One version of a log: a publication, or a fence (no members), or a stranger's (epoch 0)."""
STREAM = "s"


class Broken(Exception):  # noqa: N818 - an invariant is
    """An invariant does not hold."""


@dataclass(frozen=True)
class Scope:
    """How large the world is.

    Args:
        kind: of the source: opaque or transactional.
        semantics: of each table.
        records: that there are; a txid reads one or two.
        pending: txids in flight.
        group: txids of one commit turn at most.
        crashes: processes that are killed.
        takeovers: second leaders that begin beside a first that is still alive.
        failures: attempts that fail, or come to no end in time.
        late: appends that land later than their answer, if at all.
        strangers: versions of others that change no row.
        restores: of ZooKeeper's open txids, from a backup.
        ghosts: failures of cancelled attempts that are told late.
    """

    kind: str = "opaque"
    semantics: tuple[str, ...] = ("opaque", "opaque")
    records: int = 3
    pending: int = 2
    group: int = 2
    attempts: int = 3
    quarantine: bool = False
    crashes: int = 1
    takeovers: int = 1
    failures: int = 1
    late: int = 1
    strangers: int = 0
    restores: int = 0
    ghosts: int = 0
    flags: frozenset[str] = frozenset()
    """Rules of the shell, which is modelled here, that are broken."""


class Budget(NamedTuple):
    crashes: int
    takeovers: int
    failures: int
    late: int
    strangers: int
    restores: int
    ghosts: int


class Turn(NamedTuple):
    """A commit turn: `at` counts its steps (prepare, then check and append of each table)."""

    members: tuple[Try, ...]
    at: int = 0
    reads: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    """Per table, the newest txid that it skips."""
    versions: tuple[int, ...] = ()
    dead: bool = False
    """Nobody waits for its end any more."""


class Proc(NamedTuple):
    """One process that leads, or believes so."""

    epoch: int
    core: int = -1
    """Its coordinator's state; -1 while it starts."""
    fencing: int = 0
    """Tables that it has fenced while it starts."""
    views: tuple[int, ...] = ()
    """Per table, the newest version that it knows."""
    question: tuple[int, int, int, bool] | None = None
    """(txid, attempt id, first record to read, whether the txid is new)."""
    tasks: frozenset[tuple[int, int]] = frozenset()
    ghost: tuple[int, int] | None = None
    """A cancelled attempt of which something may still be heard."""
    retries: frozenset[tuple[int, int]] = frozenset()
    due: bool = False
    turn: Turn | None = None
    queue: Turn | None = None
    """A turn that waits for the end of one that is dead."""


class Table(NamedTuple):
    log: tuple[Entry, ...] = ()
    rows: tuple[tuple[int, int, Range], ...] = ()
    """(txid, attempt id, records) that a reader finds."""


class Flight(NamedTuple):
    """An append under way."""

    table: int
    version: int
    pub: Pub
    held: int
    """The newest txid that it skips."""
    seen: int
    """The version from which it was prepared: what came later, it does not take back."""


class State(NamedTuple):
    """Everything, at one time."""

    budget: Budget
    epoch: int = 0
    committed: int = 0
    position: Range = None
    named: tuple[int, ...] = ()
    batches: tuple[Try, ...] = ()
    aside: tuple[tuple[int, Range], ...] = ()
    done: tuple[Range, ...] = ()
    """What was read by each committed txid."""
    tables: tuple[Table, ...] = ()
    procs: tuple[Proc | None, Proc | None] = (None, None)
    flight: Flight | None = None
    backup: tuple[Try, ...] | None = None


Move = tuple[str, State]


class Model:
    """Every move from any state of a scope. Raises `Broken` where an invariant does not hold."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._cores: list[CoordinatorState] = []
        self._numbers: dict[Any, int] = {}
        self._steps: dict[Any, tuple[int, tuple[Any, ...]]] = {}
        self._publications: dict[Pub, Publication] = {}
        self._recovered: dict[Any, Any] = {}
        self._opaque = [STREAM] if scope.kind == "opaque" else []
        self._config = TopologyConfig(
            max_spout_pending=scope.pending,
            max_group_commit=scope.group,
            max_batch_attempts=scope.attempts,
            on_exhausted="quarantine" if scope.quarantine else "stop",
        )

    def initial(self) -> State:
        scope = self.scope
        budget = Budget(
            scope.crashes,
            scope.takeovers,
            scope.failures,
            scope.late,
            scope.strangers,
            scope.restores,
            scope.ghosts,
        )
        empty = Table(((0, ()),))
        return State(budget, tables=(empty,) * len(scope.semantics))

    def is_done(self, state: State) -> bool:
        """Whether everything there is to read is committed, or set aside."""
        read = [r for r in (*state.done, *(r for _, r in state.aside)) if r is not None]
        return sum(end - start for start, end in read) == self.scope.records

    # --- moves -------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[Move]:
        """Everything that may happen next."""
        alive = [number for number in (0, 1) if state.procs[number] is not None]
        yield from self._starts(state, alive)
        for number in alive:
            proc = state.procs[number]
            assert proc is not None
            name = "AB"[number]
            if proc.core < 0:
                yield from self._starting(state, number, proc, name)
            else:
                yield from self._hears(state, number, proc, name)
                yield from self._turns(state, number, proc, name)
                yield from self._looks(state, number, proc, name)
            if state.budget.crashes:
                yield f"{name} crashes", spend(with_proc(state, number, None), "crashes")
        if state.flight is not None:
            table, version, pub, held, seen = state.flight
            landed = replace_flight(state, None)
            if len(state.tables[table].log) == version:
                landed = self._land(landed, table, pub, held, seen)
                yield f"the late append of {said(pub)} lands in t{table}", landed
            else:
                yield f"the late append of {said(pub)} to t{table} is too late", landed
        if state.budget.strangers:
            for table in range(len(state.tables)):
                log = (*state.tables[table].log, (0, ()))
                changed = with_table(state, table, state.tables[table]._replace(log=log))
                yield f"somebody optimizes t{table}", spend(changed, "strangers")
        if state.budget.restores and not alive and state.backup not in (None, state.batches):
            assert state.backup is not None
            restored = spend(state._replace(batches=state.backup), "restores")
            yield "ZooKeeper's open txids are restored from a backup", restored

    def _starts(self, state: State, alive: list[int]) -> Iterator[Move]:
        if not alive and self.is_done(state):
            return
        if not alive or (len(alive) == 1 and state.budget.takeovers):
            number = next(n for n in (0, 1) if n not in alive)
            after = state if not alive else spend(state, "takeovers")
            epoch = state.epoch + 1
            started = with_proc(after._replace(epoch=epoch), number, Proc(epoch))
            yield f"{'AB'[number]} takes the lead in epoch {epoch}", started

    def _starting(self, state: State, number: int, proc: Proc, name: str) -> Iterator[Move]:
        at = proc.fencing
        if at < len(state.tables):
            log = state.tables[at].log
            if max(epoch for epoch, _ in log) > proc.epoch:
                yield f"{name} is fenced by t{at}", with_proc(state, number, None)
                return
            fenced = state.tables[at]._replace(log=(*log, (proc.epoch, ())))
            after = with_table(state, at, fenced)
            own = proc._replace(fencing=at + 1, views=(*proc.views, len(log)))
            after = with_proc(after, number, own)
            if alone(state) and at + 1 < len(state.tables):
                # Nobody could do anything in between that would not be the same before or after.
                yield from self._starting(after, number, own, name)
            else:
                yield f"{name} fences t{at}", after
            return
        yield from self._recovers(state, number, proc, name)

    def _recovers(self, state: State, number: int, proc: Proc, name: str) -> Iterator[Move]:
        if proc.epoch < state.epoch:
            # Its next write to ZooKeeper is refused; what it would make of this is nobody's loss.
            yield f"{name} learns that it was replaced", with_proc(state, number, None)
            return
        found = tuple(last_of(table.log) for table in state.tables)
        recovered = self._reconcile(state, found)
        record = recovered.committed
        after = state
        if recovered.roll_forward:
            after = self._persist_committed(after, recovered)
        core = coordinator.recovered_state(
            record,
            recovered.batches,
            streams=[STREAM],
            opaque_streams=self._opaque,
            config=self._config,
            until="caught_up",
            published=recovered.published,
        )
        begun, actions = coordinator.start(core)
        own = proc._replace(core=self._intern(begun))
        ready = with_proc(after, number, own)
        if after is not state and state.budget.crashes:
            crashed = spend(with_proc(after, number, None), "crashes")
            yield f"{name} rolls forward to {record.txid} and crashes", crashed
        yield from self._carry_out(ready, number, actions, f"{name} recovers at txid {record.txid}")

    def _reconcile(self, state: State, found: tuple[Any, ...]) -> Any:
        key = (state.committed, state.position, state.named, state.batches, found)
        known = self._recovered.get(key)
        if known is None:
            progress = Progress(
                committed=CommittedRecord(
                    txid=state.committed,
                    epoch=1,
                    spouts=read(state.position),
                    tables={f"t{n}": version for n, version in enumerate(state.named)},
                ),
                batches=tuple(
                    BatchRecord(txid=t, attempt=a, epoch=1, spouts={STREAM: r}, quarantined=q)
                    for t, a, r, q in state.batches
                ),
            )
            tables = {
                f"t{n}": None if one is None else (one[0], self._publication(one[1]))
                for n, one in enumerate(found)
            }
            skipping = [f"t{n}" for n, s in enumerate(self.scope.semantics) if s != "opaque"]
            try:
                known = txn.engine.start.reconcile(
                    "x", [STREAM], self._opaque, progress, tables, skipping=skipping
                )
            except TxnError as error:
                raise Broken(f"recovery is refused: {error}") from None
            self._recovered[key] = known
        return known

    def _persist_committed(self, state: State, recovered: Any) -> State:
        record = recovered.committed
        named = tuple(record.tables.get(f"t{n}", -1) for n in range(len(state.tables)))
        aside = state.aside
        if recovered.quarantine is not None:
            note = (record.txid, as_range(recovered.quarantine.spouts.get(STREAM)))
            aside = (*aside, note)
        return self._commit(state, record.txid, as_range(record.spouts.get(STREAM)), named, aside)

    def _looks(self, state: State, number: int, proc: Proc, name: str) -> Iterator[Move]:
        """Another thread (of maintenance, of settling) takes in what is new in a log."""
        if proc.epoch == state.epoch:
            return
        for table, view in enumerate(proc.views):
            newest = len(state.tables[table].log) - 1
            if newest > view:
                own = proc._replace(views=put(proc.views, table, newest))
                yield f"{name} looks at the log of t{table}", with_proc(state, number, own)

    # --- what a process hears ----------------------------------------------------------------

    def _hears(self, state: State, number: int, proc: Proc, name: str) -> Iterator[Move]:
        if proc.question is not None:
            yield from self._answers(state, number, proc, name)
        if proc.due and not self._asks_in_vain(self._cores[proc.core]):
            own = proc._replace(due=False)
            yield from self._hear(state, number, own, PlanDue(), f"{name}: a plan is due")
        for one in sorted(proc.retries):
            own = proc._replace(retries=proc.retries - {one})
            event: Event = RetryDue(attempt(one))
            yield from self._hear(state, number, own, event, f"{name}: {shown(one)} may be retried")
        for one in sorted(proc.tasks):
            own = proc._replace(tasks=proc.tasks - {one})
            event = BatchProcessed(attempt(one))
            yield from self._hear(state, number, own, event, f"{name}: {shown(one)} is processed")
            if state.budget.failures:
                event = BatchFailed(attempt(one), "failed")
                yield from self._hear(
                    spend(state, "failures"), number, own, event, f"{name}: {shown(one)} fails"
                )
        if proc.ghost is not None and state.budget.ghosts:
            state = spend(state, "ghosts")
            own = proc._replace(ghost=None)
            event = BatchFailed(attempt(proc.ghost), "late")
            what = f"{name}: the cancelled {shown(proc.ghost)} is told to have failed"
            yield from self._hear(state, number, own, event, what)

    def _asks_in_vain(self, core: CoordinatorState) -> bool:
        """Another question while batches are in flight would only use up attempt ids."""
        position = as_range(positions_before(core, 1 << 30).get(STREAM))
        end = 0 if position is None else position[1]
        return bool(core.batches) and end == self.scope.records

    def _answers(self, state: State, number: int, proc: Proc, name: str) -> Iterator[Move]:
        assert proc.question is not None
        txid, attempt_id, start, is_new = proc.question
        own = proc._replace(question=None)
        which = attempt((txid, attempt_id))
        left = min(2, self.scope.records - start)
        sizes: tuple[int, ...] = tuple(range(1, left + 1)) if left else (0,)
        if not is_new and left and self.scope.kind == "opaque":
            sizes = (0, left)
        for size in sizes:
            answer = (start, start + size) if size else None
            what = f"{name}: {which} is to read {words(answer)}"
            made = PlanMade(which, {STREAM: answer})
            yield from self._hear(state, number, own, made, what)
        if state.budget.failures:
            failed = PlanFailed(which, "failed")
            what = f"{name}: {which} cannot be planned"
            yield from self._hear(spend(state, "failures"), number, own, failed, what)
            refused = PlanRefused(which, "refused")
            what = f"{name}: the planning of {which} is refused"
            yield from self._hear(spend(state, "failures"), number, own, refused, what)

    def _hear(
        self, state: State, number: int, proc: Proc, event: Event, what: str
    ) -> Iterator[Move]:
        number_now, actions = self._step(proc.core, event)
        after = with_proc(state, number, proc._replace(core=number_now))
        yield from self._carry_out(after, number, actions, what)

    def _step(self, core: int, event: Event) -> tuple[int, tuple[Any, ...]]:
        key = (core, type(event), *map(hashable, vars(event).values()))
        known = self._steps.get(key)
        if known is None:
            state, actions = coordinator.step(self._cores[core], event)
            known = self._steps[key] = self._intern(state), actions
        return known

    def _intern(self, core: CoordinatorState) -> int:
        key = repr(replace(core, batches=dict(sorted(core.batches.items()))))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._cores)
            self._cores.append(core)
        return number

    # --- what a process does about it --------------------------------------------------------

    def _carry_out(
        self, state: State, number: int, actions: tuple[Any, ...], what: str
    ) -> Iterator[Move]:
        """Its orders, in order; a crash may come after each durable write."""
        name = "AB"[number]
        for action in actions:
            if isinstance(action, PersistStart | PersistCommitted):
                proc = state.procs[number]
                assert proc is not None
                if proc.epoch != state.epoch and "zookeeper-epoch" not in self.scope.flags:
                    yield f"{what}; ZooKeeper refuses {name}", with_proc(state, number, None)
                    return
                if proc.epoch != state.epoch:
                    raise Broken(f"{what}: a fenced leader writes to ZooKeeper")
                state = self._write(state, action)
                if state.budget.crashes:
                    crashed = spend(with_proc(state, number, None), "crashes")
                    yield f"{what}; {name} crashes after {wrote(action)}", crashed
                what = f"{what}; {wrote(action)}"
            else:
                state = self._act(state, number, action)
        yield what, state

    def _write(self, state: State, action: PersistStart | PersistCommitted) -> State:
        if isinstance(action, PersistStart):
            one = tried(action.attempt, action.metadata[STREAM], action.quarantined)
            before = next((b for b in state.batches if b[0] == one[0]), None)
            must(one[0] > state.committed, f"START of {shown(one)} after its COMMITTED")
            must(
                before is None or one[1] > before[1],
                f"attempts never go back: START {shown(one)} after {before and shown(before)}",
            )
            rest = [b for b in state.batches if b[0] != one[0]]
            batches = tuple(sorted([*rest, one]))
            first = [b[0] for b in batches]
            must(
                first == list(range(state.committed + 1, state.committed + 1 + len(first))),
                f"contiguous: {first} are open behind {state.committed}",
            )
            return state._replace(
                batches=batches, backup=batches if state.backup is None else state.backup
            )
        txid = action.attempt.txid
        aside = state.aside
        if action.quarantined is not None and "no-quarantine-record" not in self.scope.flags:
            own = next(b for b in state.batches if b[0] == txid)
            aside = (*aside, (txid, own[2]))
        named = tuple(action.tables.get(f"t{n}", -1) for n in range(len(state.tables)))
        position = as_range(action.positions.get(STREAM))
        return self._commit(state, txid, position, named, aside)

    def _commit(
        self,
        state: State,
        txid: int,
        position: Range,
        named: tuple[int, ...],
        aside: tuple[tuple[int, Range], ...],
    ) -> State:
        """COMMITTED: every table has every txid up to it, from the same records, each once."""
        done = list(state.done)
        for one in range(state.committed + 1, txid + 1):
            found = {
                next((r for t, _, r in table.rows if t == one), "nothing") for table in state.tables
            }
            must(len(found) == 1, f"one txid, one batch: tables differ about txid {one}: {found}")
            (records,) = found
            must(records != "nothing", f"never ahead of a table: COMMITTED {txid}, and none has it")
            assert records is None or isinstance(records, tuple)
            done.append(records)
        for number, table in enumerate(state.tables):
            held = max((t for _, pub in table.log[: named[number] + 1] for t, *_ in pub), default=0)
            must(held >= txid, f"COMMITTED {txid} names version {named[number]} of t{number}")
        read = [r for r in (*done, *(r for _, r in aside)) if r is not None]
        counted = sorted(n for start, end in read for n in range(start, end))
        must(
            counted == list(range(len(counted))),
            f"each record in one txid: after COMMITTED {txid} there are {done}, set aside {aside}",
        )
        return state._replace(
            committed=txid,
            position=position,
            named=named,
            aside=aside,
            done=tuple(done),
            batches=tuple(b for b in state.batches if b[0] > txid),
            backup=None,
        )

    def _act(self, state: State, number: int, action: Any) -> State:
        proc = state.procs[number]
        assert proc is not None
        if isinstance(action, Plan):
            before = as_range(action.previous.get(STREAM))
            start = 0 if before is None else before[1]
            question = (*pair(action.attempt), start, action.is_new)
            proc = proc._replace(question=question)
        elif isinstance(action, Process):
            self._started(state, proc, action)
            proc = proc._replace(tasks=proc.tasks | {pair(action.attempt)})
        elif isinstance(action, Publish):
            core = self._cores[proc.core]
            turn = Turn(
                tuple(
                    tried(one, metadata[STREAM], core.batches[one.txid].quarantined)
                    for one, metadata in action.members
                )
            )
            busy = proc.turn is not None
            proc = proc._replace(queue=turn) if busy else proc._replace(turn=turn)
        elif isinstance(action, Succeed):
            must(
                action.attempt.txid <= state.committed,
                f"success after COMMITTED: {action.attempt} is told of, not {state.committed}",
            )
        elif isinstance(action, Cancel):
            ghosts = state.budget.ghosts > 0
            proc = cancelled(proc, pair(action.attempt), ghosts=ghosts)
        elif isinstance(action, SchedulePlan):
            proc = proc._replace(due=True)
        elif isinstance(action, ScheduleRetry):
            proc = proc._replace(retries=proc.retries | {pair(action.attempt)})
        elif isinstance(action, Finish | Halt):
            if isinstance(action, Finish):
                must(self.is_done(state) or proc.epoch < state.epoch, "finished before the end")
            return with_proc(state, number, None)
        return with_proc(state, number, proc)

    def _started(self, state: State, proc: Proc, action: Process) -> None:
        own = next((b for b in state.batches if b[0] == action.attempt.txid), None)
        must(
            own is not None and own[:3] == tried(action.attempt, action.metadata[STREAM], None)[:3],
            f"START before emission: {action.attempt} is processed, and ZooKeeper has {own}",
        )

    # --- commit turns ------------------------------------------------------------------------

    def _turns(self, state: State, number: int, proc: Proc, name: str) -> Iterator[Move]:
        turn = proc.turn
        if turn is None:
            if proc.queue is not None:
                own = proc._replace(turn=proc.queue, queue=None)
                yield from self._turns(with_proc(state, number, own), number, own, name)
            return
        tables = len(state.tables)
        if turn.at == 0:
            yield from self._prepare(state, number, proc, turn, name)
        elif turn.at > 2 * tables:
            yield from self._published(state, number, proc, turn, name)
        elif turn.at % 2:
            if proc.epoch != state.epoch:
                yield f"{name} learns that it was replaced", with_proc(state, number, None)
            else:
                own = proc._replace(turn=turn._replace(at=turn.at + 1))
                table = turn.at // 2
                after = with_proc(state, number, own)
                if alone(state):
                    assert own.turn is not None
                    yield from self._append(after, number, own, own.turn, name)
                else:
                    yield f"{name} leads, and turns to t{table}", after
        else:
            yield from self._append(state, number, proc, turn, name)
        if state.budget.failures and not turn.dead:
            what = f"{name}: the turn of {said((0, turn.members))} takes too long"
            after = with_proc(spend(state, "failures"), number, proc)
            yield from self._turn_failed(after, number, proc, turn, what, runs=True)

    def _turn_failed(
        self, state: State, number: int, proc: Proc, turn: Turn, what: str, *, runs: bool = False
    ) -> Iterator[Move]:
        """The turn fails; `runs`: its thread goes on all the same."""
        own = proc._replace(turn=turn._replace(dead=True) if runs else None)
        if turn.dead:
            yield what, with_proc(state, number, own)
            return
        event: Event = BatchFailed(attempt(turn.members[-1]), "failed")
        if len(turn.members) > 1:
            published = turn.at > 0 and "group-unpublished" not in self.scope.flags
            if turn.at == 0 and runs:
                own = own._replace(turn=None)  # given up before it began to publish
            event = GroupFailed(tuple(map(attempt, turn.members)), "failed", published)
        elif runs and turn.at == 0:
            own = own._replace(turn=None)  # it will not be published: nobody waits for it
        yield from self._hear(state, number, own, event, what)

    def _prepare(
        self, state: State, number: int, proc: Proc, turn: Turn, name: str
    ) -> Iterator[Move]:
        what = f"{name} prepares {said((0, turn.members))}"
        held = []
        for table, view in enumerate(proc.views):
            log = state.tables[table].log[: view + 1]
            try:
                held.append(self._guard(table, log, (proc.epoch, turn.members)))
            except CommitConflictError:
                yield from self._turn_failed(state, number, proc, turn, f"{what}; refused")
                return
            except TxnError as error:
                yield self._ends(state, number, proc, what, error)
                return
        ready = turn._replace(at=1, reads=proc.views, held=tuple(held))
        yield what, with_proc(state, number, proc._replace(turn=ready))

    def _ends(self, state: State, number: int, proc: Proc, what: str, error: TxnError) -> Move:
        must(proc.epoch < state.epoch, f"{what}: {type(error).__name__}: {error}")
        return f"{what}; {type(error).__name__}", with_proc(state, number, None)

    def _guard(self, table: int, log: tuple[Entry, ...], pub: Pub) -> int:
        """The newest txid that the table skips, by the product's own guards; 0: none."""
        publication = self._publication(pub)
        last = last_of(log)
        newest = None if last is None else (last[0], self._publication(last[1]))
        epoch = max(epoch for epoch, _ in log)
        committers.publishing.log.require_newer(publication, newest, epoch, f"t{table}")
        semantics = Semantics(self.scope.semantics[table])
        return committers.table_committer.held(newest, semantics, publication, f"t{table}")[1]

    def _publication(self, pub: Pub) -> Publication:
        known = self._publications.get(pub)
        if known is None:
            epoch, tries = pub
            members = tuple(
                Member(
                    txid=t,
                    attempt_id=a,
                    read={STREAM: r},
                    rows=0 if r is None or q else r[1] - r[0],
                )
                for t, a, r, q in tries
            )
            newest = [r for _, _, r, _ in tries if r is not None]
            known = self._publications[pub] = Publication(
                topology="x",
                epoch=epoch,
                first_txid=tries[0][0],
                last_txid=tries[-1][0],
                attempt_id=tries[-1][1],
                spouts=read(newest[-1] if newest else None),
                read=members[-1].read,
                rows=sum(member.rows for member in members),
                quarantined=tries[-1][3],
                members=members if len(members) > 1 else (),
            )
        return known

    def _append(
        self, state: State, number: int, proc: Proc, turn: Turn, name: str
    ) -> Iterator[Move]:
        """Publish to one table: judge what came between, then one conditional append."""
        table = turn.at // 2 - 1
        pub: Pub = (proc.epoch, turn.members)
        what = f"{name} publishes {said(pub)} to t{table}"
        log, held = state.tables[table].log, turn.held[table]
        if held >= turn.members[-1][0]:
            last = last_of(log[: turn.reads[table] + 1])
            assert last is not None
            yield from self._next(state, number, proc, turn, last[0], f"{what}: it has it")
            return
        view = proc.views[table]
        try:
            self._guard(table, log[: view + 1], pub)
            self._judge(table, log, turn.reads[table] + 1, view + 1, pub)
            if len(log) > view + 1:
                # The append loses; what won is taken in, and judged.
                own = proc._replace(views=put(proc.views, table, len(log) - 1))
                proc = own
                self._judge(table, log, view + 1, len(log), pub)
        except CommitConflictError:
            yield from self._turn_failed(state, number, proc, turn, f"{what}; refused")
            return
        except TxnError as error:
            yield self._ends(state, number, proc, what, error)
            return
        if state.budget.late and state.flight is None:
            flight = Flight(table, len(log), pub, held, turn.reads[table])
            flying = spend(replace_flight(state, flight), "late")
            yield from self._turn_failed(
                flying, number, proc, turn, f"{what}: no answer, it may come late"
            )
        landed = self._land(state, table, pub, held, turn.reads[table])
        own = proc._replace(views=put(proc.views, table, len(log)))
        yield from self._next(landed, number, own, turn, len(log), what)

    def _judge(self, table: int, log: tuple[Entry, ...], since: int, until: int, pub: Pub) -> None:
        for version in range(since, until):
            epoch, tries = log[version]
            commit = Commit(
                version,
                0,
                "WRITE",
                publication=self._publication((epoch, tries)) if tries else None,
                fence={"epoch": epoch} if epoch and not tries else None,
            )
            committers.publishing.log.judge(commit, version, self._publication(pub), f"t{table}")

    def _next(
        self, state: State, number: int, proc: Proc, turn: Turn, version: int, what: str
    ) -> Iterator[Move]:
        further = turn._replace(at=turn.at + 1, versions=(*turn.versions, version))
        yield what, with_proc(state, number, proc._replace(turn=further))

    def _land(self, state: State, table: int, pub: Pub, held: int, seen: int) -> State:
        """A version comes to be."""
        epoch, tries = pub
        own = state.tables[table]
        newest = max(one for one, _ in own.log)
        must(epoch >= newest, f"fencing: t{table} gets epoch {epoch} after {newest}")
        first = tries[0][0]
        skips = self.scope.semantics[table] == "transactional"
        must(
            first == state.committed + 1 or (skips and first <= state.committed < tries[-1][0]),
            f"txids increase: t{table} gets {said(pub)}, and {state.committed} is committed",
        )
        newest_of = {t: a for _, before in own.log for t, a, *_ in before}
        for t, a, *_ in tries:
            must(
                a > newest_of.get(t, -1) or t <= held,
                f"attempts never go back: t{table} gets {t}:{a} after {t}:{newest_of.get(t)}",
            )
        kept = own.rows
        if not skips and "revert-no-files" not in self.scope.flags:
            known = {(t, a) for _, before in own.log[: seen + 1] for t, a, *_ in before}
            kept = tuple(row for row in kept if row[0] < first or row[:2] not in known)
        new = tuple((t, a, None if q else r) for t, a, r, q in tries if t > held)
        rows = tuple(sorted((*kept, *new)))
        txids = [row[0] for row in rows]
        must(len(txids) == len(set(txids)), f"rows are those of the txids: t{table} holds {rows}")
        table_now = Table((*own.log, (epoch, tries)), rows)
        return with_table(state, table, table_now)

    def _published(
        self, state: State, number: int, proc: Proc, turn: Turn, name: str
    ) -> Iterator[Move]:
        what = f"{name}: the turn of {said((0, turn.members))} ends"
        own = proc._replace(turn=None)
        if turn.dead:
            yield what, with_proc(state, number, own)
            return
        attempts = tuple(map(attempt, turn.members))
        versions = {f"t{n}": version for n, version in enumerate(turn.versions)}
        event = BatchPublished(attempts[-1], versions, attempts[:-1])
        yield from self._hear(state, number, own, event, what)


# --- small things --------------------------------------------------------------------------------


def must(holds: bool, message: str) -> None:
    if not holds:
        raise Broken(message)


def hashable(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


def attempt(one: tuple[Any, ...]) -> TransactionAttempt:
    return TransactionAttempt(one[0], one[1])


def pair(one: TransactionAttempt) -> tuple[int, int]:
    return one.txid, one.attempt_id


def tried(one: TransactionAttempt, metadata: Any, emptied: str | None) -> Try:
    return one.txid, one.attempt_id, as_range(metadata), emptied


def as_range(metadata: Any) -> Range:
    return None if metadata is None else (metadata[0], metadata[1])


def read(position: Range) -> dict[str, Any]:
    return {} if position is None else {STREAM: position}


def last_of(log: tuple[Entry, ...]) -> tuple[int, Pub] | None:
    """(version, publication) of the newest one."""
    for version in range(len(log) - 1, -1, -1):
        if log[version][1]:
            return version, log[version]
    return None


def alone(state: State) -> bool:
    """Whether there is one process, no other can begin beside it, and no append is under way."""
    return state.flight is None and not state.budget.takeovers and None in state.procs


def cancelled(proc: Proc, one: tuple[int, int], *, ghosts: bool) -> Proc:
    if proc.turn is not None and one in [t[:2] for t in proc.turn.members]:
        return proc._replace(turn=proc.turn._replace(dead=True))
    if proc.queue is not None and one in [t[:2] for t in proc.queue.members]:
        return proc._replace(queue=None)
    if one in proc.tasks:
        return proc._replace(tasks=proc.tasks - {one}, ghost=one if ghosts else None)
    return proc


def with_proc(state: State, number: int, proc: Proc | None) -> State:
    procs = (proc, state.procs[1]) if number == 0 else (state.procs[0], proc)
    return state._replace(procs=procs)


def with_table(state: State, number: int, table: Table) -> State:
    return state._replace(tables=put(state.tables, number, table))


def replace_flight(state: State, flight: Flight | None) -> State:
    return state._replace(flight=flight)


def put(values: tuple[Any, ...], number: int, value: Any) -> tuple[Any, ...]:
    return (*values[:number], value, *values[number + 1 :])


def spend(state: State, what: str) -> State:
    left = getattr(state.budget, what) - 1
    return state._replace(budget=state.budget._replace(**{what: left}))


def words(records: Range) -> str:
    return "nothing" if records is None else f"records {records[0]} to {records[1] - 1}"


def shown(one: tuple[Any, ...]) -> str:
    return f"{one[0]}:{one[1]}"


def said(pub: Pub) -> str:
    return ", ".join(map(shown, pub[1]))


def wrote(action: PersistStart | PersistCommitted) -> str:
    if isinstance(action, PersistStart):
        return f"START {action.attempt}"
    return f"COMMITTED {action.attempt.txid}"
