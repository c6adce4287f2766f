"""The processing phase: emit, transform, aggregate, stage; several txids in one job while it lags.

A job for one small batch costs more in planning, scheduling and committing of files than in work.
So while processing lags behind the source, a thread takes all attempts that wait, up to a limit,
and stages them with one Spark job per table: one task each, files of their own.
What fails together is done again one by one, so that only the attempt that fails alone is replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.engine.emission import Emission, Emissions
from txn.engine.failures import first_line
from txn.engine.killpoints import reached
from txn.engine.tables import Staging, Tables
from txn.errors import ColumnsUnknownError
from txn.interfaces import Staged

if TYPE_CHECKING:
    from txn.engine.stations import AttemptWork

__all__ = ["Processing", "ProcessingQueue", "Told"]

log = logging.getLogger("txn")

Reads = Mapping[str, Sequence[str]]
Jobs = Callable[[Sequence["AttemptWork"]], AbstractContextManager[None]]

JOB_SECS = 5.0
"""How long a job of several txids may take: none of them is committed before all are staged. Beyond
that, what a job costs besides its work is small anyway."""


@dataclass(frozen=True)
class Told:
    """Who hears of it: each may be called from any thread."""

    staged: Callable[[AttemptWork, str, Staged, Reads], None]
    """One table of an attempt was staged, out of these parts."""
    emitted: Callable[[AttemptWork], None]
    """All tables of an attempt were."""
    failed: Callable[[AttemptWork, BaseException], None]
    """The attempt failed; nothing more will be told of it."""


class ProcessingQueue:
    """Attempts that wait for their processing phase, and the groups that are in it.

    Owned by the protocol's thread.

    Args:
        jobs: groups at work at once.
        group: attempts of one group at most.
        slots: tasks that Spark runs at once.
        clock: seconds; only differences matter.
    """

    def __init__(self, jobs: int, group: int, slots: int, clock: Callable[[], float]) -> None:
        self._jobs = jobs
        self._most = group
        self._slots = slots
        self._clock = clock
        # One txid a slot is done no sooner alone. What more of them take is not known yet.
        self._group = min(group, slots)
        self._waiting: list[AttemptWork] = []
        self._active: dict[int, tuple[list[AttemptWork], float]] = {}
        """id of a group that was handed out -> it, and when."""

    def add(self, work: AttemptWork) -> None:
        """An attempt may be processed from now on."""
        self._waiting.append(work)
        self._waiting.sort(key=lambda waiting: waiting.attempt.txid)

    def take(self) -> Iterator[tuple[list[AttemptWork], bool]]:
        """The groups that may begin now, oldest txids first; whether each batch gets one task.

        It does while there are as many batches as task slots: more tasks for one would only take
        slots from another, and need a shuffle.
        """
        self._waiting = [work for work in self._waiting if not work.cancelled.is_set()]
        while self._waiting and len(list(self._busy())) < self._jobs:
            crowded = len(self._waiting) + sum(map(len, self._busy())) >= self._slots
            group = self._waiting[: self._group]
            del self._waiting[: self._group]
            self._active[id(group)] = group, self._clock()
            yield group, crowded

    def ended(self, group: list[AttemptWork]) -> None:
        """The thread of a group is through with it: the next ones are as large as it was quick."""
        _, began = self._active.pop(id(group))
        each = (self._clock() - began) / len(group)
        if not any(work.cancelled.is_set() for work in group):
            self._group = (
                self._most if each * self._most <= JOB_SECS else max(1, int(JOB_SECS / each))
            )

    def _busy(self) -> Iterator[list[AttemptWork]]:
        """Groups with a living member: a dead attempt that hangs must not hold up the others."""
        for group, _ in self._active.values():
            if not all(work.cancelled.is_set() for work in group):
                yield group


class Processing:
    """Runs the processing phase of groups of attempts; see the module.

    Args:
        job: tags every Spark job inside with these attempts.
        discard: lets go of an attempt's rows, and deletes what it has staged.
        check: raises when the session's settings are no longer those of the run's start.
    """

    def __init__(
        self,
        tables: Tables,
        emissions: Emissions,
        job: Jobs,
        discard: Callable[[AttemptWork], None],
        check: Callable[[], None],
    ) -> None:
        self._tables = tables
        self._emissions = emissions
        self._job = job
        self._discard = discard
        self._check = check

    def run(self, group: Sequence[AttemptWork], told: Told, *, one_task: bool) -> None:
        """Process a group; every outcome is told, none raised."""
        living = [work for work in group if not work.cancelled.is_set()]
        for work in self._together(living, told) if len(living) > 1 else living:
            try:
                self._alone(work, told, one_task=one_task)
            except BaseException as error:  # noqa: BLE001 - every end of a thread is a fact
                told.failed(work, error)

    def _alone(self, work: AttemptWork, told: Told, *, one_task: bool) -> None:
        attempt, done = work.attempt, False
        with self._job([work]):
            try:
                if work.cancelled.is_set():
                    return
                emission = self._emit(work, one_task=one_task)
                self._tables.require_columns(emission)
                stagings: list[Staging] = []
                for sink in self._tables.early:
                    if work.cancelled.is_set():
                        return
                    reached("mid-processing", attempt)
                    with emission.reading():
                        (staging,) = self._tables.stage(sink, [emission])
                    told.staged(work, sink.name, staging.staged, staging.read)
                    stagings.append(staging)
                emission.check_rows(stagings)
                self._check()
                done = True
            finally:
                if not done or not self._tables.late:
                    self._emissions.release(attempt)
        reached("after-staging", attempt)
        told.emitted(work)

    def _together(self, group: Sequence[AttemptWork], told: Told) -> Sequence[AttemptWork]:
        """Stage a group with one job per table; those of which nothing is left, since it failed.

        Nothing is told before everything is staged. The reading of an opaque source may differ from
        one emission to the next; all tables of a txid must come from the same one.
        """
        try:
            results: list[tuple[AttemptWork, str, Staging]] = []
            with self._job(group):
                group, emissions = self._emit_together(group, told)
                if any(work.cancelled.is_set() for work in group):
                    raise CancelledError("one of them was cancelled meanwhile")
                for sink in self._tables.early:
                    for work in group:
                        reached("mid-processing", work.attempt)
                    stagings = self._tables.stage(sink, emissions)
                    results += zip(group, [sink.name] * len(group), stagings, strict=True)
                for work, emission in zip(group, emissions, strict=True):
                    emission.check_rows(staging for one, _, staging in results if one is work)
                self._check()
        except BaseException as error:  # noqa: BLE001 - whatever it was, each meets it alone
            names = ", ".join(str(work.attempt) for work in group)
            log.info("%s are staged one by one: %s", names, first_line(error))
            for work in group:
                self._discard(work)
            return group
        for work, table, staging in results:
            told.staged(work, table, staging.staged, staging.read)
        # The oldest last: it may be the one whose turn it is, and the others shall be ready to
        # share its commit turn.
        for work in reversed(group):
            if not self._tables.late:
                self._emissions.release(work.attempt)
            reached("after-staging", work.attempt)
            told.emitted(work)
        return ()

    def _emit_together(
        self, group: Sequence[AttemptWork], told: Told
    ) -> tuple[list[AttemptWork], list[Emission]]:
        """Emit a group, without those that have to wait for columns: they hold nobody up."""
        ready: list[AttemptWork] = []
        emissions: list[Emission] = []
        waiting: list[tuple[AttemptWork, ColumnsUnknownError]] = []
        for work in group:
            emission = self._emit(work, one_task=True)
            try:
                self._tables.require_columns(emission)
            except ColumnsUnknownError as unknown:
                waiting.append((work, unknown))
            else:
                ready.append(work)
                emissions.append(emission)
        for work, error in waiting:
            self._discard(work)
            told.failed(work, error)
        return ready, emissions

    def _emit(self, work: AttemptWork, *, one_task: bool) -> Emission:
        metadata = {} if work.empty else work.metadata
        return self._emissions.emit(work.attempt, metadata, one_task=one_task)
