"""Two drivers of one topology, stops by signal, a ZooKeeper that goes away: real processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.harness import (
    Driver,
    Spec,
    assert_totals_right,
    drivers,
    make_records,
    wait_for,
)
from txn.embedded import EmbeddedZooKeeper

Start = Callable[..., Driver]

SLOW = {"batch_emit_interval_ms": 250, "zookeeper_timeout_secs": 4}
"""Slow enough to be met in mid-run; a dead leader's session ends soon."""
OUTAGE_SECS = 20.0


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts drivers; kills those that are left in the end."""
    with drivers() as start_driver:
        yield start_driver


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper of this test alone, which outlives the drivers."""
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as embedded:
        yield embedded


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_a_leader_that_was_paused_past_its_session_can_write_nothing_more(
    start: Start, server: EmbeddedZooKeeper, tmp_path: Path, kind: str
) -> None:
    """A leader that was paused past its session and replaced can no longer write to ZooKeeper or to
    a table.
    """
    records = make_records(tmp_path, 40)
    spec = Spec(folder=str(tmp_path), kind=kind, zookeeper=server.hosts, config=SLOW)
    paused = start(spec.model_copy(update={"at": "before-publish", "signal": "SIGSTOP"}), warm=True)
    paused.wait_for_point("SIGSTOP")

    successor = start(spec, warm=True)
    while was_refused(successor):
        successor = start(spec, warm=True)
    successor.wait_for_point("after-committed", 2)
    paused.send(signal.SIGCONT)

    error = paused.error()
    assert error["error"] == "FencedError"
    assert "epoch 2" in error["message"] or "epoch 3" in error["message"]
    assert successor.report()["ended"] == "caught_up"
    published = [point for point, _ in paused.points()][::-1]
    assert "after-committed" not in published[: published.index("SIGSTOP")]
    assert_totals_right(tmp_path, records)


def was_refused(driver: Driver) -> bool:
    """Whether the driver ended because the paused one's session still stood."""
    wait_for(lambda: bool(driver.points()) or driver.process.poll() is not None, what="a start")
    return driver.process.poll() is not None


def test_a_second_driver_is_refused_and_told_who_leads(
    start: Start, server: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """A second driver of the same topology is refused, and the error names the leader.

    Trident row 1.
    """
    records = make_records(tmp_path, 100)  # it must still run when the second one has come up
    spec = Spec(folder=str(tmp_path), zookeeper=server.hosts, config=SLOW)
    first = start(spec, warm=True)
    first.wait_for_point("after-committed")
    error = start(spec, warm=True).error()
    assert error["error"] == "LeaderExistsError"
    assert str(first.pid) in error["message"]
    assert first.report()["ended"] == "caught_up"
    assert_totals_right(tmp_path, records)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_signal_stops_the_run_cleanly_and_the_next_run_continues(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM stop a run cleanly, and the next run continues from there."""
    records = make_records(tmp_path, 40)
    spec = Spec(folder=str(tmp_path), zookeeper=f"embedded:{tmp_path}/zk", config=SLOW)
    driver = start(spec, warm=number is signal.SIGTERM)
    driver.wait_for_point("after-committed", 2)
    if number is signal.SIGINT:
        os.killpg(driver.pid, number)  # as a terminal does: Spark's JVM and ZooKeeper get it too
    else:
        driver.send(number)
    stopped = driver.report()
    assert stopped["ended"] == "stopped"
    assert 2 <= stopped["committed_txid"] < 16
    resumed = start(spec.model_copy(update={"config": {}}), warm=True).report()
    assert resumed["first_txid"] == stopped["committed_txid"] + 1
    assert resumed["epoch"] == stopped["epoch"] + 1
    assert_totals_right(tmp_path, records)


def test_the_run_goes_on_when_zookeeper_comes_back_after_twenty_seconds(
    start: Start, server: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """A run continues when ZooKeeper returns after an outage of twenty seconds."""
    records = make_records(tmp_path, 40)
    driver = start(Spec(folder=str(tmp_path), zookeeper=server.hosts, config=SLOW), warm=True)
    driver.wait_for_point("after-committed", 2)
    before, hosts = len(driver.points()), server.hosts
    server.stop()
    threading.Event().wait(OUTAGE_SECS)  # the fault itself: how long it lasts
    assert [p for p, _ in driver.points()[before:]].count("after-committed") <= 1
    assert server.start() == hosts
    report = driver.report()
    assert (report["ended"], report["epoch"]) == ("caught_up", 1)
    assert_totals_right(tmp_path, records)
