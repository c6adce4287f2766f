"""A topology in flight: the handle on a run, its thread, and the wait for its end.

`begin` makes all checks (leadership, columns, tables, recovery: `txn.engine.start`) on the caller's
thread, so that a mistake is raised where it was made; the pipeline runs on a thread. A standby only
rehearses there; it waits, takes over and recovers on the thread.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from txn.acker import draw_id
from txn.dataflow.definition import Definition, Until
from txn.engine.base.threads import Straggler, abandoned_error
from txn.engine.loop.pipeline import Pipeline
from txn.engine.reporting.bottleneck import in_words
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.reporting.report import RunReport, RunStatus, Standby
from txn.engine.start import Start
from txn.engine.work.spout_facts import places_of
from txn.errors import (
    AbandonedError,
    FencedError,
    ProgressUnavailableError,
    TxnError,
)
from txn.interfaces import Lag
from txn.logs import Work, working_on
from txn.notebook.live import Moment, show
from txn.observers import (
    LeadershipConfirmed,
    LeadershipInDoubt,
    LeadershipLost,
    Observer,
    RunBegan,
    RunEnded,
    StandingBy,
)
from txn.protocol.records import LeaderIdentity
from txn.protocol.store import ProgressStore
from txn.text import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RunningTopology", "tell_refused"]

log = logging.getLogger("txn")

_WATCH_SECS = 1.0
"""Between two checks of the run's own thread."""
_NAMING_SECS = 5.0
"""Most seconds to ask the store for the new leader."""

_random_id = partial(draw_id, secrets.randbits)


class RunningTopology:
    """A handle on a run in the background, as returned by `Topology.start`.

    Args:
        store: keeps the progress; closed when the run ends.
        standby: wait while another process leads, instead of being refused.
        resources: closed at the end, after the store.
        left_behind: gets the threads that the run leaves behind.
        observers: get the run's events (`txn.observers`).
        clock: seconds since the epoch.
        monotonic: seconds, for timers and deadlines.
        ids: random non-zero 64-bit ids.
    """

    def __init__(
        self,
        definition: Definition,
        spark: SparkSession,
        store: ProgressStore,
        *,
        until: Until,
        standby: bool = False,
        resources: contextlib.ExitStack | None = None,
        left_behind: list[Straggler] | None = None,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        ids: Callable[[], int] = _random_id,
    ) -> None:
        self._definition = definition
        self._until = until
        self._name = definition.name
        self._config = definition.config
        self._store = store
        self._is_standby = standby
        self._clock = clock
        self._monotonic = monotonic
        self._resources = contextlib.ExitStack() if resources is None else resources
        self._resources.callback(store.close)
        self._stragglers: list[Straggler] = []
        self._left_behind = [] if left_behind is None else left_behind
        self._broadcast = Broadcast(definition.name, clock, observers)
        self._began = clock()
        self._start = Start(
            definition=definition,
            spark=spark,
            store=store,
            until=until,
            clock=clock,
            monotonic=monotonic,
            ids=ids,
            resources=self._resources,
            stragglers=self._stragglers,
            broadcast=self._broadcast,
        )
        self._pipeline: Pipeline | None = None
        self._standby: Standby | None = None
        self._in_doubt = False
        """True once observers have the event that another process may lead."""
        self._stopping = threading.Event()
        self._before = RunReport(definition.name)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._closing = threading.Lock()

    def __repr__(self) -> str:
        """Name, committed txid, and present state."""
        if self.standby is not None:
            return f"<RunningTopology '{self._name}': standing by, waiting for {self.standby}>"
        status = self.status()
        state = in_words(status.held_up_by) if self.is_active else f"ended: {self.report.ended}"
        txids = f"committed txid {status.committed_txid}, {len(status.in_flight)} in flight"
        return f"<RunningTopology '{self._name}': {txids}, {state}>"

    def _ipython_display_(self) -> None:
        """Show the run below a notebook's cell, live until it has ended."""
        show(self._moment, lambda: not self.is_active)

    def _moment(self) -> Moment:
        status, report = self.status(), self.report
        if self.standby is not None:
            state = f"standing by, waiting for {self.standby}"
        elif self.is_active:
            state = f"running, {in_words(status.held_up_by)}"
        else:
            state = "ended with an error" if self._error else f"ended: {report.ended}"
        now = self._clock()
        return Moment(
            topology=self._name,
            state=state,
            committed_txid=status.committed_txid,
            txids=status.batches_committed,
            records=status.totals.input_records,
            rows=status.totals.rows_staged,
            seconds=status.seconds if self.is_active else report.seconds,
            edges=self._definition.edges,
            in_flight=[
                (
                    f"{batch.txid}:{batch.attempt_id}",
                    batch.blocked or batch.phase,
                    now - batch.since,
                )
                for batch in (status.in_flight if self.is_active else ())
            ],
            lags={stream: _lag(lag) for stream, lag in status.lags.items()},
            failure=status.last_failure if self._error is None else first_line(self._error),
        )

    def begin(self) -> None:
        """Lead, check, recover, and start the pipeline's thread. Called by `Topology.start`.

        A standby gets ready instead, and leads, checks and recovers when its time has come.

        Raises:
            TxnError: the refusal; nothing is left open.
        """
        self._broadcast.open()
        self._tell_begin()
        try:
            with working_on(Work(self._name)):
                if self._is_standby:
                    self._start.rehearse()
                else:
                    self._pipeline = self._lead()
        except BaseException as error:
            try:
                self._let_go()
            finally:
                self._tell_end(error)
            raise
        self._thread = threading.Thread(target=self._run, name="txn-coordinator", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="txn-watch", daemon=True).start()

    def stop(self, timeout: float | None = None) -> RunReport:
        """Finish the commit turn under way, cancel the rest, and return the report.

        Args:
            timeout: seconds to wait for the end; None waits without a limit of its own: the run
                limits a commit turn by `message_timeout_secs`, the rest by `stop_grace_secs`.
        """
        self._ask_to_stop()
        return self.await_termination(timeout)

    def _ask_to_stop(self) -> None:
        """Ask for a clean stop. Safe from any thread and from a signal handler."""
        self._stopping.set()
        if self._pipeline is not None:
            self._pipeline.stop()

    def await_termination(
        self, timeout: float | None = None, *, signals: bool = False
    ) -> RunReport:
        """Wait for the end of the run.

        Args:
            timeout: seconds; when they pass the report so far is returned (its `ended` is
                "running").
            signals: turn Ctrl-C and SIGTERM into a clean stop meanwhile (main thread only).

        Raises:
            TxnError: the error that ended the run; durable state is intact.
        """
        with self._stop_on_signals() if signals else contextlib.nullcontext():
            self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self.report

    def status(self) -> RunStatus:
        """A snapshot of the run; of a waiting standby, an empty one with epoch 0."""
        if self._pipeline is None:
            return RunStatus(self._name, 0, 0, (), 0, 0, None, 0.0)
        return self._pipeline.status()

    @property
    def report(self) -> RunReport:
        """The report so far. It keeps changing until the run has ended."""
        return self._before if self._pipeline is None else self._pipeline.report

    @property
    def standby(self) -> Standby | None:
        """The leader that a standby waits for; None before and after that wait."""
        return self._standby if self._pipeline is None else None

    @property
    def leads(self) -> bool:
        """True if the run has begun; False only for a standby that has not taken over."""
        return self._pipeline is not None

    @property
    def is_active(self) -> bool:
        """True until the run has ended."""
        return self._thread is not None and not self._done.is_set()

    # --- beginning ---------------------------------------------------------------------------

    def _lead(self) -> Pipeline:
        pipeline = self._start.lead(
            wait=self._is_standby, on_waiting=self._waits_for, stopped=self._stopping.is_set
        )
        self._store.on_lost = partial(self._check_leadership, pipeline)
        return pipeline

    def _take_over(self) -> Pipeline | None:
        """Wait for the leadership; None if the standby was stopped before."""
        try:
            return self._lead()
        except ProgressUnavailableError:
            if not self._stopping.is_set():
                raise
        self._before.ended = "stopped"
        return None

    def _waits_for(self, leader: LeaderIdentity | None) -> None:
        since = self._standby.since if self._standby else self._clock()
        fields = {"host", "pid", "started", "epoch"}
        who = None if leader is None else leader.model_dump(include=fields)
        self._standby = Standby(since, who)
        self._broadcast.report(StandingBy, who)
        log.info("[%s] standing by, waiting for %s", self._name, self._standby)

    def _check_leadership(self, pipeline: Pipeline) -> None:
        """Check the leadership: commits wait meanwhile, and a successor ends the run."""
        if not self._in_doubt:
            self._in_doubt = True
            self._broadcast.report(LeadershipInDoubt)
        try:
            self._store.assert_leading()
        except FencedError as error:
            pipeline.halt(error)
        except Exception as error:  # noqa: BLE001 - the next write meets it again and reports it
            log.warning("[%s] %s", self._name, error)
        else:
            self._in_doubt = False
            self._broadcast.report(LeadershipConfirmed)

    # --- the thread, and waiting for it ------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._pipeline is None:
                with working_on(Work(self._name)):
                    self._pipeline = self._take_over()
            if self._pipeline is not None:
                if self._stopping.is_set():
                    self._pipeline.stop()
                with working_on(Work(self._name, self._broadcast.epoch)):
                    self._pipeline.run()
        except FencedError as error:
            self._error = self._name_successor(error)
            self._broadcast.report(LeadershipLost, first_line(self._error))
        except BaseException as error:  # noqa: BLE001 - raised by await_termination
            self._error = error
        if self._pipeline is not None:
            self._stragglers += self._pipeline.stragglers
        self._close()

    def _close(self) -> None:
        """Release everything once, leadership last; the first caller does it."""
        with self._closing:
            if self._done.is_set():
                return
            try:
                self._let_go()
            except BaseException as error:  # noqa: BLE001 - raised by await_termination
                self._error = self._error or error
            if self._stragglers and not isinstance(self._error, AbandonedError):
                grace = self._config.stop_grace_secs
                self._error = abandoned_error(self._name, self._stragglers, grace, self._error)
            self._tell_end(self._error)
            self._done.set()

    def _let_go(self) -> None:
        try:
            self._resources.close()
        finally:
            self._left_behind.extend(self._stragglers)

    def _tell_begin(self) -> None:
        places = places_of(self._name, self._definition.sources)
        _report_begin(self._broadcast, self._definition, self._until, places, self._is_standby)

    def _tell_end(self, error: BaseException | None) -> None:
        """Send the last event; problems of observers go to the report, too."""
        stamp = self._broadcast.stamp()
        last = RunEnded(
            *stamp,
            ended=self.report.ended if error is None else "error",
            error=None if error is None else first_line(error),
            number=getattr(error, "number", None),
            committed_txid=self.report.committed_txid,
            seconds=max(0.0, stamp[0] - self._began),
        )
        self.report.observers += self._broadcast.close(last)

    # --- threads that hang -------------------------------------------------------------------

    def _watch(self) -> None:
        """End the run for its own thread, should that hang: user code may be called there, too."""
        stopped_at = None
        while not self._done.wait(_WATCH_SECS):
            if self._stopping.is_set() and stopped_at is None:
                stopped_at = self._monotonic()
            if self._thread is None or not self._hangs(stopped_at):
                continue
            self._stragglers.append(
                Straggler.of(self._thread, "the run's own", self._stuck_since(stopped_at))
            )
            self._close()

    def _hangs(self, stopped_at: float | None) -> bool:
        config, pipeline = self._config, self._pipeline
        if pipeline is not None:
            # A fact may take as long as a write to ZooKeeper, the end as long as its threads.
            longest = max(config.zookeeper_deadline_secs, config.message_timeout_secs)
            return pipeline.busy_secs > longest + 2 * config.stop_grace_secs
        return stopped_at is not None and self._monotonic() - stopped_at > config.stop_grace_secs

    def _stuck_since(self, stopped_at: float | None) -> float:
        now = self._monotonic()
        if self._pipeline is not None:
            return now - self._pipeline.busy_secs
        return now if stopped_at is None else stopped_at

    def _name_successor(self, error: FencedError) -> FencedError:
        """Name the new leader in the error: a table has only its epoch, the store its name."""
        try:
            self._store.assert_leading(_NAMING_SECS)
        except FencedError as winner:
            if str(winner) != str(error):
                winner = FencedError(f"{winner} A table reported it: {error}")
                winner.__cause__ = error
            return winner
        except TxnError:
            pass  # ZooKeeper is away: the table's error stands
        return error

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else self._monotonic() + timeout
        while self.is_active:
            # Short waits, so that signal handlers can run in this thread.
            left = 0.2 if deadline is None else min(0.2, deadline - self._monotonic())
            if left <= 0:
                return
            self._done.wait(left)

    @contextlib.contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handler(number: int, frame: Any) -> None:
            del frame
            log.info("[%s] %s: stopping", self._name, signal.Signals(number).name)
            self._ask_to_stop()

        before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


def tell_refused(
    definition: Definition,
    until: Until,
    observers: Sequence[Observer],
    error: BaseException,
    *,
    standby: bool,
) -> None:
    """Send observers the beginning and the end of a run that was refused before it was made.

    An observer may hold a resource until the end of its run, such as a port.
    """
    broadcast = Broadcast(definition.name, time.time, observers)
    broadcast.open()
    _report_begin(broadcast, definition, until, {}, standby)
    why, number = first_line(error), getattr(error, "number", None)
    broadcast.close(RunEnded(*broadcast.stamp(), "error", why, number, 0, 0.0))


def _report_begin(
    broadcast: Broadcast,
    definition: Definition,
    until: Until,
    places: Mapping[str, tuple[str, ...]],
    standby: bool,
) -> None:
    tables = tuple(sink.name for sink in definition.sinks)
    broadcast.report(RunBegan, str(until), definition.streams, tables, standby, places)


def _lag(lag: Lag) -> str:
    return next((f"{amount:,} {unit}" for unit, amount in lag.numbers.items()), "unknown")
