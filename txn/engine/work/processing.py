"""The processing phase: emit, transform, aggregate, stage; several txids in one job while it lags.

A job for one small batch costs more in planning, scheduling and committing of files than in work.
So while processing lags behind the source, a thread takes all attempts that wait, up to a limit,
and stages them with one Spark job per table: one task and separate files for each attempt.
A group that fails is staged again one by one, so only an attempt that fails alone is replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

from txn.attempts import TransactionAttempt
from txn.engine.base.attempt import Emission, LiveAttempt, Staging
from txn.engine.base.killpoints import reached
from txn.engine.reporting.broadcast import Broadcast, StationSpan
from txn.engine.work.emission import Emissions
from txn.engine.work.jobs import PROCESSING_POOL, Jobs
from txn.engine.work.staging import Stager
from txn.engine.work.tables import Tables
from txn.errors import ColumnsUnknownError
from txn.interfaces.event_time import NewestTimes
from txn.observers import Station
from txn.spark.causes import cause_line

__all__ = ["Outcomes", "Processing"]

log = logging.getLogger("txn")


class Outcomes(Protocol):
    """Receives the outcome of each attempt. Called from any thread."""

    def staged(self, live: LiveAttempt, table: str, staging: Staging) -> None:
        """One table of an attempt was staged."""

    def emitted(self, live: LiveAttempt, newest_times: NewestTimes) -> None:
        """All tables of an attempt are staged; its rows have these newest event times."""

    def failed(self, live: LiveAttempt, error: BaseException) -> None:
        """The attempt failed; this is the last report of it."""


@dataclass(eq=False, repr=False)
class Processing:
    """Runs the processing phase of groups of attempts; see the module."""

    _jobs: Jobs
    _emissions: Emissions
    _stager: Stager
    _tables: Tables
    _broadcast: Broadcast

    def run(self, group: Sequence[LiveAttempt], outcomes: Outcomes, *, one_task: bool) -> None:
        """Process a group; report every outcome, raise none."""
        living = [live for live in group if not live.cancelled.is_set()]
        for live in self._stage_together(living, outcomes) if len(living) > 1 else living:
            try:
                self._stage_alone(live, outcomes, one_task=one_task)
            except BaseException as error:  # noqa: BLE001 - every end of a thread is a fact
                outcomes.failed(live, self._emissions.explain(live.attempt, live.reads, error))

    def discard(self, attempt: TransactionAttempt) -> None:
        """Let go of a dead attempt's rows, and delete its staged files."""
        self._emissions.release(attempt)
        self._tables.discard(attempt)

    def _stage_alone(self, live: LiveAttempt, outcomes: Outcomes, *, one_task: bool) -> None:
        attempt, done = live.attempt, False
        with self._station_span("process", [live]), self._job([live]):
            try:
                if live.cancelled.is_set():
                    return
                emission = self._emit(live, one_task=one_task)
                self._measure([live], [emission])
                stagings: list[Staging] = []
                for sink in self._tables.early:
                    if live.cancelled.is_set():
                        return
                    reached("mid-processing", attempt)
                    with self._station_span("stage", [live], sink.name), emission.reading():
                        (staging,) = self._stager.stage(sink, [emission])
                    outcomes.staged(live, sink.name, staging)
                    stagings.append(staging)
                self._emissions.check_read([(emission, stagings)])
                self._jobs.check_settings()
                done = True
            finally:
                if not done or not self._tables.late:
                    self._emissions.release(attempt)
        reached("after-staging", attempt)
        outcomes.emitted(live, emission.newest_times)

    def _stage_together(
        self, group: Sequence[LiveAttempt], outcomes: Outcomes
    ) -> Sequence[LiveAttempt]:
        """Stage a group with one job per table; return the attempts that failed.

        Report nothing before everything is staged. An opaque source may emit other records the next
        time; all tables of a txid must come from the same emission.
        """
        try:
            results: list[tuple[LiveAttempt, str, Staging]] = []
            with self._station_span("process", group), self._job(group):
                group, emissions = self._emit_together(group, outcomes)
                if any(live.cancelled.is_set() for live in group):
                    raise CancelledError("one of them was cancelled meanwhile")
                self._measure(group, emissions)
                for sink in self._tables.early:
                    for live in group:
                        reached("mid-processing", live.attempt)
                    with self._station_span("stage", group, sink.name):
                        stagings = self._stager.stage(sink, emissions)
                    results += zip(group, [sink.name] * len(group), stagings, strict=True)
                self._emissions.check_read(
                    [
                        (emission, [staging for one, _, staging in results if one is live])
                        for live, emission in zip(group, emissions, strict=True)
                    ]
                )
                self._jobs.check_settings()
        except BaseException as error:  # noqa: BLE001 - the attempts are tried one by one
            names = ", ".join(str(live.attempt) for live in group)
            log.info("%s are staged one by one: %s", names, cause_line(error))
            for live in group:
                self.discard(live.attempt)
            return group
        for live, table, staging in results:
            outcomes.staged(live, table, staging)
        # The oldest last: its commit turn may be due, and the others must be ready to share it.
        for live, emission in reversed(list(zip(group, emissions, strict=True))):
            if not self._tables.late:
                self._emissions.release(live.attempt)
            try:
                reached("after-staging", live.attempt)
                outcomes.emitted(live, emission.newest_times)
            except BaseException as error:  # noqa: BLE001 - the others of the group go on
                outcomes.failed(live, self._emissions.explain(live.attempt, live.reads, error))
        return ()

    def _emit_together(
        self, group: Sequence[LiveAttempt], outcomes: Outcomes
    ) -> tuple[list[LiveAttempt], list[Emission]]:
        """Emit a group, except the attempts that wait for columns: they must not delay others."""
        ready: list[LiveAttempt] = []
        emissions: list[Emission] = []
        waiting: list[tuple[LiveAttempt, ColumnsUnknownError]] = []
        for live in group:
            try:
                emission = self._emit(live, one_task=True)
            except ColumnsUnknownError as unknown:
                waiting.append((live, unknown))
            else:
                ready.append(live)
                emissions.append(emission)
        for live, error in waiting:
            self.discard(live.attempt)
            outcomes.failed(live, error)
        return ready, emissions

    def _emit(self, live: LiveAttempt, *, one_task: bool) -> Emission:
        with self._station_span("emit", [live]):
            emission = self._emissions.emit(
                live.attempt,
                live.reads,
                live.watermark,
                live.dimensions,
                one_task=one_task,
            )
            emission.evaluation.watermark_before = live.watermark_before
            if live.awaited:
                raise ColumnsUnknownError(
                    f"Attempt {live.attempt} waits until those before it are staged, because its "
                    "rows are compared with theirs, and one needs columns of stream "
                    f"'{min(live.awaited)}', which were not known yet.",
                    live.awaited,
                )
            emission.earlier, emission.built_on = live.earlier, live.built_on
            self._stager.require_columns(emission)  # here the transforms are called
            # Each attempt would otherwise keep all attempts before it.
            emission.earlier = live.earlier = ()
            return emission

    def _measure(self, group: Sequence[LiveAttempt], emissions: Sequence[Emission]) -> None:
        if not self._tables.has_event_time:
            return
        with ExitStack() as reading:
            reading.enter_context(self._station_span("stage", group))
            for emission in emissions:
                reading.enter_context(emission.reading())
            self._stager.measure(emissions)

    def _station_span(
        self, station: Station, group: Sequence[LiveAttempt], table: str | None = None
    ) -> StationSpan:
        tags, attempts = [live.tag for live in group], [live.attempt for live in group]
        return self._broadcast.span(station, attempts, table, tags)

    def _job(self, group: Sequence[LiveAttempt]) -> AbstractContextManager[None]:
        tags, attempts = [live.tag for live in group], [live.attempt for live in group]
        return self._jobs.tagged(tags, attempts, PROCESSING_POOL, "process")
