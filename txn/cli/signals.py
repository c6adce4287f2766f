"""Handle Ctrl-C and SIGTERM: they unwind a start, and ask a run to end.

One Ctrl-C may come twice: the terminal sends it to the whole group, and a wrapper (`uv run`, an
init of a container) passes on its own. A second one within a second is the same one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

__all__ = ["StoppedEarlyError", "quiet_interrupts", "received_signals", "terminable"]

_SAME_SECS = 1.0


class StoppedEarlyError(KeyboardInterrupt):
    """SIGTERM came before anything ran: a requested end, not a failure."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM unwind the start as Ctrl-C does, so that nothing is left running.

    Raises:
        StoppedEarlyError: SIGTERM came.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # it ends; a second one must not interrupt that
        raise StoppedEarlyError

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def received_signals(clock: Callable[[], float] = time.monotonic) -> Iterator[Sequence[int]]:
    """Yield the list of received signals, for the loop to act on; a second one ends the process."""
    received: list[int] = []
    first = 0.0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal first
        del frame
        if received and clock() - first < _SAME_SECS:
            return
        first = first or clock()
        if received:
            # Durable state is consistent at every moment; the next run goes on from it.
            os._exit(128 + number)
        received.append(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Keep py4j from printing a stack trace, as root, for Ctrl-C during a call to Spark.

    Also silences pyspark's own handler, which calls Spark while an answer is due.
    """

    def is_no_interrupt(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
                return False
            error = error.__context__
        return True

    root = logging.getLogger()
    root.addFilter(is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(is_no_interrupt)
