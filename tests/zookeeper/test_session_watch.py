"""`SessionWatch`: a session that is lost, or may be, is told once, and settled when it can be."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from tests.faults.harness import wait_for
from txn.errors import ProgressUnavailableError
from txn.zookeeper.client.session_watch import SessionWatch

SESSION_SECS = 0.05


class Leader:
    """A watch, and what is done on its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.away = False
        """ZooKeeper is still away when the deadline of a call has passed."""
        self.stopped = threading.Event()
        self.watch = SessionWatch("t", self.on_lost, lambda: SESSION_SECS, self.stopped)
        self.watch.start()

    def on_lost(self) -> None:
        self.calls += 1
        if self.away:
            raise ProgressUnavailableError("away")

    def is_called(self, times: int) -> bool:
        """Whether it was called so often once everything reported is taken in."""
        wait_for(lambda: self.calls >= times, what=f"{times} calls")
        self.watch.stop()
        self.watch.join()
        return self.calls == times


@pytest.fixture
def leader() -> Iterator[Leader]:
    """One that leads."""
    made = Leader()
    yield made
    made.stopped.set()
    made.watch.stop()
    made.watch.join()


def test_a_link_that_is_cut_for_the_sessions_timeout_is_a_loss(leader: Leader) -> None:
    """Kazoo says LOST only when it has reconnected; our own clock says it before."""
    leader.watch.report("SUSPENDED")
    assert leader.is_called(1)


def test_one_loss_is_told_once(leader: Leader) -> None:
    """The server says LOST later, of the session that was given up by our clock."""
    leader.watch.report("SUSPENDED")
    wait_for(lambda: leader.calls == 1, what="the loss")
    for state in ("LOST", "CONNECTED", "LOST", "CONNECTED"):
        leader.watch.report(state)
    assert leader.is_called(2)


def test_a_short_absence_is_no_loss(leader: Leader) -> None:
    """A connection that comes back within the session's timeout changes nothing."""
    for state in ("SUSPENDED", "CONNECTED", "LOST"):
        leader.watch.report(state)
    assert leader.is_called(1)


def test_what_could_not_be_settled_is_taken_up_when_zookeeper_is_back(leader: Leader) -> None:
    """An idle leader learns whether it still leads also after an absence past the deadline."""
    leader.away = True
    leader.watch.report("SUSPENDED")
    wait_for(lambda: leader.calls == 1, what="the loss")
    leader.away = False
    leader.watch.report("CONNECTED")
    leader.watch.report("CONNECTED")
    assert leader.is_called(2)


def test_the_log_says_that_zookeeper_is_away_and_back(
    leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    """A user sees why nothing is committed, and when that is over."""
    with caplog.at_level(logging.WARNING, "txn.zookeeper.waiting"):
        leader.watch.report("SUSPENDED")
        wait_for(lambda: leader.calls == 1, what="the loss")
        leader.watch.report("CONNECTED")
        assert leader.is_called(1)
    assert [
        "[t] ZooKeeper does not answer: nothing is committed until it does.",
        (
            "[t] ZooKeeper has not answered for 0.05 s, so the session may be lost and another "
            "process may lead. This one commits nothing until it is certain that none does."
        ),
        "[t] ZooKeeper answers again.",
    ] == [record.getMessage() for record in caplog.records]
