"""Calls that never return: the run ends all the same, names them, and makes room for another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from tests.faults.harness import DEADLINE_SECS, ROOT, wait_for
from tests.faults.support import Points, attempts, observing, rows_of, staged_files
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.errors import AbandonedError
from txn.zookeeper import read_status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper
    from txn.engine.running import RunningTopology

BATCHES = [[("a", 1)], [("b", 2)], [("c", 3)]]
ROWS = [("a", 1), ("b", 2), ("c", 3)]
SHORT = {"stop_grace_secs": 1, "retry_backoff_ms": 1, "max_spout_pending": 1}
PLACES = ("planning", "emitting", "transform", "commit turn", "success", "planned parts", "closing")


class Obstacle:
    """A call that does not return before `released`."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.reached = Event()
        self.released = Event()

    def meet(self, place: str) -> None:
        """Block here, if this is the place."""
        if place == self.place:
            self.reached.set()
            self.released.wait()


class BlockingSpout(MemoryTransactionalSpout):
    """The batches, with an obstacle."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(BATCHES, "k string, v bigint")
        self._obstacle = obstacle

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: MemoryPosition | None
    ) -> MemoryPosition | None:
        """The batch after `previous`."""
        if attempt.txid == 2:
            self._obstacle.meet("planning")
        return super().initialize_transaction(attempt, previous)

    def planned_parts(self, metadata: MemoryPosition) -> list[str]:
        """One part."""
        if metadata.index == 1:
            self._obstacle.meet("planned parts")
        return ["batch"]

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of the batch."""
        if str(attempt) == "2:0":
            self._obstacle.meet("emitting")
        return super().emit_batch(spark, attempt, metadata)

    def commit(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> None:
        """The commit turn begins."""
        if attempt.txid == 2:
            self._obstacle.meet("commit turn")

    def success(self, txid: int) -> None:
        """A txid is committed."""
        if txid == 1:
            self._obstacle.meet("success")

    def close(self) -> None:
        """The run ends."""
        self._obstacle.meet("closing")


def build(name: str, obstacle: Obstacle, warehouse: Path, **config: Any) -> Topology:
    """Rows into an append table and counts into a state table, past an obstacle."""

    def through(rows: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        obstacle.meet("start")
        if str(attempt) == "2:0":
            obstacle.meet("transform")
        return rows

    topology = Topology(name, TopologyConfig(**{**SHORT, **config}))
    stream = topology.stream("s", BlockingSpout(obstacle)).transform(through)
    stream.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    counts = StateTable(warehouse / "counts", "transactional", buckets=2)
    stream.group_by("k").persistent_aggregate(counts, n=Count())
    return topology


def thread_of(running: RunningTopology) -> str:
    """How the run's error names the thread that it has left behind."""
    with pytest.raises(AbandonedError) as error:
        running.await_termination(60)
    return str(error.value)


def test_a_start_that_never_returns_is_named_and_leads_no_longer(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transform that hangs when it is tried keeps neither the caller nor the leadership."""
    name, obstacle = warehouse.parent.name, Obstacle("start")
    monkeypatch.setattr("txn.engine.start.START_SECS", 5.0)
    topology = build(name, obstacle, warehouse, message_timeout_secs=5)
    try:
        with pytest.raises(AbandonedError, match=r"trying what .* in meet \(.*test_endings\.py"):
            topology.start(spark, zookeeper=zookeeper.hosts)
        assert read_status(zookeeper.hosts, name, topology.config).leader is None
    finally:
        obstacle.released.set()
    again = build(name, Obstacle("nowhere"), warehouse)
    assert again.run(spark, zookeeper=zookeeper.hosts, until="caught_up").committed_txid == 3
    assert rows_of(warehouse / "rows", "k", "v") == ROWS


@pytest.mark.parametrize("place", PLACES)
def test_a_call_that_never_returns_does_not_hold_up_a_stop(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, place: str
) -> None:
    """A stopped run ends even if a call of user code never returns: it names the thread and its
    line, gives up leadership, and the next run continues exactly once.
    """
    name, obstacle = warehouse.parent.name, Obstacle(place)
    # Where the call is not one of a worker, it takes all the patience that there is.
    brief = {"message_timeout_secs": 6, "zookeeper_deadline_secs": 6}
    config = brief if place in ("commit turn", "planned parts") else {}
    topology = build(name, obstacle, warehouse, **config)
    running = topology.start(spark, zookeeper=zookeeper.hosts)
    try:
        if place != "closing":
            assert obstacle.reached.wait(60)
        with pytest.raises(AbandonedError, match=r"in \w+ \(.*test_endings\.py:\d+\)") as error:
            running.stop(60)
        assert "in meet " in str(error.value)
        assert not running.is_active
        status = read_status(zookeeper.hosts, name, topology.config)
        assert status.leader is None
        with pytest.raises(AbandonedError, match="Start a new process"):
            topology.start(spark, zookeeper=zookeeper.hosts)
    finally:
        obstacle.released.set()
    again = build(name, Obstacle("nowhere"), warehouse)
    report = again.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert report.committed_txid == 3
    assert rows_of(warehouse / "rows", "k", "v") == ROWS
    assert rows_of(warehouse / "counts", "k", "n") == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize("place", ["planning"])
def test_a_call_that_never_returns_ends_the_run_by_itself(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, place: str
) -> None:
    """A spout that never answers, or a commit turn that never ends, ends the run, since no second
    one may begin beside it.
    """
    obstacle = Obstacle(place)
    brief = {"message_timeout_secs": 6, "zookeeper_deadline_secs": 6}
    topology = build(warehouse.parent.name, obstacle, warehouse, **brief)
    running = topology.start(spark, zookeeper=zookeeper.hosts)
    try:
        told = thread_of(running)
    finally:
        obstacle.released.set()
    assert ("planning 2:0" if place == "planning" else "the commit turn of 2:0") in told
    assert rows_of(warehouse / "rows", "k", "v") == ROWS[:1]


@pytest.mark.parametrize("place", ["emitting", "transform"])
def test_a_dead_attempt_that_wakes_up_beside_its_replay_changes_nothing(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, place: str
) -> None:
    """An attempt that hangs in user code is replayed beside it, and if it wakes up, it publishes
    nothing and leaves nothing behind.
    """
    obstacle = Obstacle(place)
    released: list[str] = []

    def staged(attempt: TransactionAttempt) -> None:
        if str(attempt) == "2:1":  # the dead attempt goes on beside its replay
            released.append(str(attempt))
            obstacle.released.set()

    topology = build(warehouse.parent.name, obstacle, warehouse, message_timeout_secs=6)
    with observing(Points(after_staging=staged)):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert released == ["2:1"]
    assert attempts(report) == ["1:0", "2:1", "3:0"]
    assert "BatchTimeoutError: no progress within 6 s; thread txn-processing_" in report.failures[0]
    assert "in meet (" in report.failures[0]
    assert rows_of(warehouse / "rows", "k", "v") == ROWS
    assert rows_of(warehouse / "counts", "k", "n") == [("a", 1), ("b", 1), ("c", 1)]
    assert staged_files(warehouse / "rows", TransactionAttempt(2, 0)) == []


PROGRAM = """
import sys
from pathlib import Path
from threading import Event
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig

def hang(rows, attempt):
    if attempt.txid == 2 and Path("hang").exists():
        Path("hangs").touch()
        Event().wait()
    return rows

topology = Topology("hanging", TopologyConfig(stop_grace_secs=2, max_spout_pending=1))
spout = MemoryTransactionalSpout([[("a", 1)], [("b", 2)], [("c", 3)]], "k string, v bigint")
topology.stream("s", spout).transform(hang).partition_persist(AppendTable("rows", "transactional"))

if __name__ == "__main__":
    from txn.session import delta_session
    topology.run(delta_session("hanging", master="local[2]"), zookeeper=sys.argv[1])
"""


@pytest.mark.parametrize("how", ["txn run"])
def test_a_process_that_hangs_ends_on_sigterm_with_a_code_of_its_own(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, how: str
) -> None:
    """A process whose code never returns ends on SIGTERM within the grace and names the thread:
    `txn run` with exit code 4, and a standby takes over.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "hang").touch()
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    txn = (sys.executable, "-m", "txn", "run", "program.py:topology", "--zookeeper", hosts)
    command = txn if how == "txn run" else (sys.executable, "program.py", hosts)
    with (tmp_path / "err").open("wb") as err, (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    standby = None
    try:
        wait_for((tmp_path / "hangs").exists, what=(tmp_path / "err").read_text)
        if how == "txn run":
            standby = subprocess.Popen(
                (*txn, "--standby", "--until", "caught_up", "--master", "local[2]"),
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert standby.stdout is not None
            assert any("standing by" in line for line in standby.stdout)
            (tmp_path / "hang").unlink()
        os.kill(process.pid, signal.SIGTERM)
        code = process.wait(DEADLINE_SECS)
        told = (tmp_path / "err").read_text()
        assert "did not end within 2 s: thread txn-processing_" in told
        assert "processing 2:0" in told
        assert "in hang (" in told
        if standby is not None:
            assert (code, standby.wait(DEADLINE_SECS)) == (4, 0)
            assert rows_of(tmp_path / "rows", "k", "v") == ROWS
        else:
            assert code == 1
    finally:
        for one in filter(None, (process, standby)):
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
            if one.stdout is not None:
                one.stdout.close()
