"""The record of a run: timelines of open attempts, and the report.

Written by the protocol's thread; `status` may be read from any thread, because a coordinator
state is never changed in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from txn.attempts import TransactionAttempt
from txn.engine.bottleneck import Bound, bound, waits
from txn.engine.report import (
    NOTHING_READ,
    BatchReport,
    InFlight,
    Input,
    RunReport,
    RunStatus,
    Timeline,
)
from txn.interfaces import Lag, Staged
from txn.interfaces.publication import merged_violations
from txn.protocol.events import Batch, CoordinatorState

__all__ = ["Recorder"]

log = logging.getLogger("txn")


class Recorder:
    """Timelines, counts and the report of one run.

    Args:
        clock: seconds since the epoch.
        set_aside: (stream, rule) of the rules whose rows go to the table of bad rows.
    """

    def __init__(
        self,
        topology: str,
        epoch: int,
        committed: int,
        clock: Callable[[], float],
        set_aside: Collection[tuple[str, str]] = (),
    ) -> None:
        self.report = RunReport(topology, epoch, committed_txid=committed)
        self._clock = clock
        self._set_aside = set_aside
        self._began = clock()
        self._timelines: dict[TransactionAttempt, Timeline] = {}
        self._blocked_since: dict[int, float] = {}
        self._bound: Bound | None = None
        self._bound_since = self._began

    def timeline(self, attempt: TransactionAttempt) -> Timeline:
        """The timeline of an attempt, begun when it is first asked for."""
        return self._timelines.setdefault(attempt, Timeline())

    def mark(self, attempt: TransactionAttempt, station: str) -> None:
        """The attempt has come to a station."""
        self.timeline(attempt).mark(station, self._clock())

    def forget(self, attempt: TransactionAttempt) -> None:
        """The attempt is dead."""
        self._timelines.pop(attempt, None)

    def failed(self, attempt: TransactionAttempt, error: str) -> None:
        """A live attempt failed and will be replayed."""
        log.warning("[%s %s] failed: %s", self.report.topology, attempt, error)
        self.report.failures.append(f"{attempt}: {error}")
        self.report.replays += 1

    def dissolved(self, attempts: Sequence[TransactionAttempt], error: str) -> None:
        """The commit turn of a group failed, cause unknown: each txid is committed by itself."""
        first, last = attempts[0], attempts[-1]
        log.warning(
            "[%s] %s to %s are committed one by one: %s", self.report.topology, first, last, error
        )

    def blocked(self, batch: Batch, error: str) -> None:
        """A live attempt of `batch` found a source away; the batch waits, and looks again."""
        self.report.waits += 1
        if batch.waits == 0:
            log.warning("[%s %s] blocked: %s", self.report.topology, batch.attempt, error)
            self._blocked_since[batch.attempt.txid] = self._clock()

    def committed(
        self,
        attempt: TransactionAttempt,
        staged: Mapping[str, Staged],
        tables: Mapping[str, int],
        *,
        group: int = 1,
        read: Input = NOTHING_READ,
        written: Mapping[str, int | None] | None = None,
        quarantined: bool = False,
    ) -> None:
        """The txid is durable everywhere.

        Args:
            group: how many txids were committed together with it, itself included.
            read: what its streams read.
            written: `BatchReport.written`.
            quarantined: it was committed empty.
        """
        self.mark(attempt, "committed")
        rows = {table: part.rows for table, part in staged.items()}
        times = dict(self.timeline(attempt).at)
        broken = merged_violations(part.violations for part in staged.values())
        batch = BatchReport(
            attempt,
            rows,
            dict(tables),
            times,
            group,
            broken,
            read,
            dict(written or {}),
            quarantined,
        )
        self.report.add(batch, self._set_aside)
        for known in [a for a in self._timelines if a.txid <= attempt.txid]:
            del self._timelines[known]
        for txid in [t for t in self._blocked_since if t <= attempt.txid]:
            del self._blocked_since[txid]
        log.info("[%s %s] committed %s", self.report.topology, attempt, dict(tables))

    def observe(self, state: CoordinatorState) -> None:
        """The run is in this state from now on: the time until now is put down to its bound."""
        now = self._clock()
        if self._bound is not None:
            seconds = self.report.bound_seconds
            passed = max(0.0, now - self._bound_since)
            seconds[self._bound] = seconds.get(self._bound, 0.0) + passed
        self._bound, self._bound_since = None if state.ended else bound(state), now

    def ended(self, how: str | None = None) -> None:
        """The run ended; without an error if `how` is given."""
        self.report.ended = how or self.report.ended
        self.report.seconds = self._clock() - self._began

    def status(self, state: CoordinatorState, lags: Mapping[str, Lag] | None = None) -> RunStatus:
        """A snapshot for the live view.

        Args:
            lags: `RunStatus.lags`.
        """
        now = self._clock()
        return RunStatus(
            topology=self.report.topology,
            epoch=self.report.epoch,
            committed_txid=state.committed,
            in_flight=tuple(self._in_flight(batch) for _, batch in sorted(state.batches.items())),
            batches_committed=self.report.batches_committed,
            rows_committed=self.report.rows_staged,
            replays=self.report.replays,
            last_failure=self.report.failures[-1] if self.report.failures else None,
            seconds=now - self._began,
            held_up_by=bound(state),
            waits=waits(state, self._times, now),
            totals=self.report.totals,
            lags=lags or {},
        )

    def _times(self, batch: Batch) -> Mapping[str, float]:
        timeline = self._timelines.get(batch.attempt)
        return dict(timeline.at) if timeline else {}

    def _in_flight(self, batch: Batch) -> InFlight:
        timeline = self._timelines.get(batch.attempt)
        arrivals = tuple(timeline.at.values()) if timeline else ()
        return InFlight(
            batch.attempt.txid,
            batch.attempt.attempt_id,
            batch.phase.value,
            batch.failures,
            max(arrivals, default=self._clock()),
            blocked=batch.blocked,
            blocked_since=self._blocked_since.get(batch.attempt.txid) if batch.blocked else None,
            replay_of=batch.replay_of,
        )
