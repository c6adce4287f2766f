"""The shell: carries out the coordinator's orders on ZooKeeper, Spark, spouts and tables.

One thread, `run`, owns the protocol: it takes facts from a queue, asks `coordinator.step` what
they mean, and carries the answer out in order. Everything slow happens on other threads, which
only report facts:

    planner     1 thread           asks the spouts, one txid after the other; tells them success
    processing  2 x pending        staging jobs, each of one or several attempts (FAIR pool)
    commit      1 thread           commit turns: never two at once, whatever fails
    clean-up    1 thread           deletes scratch and dead attempts' files
    maintenance 1 thread           asks the tables for work that nobody waits for

No thread is waited for without a limit. One that hangs in planning or in a commit turn ends the
run, since there must be no second one beside it; when the run ends, who does not come back within
`stop_grace_secs` is named and left behind (`txn.engine.threads`). A staging job that hangs is
cancelled and done again on another thread: what the dead attempt's thread still does is in folders
of its own, which nobody publishes.

The acker is owned by the same one thread, so it needs no lock. An exception of a thread becomes a
fact too: `BatchFailed` for what a replay may mend, `Halted` for the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from typing import Any

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.engine.commit_turns import CommitTurns
from txn.engine.failures import first_line, is_away, is_lost_work, stopped
from txn.engine.in_flight import LiveAttempts
from txn.engine.killpoints import reached
from txn.engine.mailbox import FactLoop
from txn.engine.maintenance import Maintenance
from txn.engine.processing import ProcessingQueue, Told
from txn.engine.recorder import Recorder
from txn.engine.report import RunReport, RunStatus
from txn.engine.stations import AttemptWork, BatchWork
from txn.engine.threads import Straggler, Threads, abandoned
from txn.errors import (
    BatchError,
    BatchTimeoutError,
    ColumnsUnknownError,
    FencedError,
    TxnError,
)
from txn.interfaces import Staged
from txn.protocol import coordinator
from txn.protocol.events import (
    Action,
    BatchFailed,
    BatchProcessed,
    Cancel,
    CoordinatorState,
    Event,
    Finish,
    Halt,
    Halted,
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
from txn.protocol.ledgers import ProcessingLedger, Tracking, Verdict
from txn.protocol.order_records import (
    committed_record,
    publication_of,
    quarantine_record,
    requested_replay,
    start_record,
)
from txn.protocol.store import ProgressStore

__all__ = ["Pipeline"]

log = logging.getLogger("txn")

IDLE_POLL_SECS = 0.1
MAX_BACKOFF_SECS = 30.0
MIN_WAIT_SECS, MAX_WAIT_SECS = 0.1, 5.0
"""Between two looks whether a source that was away is back."""
ACKER_TICKS = 3
LOOK_SECS = 5.0
"""Between two looks whether a thread hangs, at most."""
LEADING_SECS = 5.0
"""How long to ask ZooKeeper whether a failure has a successor for its cause."""

Fact = Event | Callable[[], None]
"""What the queue carries: an event for the coordinator, or a step of the shell's own."""


class Pipeline:
    """One run of one topology, from the recovered state to its end.

    Args:
        store: leads the topology already; every write is checked against its epoch.
        clock: seconds since the epoch, for reports.
        monotonic: seconds, for timers. The protocol itself knows no clock.
        ids: random non-zero 64-bit ids for the acker's edges.
    """

    stragglers: Sequence[Straggler] = ()
    """The threads that the run has left behind."""
    _busy_since: float | None = None

    def __init__(
        self,
        name: str,
        config: TopologyConfig,
        store: ProgressStore,
        work: BatchWork,
        state: CoordinatorState,
        epoch: int,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        ids: Callable[[], int],
    ) -> None:
        self._name = name
        self._config = config
        self._store = store
        self._work = work
        self._state = state
        self._epoch = epoch
        self._clock = clock
        self._ids = ids
        self._tracking = Tracking(ACKER_TICKS, enabled=config.ackers > 0)
        self._facts: FactLoop[Fact] = FactLoop(monotonic)
        self._error: BaseException | None = None
        self._monotonic = monotonic
        self._last_start = float("-inf")
        self._settled = 0
        self._lacking: dict[int, ColumnsUnknownError] = {}
        self._scheduled = 0
        self._recorder = Recorder(name, epoch, state.committed, clock)
        patience = config.stop_grace_secs, config.message_timeout_secs
        self._threads = Threads(name, config.max_spout_pending, *patience)
        self._live = LiveAttempts(work, self._threads)
        self._turns = CommitTurns(
            work,
            self._live,
            self._tracking,
            self._recorder,
            self._threads,
            clock=clock,
            ids=ids,
            assert_leading=store.assert_leading,
            post=self.post,
            failed=self._failed,
            raised=self._raised,
        )
        self._maintenance = Maintenance(
            name,
            f"txn-{name}-{epoch}-maintenance",
            work,
            self._threads,
            assert_leading=store.assert_leading,
            halt=self.halt,
        )
        self._queue = ProcessingQueue(
            config.max_processing_jobs, config.max_group_processing, work.slots, monotonic
        )
        self._orders: dict[type[Action], Callable[[Any], None]] = {
            Plan: self._order_plan,  # these six in the order of a batch's life
            PersistStart: self._persist_start,
            Process: self._order_processing,
            Publish: self._order_publication,
            PersistCommitted: self._persist_committed,
            Succeed: self._succeed,
            SchedulePlan: self._schedule_plan,
            ScheduleRetry: self._schedule_retry,
            Cancel: self._cancel,
            Finish: self._finish,
            Halt: self._give_up,
        }

    # --- the loop ----------------------------------------------------------------------------

    def run(self) -> RunReport:
        """Run to the end; returns the report.

        Raises:
            AbandonedError: some thread did not come back.
            TxnError: what ended the run otherwise. Durable state is intact.
        """
        try:
            self._schedule_tick()
            self._schedule_look()
            self._handle(lambda: self._take(*coordinator.start(self._state)))
            while not self._state.ended:
                self._handle(self._facts.next())
        except BaseException as error:  # noqa: BLE001 - raised below, whatever the end brings
            self._error = self._error or error
        self._busy_since = self._monotonic()
        self.stragglers = self._shut_down()
        if self.stragglers:
            grace = self._config.stop_grace_secs
            raise abandoned(self._name, self.stragglers, grace, self._error)
        if self._error is not None:
            raise self._error
        return self.report

    @property
    def busy_secs(self) -> float:
        """How long the protocol's thread has been at one fact, or at the end. From any thread."""
        since = self._busy_since
        return 0.0 if since is None else self._monotonic() - since

    def post(self, fact: Fact) -> None:
        """Hand a fact to the protocol's thread. Safe from any thread."""
        self._facts.post(fact)

    def stop(self) -> None:
        """Ask for a clean stop. Safe from any thread and from a signal handler."""
        self.post(StopRequested())

    def halt(self, error: BaseException) -> None:
        """End the run with `error`. Safe from any thread."""
        self.post(lambda: self._halt(error))

    def status(self) -> RunStatus:
        """A snapshot for the live view. Safe from any thread."""
        return self._recorder.status(self._state)

    @property
    def report(self) -> RunReport:
        """How the run has gone so far."""
        return self._recorder.report

    def _handle(self, fact: Fact) -> None:
        self._busy_since = self._monotonic()
        try:
            if callable(fact):
                fact()
            else:
                self._take(*coordinator.step(self._state, fact))
        except BaseException as error:
            # A write that was refused, or a fault of our own: nothing more may be done in this
            # state, and everything durable is as the last completed action left it.
            if self._error is not None:
                raise
            self._halt(error)
        finally:
            self._busy_since = None

    def _take(self, state: CoordinatorState, actions: Sequence[Action]) -> None:
        self._state = state
        self._recorder.observe(state)
        for action in actions:
            self._act(action)

    def _halt(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self._take(*coordinator.step(self._state, Halted(first_line(error))))

    # --- the orders --------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        """Carry out one order."""
        self._orders[type(action)](action)

    def _order_plan(self, action: Plan) -> None:
        window_full = len(self._state.batches) >= self._config.max_spout_pending
        self._threads.spawn(
            self._threads.planner,
            lambda: self._plan(action, window_full=window_full),
            lambda error: self._raised(action.attempt, error),
            f"planning {action.attempt}",
        )

    def _plan(self, action: Plan, *, window_full: bool) -> None:
        answer = requested_replay(self._store, action)
        if answer is None:
            made = self._work.plan(action, window_full=window_full)
            answer = PlanMade(action.attempt, made)
        reached("after-plan", action.attempt)
        self.post(answer)

    def _schedule_plan(self, action: SchedulePlan) -> None:
        interval = self._config.batch_emit_interval_ms / 1000
        if action.idle:
            if not self._state.batches:
                self._settle()
            wait = max(interval, IDLE_POLL_SECS)
        else:
            wait = max(0.0, self._last_start + interval - self._monotonic())
        # Whatever was scheduled before is no longer: a timer cannot be taken back.
        self._scheduled = number = self._scheduled + 1
        self._facts.after(wait, lambda: self._plan_due(number))

    def _plan_due(self, number: int) -> None:
        if number == self._scheduled:
            self._take(*coordinator.step(self._state, PlanDue()))

    def _persist_start(self, action: PersistStart) -> None:
        self._recorder.mark(action.attempt, "planned")
        opaque = self._state.opaque_streams
        self._store.persist_start(start_record(action, self._epoch, opaque))
        self._last_start = self._monotonic()
        self._recorder.mark(action.attempt, "started")
        log.info("[%s %s] started", self._name, action.attempt)
        reached("after-start", action.attempt)

    def _order_processing(self, action: Process) -> None:
        attempt = action.attempt
        parts = self._work.planned_parts(action.metadata, late=False, empty=action.empty)
        live = AttemptWork(
            attempt,
            action.metadata,
            self._recorder.timeline(attempt),
            tag=f"txn-{self._name}-{self._epoch}-{attempt.txid}-{attempt.attempt_id}",
            ledger=ProcessingLedger(self._ids, parts),
            empty=action.empty,
        )
        self._live.add(live)
        self._queue.add(live)
        self._dispatch()

    def _dispatch(self) -> None:
        """Begin the processing phases that may begin now; the others wait, and do not age."""
        if self._state.ended:
            return
        for group, crowded in self._queue.take():
            for live in group:
                self._open_ledger(live, live.ledger)
            self._threads.spawn(
                self._threads.processing,
                partial(self._process, group, one_task=crowded),
                self.halt,
                f"processing {', '.join(str(live.attempt) for live in group)}",
            )

    def _process(self, group: list[AttemptWork], *, one_task: bool) -> None:
        told = Told(
            staged=lambda live, *staged: self.post(lambda: self._staged(live, *staged)),
            emitted=lambda live: self.post(lambda: self._emitted(live)),
            failed=lambda live, error: self._raised(live.attempt, error),
        )
        try:
            for live in group:
                if not live.cancelled.is_set():
                    live.timeline.mark("processing", self._clock())
            self._work.process(group, told, one_task=one_task)
        finally:
            self.post(lambda: self._process_ended(group))

    def _process_ended(self, group: list[AttemptWork]) -> None:
        self._queue.ended(group)
        for live in group:
            self._live.thread_ended(live)
        self._dispatch()

    def _order_publication(self, action: Publish) -> None:
        batch = self._state.batches[action.attempt.txid]
        words = partial(publication_of, action, self._name, self._epoch)
        self._turns.begin(
            action, partial(words, quarantined=batch.quarantined, replay_of=batch.replay_of)
        )

    def _persist_committed(self, action: PersistCommitted) -> None:
        first, group = action.attempts[0], len(action.attempts)
        reached("before-committed", first)
        self._store.persist_committed(
            committed_record(action, self._epoch),
            quarantine_record(action, self._live[action.attempt].metadata),
            action.replay_of,
        )
        self._work.committed(action.attempt.txid, action.tables)
        for attempt in action.attempts:
            staged = self._live[attempt].staged
            self._recorder.committed(attempt, staged, action.tables, group=group)
        reached("after-committed", first)
        self._maintenance.committed(action.attempt)

    def _succeed(self, action: Succeed) -> None:
        attempt = action.attempt
        self._live.committed(attempt)
        succeed = partial(self._work.succeed, attempt)
        self._threads.planner.submit(self._threads.quietly, succeed, about=f"success of {attempt}")
        self._threads.clean(lambda: self._work.clean_up(attempt))

    def _cancel(self, action: Cancel) -> None:
        self._recorder.forget(action.attempt)
        self._tracking.drop(action.attempt)
        self._live.cancel(action.attempt)
        self._dispatch()

    def _schedule_retry(self, action: ScheduleRetry) -> None:
        backoff = self._config.retry_backoff_ms / 1000 * 2 ** min(action.failures - 1, 16)
        least, most = (MIN_WAIT_SECS, MAX_WAIT_SECS) if action.blocked else (0, MAX_BACKOFF_SECS)
        self._facts.after(max(least, min(backoff, most)), RetryDue(action.attempt))

    def _settle(self) -> None:
        """Say in the tables, once, that the newest txid is final: nothing follows it for now."""
        txid = self._state.committed
        if txid > self._settled:
            self._settled = txid
            settle = partial(self._work.settle, txid)
            self._threads.commit.submit(self._threads.quietly, settle, about=f"settling {txid}")

    def _finish(self, _: Finish) -> None:
        state = self._state
        self._settle()
        # Wait for it, and for `success` to reach the spouts: the end drops jobs not yet begun.
        for pool in (self._threads.commit, self._threads.planner):
            with suppress(FutureTimeoutError):  # who hangs there is named by the end
                pool.submit(lambda: None).result(self._threads.left())
        reached_end = state.until is not None and state.committed >= state.until
        well = "until" if reached_end else "caught_up"
        self._recorder.ended("stopped" if state.stopping else well)

    def _give_up(self, action: Halt) -> None:
        self._error = self._error or BatchError(
            f"Batch {action.attempt} of topology '{self._name}' was given up: {action.error} "
            "Progress is intact: correct the cause and run again; the batch is replayed."
        )

    # --- facts of the shell's own ------------------------------------------------------------

    def _staged(
        self,
        live: AttemptWork,
        table: str,
        staged: Staged,
        read: Mapping[str, Sequence[str]],
    ) -> None:
        """One staging job ended: take its files over, acknowledge what it read."""
        if live.cancelled.is_set():
            return
        live.staged[table] = staged
        self._tracking.progress(live.ledger)
        self._tracking.ack(live.ledger, live.ledger.staged(table, read))

    def _emitted(self, live: AttemptWork) -> None:
        """Every staging job of the phase has ended: the ledger must close now."""
        if live.cancelled.is_set():
            return
        live.timeline.mark("staged", self._clock())
        self._judge(self._tracking.ack(live.ledger, live.ledger.emitted()))
        if not self._tracking.enabled:
            self._processed(live.attempt)
        elif self._tracking.is_open(live.ledger):
            self._failed(
                live.attempt,
                f"the ledger did not close: planned and never read: {live.ledger.missing()}",
            )

    # --- the acker ---------------------------------------------------------------------------

    def _open_ledger(self, live: AttemptWork, ledger: ProcessingLedger) -> None:
        live.threads += 1
        self._tracking.open(live.attempt, ledger)

    def _judge(self, verdict: Verdict | None) -> None:
        """Turn what the acker says of a ledger into an event."""
        if verdict is None:
            return
        if verdict.acked:
            self._processed(verdict.attempt)
        else:
            timeout = self._config.message_timeout_secs
            error = BatchTimeoutError(
                f"no progress within {timeout:g} s{self._whereabouts(verdict.attempt)}"
            )
            self._failed(verdict.attempt, first_line(error))

    def _processed(self, attempt: TransactionAttempt) -> None:
        self._recorder.mark(attempt, "processed")
        self.post(BatchProcessed(attempt))

    def _schedule_tick(self) -> None:
        # An entry expires at its third tick: after one to one and a half timeouts.
        self._facts.after(self._config.message_timeout_secs / (ACKER_TICKS - 1), self._tick)

    def _tick(self) -> None:
        for verdict in self._tracking.tick():
            self._judge(verdict)
        self._schedule_tick()

    def _whereabouts(self, attempt: TransactionAttempt) -> str:
        """Where the thread of an attempt is now."""
        at_work = (*self._threads.processing.at_work(), *self._threads.commit.at_work())
        found = [one for one in at_work if str(attempt) in one.about.replace(",", "").split()]
        return f"; {found[0]}" if found else ""

    # --- threads that hang -------------------------------------------------------------------

    def _schedule_look(self) -> None:
        config = self._config
        least = min(config.message_timeout_secs, config.stop_grace_secs, 2 * LOOK_SECS)
        self._facts.after(least / 2, self._look)

    def _look(self) -> None:
        """End the run for a thread that hangs where no second one may go."""
        config = self._config
        planning = config.message_timeout_secs + config.zookeeper_deadline_secs
        # A turn is cancelled after one to one and a half timeouts; then it has to come back.
        turn = 1.5 * config.message_timeout_secs + config.stop_grace_secs
        limits = [(self._threads.planner, planning)]
        if self._tracking.enabled or self._state.stopping:
            limits.append((self._threads.commit, turn))
        for pool, limit in limits:
            for hung in pool.at_work():
                if hung.seconds > limit:
                    self._halt(BatchTimeoutError(f"no answer within {limit:g} s: {hung}."))
        self._schedule_look()

    # --- helpers -----------------------------------------------------------------------------

    def _raised(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """A station raised: what a replay may mend fails the attempt, the rest ends the run."""
        if is_lost_work(error):
            # Asked on this thread, not on the protocol's: the JVM is asked for it.
            told, blocked = first_line(error), is_away(error)
            lacks = error.streams if isinstance(error, ColumnsUnknownError) else frozenset()
            self.post(lambda: self._failed(attempt, told, blocked=blocked, lacks=lacks))
            if isinstance(error, ColumnsUnknownError):
                self.post(lambda: self._lacks_columns(attempt.txid, error))
        else:
            cause = self._unless_replaced(error)
            self.post(lambda: self._fatal(attempt, cause))

    def _unless_replaced(self, error: BaseException) -> BaseException:
        """`error`, or that a successor leads: it deletes what this process was at work on."""
        if isinstance(error, FencedError):
            return error
        try:
            self._store.assert_leading(LEADING_SECS)
        except FencedError as fenced:
            log.info("[%s] after a successor took over: %s", self._name, first_line(error))
            return fenced
        except TxnError:
            pass  # ZooKeeper is away: what the station said has to do
        return error

    def _failed(
        self,
        attempt: TransactionAttempt,
        error: str,
        *,
        blocked: bool = False,
        lacks: frozenset[str] = frozenset(),
    ) -> None:
        """Report the failure of a live attempt; that of a dead one changes nothing."""
        batch = self._state.batches.get(attempt.txid)
        if batch is None or batch.attempt != attempt:
            return
        if self._turns.group_failed(attempt, error):
            return
        if blocked:
            self._recorder.blocked(batch, error)
        else:
            self._recorder.failed(attempt, error)
        if batch.phase is Phase.PLANNING:
            self.post(PlanFailed(attempt, error, blocked))
        else:
            self.post(BatchFailed(attempt, error, blocked, lacks))

    def _lacks_columns(self, txid: int, error: ColumnsUnknownError) -> None:
        """A run that is to end must not wait for ever for columns that may never be known."""
        if self._state.until is None and not self._state.until_caught_up:
            return
        if txid not in self._lacking:
            timeout = self._config.message_timeout_secs
            self._facts.after(timeout, lambda: self._lacked_columns(txid, timeout))
        self._lacking[txid] = error

    def _lacked_columns(self, txid: int, timeout: float) -> None:
        error, batch = self._lacking.pop(txid), self._state.batches.get(txid)
        waits = batch is not None and (batch.blocked or "").startswith(type(error).__name__)
        if batch is None or not waits or self._state.stopping:
            return
        self._halt(
            BatchError(
                f"Batch {batch.attempt} of topology '{self._name}' waited for {timeout:g} s, and "
                f"this run is to end (until): {error} Nothing was lost: the next run goes on "
                "from here; with until='forever' it would go on waiting."
            )
        )

    def _fatal(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """End the run for an error that no replay mends, unless its attempt is dead anyway."""
        batch = self._state.batches.get(attempt.txid)
        if batch is None or batch.attempt != attempt:
            log.info("[%s %s] dead attempt ended: %s", self._name, attempt, first_line(error))
            return
        if isinstance(error, TxnError):
            self._halt(error)
            return
        self._halt(stopped(self._name, batch, error))

    def _shut_down(self) -> list[Straggler]:
        self._recorder.ended()
        self._maintenance.stop()
        self._turns.stop()
        return self._live.shut_down()
