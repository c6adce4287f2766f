"""Python's garbage collector in a process of our own: what is loaded is not looked at again.

Only `txn run` and `txn dashboard` do this. A process in which a program runs a topology is the
program's: its collector and its objects are left alone.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["settled"]

_RARER = 10
"""Full collections come by how many objects are new, not by how large they are."""


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """During the body, the collector passes over what is there by now, and comes less often.

    A full collection goes through every object of the process, those of pyspark and of all other
    packages too, and no thread runs meanwhile: a tenth of a second, every few seconds of a busy
    run. Python makes the next one once a quarter is new of what is not frozen. A run's own objects
    are few, so that would be at once and again and again, and some of them may be huge, such as the
    positions of 50,000 partitions: it is made a tenth as often.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*before[:2], before[2] * _RARER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
