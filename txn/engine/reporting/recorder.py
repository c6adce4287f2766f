"""The record of a run: timelines of open attempts, and the report.

The first reader of a run's events (`txn.engine.reporting.broadcast`). `status` may be read from any
thread, because a coordinator state is never changed in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from txn.attempts import TransactionAttempt
from txn.dataflow.expectations import Treatment
from txn.engine.base.input import Input
from txn.engine.reporting.bottleneck import bound, is_queued, waits
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.reporting.report import BatchReport, InFlight, RunReport, RunStatus, Timeline
from txn.interfaces import Lag
from txn.logs import fields_of
from txn.notebook.charts import LagPoint
from txn.observers import (
    AttemptBlocked,
    AttemptCancelled,
    AttemptFailed,
    BackPressureBegan,
    BackPressureEnded,
    BatchCommitted,
    BatchUnblocked,
    Bound,
    BoundChanged,
    GroupDissolved,
    LagChanged,
    ReplayScheduled,
    RunEvent,
    Station,
    StationBegan,
    StationEnded,
)
from txn.protocol.events import Batch, CoordinatorState

__all__ = ["Recorder"]

log = logging.getLogger("txn")

_ARRIVALS: Mapping[Station, str] = {"start": "planned", "process": "processing", "turn": "turn"}
_ENDS: Mapping[Station, str] = {
    "start": "started",
    "process": "staged",
    "ack": "processed",
    "prepare": "prepared",
    "publish": "published",
    "commit": "committed",
}
"""An event's station -> the entry of a `Timeline` that its beginning, or its end, sets; the
entries are `txn.engine.reporting.report.STATIONS`."""


class Recorder:
    """Timelines, counts and the report of one run, made from its events.

    Args:
        broadcast: the source of events; gets those that follow from the state of the protocol.
    """

    def __init__(
        self,
        topology: str,
        committed: int,
        broadcast: Broadcast,
        clock: Callable[[], float],
        treatments: Mapping[tuple[str, str], Treatment] = MappingProxyType({}),
    ) -> None:
        self.report = RunReport(topology, broadcast.epoch, committed_txid=committed)
        self._broadcast = broadcast
        self._clock = clock
        self._treatments = treatments
        self._began = clock()
        self._timelines: dict[TransactionAttempt, Timeline] = {}
        self._blocked: dict[int, tuple[TransactionAttempt, float]] = {}
        """txid -> its newest blocked attempt, and the time at which the wait began."""
        self._bound: Bound | None = None
        self._bound_since = self._began
        self._observed_at = self._began
        self._full_since: float | None = None
        self._readers: dict[type[RunEvent], Callable[[Any], None]] = {
            StationBegan: self._arrived,
            StationEnded: self._left,
            AttemptFailed: self._failed,
            ReplayScheduled: self._replayed,
            AttemptBlocked: self._was_blocked,
            AttemptCancelled: self._cancelled,
            GroupDissolved: self._dissolved,
            BatchCommitted: self._committed,
            LagChanged: self._lagged,
        }
        broadcast.read_by(self.read)

    def read(self, event: RunEvent) -> None:
        """Record an event. Those of stations come on any thread, the rest on the protocol's."""
        if (reader := self._readers.get(type(event))) is not None:
            reader(event)

    def durations_ms(self, attempt: TransactionAttempt) -> dict[str, float]:
        """Durations as `Timeline.durations_ms`; none for an attempt that is not open."""
        timeline = self._timelines.get(attempt)
        return timeline.durations_ms() if timeline else {}

    # --- events ------------------------------------------------------------------------------

    def _arrived(self, event: StationBegan) -> None:
        if event.station == "start":
            # On the protocol's thread: later stations only use it, so dead attempts get no new one.
            self._timelines.setdefault(event.attempts[0], Timeline())
        self._mark(event.attempts, _ARRIVALS.get(event.station), event.at)

    def _left(self, event: StationEnded) -> None:
        if event.error is None and event.table is None:
            self._mark(event.attempts, _ENDS.get(event.station), event.at)

    def _mark(self, attempts: Sequence[TransactionAttempt], mark: str | None, at: float) -> None:
        for timeline in map(self._timelines.get, attempts):
            if timeline is not None and mark is not None:
                timeline.mark(mark, at)

    def _failed(self, event: AttemptFailed) -> None:
        if event.ends_run:
            return
        attempt = event.attempt
        log.warning(
            "[%s %s] failed: %s", event.topology, attempt, event.error, extra=fields_of(attempt)
        )
        self.report.failures.append(f"{attempt}: {event.error}")
        self.report.failed.append((attempt.txid, event.at, event.error))

    def _replayed(self, event: ReplayScheduled) -> None:
        if not event.blocked:
            self.report.replays += 1

    def _dissolved(self, event: GroupDissolved) -> None:
        first, last = event.attempts[0], event.attempts[-1]
        log.warning(
            "[%s] %s to %s are committed one by one: %s",
            event.topology,
            first,
            last,
            event.error,
            extra=fields_of(*event.attempts),
        )

    def _was_blocked(self, event: AttemptBlocked) -> None:
        self.report.waits += 1
        if event.times:
            return  # an earlier attempt has logged it
        attempt = event.attempt
        log.warning(
            "[%s %s] blocked: %s", event.topology, attempt, event.error, extra=fields_of(attempt)
        )

    def _lagged(self, event: LagChanged) -> None:
        numbers = {} if event.lag is None else event.lag.numbers
        if numbers:
            unit, amount = next(iter(numbers.items()))
            self.report.lags.append(LagPoint(event.at, event.stream, amount, unit))

    def _cancelled(self, event: AttemptCancelled) -> None:
        self._timelines.pop(event.attempt, None)

    def _committed(self, event: BatchCommitted) -> None:
        attempt = event.attempt
        timeline = self._timelines.get(attempt, Timeline())
        timeline.mark("committed", event.at)
        batch = BatchReport(
            attempt,
            event.rows,
            event.tables,
            dict(timeline.at),
            len(event.group),
            event.violations,
            Input(event.input_records, event.input_bytes),
            event.rows_written,
            event.quarantined,
        )
        self.report.add(batch, self._treatments)
        for done in [a for a in self._timelines if a.txid <= attempt.txid]:
            del self._timelines[done]
        tables, extra = dict(event.tables), fields_of(attempt)
        log.info("[%s %s] committed %s", event.topology, attempt, tables, extra=extra)

    # --- the state of the protocol -----------------------------------------------------------

    def observe(self, state: CoordinatorState) -> None:
        """Take the run's new state, and report what has changed."""
        now = self._clock()
        self._watch_bound(state, now)
        self._watch_room(state, now)
        self._watch_blocked(state, now)

    def _watch_bound(self, state: CoordinatorState, now: float) -> None:
        """Add the time since the former state to its bound, and report a new bound."""
        if self._bound is not None:
            seconds = self.report.bound_seconds
            passed = max(0.0, now - self._observed_at)
            seconds[self._bound] = seconds.get(self._bound, 0.0) + passed
        new = None if state.ended else bound(state)
        if new != self._bound:
            held = max(0.0, now - self._bound_since)
            self._broadcast.report(BoundChanged, new or "ended", self._bound, held)
            self._bound_since = now
        self._bound, self._observed_at = new, now

    def _watch_room(self, state: CoordinatorState, now: float) -> None:
        """Report if the window of txids in flight has become full or has room again."""
        is_full = len(state.batches) >= state.max_spout_pending and not state.ended
        if is_full and self._full_since is None:
            self._full_since = now
            self._broadcast.report(BackPressureBegan, len(state.batches))
        elif not is_full and self._full_since is not None:
            seconds = max(0.0, now - self._full_since)
            self._full_since = None
            self._broadcast.report(BackPressureEnded, seconds)

    def _watch_blocked(self, state: CoordinatorState, now: float) -> None:
        """Track the blocked batches, and report those that no longer are."""
        blocked = {txid: b.attempt for txid, b in state.batches.items() if b.blocked is not None}
        for txid, (attempt, since) in list(self._blocked.items()):
            if txid not in blocked:
                del self._blocked[txid]
                seconds = max(0.0, now - since)
                self._broadcast.report(BatchUnblocked, attempt, seconds)
        for txid, attempt in blocked.items():
            _, since = self._blocked.get(txid, (attempt, now))
            self._blocked[txid] = attempt, since

    def ended(self, how: str | None = None) -> None:
        """Record the end of the run; `how` as in `RunReport.ended`, None to leave that as it is."""
        self.report.ended = how or self.report.ended
        self.report.seconds = self._clock() - self._began

    def status(
        self,
        state: CoordinatorState,
        lags: Mapping[str, Lag] | None = None,
        planned: Mapping[str, Lag] | None = None,
        published: Mapping[str, int | None] | None = None,
    ) -> RunStatus:
        """A snapshot for the live view."""
        now = self._clock()
        return RunStatus(
            topology=self.report.topology,
            epoch=self.report.epoch,
            committed_txid=state.committed,
            in_flight=tuple(self._in_flight(batch) for _, batch in sorted(state.batches.items())),
            batches_committed=self.report.batches_committed,
            replays=self.report.replays,
            last_failure=self.report.failures[-1] if self.report.failures else None,
            seconds=now - self._began,
            held_up_by=bound(state),
            waits=waits(state, self._times, now),
            totals=self.report.totals,
            lags=lags or {},
            planned=planned or {},
            published=published or {},
        )

    def _times(self, batch: Batch) -> Mapping[str, float]:
        timeline = self._timelines.get(batch.attempt)
        return dict(timeline.at) if timeline else {}

    def _in_flight(self, batch: Batch) -> InFlight:
        times = self._times(batch)
        blocked = self._blocked.get(batch.attempt.txid)
        return InFlight(
            batch.attempt.txid,
            batch.attempt.attempt_id,
            "queued" if is_queued(batch, times) else batch.phase.value,
            batch.failures,
            max(times.values(), default=self._clock()),
            blocked=batch.blocked,
            blocked_since=blocked[1] if blocked and batch.blocked else None,
            replay_of=batch.replay_of,
        )
