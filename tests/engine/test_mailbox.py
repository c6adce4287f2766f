"""The mailbox of the protocol's thread."""

from __future__ import annotations

import threading

import pytest

from txn.engine.base.mailbox import FactLoop


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock at zero."""
    return Clock()


def test_facts_come_in_the_order_in_which_they_were_posted(clock):
    """The loop is a queue."""
    loop: FactLoop[str] = FactLoop(clock)
    for fact in ("a", "b", "c"):
        loop.post(fact)
    assert [loop.next() for _ in range(3)] == ["a", "b", "c"]


def test_a_timer_that_is_not_due_waits_behind_the_facts(clock):
    """Facts are taken while a timer is still running."""
    loop: FactLoop[str] = FactLoop(clock)
    loop.after(10.0, "timer")
    loop.post("fact")
    assert loop.next() == "fact"
    clock.now = 10.0
    assert loop.next() == "timer"


def test_a_timer_that_is_due_comes_before_the_facts(clock):
    """A full mailbox does not hold up the ticks of the acker."""
    loop: FactLoop[str] = FactLoop(clock)
    loop.after(1.0, "timer")
    loop.post("fact")
    clock.now = 1.0
    assert [loop.next(), loop.next()] == ["timer", "fact"]


def test_timers_come_by_their_time_and_equal_ones_as_they_were_set(clock):
    """The order of timers does not depend on the facts that they carry."""
    loop: FactLoop[object] = FactLoop(clock)
    late, first, second = object(), object(), object()
    loop.after(3.0, late)
    loop.after(2.0, first)
    loop.after(2.0, second)
    clock.now = 5.0
    assert [first, second, late] == [loop.next() for _ in range(3)]


def test_a_waiting_loop_is_woken_by_a_fact_of_another_thread(clock):
    """`post` is the one thing that other threads may do."""
    loop: FactLoop[str] = FactLoop(clock)
    loop.after(3600.0, "timer")
    thread = threading.Thread(target=lambda: loop.post("fact"))
    thread.start()
    assert loop.next() == "fact"
    thread.join()


def test_a_timer_wakes_a_loop_without_facts():
    """With a real clock, `next` returns the timer's fact by itself."""
    import time

    loop: FactLoop[str] = FactLoop(time.monotonic)
    loop.after(0.01, "timer")
    assert loop.next() == "timer"
