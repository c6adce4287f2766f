"""The one stream of what a run does: told once, where it happens, and read by whoever shows it.

Two kinds read it. The run's own recorder reads at once, on the thread that tells. Observers
(`txn.observers`) are the user's: each has a queue that ends somewhere and a thread of its own, so
nothing that they do reaches the run. Without observers there is neither.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from txn.attempts import TransactionAttempt
from txn.engine.threads import straggler
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

__all__ = ["Broadcast", "Passage"]

log = logging.getLogger("txn")

MOST_WAITING = 5_000
"""Events that wait for one observer. They hold on to the metadata of the batches that they tell of,
which of a source with thousands of partitions is large."""
PAUSE_SECS = 0.1
"""For so long events gather before an observer takes them. A thread that is woken for each of them,
hundreds of times a second, takes Python from the threads of the run each time."""
DRAIN_SECS = 5.0
"""For so long the end of a run waits for its observers, all together."""
_NOT_BEGUN = frozenset({"plan", "ack"})
"""Stations whose beginning is not told."""


class Broadcast:
    """Takes what the parts of a run tell, from any thread, and hands it on.

    Args:
        clock: seconds since the epoch.
        observers: the user's.
    """

    def __init__(
        self, topology: str, clock: Callable[[], float], observers: Sequence[Observer] = ()
    ) -> None:
        self.epoch = 0
        """Of the leader; 0 before this process leads."""
        self._topology = topology
        self._clock = clock
        self._reader: Callable[[RunEvent], None] | None = None
        self._order = threading.Lock()
        """Every observer is told in the same order."""
        self._observing = Work(topology)
        self._deaf: Callable[[], None] | None = None
        self._outlets = [
            _Outlet(observer, name, self._observing)
            for observer, name in zip(observers, _names(observers), strict=True)
        ]

    def read_by(self, reader: Callable[[RunEvent], None]) -> None:
        """Call `reader` with every event from now on, on the thread that tells it."""
        self._reader = reader

    def stamp(self) -> tuple[float, str, int]:
        """The first fields of every event: now, the topology, and the epoch."""
        return self._clock(), self._topology, self.epoch

    def send(self, event: RunEvent) -> None:
        """Tell it to everybody. Never blocks."""
        if self._reader is not None:
            self._reader(event)
        if self._outlets:
            with self._order:
                overflowing = [outlet for outlet in self._outlets if not outlet.put(event)]
            for outlet in overflowing:
                outlet.warn()

    def passage(
        self,
        station: Station,
        attempts: Sequence[TransactionAttempt],
        table: str | None = None,
        spark_tags: Sequence[str] = (),
    ) -> Passage:
        """Some attempts come to a station now.

        The body of the passage is their time there: its end is told, and its log says where it is.
        """
        return Passage(self, station, tuple(attempts), table, tuple(spark_tags))

    def open(self) -> None:
        """Observers are there from now on."""
        if self._outlets:
            self._deaf = listen(self._asked)
        for outlet in self._outlets:
            outlet.start()

    def close(self, last: RunEvent) -> list[str]:
        """Tell the last event, and let the observers take what waits, for a few seconds.

        Returns:
            What went wrong with whom, a sentence each; it is in the log, too.
        """
        if self._deaf is not None:
            self._deaf()
        with self._order:
            outlets, self._outlets = self._outlets, []  # threads left behind may still tell
            for outlet in outlets:
                outlet.end(last)
        until = time.monotonic() + DRAIN_SECS
        told = [said for outlet in outlets if (said := outlet.join(until))]
        for said in told:
            log.warning("[%s] %s", self._topology, said)
        return told

    def _asked(self, request: Request) -> None:
        """ZooKeeper or storage was asked, perhaps by another run of this process."""
        work = current_work()
        # What observers ask is not told: each answer would make them ask again.
        if work is None or work.topology != self._topology or work is self._observing:
            return
        self.send(
            RequestEnded(
                *self.stamp(), request.service, request.operation, request.seconds, request.error
            )
        )


class Passage:
    """The way of some attempts through one station; see `Broadcast.passage`."""

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
        self.is_told = True
        """Whether its end will be told: that a source has nothing to read is not."""
        stamp = broadcast.stamp()
        self.began = stamp[0]
        """When they came to it, seconds since the epoch."""
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
        if self.is_told:
            why = None if error is None else _line(error)
            stamp = self._broadcast.stamp()
            self._broadcast.send(
                StationEnded(*stamp, *self._about, self.began, *self._more, error=why)
            )


def _line(error: BaseException) -> str:
    try:
        return cause_line(error)
    except Exception:  # noqa: BLE001 - the text of an error of the user's may raise, too
        return type(error).__name__


class _Outlet:
    """One observer: its queue, its thread, and what it has missed.

    Args:
        name: of the observer, for people.
        work: what its thread is at, for the log.
    """

    def __init__(self, observer: Observer, name: str, work: Work) -> None:
        self._observer = observer
        self._name = name
        self._work = work
        self._waiting: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._missing = 0
        """Dropped since the last one that was let in."""
        self._dropped = 0
        self._raised = 0
        self._error = ""
        self._left_behind = False
        self._is_ending = False
        self._hurry = threading.Event()
        """What waits is to be taken at once."""
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="txn-observer", daemon=True)

    def start(self) -> None:
        """Begin to hand events to the observer."""
        self._thread.start()

    def put(self, event: RunEvent) -> bool:
        """Let an event wait for the observer, or drop it. Never called twice at once.

        Returns:
            False: it is the first that was dropped.
        """
        waiting = self._waiting.qsize()
        if waiting < MOST_WAITING:
            self._tell_missing(event)
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
        """The last event comes after those that wait, however many these are."""
        self._tell_missing(last)
        self._waiting.put(last)
        self._waiting.put(None)
        self._is_ending = True
        self._hurry.set()

    def join(self, until: float) -> str:
        """Wait for the thread's end; what is to be told of this observer, if anything.

        Args:
            until: by `time.monotonic`.
        """
        self._thread.join(max(0.0, until - time.monotonic()))
        told = []
        if self._thread.is_alive():
            self._left_behind = True
            untaken = max(0, self._waiting.qsize() - 1)
            where = straggler(self._thread, f"observer {self._name}", self._since)
            told.append(f"was left behind with {untaken} events not taken: {where}")
        if self._dropped:
            told.append(f"was too slow for {self._dropped} events, which were dropped")
        if self._raised:
            told.append(f"raised for {self._raised} events, the first time {self._error}")
        return f"Observer {self._name} {'; it '.join(told)}." if told else ""

    def _tell_missing(self, event: RunEvent) -> None:
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
                except BaseException as error:  # noqa: BLE001 - the run is none of its business
                    self._note(event, error)
                if self._waiting.empty():
                    self._hurry.wait(PAUSE_SECS)
                    if not self._is_ending:
                        self._hurry.clear()

    def _note(self, event: RunEvent, error: BaseException) -> None:
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
    """A name for each: its class, with a number if there are several of one."""
    kinds = [type(observer).__qualname__ for observer in observers]
    return [
        kind if kinds.count(kind) == 1 else f"{kind} ({kinds[: at + 1].count(kind)})"
        for at, kind in enumerate(kinds)
    ]
