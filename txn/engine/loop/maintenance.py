"""Maintain the tables beside the commit turns, such as by compaction: `MaintainsTable.maintain`.

One thread asks one committer after the other, whenever something new was committed, and now and
then while nothing is, for the work that a busy time has left. The commit thread publishes the
staged result between two turns, so that a turn waits for one append at most. A failure is logged
once, and the work is tried again later.

The same thread starts and watches OPTIMIZE and VACUUM by schedule (`txn.engine.loop.upkeep`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Literal

from txn.attempts import TransactionAttempt
from txn.engine.base.killpoints import reached
from txn.engine.base.shell import Shell
from txn.engine.base.threads import Threads
from txn.engine.loop.upkeep import Upkeep
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.jobs import MAINTENANCE_POOL, Jobs
from txn.engine.work.tables import Tables
from txn.errors import FencedError
from txn.observers import MaintenanceDone
from txn.spark.causes import cause_line

__all__ = ["Maintenance"]

log = logging.getLogger("txn")

IDLE_SECS = 3.0
"""Between two rounds over the tables while nothing is committed."""
CANCEL_SECS = 0.2
"""Between two checks whether the last job has ended: one may begin after it was cancelled."""


class Maintenance:
    """Asks the committers of a run for maintenance. `committed` and `stop` never block on it."""

    def __init__(
        self,
        topology: str,
        tag: str,
        jobs: Jobs,
        tables: Tables,
        threads: Threads,
        shell: Shell,
        upkeep: Upkeep,
        broadcast: Broadcast,
    ) -> None:
        self._topology = topology
        self._tag = tag
        self._jobs = jobs
        self._tables = tables
        self._threads = threads
        self._shell = shell
        self._upkeep = upkeep
        self._broadcast = broadcast
        self._names = tables.maintained
        self._published = tables.published
        self._newest: TransactionAttempt | None = None
        self._running: Future[None] | None = None
        self._next_idle_round = 0.0
        self._stopping = threading.Event()
        self._reported: set[tuple[str, str]] = set()

    def committed(self, attempt: TransactionAttempt) -> None:
        """Note that everything up to this txid is durable. Called by the protocol's thread."""
        self._newest = attempt
        self._begin()

    def idle(self, now: float, committed: int) -> None:
        """Use a time with nothing in flight and nothing to read. On the protocol's thread.

        Args:
            committed: the newest committed txid, perhaps of a former run; 0: none.
        """
        self._recall(committed)
        if now >= self._next_idle_round and self._newest is not None:
            self._next_idle_round = now + IDLE_SECS
            self._begin()

    def _begin(self) -> None:
        is_on = self._names or self._published or self._upkeep.is_on
        if is_on and (self._running is None or self._running.done()):
            self._running = self._threads.maintenance.submit(self._run, about="maintenance")

    def _recall(self, committed: int) -> None:
        if self._newest is None and committed:
            self._newest = TransactionAttempt(committed, 0)

    def last_round(self, committed: int) -> None:
        """Publish what is left at the end of a run that ends in order. On the protocol's thread.

        Args:
            committed: as `idle`.
        """
        self._recall(committed)
        if not self._published or self._newest is None:
            return
        newest = self._newest  # after the round that runs now: one thread does both
        last = self._threads.maintenance.submit(
            lambda: self._publish_states(newest, now=True), about="publishing for the last time"
        )
        self._threads.quietly(last.result)

    def stop(self) -> None:
        """Begin nothing more, cancel running jobs, and wait for their end within the grace."""
        self._stopping.set()
        self._upkeep.stop()
        if self._running is None:
            return
        self._running.cancel()
        while not self._running.done():
            self._threads.quietly(lambda: self._jobs.cancel(self._tag))
            wait([self._running], CANCEL_SECS)
            if not self._threads.grace_left():
                return

    def _run(self) -> None:
        """Go over the tables, and again if txids were committed meanwhile."""
        done = None
        while self._newest is not None and self._newest != done:
            done = self._newest
            for table in self._names:
                if self._stopping.is_set():
                    return
                stage = partial(self._tables.maintain, table, done.txid)
                self._maintain(table, done, "compaction", stage)
            self._publish_states(done)
            self._keep_up()

    def _publish_states(self, newest: TransactionAttempt, *, now: bool = False) -> None:
        for name, table in self._published.items():
            if not self._stopping.is_set():
                stage = partial(table.maintain, newest.txid, now=now)
                self._maintain(name, newest, "publish", stage)

    def _keep_up(self) -> None:
        try:
            self._upkeep.step()
        except OSError as error:  # no process can be started now
            log.warning("[%s] maintenance by schedule: %s", self._topology, cause_line(error))

    def _maintain(
        self,
        table: str,
        newest: TransactionAttempt,
        operation: Literal["compaction", "publish"],
        stage: Callable[[], Callable[[], None] | None],
    ) -> None:
        began = self._broadcast.stamp()[0]
        try:
            reached("before-maintenance", newest)
            with self._jobs.tagged([self._tag], [newest], MAINTENANCE_POOL, "maintain", table):
                publish = stage()
            if publish is None or self._stopping.is_set():
                return
            reached("maintenance-staged", newest)
            self._publish(publish)
            reached("after-maintenance", newest)
            shows = newest.txid if operation == "publish" else None
            self._broadcast.report(MaintenanceDone, table, operation, began, txid=shows)
        except FencedError as error:
            self._shell.halt(error)
        except CancelledError:
            pass  # the run has ended: the commit thread begins nothing more
        except Exception as error:  # noqa: BLE001 - tried again later
            if self._stopping.is_set():
                return
            kind, text = (table, type(error).__name__), cause_line(error)
            self._broadcast.report(MaintenanceDone, table, operation, began, error=text)
            if kind not in self._reported:
                self._reported.add(kind)
                log.warning("[%s] maintenance of table %s: %s", self._topology, table, text)

    def _publish(self, publish: Callable[[], None]) -> None:
        def between_turns() -> None:
            self._shell.assert_leading()
            publish()

        turn = self._threads.commit.submit(between_turns, about="publishing maintenance")
        while True:
            try:
                turn.result(CANCEL_SECS)
                return
            except FutureTimeoutError:
                if turn.done():
                    raise
                if self._stopping.is_set() and turn.cancel():
                    return
