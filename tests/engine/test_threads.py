"""The end of a run's threads: who is waited for, and for how long."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest

from tests.faults.harness import ROOT, wait_for
from txn.engine.base.threads import Threads
from txn.storage.retrying import retried

GRACE = 0.4


def test_clean_up_that_is_being_worked_off_is_waited_for() -> None:
    """The grace is of one job that does not come back, and not of a queue of healthy ones."""
    threads, done = Threads("t", 1, GRACE, clean_up=60.0), []
    for number in range(10):
        threads.clean(lambda number=number: done.append(time.sleep(GRACE / 4) or number))  # type: ignore[misc,func-returns-value]
    assert threads.join() == []
    assert done == list(range(10))


@pytest.mark.parametrize("hangs", [True, False])
def test_clean_up_that_does_not_end_is_left_and_no_error(
    caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    """A job that hangs, and a queue without an end, are logged; what is behind them is dropped."""
    threads = Threads("t", 1, GRACE if hangs else 60.0, clean_up=60.0 if hangs else GRACE)
    release, dropped = threading.Event(), []
    threads.clean(release.wait)  # type: ignore[arg-type]
    threads.clean(lambda: dropped.append(1))
    with caplog.at_level(logging.WARNING, "txn"):
        assert threads.join() == []
    assert "[t] clean-up is left to the next run" in caplog.text
    assert ("thread txn-clean-up_0" in caplog.text) == hangs
    release.set()
    threads.cleaner.join(10.0)
    assert (threads.cleaner.is_done, dropped) == (True, [])


def test_other_stragglers_leave_clean_up_no_more_than_the_grace() -> None:
    """A run that is abandoned gives up its leadership in time, whatever is left to be cleaned."""
    threads, release = Threads("t", 1, GRACE, clean_up=3600.0), threading.Event()
    threads.spawn(threads.planner, release.wait, lambda _: None, "planning 1:0")  # type: ignore[arg-type]
    threads.clean(release.wait)  # type: ignore[arg-type]
    wait_for(lambda: bool(threads.planner.at_work()), what="planning to begin")
    assert [one.about for one in threads.join()] == ["planning 1:0"]
    release.set()


def test_a_thread_that_hangs_takes_nobody_elses_grace() -> None:
    """Who comes back when it is told to is waited for, also behind one that used up the grace."""
    threads, release, told = Threads("t", 1, GRACE), threading.Event(), threading.Event()
    threads.spawn(threads.planner, release.wait, lambda _: None, "planning 1:0")  # type: ignore[arg-type]
    threads.spawn(threads.commit, told.wait, lambda _: None, "the commit turn of 1:0")  # type: ignore[arg-type]
    wait_for(lambda: bool(threads.planner.at_work()), what="planning to begin")
    wait_for(lambda: bool(threads.commit.at_work()), what="the commit turn to begin")
    wait_for(lambda: not threads.grace_left(), what="the end of the grace")
    stragglers = threads.join(told.set)
    assert [one.about for one in stragglers] == ["planning 1:0"]
    assert threads.commit.is_done
    release.set()


def test_a_thread_at_work_is_placed_in_the_users_code() -> None:
    """Its place is the user's innermost frame, although txn's own code below it waits."""

    def read_storage() -> None:
        retried(barrier.wait, "read t")

    threads, barrier = Threads("t", 1, GRACE), threading.Barrier(2)
    threads.spawn(threads.planner, read_storage, lambda _: None)
    wait_for(lambda: barrier.n_waiting == 1, what="the job to wait")
    (working,) = threads.planner.at_work()
    barrier.wait()
    assert working.where.startswith(f"read_storage ({__file__}:")


COLLECTING = """
import gc, sys, threading, time, weakref
from txn.engine.base.threads import Straggler

class Node:
    pass

kept = []

def leave_garbage():
    node = Node()
    node.itself = node
    kept.append(weakref.ref(node, lambda _: sum(range(1000))))

def start_threads():
    while True:
        thread = threading.Thread(target=time.time)
        thread.start()
        thread.join()

sys.setswitchinterval(1e-6)
threading.Thread(target=start_threads, daemon=True).start()
gc.set_threshold(1)
for _ in range(3000):
    leave_garbage()
    Straggler.of(threading.main_thread(), "", 0.0)
assert gc.isenabled()
print("through", flush=True)
"""


def test_a_look_at_the_threads_stops_no_process() -> None:
    """Where threads are does not depend on the garbage that is collected meanwhile.

    In CPython up to 3.11.8, collecting it inside `sys._current_frames` can stop all threads.
    """
    command = [sys.executable, "-c", COLLECTING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"through\n"
