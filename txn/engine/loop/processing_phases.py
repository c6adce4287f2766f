"""Queue attempts for their processing phase, begin phases, and close them with the acker.

Owned by the protocol's thread. `txn.engine.work.processing` does the work of a phase,
on other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from txn.engine.base.attempt import LiveAttempt, Staging
from txn.engine.base.shell import Shell
from txn.engine.base.threads import Threads
from txn.engine.loop.in_flight import LiveAttempts
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.stations import Stations
from txn.interfaces.event_time import NewestTimes
from txn.protocol.events import Batch, BatchProcessed, CoordinatorState, Metadata, Phase
from txn.protocol.ledgers import Tracking

__all__ = ["JOB_SECS", "ProcessingPhases", "ProcessingQueue"]

JOB_SECS = 5.0
"""Most seconds of a job of several txids: none of them is committed before all are staged. In a
longer job, its fixed costs are small anyway."""
_DECIDING = (Phase.WAITING, Phase.PLANNING, Phase.PROCESSING)
"""The phases of a batch whose rows are not staged yet."""


class ProcessingQueue:
    """Attempts that wait for their processing phase, and the groups that are in it.

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
        # One txid per slot ends no sooner alone. The time of more of them is not known yet.
        self._group = min(group, slots)
        self._waiting: list[LiveAttempt] = []
        self._active: dict[int, tuple[list[LiveAttempt], float]] = {}
        """id of a group that has begun -> the group, and the time."""

    def add(self, live: LiveAttempt) -> None:
        """Queue an attempt for its processing phase."""
        self._waiting.append(live)
        self._waiting.sort(key=lambda waiting: waiting.attempt.txid)

    def take(
        self, held: Callable[[LiveAttempt], bool] = lambda _: False
    ) -> Iterator[tuple[list[LiveAttempt], bool]]:
        """The groups that may begin now, oldest txids first; and whether each batch gets one task.

        It gets one while there are as many batches as task slots: more tasks for one would only
        take slots from another, and need a shuffle.

        Args:
            held: returns whether an attempt has to wait for an earlier txid.
        """
        self._waiting = [live for live in self._waiting if not live.cancelled.is_set()]
        ready = [live for live in self._waiting if not held(live)]
        while ready and len(list(self._busy())) < self._jobs:
            crowded = len(ready) + sum(map(len, self._busy())) >= self._slots
            group, ready = ready[: self._group], ready[self._group :]
            self._waiting = [live for live in self._waiting if live not in group]
            self._active[id(group)] = group, self._clock()
            yield group, crowded

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and nothing is at work."""
        return not self._waiting and not any(self._busy())

    def ended(self, group: list[LiveAttempt]) -> None:
        """Remove a group that has finished; its pace sets the size of the next ones."""
        _, began = self._active.pop(id(group))
        secs = (self._clock() - began) / len(group)
        if not any(live.cancelled.is_set() for live in group):
            self._group = (
                self._most if secs * self._most <= JOB_SECS else max(1, int(JOB_SECS / secs))
            )

    def _busy(self) -> Iterator[list[LiveAttempt]]:
        """Groups with a living member: a dead attempt that hangs must not hold up the others."""
        for group, _ in self._active.values():
            if not all(live.cancelled.is_set() for live in group):
                yield group


@dataclass(eq=False, repr=False)
class ProcessingPhases:
    """The shell's part of processing phases: begins them and takes their outcomes."""

    _stations: Stations
    _live: LiveAttempts
    _queue: ProcessingQueue
    _tracking: Tracking
    _threads: Threads
    _shell: Shell
    _broadcast: Broadcast
    _once_idle: Callable[[], None] | None = None

    @property
    def are_idle(self) -> bool:
        """True if no attempt is in its processing phase or waits for it."""
        return self._queue.is_idle

    def once_idle(self, fact: Callable[[], None]) -> None:
        """Post a fact when no attempt is in its processing phase; it replaces an earlier one."""
        self._once_idle = fact

    def begin(self, live: LiveAttempt) -> None:
        """Process an attempt as soon as there is room."""
        self._queue.add(live)
        self.dispatch()

    def dispatch(self) -> None:
        """Begin the phases that may begin now; the others wait, and their time-out does not run."""
        if self._shell.state.ended:
            return
        undecided = self._stations.undecided
        for group, crowded in self._queue.take(lambda live: self._must_wait(live, undecided)):
            for live in group:
                if self._stations.in_order:
                    live.earlier = self._live.before(live)
                    live.awaited = self._awaited_streams(live)
                live.threads += 1
                self._tracking.open(live.attempt, live.ledger)
            self._threads.spawn(
                self._threads.processing,
                partial(self._process, group, one_task=crowded),
                self._shell.halt,
                f"processing {', '.join(str(live.attempt) for live in group)}",
            )
        if self._once_idle is not None and self.are_idle:
            self._shell.post(self._once_idle)
            self._once_idle = None

    def _must_wait(self, live: LiveAttempt, undecided: Sequence[frozenset[str]]) -> bool:
        """Return whether a smaller txid must decide the columns that this attempt would decide.

        An attempt that waits for columns itself, or is emptied, decides none. In a topology whose
        rows are compared with those of earlier txids, each waits for all smaller ones, unless its
        streams may bring columns that one of these waits for.
        """
        smaller = self._unstaged_before(live)
        if self._stations.in_order:
            return bool(smaller) and not self._awaited_streams(live)
        if live.empty or not undecided:
            return False
        state = self._shell.state
        before = [
            _possible_streams(state, batch.metadata)
            for batch in smaller
            if not batch.lacks and batch.quarantined is None
        ]
        streams = _possible_streams(state, live.metadata)
        return any(names & streams and names & read for names in undecided for read in before)

    def _unstaged_before(self, live: LiveAttempt) -> list[Batch]:
        batches = self._shell.state.batches.values()
        smaller = (batch for batch in batches if batch.attempt.txid < live.attempt.txid)
        return [batch for batch in smaller if batch.phase in _DECIDING]

    def _awaited_streams(self, live: LiveAttempt) -> frozenset[str]:
        """An attempt's streams whose columns a smaller txid waits for, and none will decide."""
        state, before = self._shell.state, self._unstaged_before(live)
        missing = frozenset[str]().union(*(batch.lacks for batch in before))
        for batch in before:
            if not batch.lacks:
                missing -= _possible_streams(state, batch.metadata)
        return frozenset(name for name in missing if live.reads.get(name) is not None)

    # --- outcomes, reported on any thread ----------------------------------------------------

    def staged(self, live: LiveAttempt, table: str, staging: Staging) -> None:
        """Take the end of one staging job."""
        self._shell.post(lambda: self._take_staging(live, table, staging))

    def emitted(self, live: LiveAttempt, newest_times: NewestTimes) -> None:
        """Take the end of all staging jobs of the phase."""
        self._shell.post(lambda: self._close_phase(live, newest_times))

    def failed(self, live: LiveAttempt, error: BaseException) -> None:
        """Take the error of one attempt's phase."""
        self._shell.raised(live.attempt, error)

    # --- on a processing thread --------------------------------------------------------------

    def _process(self, group: list[LiveAttempt], *, one_task: bool) -> None:
        try:
            self._stations.process(group, self, one_task=one_task)
        finally:
            self._shell.post(lambda: self._end_group(group))

    # --- facts -------------------------------------------------------------------------------

    def _take_staging(self, live: LiveAttempt, table: str, staging: Staging) -> None:
        """Take the files over, and acknowledge the parts that were read."""
        if live.cancelled.is_set():
            return
        live.staged[table] = staging.staged
        self._tracking.progress(live.ledger)
        self._tracking.ack(live.ledger, live.ledger.staged(table, staging.read))

    def _close_phase(self, live: LiveAttempt, newest_times: NewestTimes) -> None:
        if live.cancelled.is_set():
            return
        is_acked = self._tracking.ack(live.ledger, live.ledger.emitted())
        if is_acked or not self._tracking.enabled:
            with self._broadcast.span("ack", [live.attempt]):
                self._shell.post(BatchProcessed(live.attempt, newest_times))
            self._shell.post(self.dispatch)  # it may have decided columns that later ones wait for
        elif self._tracking.is_open(live.ledger):
            self._shell.failed(
                live.attempt,
                f"the ledger did not close: planned and never read: {live.ledger.missing()}",
                "ledger",
            )

    def _end_group(self, group: list[LiveAttempt]) -> None:
        self._queue.ended(group)
        for live in group:
            self._live.thread_ended(live)
        self.dispatch()


def _possible_streams(state: CoordinatorState, metadata: Metadata | None) -> set[str]:
    """The streams that a batch reads, or may read if it is not planned yet."""
    return {name for name in state.streams if (metadata or {}).get(name, True) is not None}
