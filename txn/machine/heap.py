"""Python's garbage collector and what goes on for long: what was there is not looked at again."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["settled"]

_FEW = 1_000
"""Python itself may begin with some hundred objects that are frozen."""

_lock = threading.Lock()
_bodies: list[bool] = []
"""Those that have not ended: whether the first one has frozen what was there."""


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Until the last of these bodies ends, the collector passes over what is there by now.

    A full collection goes through every object of the process, those of pyspark and of all other
    packages too, and no thread runs meanwhile: a tenth of a second, every few seconds of a busy
    run. One is made here first, or the garbage of former runs would be kept as well. A program that
    freezes its objects itself (`gc.freeze`) is left alone.
    """
    with _lock:
        if not _bodies and gc.get_freeze_count() < _FEW:
            gc.collect()
            gc.freeze()
            _bodies.append(True)
        else:
            _bodies.append(bool(_bodies) and _bodies[0])
    try:
        yield
    finally:
        with _lock:
            if _bodies.pop() and not _bodies:
                gc.unfreeze()
