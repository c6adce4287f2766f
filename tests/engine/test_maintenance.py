"""Maintenance of tables beside the commit turns: when, on which thread, and how it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest

from tests.faults.support import Points, observing
from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.engine.base.killpoints import MAINTENANCE_POINTS
from txn.engine.base.threads import Threads
from txn.engine.loop.maintenance import IDLE_SECS, Maintenance
from txn.engine.loop.upkeep import Upkeep
from txn.engine.reporting.broadcast import Broadcast
from txn.errors import FencedError

WAIT_SECS = 30.0


class Work:
    """Two tables, and the jobs on them; what `maintain` does is given."""

    maintained = ("a", "b")
    published: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, maintain: Callable[[str, int], Callable[[], None] | None]) -> None:
        self._maintain = maintain
        self.asked: list[tuple[str, int]] = []
        self.cancelled = threading.Event()
        self.tags: list[str] = []

    @contextmanager
    def tagged(
        self, tags: list[str], attempts: list[TransactionAttempt], *_: str
    ) -> Iterator[None]:
        """What is asked inside has this tag."""
        assert len(attempts) == 1
        self.tags = tags
        yield
        self.tags = []

    def maintain(self, table: str, txid: int) -> Callable[[], None] | None:
        """Asked on the maintenance thread."""
        assert threading.current_thread().name.startswith("txn-maintenance")
        assert self.tags == ["tag"]
        self.asked.append((table, txid))
        return self._maintain(table, txid)

    def cancel(self, tag: str) -> None:
        """Its jobs are to end."""
        self.cancelled.set()


class Kit:
    """Maintenance over a `Work`, with real threads; the shell that it knows."""

    def __init__(self) -> None:
        self.threads = Threads("t", 1)
        self.said: list[str] = []
        self.halted: list[BaseException] = []
        self.told: list[Any] = []

    def over(self, work: Work) -> Maintenance:
        """The maintenance of its tables."""
        given: Any = work
        shell: Any = self
        told = Broadcast("t", lambda: 0.0)
        told.read_by(self.told.append)
        nothing = Upkeep("t", (), TopologyConfig(), told, time.monotonic)
        return Maintenance("t", "tag", given, given, self.threads, shell, nothing, told)

    def assert_leading(self) -> None:
        """It does; said on the thread that publishes."""
        self.said.append(threading.current_thread().name)

    def halt(self, error: BaseException) -> None:
        """The run is to end."""
        self.halted.append(error)

    def idle(self) -> None:
        """Wait until both threads have nothing to do."""
        self.threads.maintenance.submit(lambda: None).result(WAIT_SECS)


@pytest.fixture
def kit() -> Iterator[Kit]:
    """Threads that end with the test."""
    kit = Kit()
    yield kit
    kit.threads.join()


def test_each_table_is_asked_after_a_commit_and_publishes_between_turns(kit: Kit) -> None:
    """What a table has staged is made visible on the commit thread, by a leader."""
    work = Work(lambda table, txid: lambda: kit.said.append(f"{table} {txid}"))
    points = Points()
    with observing(points):
        kit.over(work).committed(TransactionAttempt(7))
        kit.idle()
    assert work.asked == [("a", 7), ("b", 7)]
    assert kit.said == ["txn-commit_0", "a 7", "txn-commit_0", "b 7"]
    assert points.seen == [(point, "7:0") for _ in range(2) for point in MAINTENANCE_POINTS]


def test_nothing_is_appended_while_there_is_nothing_to_do(kit: Kit) -> None:
    """A table without work costs no turn anything."""
    work = Work(lambda table, txid: None)
    kit.over(work).committed(TransactionAttempt(7))
    kit.idle()
    assert (work.asked, kit.said) == ([("a", 7), ("b", 7)], [])


def test_tables_are_asked_again_while_nothing_is_committed(kit: Kit) -> None:
    """What a busy time left is done later: a look every few seconds, and none before any commit."""
    work = Work(lambda table, txid: None)
    maintenance = kit.over(work)
    maintenance.idle(100.0, 0)
    maintenance.committed(TransactionAttempt(7))
    kit.idle()
    looks = []
    for now in (101.0, 102.0, 101.0 + IDLE_SECS):
        work.asked.clear()
        maintenance.idle(now, 7)
        kit.idle()
        looks.append(work.asked.copy())
    assert looks == [[("a", 7), ("b", 7)], [], [("a", 7), ("b", 7)]]


def test_commits_meanwhile_are_one_more_round(kit: Kit) -> None:
    """While a table is at work, commits only tell how far it may go the next time."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(table: str, txid: int) -> None:
        begun.set()
        assert go_on.wait(WAIT_SECS)

    work = Work(wait)
    maintenance = kit.over(work)
    maintenance.committed(TransactionAttempt(1))
    assert begun.wait(WAIT_SECS)
    for txid in (2, 3, 4):
        maintenance.committed(TransactionAttempt(txid))
    go_on.set()
    kit.idle()
    assert work.asked == [("a", 1), ("b", 1), ("a", 4), ("b", 4)]


def test_a_turn_waits_for_no_more_than_the_append(kit: Kit) -> None:
    """A turn that is ordered while a table works on something does not wait for that."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(table: str, txid: int) -> Callable[[], None]:
        begun.set()
        assert go_on.wait(WAIT_SECS)
        return lambda: kit.said.append(f"{table} {txid}")

    kit.over(Work(wait)).committed(TransactionAttempt(1))
    assert begun.wait(WAIT_SECS)
    kit.threads.commit.submit(lambda: kit.said.append("turn")).result(WAIT_SECS)
    go_on.set()
    kit.idle()
    assert kit.said[0] == "turn"
    assert "a 1" in kit.said


def test_an_error_is_told_once_and_tried_again(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever fails is left to a later commit; the log has it once for each table and kind."""

    def fail(table: str, txid: int) -> None:
        raise OSError(f"disk {txid} is full")

    work = Work(fail)
    maintenance = kit.over(work)
    with caplog.at_level(logging.WARNING, "txn"):
        for txid in (1, 2):
            maintenance.committed(TransactionAttempt(txid))
            kit.idle()
    assert [txid for _, txid in work.asked] == [1, 1, 2, 2]
    assert [record.getMessage() for record in caplog.records] == [
        f"[t] maintenance of table {table}: OSError: disk 1 is full" for table in ("a", "b")
    ]


def test_a_newer_leader_ends_the_run(kit: Kit) -> None:
    """Who was fenced out of a table must go no further."""
    error = FencedError("epoch 3 leads")

    def fenced() -> None:
        raise error

    kit.over(Work(lambda table, txid: fenced)).committed(TransactionAttempt(1))
    kit.idle()
    assert kit.halted[0] is error


def test_the_end_of_a_run_cancels_its_jobs_and_publishes_nothing(kit: Kit) -> None:
    """What is under way at the end is cancelled; what was staged is left to the next run."""
    begun = threading.Event()

    def until_cancelled(table: str, txid: int) -> Callable[[], None]:
        begun.set()
        assert work.cancelled.wait(WAIT_SECS)
        return lambda: kit.said.append("too late")

    work = Work(until_cancelled)
    maintenance = kit.over(work)
    maintenance.committed(TransactionAttempt(1))
    assert begun.wait(WAIT_SECS)
    maintenance.stop()
    assert (work.asked, kit.said) == ([("a", 1)], [])


def test_the_end_of_a_run_does_not_wait_for_a_turn_that_is_stuck(kit: Kit) -> None:
    """What waits for the commit thread is given up when the run ends."""
    stuck, ended = threading.Event(), threading.Event()
    kit.threads.commit.submit(stuck.wait)
    maintenance = kit.over(Work(lambda table, txid: lambda: kit.said.append("too late")))
    points = Points(maintenance_staged=lambda attempt: ended.set())
    with observing(points):
        maintenance.committed(TransactionAttempt(1))
        assert ended.wait(WAIT_SECS)
        maintenance.stop()
    stuck.set()
    kit.threads.commit.submit(lambda: None).result(WAIT_SECS)
    assert kit.said == []


class Shown:
    """A published table: what it is asked for."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.asked: list[tuple[int, bool]] = []

    def maintain(self, committed: int, *, now: bool = False) -> Callable[[], None]:
        """Asked on the maintenance thread."""
        assert threading.current_thread().name.startswith("txn-maintenance")
        self.asked.append((committed, now))
        return lambda: self._kit.said.append(f"shown {committed}")


def test_published_tables_are_asked_last_and_once_more_at_the_end(kit: Kit) -> None:
    """Also in a run that commits nothing, for what a former one has left."""
    shown, work = Shown(kit), Work(lambda table, txid: None)
    work.published = {"shown": shown}
    maintenance = kit.over(work)
    maintenance.last_round(0)
    assert shown.asked == []
    maintenance.last_round(5)
    assert (shown.asked, work.asked) == ([(5, True)], [])
    maintenance.committed(TransactionAttempt(7))
    kit.idle()
    maintenance.last_round(7)
    assert shown.asked[1:] == [(7, False), (7, True)]
    assert work.asked == [("a", 7), ("b", 7)]
    assert kit.said[1::2] == ["shown 5", "shown 7", "shown 7"]
