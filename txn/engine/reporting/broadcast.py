"""The event stream of a run: sent once, where things happen, and read by all that shows it.

It has two kinds of readers. The run's own recorder reads at once, on the sending thread. Observers
(`txn.observers`) are the user's: each has a bounded queue and a thread of its own, so nothing that
they do reaches the run. Without observers there is no queue and no thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Concatenate, ParamSpec

from txn.attempts import TransactionAttempt
from txn.engine.base.threads import Straggler
from txn.logs import Work, current_work, working_on
from txn.observers import (
    EventsDropped,
    Observer,
    RequestEnded,
    RunEnded,
    RunEvent,
    Station,
    StationBegan,
    StationEnded,
)
from txn.requests import Request, listen
from txn.spark.causes import cause_line

__all__ = ["Broadcast", "StationSpan"]

P = ParamSpec("P")

log = logging.getLogger("txn")

MOST_WAITING = 5_000
"""Events that wait for one observer. They hold the metadata of their batches, which is large for a
source with thousands of partitions."""
PAUSE_SECS = 0.1
"""Time in which events gather before an observer takes them. A thread that wakes for each event,
hundreds of times a second, takes Python from the threads of the run each time."""
DRAIN_SECS = 5.0
"""Time that the end of a run waits for all its observers together."""
_NOT_BEGUN = frozenset({"plan", "ack"})
"""Stations whose beginning sends no event."""


class Broadcast:
    """Takes the events of a run from any thread and hands them on."""

    def __init__(
        self, topology: str, clock: Callable[[], float], observers: Sequence[Observer] = ()
    ) -> None:
        self.epoch = 0
        """The leader's epoch; 0 before this process leads."""
        self._topology = topology
        self._clock = clock
        self._reader: Callable[[RunEvent], None] | None = None
        self._order = threading.Lock()
        """Gives every observer the events in the same order."""
        self._observing = Work(topology)
        self._deaf: Callable[[], None] | None = None
        self._outlets = [
            _Outlet(observer, name, self._observing)
            for observer, name in zip(observers, _names(observers), strict=True)
        ]

    def read_by(self, reader: Callable[[RunEvent], None]) -> None:
        """Call `reader` with every event from now on, on the thread that sends it."""
        self._reader = reader

    def stamp(self) -> tuple[float, str, int]:
        """The first fields of every event: now, the topology, and the epoch."""
        return self._clock(), self._topology, self.epoch

    def send(self, event: RunEvent) -> None:
        """Hand an event to every reader. Never blocks."""
        if self._reader is not None:
            self._reader(event)
        if self._outlets:
            with self._order:
                overflowing = [outlet for outlet in self._outlets if not outlet.put(event)]
            for outlet in overflowing:
                outlet.warn()

    def report(
        self,
        event: Callable[Concatenate[float, str, int, P], RunEvent],
        *fields: P.args,
        **more: P.kwargs,
    ) -> None:
        """Send an event that happens now, from its own fields."""
        at, topology, epoch = self.stamp()
        self.send(event(at, topology, epoch, *fields, **more))

    def span(
        self,
        station: Station,
        attempts: Sequence[TransactionAttempt],
        table: str | None = None,
        spark_tags: Sequence[str] = (),
    ) -> StationSpan:
        """Report that some attempts have come to a station.

        The body of the `with` is their time there. Its end is reported, and log lines name it.
        """
        return StationSpan(self, station, tuple(attempts), table, tuple(spark_tags))

    def open(self) -> None:
        """Start the observers."""
        if self._outlets:
            self._deaf = listen(self._report_request)
        for outlet in self._outlets:
            outlet.start()

    def close(self, last: RunEvent) -> list[str]:
        """Send the last event, and give the observers a few seconds for those that wait.

        Returns:
            A sentence for each observer with problems; they are in the log, too.
        """
        if self._deaf is not None:
            self._deaf()
        with self._order:
            outlets, self._outlets = self._outlets, []  # threads left behind may still send
            for outlet in outlets:
                outlet.end(last)
        until = time.monotonic() + DRAIN_SECS
        problems = [problem for outlet in outlets if (problem := outlet.join(until))]
        for problem in problems:
            log.warning("[%s] %s", self._topology, problem)
        return problems

    def _report_request(self, request: Request) -> None:
        """Report a request to ZooKeeper or storage, unless another run of this process made it."""
        work = current_work()
        # Requests of observers are not reported: each report would make them ask again.
        if work is None or work.topology != self._topology or work is self._observing:
            return
        self.report(
            RequestEnded, request.service, request.operation, request.seconds, request.error
        )


class StationSpan:
    """The way of some attempts through one station; see `Broadcast.span`."""

    def __init__(
        self,
        broadcast: Broadcast,
        station: Station,
        attempts: tuple[TransactionAttempt, ...],
        table: str | None,
        spark_tags: tuple[str, ...],
    ) -> None:
        self._broadcast = broadcast
        self._about = (attempts, station)
        self._more = (table, spark_tags)
        self.is_sent = True
        """False if its end is not sent: a source had nothing to read."""
        stamp = broadcast.stamp()
        self.began = stamp[0]
        """Time of arrival, seconds since the epoch."""
        self._context = working_on(Work(*stamp[1:], attempts, station, table))
        if station not in _NOT_BEGUN:
            broadcast.send(StationBegan(*stamp, *self._about, *self._more))

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.__exit__(None, None, None)
        if self.is_sent:
            why = None if error is None else _describe(error)
            self._broadcast.report(StationEnded, *self._about, self.began, *self._more, error=why)


def _describe(error: BaseException) -> str:
    try:
        return cause_line(error)
    except Exception:  # noqa: BLE001 - a user's error may raise in __str__, too
        return type(error).__name__


class _Outlet:
    """One observer: its queue, its thread, and the number of events that it missed."""

    def __init__(self, observer: Observer, name: str, work: Work) -> None:
        self._observer = observer
        self._name = name
        self._work = work
        self._waiting: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._missing = 0
        """Events dropped since the last one that was queued."""
        self._dropped = 0
        self._raised = 0
        self._error = ""
        self._left_behind = False
        self._is_ending = False
        self._hurry = threading.Event()
        """Set to take the waiting events at once."""
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="txn-observer", daemon=True)

    def start(self) -> None:
        """Begin to hand events to the observer."""
        self._thread.start()

    def put(self, event: RunEvent) -> bool:
        """Queue an event for the observer, or drop it. Never called twice at once.

        Returns:
            False for the first event that is dropped.
        """
        waiting = self._waiting.qsize()
        if waiting < MOST_WAITING:
            self._report_missing(event)
            self._waiting.put(event)
            if waiting == MOST_WAITING // 2:
                self._hurry.set()
            return True
        self._dropped += 1
        self._missing += 1
        return self._dropped > 1

    def warn(self) -> None:
        """Log that events are dropped from now on."""
        log.warning(
            "[%s] observer %s is too slow: %d events wait for it, and further ones are dropped. "
            "The run goes on, and its end tells how many were dropped.",
            self._work.topology,
            self._name,
            MOST_WAITING,
        )

    def end(self, last: RunEvent) -> None:
        """Queue the last event behind all that wait, however many those are."""
        self._report_missing(last)
        self._waiting.put(last)
        self._waiting.put(None)
        self._is_ending = True
        self._hurry.set()

    def join(self, until: float) -> str:
        """Wait for the thread's end until a time; return the observer's problems, or ""."""
        self._thread.join(max(0.0, until - time.monotonic()))
        problems = []
        if self._thread.is_alive():
            self._left_behind = True
            untaken = max(0, self._waiting.qsize() - 1)
            where = Straggler.of(self._thread, f"observer {self._name}", self._since)
            problems.append(f"was left behind with {untaken} events not taken: {where}")
        if self._dropped:
            problems.append(f"was too slow for {self._dropped} events, which were dropped")
        if self._raised:
            problems.append(f"raised for {self._raised} events, the first time {self._error}")
        return f"Observer {self._name} {'; it '.join(problems)}." if problems else ""

    def _report_missing(self, event: RunEvent) -> None:
        if self._missing:
            gap = EventsDropped(event.at, event.topology, event.epoch, self._missing)
            self._missing = 0
            self._waiting.put(gap)

    def _run(self) -> None:
        with working_on(self._work):
            while (event := self._waiting.get()) is not None:
                if self._left_behind and not isinstance(event, RunEnded):
                    continue
                self._since = time.monotonic()
                try:
                    self._observer.observe(event)
                except BaseException as error:  # noqa: BLE001 - an observer must not disturb the run
                    self._note_error(event, error)
                if self._waiting.empty():
                    self._hurry.wait(PAUSE_SECS)
                    if not self._is_ending:
                        self._hurry.clear()

    def _note_error(self, event: RunEvent, error: BaseException) -> None:
        self._raised += 1
        if self._raised == 1:
            self._error = type(error).__name__
            log.warning(
                "[%s] observer %s raised for %s. It is told what comes next all the same; further "
                "errors are counted, and the end of the run tells how many there were.",
                self._work.topology,
                self._name,
                type(event).__name__,
                exc_info=error,
            )


def _names(observers: Sequence[Observer]) -> list[str]:
    """A name for each observer: its class, with a number if several have the same one."""
    kinds = [type(observer).__qualname__ for observer in observers]
    return [
        kind if kinds.count(kind) == 1 else f"{kind} ({kinds[: at + 1].count(kind)})"
        for at, kind in enumerate(kinds)
    ]
