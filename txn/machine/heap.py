"""Python's garbage collector and long runs: what was there before is not looked through again."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["settled"]

_lock = threading.Lock()
_bodies: list[None] = []
"""Those that have not ended."""


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Until the last of these bodies ends, the collector passes over what is there by now.

    A full collection goes through every object of the process, those of pyspark and of all other
    packages too, and no thread runs meanwhile: a tenth of a second, every few seconds of a busy
    run. Reference cycles that were there before and become garbage in the body are freed after
    it. What the program itself has frozen (`gc.freeze`) is looked through again afterwards.
    """
    with _lock:
        _bodies.append(None)
        if len(_bodies) == 1:
            gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _bodies.pop()
            if not _bodies:
                gc.unfreeze()
