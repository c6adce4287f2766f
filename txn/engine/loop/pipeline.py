"""One run of a topology: the shell that carries out the coordinator's actions.

One thread, `run`, owns the protocol. It takes facts from a queue (events of the coordinator, or
functions of the shell's own), gets orders (the coordinator's actions) from `coordinator.step`, and
carries these out in order. Everything slow happens on other threads, which only report facts:

    planner     1 thread           asks the spouts, one txid after the other; reports success
    processing  2 x max_pending    staging jobs, each of one or several attempts (FAIR pool)
    commit      1 thread           commit turns: never two at once, even after failures
    clean-up    1 thread           deletes scratch and dead attempts' files
    maintenance 1 thread           asks the tables for work beside the commit turns
    asking      1 a question       a spout's lag, notices and numbers, waited for a second at most

The run waits for every thread with a limit. If planning or a commit turn hangs, the run ends,
because a second one must not run beside it. At the end, a thread that does not stop within
`stop_grace_secs` is named in the error and left behind (`txn.engine.base.threads`). A staging job
that hangs is cancelled and done again on another thread; the first one can write only to folders
that are never published.

The same thread owns the acker, which needs no lock. Other threads report through `Shell`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.dataflow.expectations import treatments
from txn.engine.base.attempt import LiveAttempt
from txn.engine.base.failures import is_away
from txn.engine.base.killpoints import reached
from txn.engine.base.mailbox import FactLoop
from txn.engine.base.shell import Fact, Shell
from txn.engine.base.threads import Straggler, Threads, abandoned_error
from txn.engine.loop.attempt_failures import AttemptFailures
from txn.engine.loop.commit_turns import CommitTurns
from txn.engine.loop.ending_errors import given_up
from txn.engine.loop.equipment import Equipment
from txn.engine.loop.in_flight import LiveAttempts
from txn.engine.loop.maintenance import Maintenance
from txn.engine.loop.processing_phases import ProcessingPhases, ProcessingQueue
from txn.engine.loop.timeouts import ACKER_TICKS, Timeouts
from txn.engine.loop.upkeep import Upkeep
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.reporting.recorder import Recorder
from txn.engine.reporting.report import RunReport, RunStatus
from txn.engine.work.news import News
from txn.errors import ProgressUnavailableError, SourceChangedError, SourceUnavailableError
from txn.observers import AttemptCancelled, FailureCause, ReplayScheduled
from txn.protocol import coordinator
from txn.protocol.events import (
    Action,
    Cancel,
    CoordinatorState,
    Finish,
    Halt,
    Halted,
    PersistCommitted,
    PersistStart,
    Plan,
    PlanDue,
    PlanMade,
    Process,
    Publish,
    RetryDue,
    SchedulePlan,
    ScheduleRetry,
    StopRequested,
    Succeed,
)
from txn.protocol.ledgers import ProcessingLedger, Tracking
from txn.protocol.order_records import (
    committed_record,
    notices_record,
    publication_of,
    quarantine_record,
    start_record,
)
from txn.protocol.store import ProgressStore
from txn.spark.causes import cause_line

__all__ = ["Pipeline"]

log = logging.getLogger("txn")

IDLE_POLL_SECS = 0.1
MAX_BACKOFF_SECS = 30.0
MIN_WAIT_SECS, MAX_WAIT_SECS = 0.1, 5.0
"""Between two checks whether a source that was away is back."""
_REFUSED = (
    "[%s] the replay of quarantined txid %d is refused, and the txid stays quarantined; "
    "`txn quarantine drop` gives it up. %s"
)


class Pipeline(Shell):
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
    """When the protocol's thread began its present fact; None: it waits for one."""

    def __init__(
        self,
        name: str,
        config: TopologyConfig,
        store: ProgressStore,
        equipment: Equipment,
        state: CoordinatorState,
        broadcast: Broadcast,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        ids: Callable[[], int],
    ) -> None:
        self._name = name
        self._config = config
        self._store = store
        self._tables = equipment.tables
        self._stations = stations = equipment.stations
        self._state = state
        self._epoch = store.epoch
        self._tag = f"txn-{name}-{self._epoch}"
        self._ids = ids
        self._clock = clock
        self._monotonic = monotonic
        self._facts: FactLoop[Fact] = FactLoop(monotonic)
        self._error: BaseException | None = None
        self._last_start = float("-inf")  # when the newest START was written
        self._settled = 0  # the newest txid that the tables have marked as final
        self._timer_number = 0  # of the newest timer for PlanDue; older ones are void
        self._noticed: Mapping[str, tuple[str, ...]] = {}
        """The spouts' notices in the store; owned by the planner's thread."""
        self._broadcast = broadcast
        self.news = News(broadcast, treatments(equipment.tables.all))
        self._recorder = Recorder(name, state.committed, broadcast, clock, self.news.treatments)
        limits = config.stop_grace_secs, config.message_timeout_secs
        self._threads = threads = Threads(name, config.max_spout_pending, *limits)
        self._tracking = tracking = Tracking(ACKER_TICKS, enabled=config.ackers > 0)
        self._live = live = LiveAttempts(stations, threads)
        queue = ProcessingQueue(
            config.max_processing_jobs,
            config.max_group_processing,
            equipment.jobs.slots,
            monotonic,
        )
        self._phases = ProcessingPhases(stations, live, queue, tracking, threads, self, broadcast)
        self._turns = CommitTurns(stations, live, tracking, broadcast, threads, self, ids)
        upkeep = Upkeep(name, equipment.tables.all, config, broadcast, monotonic)
        tag = f"{self._tag}-maintenance"
        self._maintenance = Maintenance(
            name, tag, equipment.jobs, equipment.tables, threads, self, upkeep, broadcast
        )
        self._failures = AttemptFailures(name, config, self._turns, broadcast, self)
        self._timeouts = Timeouts(config, tracking, threads, self)
        self._orders: dict[type[Action], Callable[[Any], None]] = {
            Plan: self._plan,
            PersistStart: self._persist_start,
            Process: self._process,
            Publish: self._publish,
            PersistCommitted: self._persist_committed,
            Succeed: self._succeed,
            SchedulePlan: self._schedule_plan,
            ScheduleRetry: self._schedule_retry,
            Cancel: self._cancel,
            Finish: self._finish,
            Halt: self._halt,
        }

    # --- the loop ----------------------------------------------------------------------------

    def run(self) -> RunReport:
        """Run to the end; returns the report.

        Raises:
            AbandonedError: some thread did not end.
            TxnError: the error that ended the run. Durable state is intact.
        """
        try:
            self._timeouts.start()
            self._handle(lambda: self._take(*coordinator.start(self._state)))
            while not self._state.ended:
                self._handle(self._facts.next())
        except BaseException as error:  # noqa: BLE001 - raised below, however the end goes
            self._error = self._error or error
        self._busy_since = self._monotonic()
        self.stragglers = self._shut_down()
        if self.stragglers:
            grace = self._config.stop_grace_secs
            raise abandoned_error(self._name, self.stragglers, grace, self._error)
        if self._error is not None:
            raise self._error
        return self.report

    @property
    def busy_secs(self) -> float:
        """Seconds that the protocol thread has worked on one fact, or on the end. Thread-safe."""
        since = self._busy_since
        return 0.0 if since is None else self._monotonic() - since

    def stop(self) -> None:
        """Ask for a clean stop. Safe from any thread and from a signal handler."""
        self.post(StopRequested())

    def status(self) -> RunStatus:
        """A snapshot for the live view. Safe from any thread."""
        facts = self._stations.facts
        shown = {name: table.shows for name, table in self._tables.published.items()}
        return self._recorder.status(self._state, facts.lags, facts.planned, shown)

    @property
    def report(self) -> RunReport:
        """The report so far."""
        return self._recorder.report

    # --- calls of its parts: `Shell` ---------------------------------------------------------

    @property
    def state(self) -> CoordinatorState:
        """The coordinator's state."""
        return self._state

    def post(self, fact: Fact) -> None:
        """Hand a fact to the protocol's thread. Safe from any thread."""
        self._facts.post(fact)

    def after(self, seconds: float, fact: Fact) -> None:
        """Hand a fact to the protocol's thread later. From that thread only."""
        self._facts.after(seconds, fact)

    def failed(self, attempt: TransactionAttempt, why: str, cause: FailureCause) -> None:
        """Fail an attempt, which is then replayed. From the protocol's thread only."""
        self._failures.failed(attempt, why, cause)

    def raised(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Take the error of an attempt's station. Safe from any thread."""
        self._failures.raised(attempt, error)

    def end(self, error: BaseException) -> None:
        """End the run with `error` at once; the first one wins. From the protocol's thread only."""
        if self._error is None:
            self._error = error
            self._take(*coordinator.step(self._state, Halted(cause_line(error))))

    def halt(self, error: BaseException) -> None:
        """Post `end(error)`: its turn comes among the facts. Safe from any thread."""
        self.post(lambda: self.end(error))

    def assert_leading(self, seconds: float | None = None) -> None:
        """Raise unless this process still leads. Safe from any thread."""
        self._store.assert_leading(seconds)

    # --- one fact after the other ------------------------------------------------------------

    def _handle(self, fact: Fact) -> None:
        self._busy_since = self._monotonic()
        try:
            if callable(fact):
                fact()
            else:
                self._take(*coordinator.step(self._state, fact))
        except BaseException as error:
            # A write was refused, or txn has a bug: nothing more may be done in this state, and
            # everything durable is as the last completed action left it.
            if self._error is not None:
                raise
            self.end(error)
        finally:
            self._busy_since = None

    def _take(self, state: CoordinatorState, orders: Sequence[Action]) -> None:
        self._state = state
        self._recorder.observe(state)
        for order in orders:
            self._orders[type(order)](order)

    # --- a batch's life, order by order ------------------------------------------------------

    def _plan(self, order: Plan) -> None:
        window_full = len(self._state.batches) >= self._config.max_spout_pending
        self._threads.spawn(
            self._threads.planner,
            lambda: self._ask(order, window_full=window_full),
            lambda error: self.raised(order.attempt, error),
            f"planning {order.attempt}",
        )

    def _ask(self, order: Plan, *, window_full: bool) -> None:
        """Ask the spouts, on the planner's thread."""
        answer = self._answer_from_quarantine(order)
        if answer is None:
            made = self._stations.plan(order, window_full=window_full)
            answer = PlanMade(order.attempt, made)
            self.news.of_spouts(self._stations.facts)
            if (notices := self._stations.facts.notices) != self._noticed:
                self._noticed = notices
                self.post(partial(self._persist_notices, order.attempt.txid, notices))
        answer = replace(answer, dimensions=self._stations.dimensions())
        reached("after-plan", order.attempt)
        self.post(answer)

    def _answer_from_quarantine(self, question: Plan) -> PlanMade | None:
        """Let a new txid replay or drop a quarantined one, if that was requested; None: ask spouts.

        A drop is a replay that reads nothing, so it has its place in the order and in the history.
        A replay that cannot be read is refused here: once its START were durable, every later txid
        would wait for it.

        Raises:
            SourceUnavailableError: ZooKeeper or the source is away. Nothing is lost by waiting: the
                batch could not be started either.
        """
        if not question.is_new:
            return None
        nothing = dict.fromkeys(question.streams)
        try:
            if (dropped := self._store.requested_drop(question.replaying)) is not None:
                return PlanMade(question.attempt, nothing, dropped.txid)
            while (requested := self._store.requested_replay(question.replaying)) is not None:
                try:
                    read = self._stations.readable(question.attempt, requested.spouts)
                except Exception as error:
                    if is_away(error):
                        raise
                    # Without the spout's advice, which is for a batch that holds up the run.
                    cause = cause_line(error).removesuffix(SourceChangedError.LET_GO).rstrip(". ")
                    why = (
                        f"{cause}. The request is withdrawn: ask again (`txn quarantine replay "
                        f"{self._name} {requested.txid}`) when it can be read."
                    )
                    self._store.refuse_replay(requested.txid, why)
                    log.warning(_REFUSED, self._name, requested.txid, why)
                else:
                    # A stream that was added since then has nothing to read in it.
                    read = {stream: read.get(stream) for stream in question.streams}
                    return PlanMade(question.attempt, read, requested.txid)
        except ProgressUnavailableError as error:
            raise SourceUnavailableError(str(error), number=error.number) from error
        return None

    def _persist_notices(self, txid: int, notices: Mapping[str, Sequence[str]]) -> None:
        at = datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="seconds")
        self._store.persist_notices(notices_record(self._epoch, txid, at, notices))

    def _persist_start(self, order: PersistStart) -> None:
        attempt, opaque = order.attempt, self._state.opaque_streams
        span = self._broadcast.span("start", [attempt])
        with span:
            self._store.persist_start(start_record(order, self._epoch, opaque))
        if not self._stations.facts.knows_plan(attempt.txid):
            learn = partial(self._stations.learn_plan, attempt.txid, order.metadata)
            about = f"the lag of {attempt}"
            self._threads.planner.submit(self._threads.quietly, learn, about=about)
        self._last_start = self._monotonic()
        self.news.started(order, self._state.batches[attempt.txid], span.began)
        reached("after-start", attempt)

    def _process(self, order: Process) -> None:
        attempt = order.attempt
        parts = self._stations.planned_parts({} if order.empty else order.metadata, late=False)
        live = LiveAttempt(
            attempt,
            order.metadata,
            tag=f"{self._tag}-{attempt.txid}-{attempt.attempt_id}",
            ledger=ProcessingLedger(self._ids, parts),
            watermark=order.watermark,
            watermark_before=order.watermark_before,
            dimensions=order.dimensions,
            empty=order.empty,
        )
        self._live.add(live)
        self._phases.begin(live)

    def _publish(self, order: Publish) -> None:
        batch = self._state.batches[order.attempt.txid]
        turn = self._turns.make(order)
        publication = publication_of(
            order,
            self._name,
            self._epoch,
            self._recorder.durations_ms(turn.last.attempt),
            quarantined=batch.quarantined,
            replay_of=batch.replay_of,
        )
        self._turns.begin(turn, publication)

    def _persist_committed(self, order: PersistCommitted) -> None:
        first = order.attempts[0]
        reached("before-committed", first)
        with self._broadcast.span("commit", order.attempts):
            self._store.persist_committed(
                committed_record(order, self._epoch),
                quarantine_record(order, self._live[order.attempt].metadata),
                order.replay_of,
            )
        self._tables.advance(order.attempt.txid, order.tables)
        for attempt in order.attempts:
            self.news.committed(order, self._live[attempt])
        self._stations.facts.committed(order.attempt.txid)
        self.news.of_spouts(self._stations.facts)
        reached("after-committed", first)
        self._maintenance.committed(order.attempt)

    def _succeed(self, order: Succeed) -> None:
        attempt = order.attempt
        self._live.committed(attempt)
        succeed = partial(self._stations.succeed, attempt)
        self._threads.planner.submit(self._threads.quietly, succeed, about=f"success of {attempt}")
        self._threads.clean(lambda: self._stations.clean_up(attempt))

    # --- the other orders --------------------------------------------------------------------

    def _schedule_plan(self, order: SchedulePlan) -> None:
        interval = self._config.batch_emit_interval_ms / 1000
        if order.idle:
            if not self._state.batches:
                self._settle()
                self._maintenance.idle(self._monotonic(), self._state.committed)
            wait = max(interval, IDLE_POLL_SECS)
        else:
            wait = max(0.0, self._last_start + interval - self._monotonic())
        # The number voids earlier timers, which cannot be cancelled.
        self._timer_number = number = self._timer_number + 1
        self.after(wait, lambda: self._plan_due(number))

    def _plan_due(self, number: int) -> None:
        if number != self._timer_number:
            return
        if self._stations.are_caught_up and not self._phases.are_idle:
            # A batch of the few new records would only slow down those at work, and the next record
            # would wait for both. Plan one batch later, of all records that have come by then.
            self._phases.once_idle(lambda: self._plan_due(number))
        else:
            self._take(*coordinator.step(self._state, PlanDue()))

    def _schedule_retry(self, order: ScheduleRetry) -> None:
        backoff = self._config.retry_backoff_ms / 1000 * 2 ** min(order.failures - 1, 16)
        least, most = (MIN_WAIT_SECS, MAX_WAIT_SECS) if order.blocked else (0, MAX_BACKOFF_SECS)
        wait = max(least, min(backoff, most))
        failures, blocked = order.failures, order.blocked
        self._broadcast.report(ReplayScheduled, order.attempt, failures, wait, blocked)
        self.after(wait, RetryDue(order.attempt))

    def _cancel(self, order: Cancel) -> None:
        self._broadcast.report(AttemptCancelled, order.attempt)
        self._tracking.drop(order.attempt)
        self._live.cancel(order.attempt)
        self._phases.dispatch()

    def _finish(self, _: Finish) -> None:
        state = self._state
        self._settle()
        if not state.stopping:
            self._maintenance.last_round(state.committed)
        # Wait until the tables are settled and the spouts have heard of every success: the shutdown
        # drops jobs that have not begun.
        for pool in (self._threads.commit, self._threads.planner):
            with suppress(FutureTimeoutError):  # the end names the thread that hangs there
                pool.submit(lambda: None).result(self._threads.grace_left())
        reached_end = state.until is not None and state.committed >= state.until
        reason = "until" if reached_end else "caught_up"
        self._recorder.ended("stopped" if state.stopping else reason)

    def _halt(self, order: Halt) -> None:
        refusal = self._failures.refusal(order.attempt)
        self._error = self._error or refusal or given_up(self._name, order.attempt, order.error)

    def _settle(self) -> None:
        """Mark the newest txid as final in the tables, once: nothing follows it for now."""
        txid = self._state.committed
        if txid > self._settled:
            self._settled = txid
            settle = partial(self._tables.settle, txid)
            self._threads.commit.submit(self._threads.quietly, settle, about=f"settling {txid}")

    def _shut_down(self) -> list[Straggler]:
        self._recorder.ended()
        self._maintenance.stop()
        self._turns.stop()
        return self._live.shut_down()
