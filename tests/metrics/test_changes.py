"""What an event changes over time: a second one after the first, and what is over."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.children import LOOPBACK
from tests.metrics.test_readings import AT, ONE, TWO, began, read, samples
from txn.metrics import PrometheusMetrics
from txn.metrics.memory import driver_memory
from txn.observers import (
    AttemptBlocked,
    BackPressureBegan,
    BatchCommitted,
    BoundChanged,
    LeadershipInDoubt,
    LeadershipWon,
    RunEnded,
    RunEvent,
    RunStarted,
)

LATER = (160.0, "t", 3)


def found(*events: RunEvent) -> dict[str, float]:
    """Name -> value of the samples that have no label but `topology`, after these events."""
    everything = samples(read([*events]).registry)
    return {
        name.partition("{")[0].removeprefix("txn_"): value
        for name, value in everything.items()
        if name.endswith('{topology="t"}')
    }


def test_a_commit_is_the_newest_one() -> None:
    """The time of the last commit, by which TxnNoCommit is judged, is the start's and then each
    commit's.
    """
    started = RunStarted(*AT, 7, ())
    assert found(started)["last_commit_timestamp_seconds"] == 100
    committed = BatchCommitted(*LATER, ONE, (ONE,), {}, {})
    assert found(started, committed)["last_commit_timestamp_seconds"] == 160


def test_a_commit_ends_every_txid_before_it() -> None:
    """Of one whose own commit was missed nothing is in flight, blocked or ages."""
    blocked = AttemptBlocked(*AT, ONE, "away", 0)
    committed = BatchCommitted(*AT, TWO, (TWO,), {}, {})
    now = found(began(ONE, 98.0), began(TWO, 99.0), blocked, committed)
    assert (now["in_flight"], now["blocked"], now["batch_age_seconds"]) == (0, 0, 0)


def test_nothing_holds_up_a_run_that_has_ended() -> None:
    """What held it up last is 0, and "ended" is no stage with a series."""
    events = [BoundChanged(*AT, "commit", None, 0.0), BoundChanged(*AT, "ended", "commit", 1.0)]
    held = {n: v for n, v in samples(read([*events]).registry).items() if "held_up_by" in n}
    assert held == {'txn_held_up_by{bound="commit",topology="t"}': 0}


def test_a_run_begins_and_ends_without_doubt_or_back_pressure() -> None:
    """A new leader is in no doubt, a run that has just started not held back, one that ended
    neither; both are numbers from the beginning.
    """
    doubted, pressed = LeadershipInDoubt(*AT), BackPressureBegan(*AT, 2)
    assert found(doubted)["leadership_in_doubt"] == 1
    assert found(doubted, LeadershipWon(*AT))["leadership_in_doubt"] == 0
    assert found(RunStarted(*AT, 7, ()))["back_pressure"] == 0
    ended = found(doubted, pressed, RunEnded(*AT, "error", None, None, 7, 1.0))
    assert (ended["leadership_in_doubt"], ended["back_pressure"]) == (0, 0)


def test_a_clock_that_was_set_back_makes_no_negative_age() -> None:
    """The oldest batch was planned at 200 s, and it is 110 s now."""
    assert found(began(ONE, 200.0))["batch_age_seconds"] == 0


def test_memory_of_a_process_that_has_ended_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that is gone has no number, and not 0."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("900 10 5 1 0 300 0")
    monkeypatch.setattr("txn.metrics.memory._PROC", tmp_path)
    monkeypatch.setattr("txn.metrics.memory._gateway_pid", lambda: 4711)
    assert set(driver_memory()) == {"python"}


def test_a_server_that_has_ended_leaves_its_port_to_others() -> None:
    """At once, also while something still refers to it."""
    metrics = PrometheusMetrics(f"{LOOPBACK}:0")
    port, kept = metrics.port, metrics._stop
    metrics.close()
    assert port is not None
    with socket.create_server((LOOPBACK, port)):
        del kept
