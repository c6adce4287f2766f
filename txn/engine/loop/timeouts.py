"""Time-outs: an attempt without progress is replayed, a thread that hangs ends the run."""

from __future__ import annotations

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.engine.base.shell import Shell
from txn.engine.base.threads import Threads
from txn.errors import BatchTimeoutError
from txn.protocol.ledgers import Tracking
from txn.spark.causes import cause_line

__all__ = ["ACKER_TICKS", "Timeouts"]

ACKER_TICKS = 3
CHECK_SECS = 5.0
"""Most seconds between two checks for threads that hang."""


class Timeouts:
    """Ticks the acker's clock and watches the threads. Owned by the protocol's thread."""

    def __init__(
        self, config: TopologyConfig, tracking: Tracking, threads: Threads, shell: Shell
    ) -> None:
        self._config = config
        self._tracking = tracking
        self._threads = threads
        self._shell = shell

    def start(self) -> None:
        """Tick and watch from now on, until the run has ended."""
        self._schedule_tick()
        self._schedule_check()

    def _schedule_tick(self) -> None:
        # An entry expires at its third tick: after one to one and a half timeouts.
        self._shell.after(self._config.message_timeout_secs / (ACKER_TICKS - 1), self._tick)

    def _tick(self) -> None:
        for attempt in self._tracking.tick():
            timeout = self._config.message_timeout_secs
            error = BatchTimeoutError(
                f"no progress within {timeout:g} s{self._position_of(attempt)}"
            )
            self._shell.failed(attempt, cause_line(error), "timeout")
        self._schedule_tick()

    def _position_of(self, attempt: TransactionAttempt) -> str:
        at_work = (*self._threads.processing.at_work(), *self._threads.commit.at_work())
        working = [one for one in at_work if str(attempt) in one.about.replace(",", "").split()]
        return f"; {working[0]}" if working else ""

    def _schedule_check(self) -> None:
        config = self._config
        least = min(config.message_timeout_secs, config.stop_grace_secs, 2 * CHECK_SECS)
        self._shell.after(least / 2, self._check_threads)

    def _check_threads(self) -> None:
        """End the run for a thread that hangs where no second one may go."""
        config = self._config
        planning = config.message_timeout_secs + config.zookeeper_deadline_secs
        # A turn is cancelled after one to one and a half timeouts; then it has to come back.
        turn = 1.5 * config.message_timeout_secs + config.stop_grace_secs
        limits = [(self._threads.planner, planning)]
        if self._tracking.enabled or self._shell.state.stopping:
            limits.append((self._threads.commit, turn))
        for pool, limit in limits:
            for hung in pool.at_work():
                if hung.seconds > limit:
                    self._shell.end(BatchTimeoutError(f"no answer within {limit:g} s: {hung}."))
        self._schedule_check()
