"""What a run tells, and what observers do with it: nothing of that reaches the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any

import pytest

import txn.engine.reporting.broadcast
from tests.faults.harness import wait_for
from txn.attempts import TransactionAttempt
from txn.engine.reporting.broadcast import Broadcast
from txn.logs import Work, working_on
from txn.observers import (
    AttemptCancelled,
    BoundChanged,
    EventsDropped,
    LagChanged,
    Observer,
    RequestEnded,
    RunEnded,
    RunEvent,
    StationBegan,
    StationEnded,
)
from txn.requests import report_request

ATTEMPT, NEXT = TransactionAttempt(7, 1), TransactionAttempt(8)
SOON = 10.0


class Kept:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def observe(self, event: RunEvent) -> None:
        """One event."""
        self.events.append(event)


class Doing:
    """Does something for every event, and counts them."""

    def __init__(self, what: Callable[[], object]) -> None:
        self.taken = 0
        self._what = what

    def observe(self, event: RunEvent) -> None:
        """One event."""
        self.taken += 1
        self._what()


@contextmanager
def telling(*observers: Observer) -> Iterator[Broadcast]:
    """A broadcast to these observers, by a clock that counts."""
    ticks = count(100)
    broadcast = Broadcast("flights", lambda: float(next(ticks)), observers)
    broadcast.epoch = 3
    broadcast.open()
    yield broadcast


def cancelled(broadcast: Broadcast, txid: int) -> None:
    """Tell an event that is easy to tell."""
    broadcast.send(AttemptCancelled(*broadcast.stamp(), TransactionAttempt(txid)))


def end(broadcast: Broadcast) -> list[str]:
    """Tell the end."""
    return broadcast.close(RunEnded(*broadcast.stamp(), "stopped", None, None, 7, 1.0))


def raises(error: BaseException) -> Callable[[], object]:
    """What raises."""

    def raise_it() -> None:
        raise error

    return raise_it


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten events wait for an observer at most, none gathers, and the end waits half a second."""
    monkeypatch.setattr(txn.engine.reporting.broadcast, "MOST_WAITING", 10)
    monkeypatch.setattr(txn.engine.reporting.broadcast, "DRAIN_SECS", 0.5)
    monkeypatch.setattr(txn.engine.reporting.broadcast, "PAUSE_SECS", 0.0)


def test_without_observers_there_is_no_thread_and_no_queue() -> None:
    """Nothing is started for nobody."""
    before = threading.active_count()
    with telling() as broadcast:
        cancelled(broadcast, 1)
        assert threading.active_count() == before
        assert end(broadcast) == []


def test_requests_of_the_run_are_told_and_no_others() -> None:
    """Those of threads that work for it; not of another run, nor what an observer asks itself."""

    def ask() -> None:
        report_request("storage", "get", lambda: None)

    kept, curious = Kept(), Doing(ask)
    with telling(kept, curious) as broadcast:
        ask()
        with working_on(Work("another")):
            ask()
        with working_on(Work("flights", 3)), pytest.raises(OSError, match="away"):
            report_request("zookeeper", "multi", raises(OSError("away")))
        cancelled(broadcast, 1)
        assert end(broadcast) == []
        with working_on(Work("flights", 3)):
            ask()
    (told,) = [event for event in kept.events if isinstance(event, RequestEnded)]
    assert (told.service, told.operation, told.error) == ("zookeeper", "multi", "OSError")
    assert (curious.taken, len(kept.events)) == (3, 3)


def test_every_observer_is_told_in_the_order_of_telling() -> None:
    """Also of what several threads tell at once: all observers have the same order."""
    one, other = Kept(), Kept()
    with telling(one, other) as broadcast:

        def tell(first: int) -> None:
            for txid in range(first, first + 300):
                cancelled(broadcast, txid)

        threads = [threading.Thread(target=tell, args=(first,)) for first in (1, 1001, 2001)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert end(broadcast) == []
        cancelled(broadcast, 1)  # of a thread that was left behind
    assert one.events == other.events
    assert len(one.events) == 901
    assert isinstance(one.events[-1], RunEnded)
    own = [e.attempt.txid for e in one.events if isinstance(e, AttemptCancelled)]
    assert [txid for txid in own if 1000 < txid < 2000] == list(range(1001, 1301))


def test_events_gather_before_an_observer_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread takes many at a time, and the end does not wait for more."""
    moments: list[float] = []
    with telling(Doing(lambda: moments.append(time.monotonic()))) as broadcast:
        for txid in range(1, 101):
            cancelled(broadcast, txid)
            time.sleep(0.005)
        wait_for(lambda: len(moments) == 100, what="the events")
        wakings = sum(after - before > 0.003 for before, after in pairwise(moments))
        assert wakings < 60, wakings
        monkeypatch.setattr(txn.engine.reporting.broadcast, "PAUSE_SECS", 60.0)
        cancelled(broadcast, 101)
        wait_for(lambda: len(moments) == 101, what="the events")
        cancelled(broadcast, 102)
        assert end(broadcast) == []
    assert len(moments) == 103


@pytest.mark.usefixtures("small")
def test_many_events_at_once_are_taken_before_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An observer that is quick misses none, however long events gather: half of the room wakes it,
    again and again.
    """
    monkeypatch.setattr(txn.engine.reporting.broadcast, "PAUSE_SECS", 3600.0)
    kept = Kept()
    with telling(kept) as broadcast:
        cancelled(broadcast, 1)
        wait_for(lambda: len(kept.events) == 1, what="the first event")
        for last in (8, 15):
            time.sleep(0.05)  # it waits for more
            for txid in range(last - 6, last + 1):
                cancelled(broadcast, txid)
            wait_for(lambda last=last: len(kept.events) >= last - 1, what=f"event {last}")
        assert end(broadcast) == []
    assert len(kept.events) == 16


def test_a_span_is_sent_with_both_its_ends() -> None:
    """With station, attempts, table, tags, and for how long; what is raised inside goes on."""
    kept = Kept()
    with telling(kept) as broadcast:
        with broadcast.span("stage", [ATTEMPT, NEXT], "warehouse/t", ["tag"]):
            pass
        with pytest.raises(ValueError, match="no"), broadcast.span("emit", [ATTEMPT]):
            raise ValueError("no\nmore")
        end(broadcast)
    both, about = (ATTEMPT, NEXT), ("warehouse/t", ("tag",))
    assert kept.events[:4] == [
        StationBegan(100.0, "flights", 3, both, "stage", *about),
        StationEnded(101.0, "flights", 3, both, "stage", 100.0, *about),
        StationBegan(102.0, "flights", 3, (ATTEMPT,), "emit"),
        StationEnded(103.0, "flights", 3, (ATTEMPT,), "emit", 102.0, error="ValueError: no"),
    ]
    assert [e.seconds for e in kept.events if isinstance(e, StationEnded)] == [1.0, 1.0]


def test_a_question_that_finds_nothing_is_not_told() -> None:
    """A source is asked again and again: only a plan that reads something is an event."""
    kept = Kept()
    with telling(kept) as broadcast:
        for found in (False, True):
            span = broadcast.span("plan", [ATTEMPT])
            with span:
                span.is_sent = found
        end(broadcast)
    assert [type(event) for event in kept.events] == [StationEnded, RunEnded]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_observer_that_raises_is_told_all_the_same(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises: the log has the first error whole, and the end how many there were."""
    doing, kept = Doing(raises(error)), Kept()
    with caplog.at_level(logging.WARNING, "txn"), telling(doing, kept) as broadcast:
        for txid in range(1, 6):
            cancelled(broadcast, txid)
        (told,) = end(broadcast)
    kind = type(error).__name__
    assert told == f"Observer Doing raised for 6 events, the first time {kind}."
    assert (doing.taken, len(kept.events)) == (6, 6)
    first, last = caplog.records
    assert "observer Doing raised for AttemptCancelled" in first.getMessage()
    assert first.exc_info
    assert first.exc_info[1] is error
    assert told in last.getMessage()


@pytest.mark.usefixtures("small")
def test_a_slow_observer_misses_events_and_knows_how_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The run does not wait. What is dropped is counted, in its place, in the log, and at the end;
    the last event is never dropped.
    """
    gate, kept = threading.Event(), Kept()

    class Slow(Kept):
        """Takes its first event when it may."""

        def observe(self, event: RunEvent) -> None:
            gate.wait(SOON)
            super().observe(event)

    slow = Slow()
    with caplog.at_level(logging.WARNING, "txn"), telling(slow, kept) as broadcast:
        for txid in range(1, 41):
            cancelled(broadcast, txid)
            wait_for(lambda: len(kept.events) >= txid, what="the quick observer")  # noqa: B023
        gate.set()
        wait_for(lambda: len(slow.events) >= 10, what="the slow observer")
        cancelled(broadcast, 41)
        (told,) = end(broadcast)
    txids = [e.attempt.txid for e in slow.events if isinstance(e, AttemptCancelled)]
    (gap,) = [event for event in slow.events if isinstance(event, EventsDropped)]
    assert txids[-1] == 41
    assert gap.count == 41 - len(txids)
    assert slow.events.index(gap) == len(txids) - 1
    assert isinstance(slow.events[-1], RunEnded)
    assert len(kept.events) == 42
    assert told == (
        f"Observer test_a_slow_observer_misses_events_and_knows_how_many.<locals>.Slow was too "
        f"slow for {gap.count} events, which were dropped."
    )
    assert ["10 events wait" in r.getMessage() for r in caplog.records] == [True, False]


@pytest.mark.usefixtures("small")
def test_an_observer_that_hangs_is_left_behind_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """The run does not wait for it, its end only for a moment; the others have everything."""
    gate, kept = threading.Event(), Kept()
    hanging = [Doing(lambda: gate.wait(SOON)) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "txn"), telling(*hanging, kept) as broadcast:
        began = time.monotonic()
        for txid in range(1, 4):
            cancelled(broadcast, txid)
        assert time.monotonic() - began < 0.1
        first, second = end(broadcast)
        assert time.monotonic() - began < 2
    assert len(kept.events) == 4
    assert first.startswith("Observer Doing (1) was left behind with 3 events not taken: thread ")
    assert second.startswith("Observer Doing (2) was left behind")
    assert "test_broadcast.py" in first
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "txn-observer":
            thread.join(SOON)
    taken = [doing.taken for doing in hanging]
    assert taken == [2, 2], "once it is left behind, it is told the end, and nothing before it"


def test_the_recorder_hears_at_once() -> None:
    """It reads on the thread that tells, so that what it knows is never old."""
    heard: list[Any] = []
    with telling() as broadcast:
        broadcast.read_by(heard.append)
        broadcast.send(BoundChanged(*broadcast.stamp(), "idle", None, 0.0))
    assert heard == [BoundChanged(100.0, "flights", 3, "idle", None, 0.0)]


def test_an_event_is_json() -> None:
    """Its name is `event`; an attempt is a txid and an attempt, several are a list."""
    stamp = (1.5, "flights", 3)
    ended = StationEnded(*stamp, (ATTEMPT, NEXT), "stage", 1.0, "t", ("tag",))
    assert ended.to_json() == {
        "event": "station_ended",
        "at": 1.5,
        "topology": "flights",
        "epoch": 3,
        "attempts": ["7:1", "8:0"],
        "station": "stage",
        "began": 1.0,
        "table": "t",
        "spark_tags": ["tag"],
        "error": None,
    }
    found = AttemptCancelled(*stamp, ATTEMPT).to_json()
    assert {"txid": 7, "attempt": 1}.items() <= found.items()
    lag = LagChanged(*stamp, "s", None).to_json()
    assert (lag["event"], lag["lag"]) == ("lag_changed", None)
