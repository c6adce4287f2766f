"""What a long run does not let Python's garbage collector look through again and again."""

from __future__ import annotations

import gc
import weakref

from txn.machine.heap import settled


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_is_passed_over_until_the_body_ends() -> None:
    """What is made within is collected as ever, what was there after it, garbage before it."""
    before = gc.get_threshold()
    garbage, there = weakref.ref(Cycle()), Cycle()
    old = weakref.ref(there)
    with settled():
        assert garbage() is None
        assert gc.get_threshold() == (*before[:2], 10 * before[2])
        del there
        new = weakref.ref(Cycle())
        gc.collect()
        assert (old() is None, new() is None) == (False, True)
    assert gc.get_threshold() == before
    gc.collect()
    assert old() is None
