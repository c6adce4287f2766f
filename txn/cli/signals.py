"""Handle Ctrl-C and SIGTERM: they unwind a start, and ask a run to end.

One Ctrl-C may come twice: the terminal sends it to the whole process group, and a wrapper (`uv
run`, the init process of a container) forwards its own. So a second signal within a second of the
first one counts as the same.
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

_SAME_SIGNAL_SECS = 1.0


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
        # A second SIGTERM must not interrupt the end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
        if not received:
            first = clock()
            received.append(number)
        elif clock() - first >= _SAME_SIGNAL_SECS:
            # Durable state is consistent at every moment; the next run goes on from it.
            os._exit(128 + number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Keep py4j from logging a stack trace for Ctrl-C during a call to Spark.

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
