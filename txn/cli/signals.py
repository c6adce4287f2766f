"""Ctrl-C and SIGTERM: during a start they unwind it, during a run they ask for its end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType

__all__ = ["received_signals", "terminable"]


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM during the start is what Ctrl-C is: unwind, and leave nothing running."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def received_signals() -> Iterator[Sequence[int]]:
    """Ctrl-C and SIGTERM as they come, for the loop to act on; the second one ends the process."""
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
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
