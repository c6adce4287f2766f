"""A queue of facts with timers: the mailbox of the protocol's one thread."""

from __future__ import annotations

import heapq
import itertools
import queue
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["FactLoop"]

F = TypeVar("F")


class FactLoop(Generic[F]):
    """Facts in the order of their arrival, each timer's fact once it is due.

    Args:
        clock: seconds; only differences matter.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._facts: queue.SimpleQueue[F] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, F]] = []
        self._numbers = itertools.count()

    def post(self, fact: F) -> None:
        """Add a fact. Safe from any thread and from a signal handler (a SimpleQueue re-enters)."""
        self._facts.put(fact)

    def after(self, seconds: float, fact: F) -> None:
        """Add a fact that arrives later. Only from the thread that calls `next`."""
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._numbers), fact))

    def next(self) -> F:
        """Wait for the next fact; timers that are due come first."""
        while True:
            wait = None
            if self._timers:
                wait = self._timers[0][0] - self._clock()
                if wait <= 0:
                    return heapq.heappop(self._timers)[2]
            try:
                return self._facts.get(timeout=wait)
            except queue.Empty:
                continue
