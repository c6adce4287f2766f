"""One run of a topology in this process, which may die in it as if by SIGKILL.

What dies is not the process, since the next one would need seconds to start: every thread of the
run is parked for good at the next point, or at the next look at its clock or its progress, so that
none of them cleans up anything. Spark's jobs go on, as they do for a while when a driver is lost.
When the whole program is over the threads are let go, and end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.one_by_one import OneByOne
from txn.attempts import TransactionAttempt
from txn.engine.base.killpoints import Observer, observe
from txn.engine.running import RunningTopology
from txn.errors import TxnError
from txn.testing.progress import MemoryNodes, MemoryProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.engine.loop.pipeline import Pipeline
    from txn.engine.reporting.report import RunReport
    from txn.topology import Topology

__all__ = ["HungError", "LifeRun"]

LOOK_SECS = 0.01
QUIET_SECS = 20.0
BEFORE_BATCHES = ("shape-staged", "shape-changed", "backfilled")
"""Points that a run passes before it has threads of its own: it is interrupted there."""


class HungError(Exception):
    """A run has not ended in time."""


class _InterruptedError(TxnError):
    """The run dies before its first batch."""


class _LetGo(BaseException):
    """The program is over: what is parked may end."""


class _Mortal(MemoryProgress):
    """Progress that answers nobody after the death."""

    life: LifeRun

    def __getattribute__(self, name: str) -> Any:
        if name in ("persist_start", "persist_committed", "assert_leading", "load"):
            # Never under the lock: the next run would wait for it.
            nodes: MemoryNodes = object.__getattribute__(self, "nodes")
            if not nodes.changed._is_owned():  # type: ignore[attr-defined]
                object.__getattribute__(self, "life").alive()
        return super().__getattribute__(name)


class LifeRun:
    """One run; `live` lets it happen, `let_go` ends what is left of it.

    Args:
        crash: the point at which it dies, or None.
        nth: at which arrival there.
    """

    def __init__(
        self,
        topology: Topology,
        spark: SparkSession,
        nodes: MemoryNodes,
        until: Any,
        crash: str | None,
        nth: int,
    ) -> None:
        self.report: RunReport | None = None
        self.error: BaseException | None = None
        self.died = False
        self.began_at: int | None = None
        """The newest txid before its own ones; None: it did not come so far."""
        self.begun = False
        """Whether its first batch may have begun: nothing was refused."""
        self._crash, self._left = crash, nth
        self._counting = threading.Lock()
        self._dead = threading.Event()
        self._over = threading.Event()
        self._before = set(threading.enumerate())
        self._doomed: set[threading.Thread] = set()
        self._idle = threading.Event()
        """Whether the thread that directs the others waits for something to happen, or for good."""
        self._stop_observing: Callable[[], None] = lambda: None
        self._running = self._prepare(topology, spark, nodes, until)

    def _prepare(
        self, topology: Topology, spark: SparkSession, nodes: MemoryNodes, until: Any
    ) -> RunningTopology:
        progress = _Mortal(topology.name, nodes)
        progress.life = self
        self._progress = progress

        life = self

        class Running(RunningTopology):
            def _lead(self) -> Pipeline:
                pipeline = super()._lead()
                life.began_at = progress.load().committed.txid
                facts: Any = pipeline._facts
                facts.next = life.of_the_living(facts.next)
                return pipeline

        return Running(topology.definition, spark, progress, until=until)

    def of_the_living(self, following: Callable[[], Any]) -> Callable[[], Any]:
        """What tells the thread that directs all others what to do next; nothing after death."""

        def asked() -> Any:
            self.alive()
            self._idle.set()
            found = following()
            self.alive()
            self._idle.clear()
            return found

        return asked

    def live(self, seconds: float) -> None:
        """Run until it ends or dies.

        Raises:
            HungError: it did neither in time.
        """
        at: Observer = self._reached
        if self._crash == "between-publications":
            at = OneByOne(at)  # side by side, all tables might hold the txid by then
        self._stop_observing = observe(at)
        try:
            self._running.begin()
            self.begun = True
            deadline = time.monotonic() + seconds
            while self._running.is_active and not self._dead.is_set():
                if time.monotonic() > deadline:
                    self._dead.set()
                    raise HungError(f"the run has not ended within {seconds:g} s: {self._status()}")
                time.sleep(LOOK_SECS)
            if self._dead.is_set():
                self._lie_still()
            else:
                self.report = self._running.await_termination()
        except _InterruptedError:
            self.died = True
        except TxnError as error:
            self.error = error
        finally:
            if not self._dead.is_set():
                self._leave()  # the points of the next life are not its own

    def _status(self) -> str:
        with contextlib.suppress(Exception):
            return str(self._running.status())
        return "no status"

    def _reached(self, point: str, attempt: TransactionAttempt) -> None:
        if threading.current_thread() in self._before:
            self._interrupt(point)
            return  # it belongs to an earlier run, which is dead
        if point == self._crash and not self._dead.is_set():
            with self._counting:
                self._left -= 1
                if self._left == 0:
                    self.died = True
                    self._dead.set()
        if not self._doomed or threading.current_thread() in self._doomed:
            self.alive()

    def _interrupt(self, point: str) -> None:
        if point == self._crash and point in BEFORE_BATCHES and self.began_at is None:
            self._left -= 1
            if self._left == 0:
                raise _InterruptedError(f"the run dies at '{point}'")

    def alive(self) -> None:
        """Return if this run lives; otherwise never, or not before the program is over."""
        if self._dead.is_set():
            if threading.current_thread() is self._running._thread:
                self._idle.set()
            self._over.wait()
            raise _LetGo

    def _lie_still(self) -> None:
        """Wait until the thread that directs the others does nothing more."""
        deadline = time.monotonic() + QUIET_SECS
        while not self._idle.wait(LOOK_SECS) and self._running.is_active:
            if time.monotonic() > deadline:
                raise HungError("the dead run's thread does not lie still")
        self._doomed = set(threading.enumerate()) - self._before
        self._progress.on_lost = None  # it is past hearing of it
        with self._progress.nodes.changed:
            self._progress.lose_session()
            self._progress._epoch = 0  # whoever of it was about to ask shall not lead once more

    def let_go(self) -> None:
        """End what is left of it."""
        self._dead.set()
        self._over.set()
        with contextlib.suppress(Exception):
            self._running._ask_to_stop()
        if (thread := self._running._thread) is not None:
            thread.join(QUIET_SECS)
        self._leave()

    def _leave(self) -> None:
        stop, self._stop_observing = self._stop_observing, lambda: None
        stop()
