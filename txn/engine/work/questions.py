"""Ask plugins questions whose answers are only shown to users, such as a source's lag.

Nothing that a plugin does with a question stops the run: each is asked on a thread of its own, and
the run waits a second at most. A thread that hangs there is left behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from txn.engine.base.threads import Pool

__all__ = ["TIMEOUT_SECS", "Questions"]

T = TypeVar("T")

log = logging.getLogger("txn")

TIMEOUT_SECS = 1.0
"""Most seconds to wait for one answer."""
PAUSE_SECS = 60.0
"""Pause before a plugin that did not answer in time is asked again."""


class Questions:
    """One thread for each question of each stream, started when it is asked first.

    Each question is asked by one thread at a time.

    Args:
        enter: prepares a thread for the user's code.
    """

    def __init__(
        self,
        topology: str,
        enter: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topology = topology
        self._enter = enter
        self._monotonic = monotonic
        self._pools: dict[str, Pool] = {}
        self._asked: dict[str, Future[Any]] = {}
        self._not_before: dict[str, float] = {}

    def ask(self, what: str, job: Callable[[], T]) -> T | None:
        """The answer of `job`; None if it did not come in time, or a pause lasts.

        A plugin that hangs is asked again once it has answered and a minute has passed; the log
        names it once.
        """
        before = self._asked.get(what)
        if before is not None and not before.done():
            return None
        if self._monotonic() < self._not_before.get(what, 0.0):
            return None
        if what not in self._pools:
            self._pools[what] = Pool(1, "txn-asking")
        asked = self._asked[what] = self._pools[what].submit(self._answer, job, about=what)
        try:
            answer: T = asked.result(TIMEOUT_SECS)
        except FutureTimeoutError:
            if what not in self._not_before:
                log.warning(
                    "[%s] %s gave no answer within %g s. It is shown as not known, and asked for "
                    "again a minute after it has come; the run goes on, and this is told once.",
                    self._topology,
                    what,
                    TIMEOUT_SECS,
                )
            self._not_before[what] = self._monotonic() + PAUSE_SECS
            return None
        return answer

    def close(self) -> None:
        """End the threads; one that hangs is left behind."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close(cancel=True)

    def _answer(self, job: Callable[[], T]) -> T:
        self._enter()
        return job()
