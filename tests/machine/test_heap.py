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
    assert gc.get_freeze_count() < 1000
    gc.collect()
    assert old() is None


def test_one_body_after_the_other_keeps_no_garbage() -> None:
    """What one has left behind is found before the next begins, however few objects each makes."""
    left: list[weakref.ref[Cycle]] = []
    for _ in range(5):
        with settled():
            left.append(weakref.ref(Cycle()))
    assert [garbage() is None for garbage in left] == [True, True, True, True, False]


def test_full_collections_are_rarer_until_the_last_body_ends() -> None:
    """And come as before then, unless the program has set how often they come meanwhile."""
    before = gc.get_threshold()
    try:
        with settled():
            within = gc.get_threshold()
            with settled():
                assert gc.get_threshold() == within
        assert (within[:2], within[2]) == (before[:2], 10 * before[2])
        assert gc.get_threshold() == before
        with settled():
            gc.set_threshold(900, 9, 9)
        assert gc.get_threshold() == (900, 9, 9)
    finally:
        gc.set_threshold(*before)


def test_a_program_that_freezes_its_objects_is_left_alone() -> None:
    """They are frozen during the body, and afterwards."""
    gc.freeze()
    try:
        frozen, more = gc.get_freeze_count(), [Cycle() for _ in range(5000)]
        counts = []
        with settled():
            with settled():
                counts.append(gc.get_freeze_count())
            counts.append(gc.get_freeze_count())
        counts.append(gc.get_freeze_count())
        # Some of what is frozen may go, and what was made since would be added.
        assert [frozen - 1000 < count < frozen + len(more) / 2 for count in counts] == [True] * 3
    finally:
        gc.unfreeze()
