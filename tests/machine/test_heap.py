"""What a long run does not let Python's garbage collector look through again and again."""

from __future__ import annotations

import gc
import weakref

from txn.machine.heap import settled


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_is_passed_over_until_the_last_body_ends() -> None:
    """Of several bodies too; what is made within is collected as ever, what was there after it."""
    before = gc.get_freeze_count()
    there = Cycle()
    old = weakref.ref(there)
    with settled():
        assert gc.get_freeze_count() > before + 1000
        with settled():
            del there
            new = weakref.ref(Cycle())
            gc.collect()
            assert (old() is None, new() is None) == (False, True)
        assert gc.get_freeze_count() > before + 1000
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None
