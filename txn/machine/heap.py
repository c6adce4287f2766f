"""Python's garbage collector and what goes on for long: what was there is not looked at again."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["settled"]

_FEW = 1_000
"""Python itself may begin with some hundred objects that are frozen."""
_RARER = 10
"""Full collections come by how many objects are new, not by how large they are."""


class _Heap:
    """What is frozen, and for how many bodies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies = 0
        self._thresholds: tuple[int, int, int] | None = None
        """Those before, if the objects were frozen here."""

    def enter(self) -> None:
        with self._lock:
            self._bodies += 1
            if self._bodies == 1 and gc.get_freeze_count() < _FEW:
                gc.collect()
                gc.freeze()
                self._thresholds = gc.get_threshold()
                gc.set_threshold(*_rarer(self._thresholds))

    def leave(self) -> None:
        with self._lock:
            self._bodies -= 1
            if self._bodies or self._thresholds is None:
                return
            gc.unfreeze()
            if gc.get_threshold() == _rarer(self._thresholds):
                gc.set_threshold(*self._thresholds)
            self._thresholds = None


_heap = _Heap()


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Until the last of these bodies ends, the collector passes over what is there by now.

    A full collection goes through every object of the process, those of pyspark and of all other
    packages too, and no thread runs meanwhile: a tenth of a second, every few seconds of a busy
    run. One is made here first, or the garbage of former runs would be kept as well. A program that
    freezes its objects itself (`gc.freeze`) is left alone.

    Python makes the next one once a quarter is new of what is not frozen. A run's own objects are
    few, so that would be at once and again and again, and some of them may be huge, such as the
    positions of 50,000 partitions: it is made a tenth as often.
    """
    _heap.enter()
    try:
        yield
    finally:
        _heap.leave()


def _rarer(thresholds: tuple[int, int, int]) -> tuple[int, int, int]:
    return (*thresholds[:2], thresholds[2] * _RARER)
