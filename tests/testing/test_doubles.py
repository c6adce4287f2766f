"""The doubles that the package ships, held against the real things where there are any."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.zookeeper.progress_store import CONFIG, committed, start
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.embedded import EmbeddedZooKeeper
from txn.engine.killpoints import observe
from txn.errors import BatchError, FencedError, LeaderExistsError
from txn.protocol.records import ColumnsRecord, QuarantineRecord
from txn.testing import (
    ManualClock,
    MemoryNodes,
    MemoryProgress,
    RecordingCommitter,
    run_in_memory,
)
from txn.zookeeper import ZooKeeperProgress
from txn.zookeeper.replay_requests import request_replays

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, v int"
Store = MemoryProgress | ZooKeeperProgress


def test_importing_the_doubles_is_light() -> None:
    """`import txn.testing` loads neither pyspark nor kazoo nor pytest."""
    code = (
        "import sys, txn.testing\n"
        "print([m for m in ('pyspark', 'kazoo', 'pytest') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("[]\n", "")


def test_a_manual_clock_goes_when_told_to() -> None:
    """Time passes by `advance` and `sleep`, and never backwards."""
    clock = ManualClock(10.0)
    assert (clock(), clock.advance(2.5), clock()) == (10.0, 12.5, 12.5)
    clock.sleep(1.0)
    assert clock() == 13.5
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


# --- progress ----------------------------------------------------------------------------------


def test_memory_progress_has_the_methods_of_the_real_one() -> None:
    """Whatever a run may call on `ZooKeeperProgress` is there, with the same parameters."""

    def methods(store: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in inspect.getmembers(store, inspect.isfunction)
            if not name.startswith("_")
        }

    real, double = methods(ZooKeeperProgress), methods(MemoryProgress)
    del real["rebuild"]  # `txn recover`, not a run
    assert {name: double.get(name) for name in real} == real


def life(connect: Callable[[], Store], request: Callable[[list[int]], object]) -> list[Any]:
    """What a store answers over three leaders, each of which knows only what is durable."""
    answers: list[Any] = []

    def note(call: Callable[[], Any]) -> None:
        try:
            answers.append(call())
        except (BatchError, FencedError, LeaderExistsError, ValueError) as error:
            answers.append(type(error).__name__)

    first, rival = connect(), connect()
    note(first.lead)
    note(first.load)
    note(rival.lead)  # refused: the first one leads
    rival.close()
    note(lambda: first.persist_start(start(1, s={"at": 1})))
    note(lambda: first.persist_start(start(1, attempt=1, s={"at": 2})))
    note(lambda: first.persist_start(start(2, s=None)))
    note(lambda: first.persist_start(start(3, s={"at": object()})))  # no JSON
    note(lambda: first.persist_start(start(3, s=float("nan"))))  # no JSON either
    note(lambda: first.persist_start(start(3, epoch=2)))  # another leader's
    note(lambda: first.persist_committed(committed(1, s={"at": 2})))
    note(lambda: first.persist_columns(ColumnsRecord(stream="s", columns={"fields": 1})))
    note(lambda: first.persist_columns(ColumnsRecord(stream="s", columns={"fields": object()})))
    first.close()

    second = connect()
    note(lambda: (second.lead(), second.leading, second.epoch))
    note(second.load)
    gone = QuarantineRecord(txid=2, attempt=5, spouts={"s": {"at": 3}}, error="poison")
    note(lambda: second.persist_committed(committed(2, epoch=2), gone))
    note(lambda: second.requested_replay([]))
    request([2])
    note(lambda: second.requested_replay([]))
    note(lambda: second.requested_replay([2]))
    note(lambda: second.persist_start(start(3, epoch=2)))
    note(lambda: second.persist_committed(committed(3, epoch=2), None, 2))
    note(lambda: second.persist_columns(ColumnsRecord(stream="s", columns={"fields": 2})))
    note(lambda: second.requested_replay([]))
    second.close()

    third = connect()
    note(lambda: third.lead(at_least=9))
    note(third.load)
    note(lambda: third.requested_replay([]))
    third.close()
    return answers


def test_memory_progress_answers_as_zookeeper_does(zookeeper: EmbeddedZooKeeper) -> None:
    """The same calls over three leaders give the same answers and errors as on a real server."""
    hosts, nodes = zookeeper.hosts, MemoryNodes()

    def ask(txids: list[int]) -> None:
        MemoryProgress("life", nodes).request_replays(txids)

    real = life(
        lambda: ZooKeeperProgress(hosts, "life", CONFIG),
        lambda txids: request_replays(hosts, "life", CONFIG, txids),
    )
    assert real == life(lambda: MemoryProgress("life", nodes), ask)
    assert real[2:4] == ["LeaderExistsError", None]
    assert real[6:9] == ["BatchError", "BatchError", "ValueError"]


def test_a_leader_that_lost_its_session_is_fenced_by_the_next() -> None:
    """After another one has led, the old leader can neither write nor say that it leads."""
    old = MemoryProgress("fenced")
    old.lead()
    old.load()
    lost: list[str] = []
    old.on_lost = lambda: lost.append("told")
    old.lose_session()
    assert (lost, old.leading) == (["told"], False)
    old.assert_leading()  # nobody else led meanwhile: the session is taken up again
    assert old.leading

    old.lose_session()
    new = MemoryProgress("fenced", old.nodes)
    assert new.lead() == 2
    with pytest.raises(FencedError, match="epoch 2"):
        old.persist_start(start(1))
    with pytest.raises(FencedError, match="epoch 2"):
        old.assert_leading()
    assert new.load().batches == ()


def test_a_standby_waits_for_the_leader_to_close() -> None:
    """`lead(wait=True)` says who leads, and returns the next epoch once that one is gone."""
    leader = MemoryProgress("standby")
    leader.lead()
    told: list[Any] = []
    epochs: list[int] = []
    waiting = threading.Event()

    def wait() -> None:
        standby = MemoryProgress("standby", leader.nodes)
        epochs.append(
            standby.lead(wait=True, on_waiting=lambda who: (told.append(who), waiting.set()))
        )

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(10)
    leader.close()
    thread.join(10)
    assert ([who.epoch for who in told], epochs) == ([1], [2])


def test_a_start_that_leaves_a_gap_is_refused() -> None:
    """Starts are contiguous; a coordinator that forgets one is found out."""
    store = MemoryProgress("gap")
    store.lead()
    with pytest.raises(ValueError, match="leaves a gap"):
        store.persist_start(start(2))


# --- committer, and a run over both ------------------------------------------------------------


def test_the_interval_between_starts_is_kept_behind_an_idle_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`batch_emit_interval_ms` holds too when the source was idle and the last commit was told."""
    interval = 0.4
    batches: list[Any] = [[("a", 1)]]

    class Growing(MemoryTransactionalSpout):
        def success(self, txid: int) -> None:
            if txid <= 2:
                batches.extend([[("b", txid)]] * 2)

    made = Topology("interval", TopologyConfig(batch_emit_interval_ms=int(interval * 1000)))
    table = RecordingCommitter(tmp_path / "table", "transactional")
    made.stream("s", Growing(batches, SCHEMA)).partition_persist(table)
    report = run_in_memory(made, spark)
    starts = [batch.times["started"] for batch in report.batches]
    assert len(starts) == 5
    assert min(after - before for before, after in pairwise(starts)) > 0.95 * interval


def test_a_topology_runs_without_zookeeper_and_delta(spark: SparkSession, tmp_path: Path) -> None:
    """A run in memory replays a failed batch, publishes in order, and goes on where it stood."""
    batches: list[Any] = [[("a", 1)], [("b", 2), FailedException("once")]]
    table = RecordingCommitter(tmp_path / "table", "transactional")

    def topology() -> Topology:
        made = Topology("memory")
        stream = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
        stream.transform(lambda df: df.where("v > 0")).partition_persist(table)
        return made

    nodes = MemoryNodes()
    report = run_in_memory(topology(), spark, nodes)
    assert (report.ended, report.replays) == ("caught_up", 1)
    publications = [call for call in table.calls if call.startswith("publish")]
    assert publications == ["publish 1:0", "publish 2:1"]

    batches.append([("c", 3)])
    run_in_memory(topology(), spark, nodes)
    assert sorted(tuple(row) for row in table.read(spark).collect()) == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
    ]
    assert [tuple(row) for row in table.read(spark, txid=3).collect()] == [("c", 3)]
    kept = json.loads(nodes.data["/txn/memory/committed"])
    assert (kept["txid"], kept["epoch"], kept["spouts"]) == (3, 2, {"s": {"index": 2}})


def test_what_fails_after_a_takeover_is_told_as_one(spark: SparkSession, tmp_path: Path) -> None:
    """A successor deletes what its predecessor is at work on: that is no fault of the program."""
    nodes = MemoryNodes()

    def replaced(rows: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        if threading.current_thread().name.startswith("txn-processing"):
            nodes.epoch += 1
            raise ValueError("a folder is gone")
        return rows

    topology = Topology("replaced")
    stream = topology.stream("s", MemoryTransactionalSpout([[("x", 1)]], SCHEMA))
    stream.transform(replaced).partition_persist(RecordingCommitter(tmp_path / "t"))
    with pytest.raises(FencedError, match="epoch 2"):
        run_in_memory(topology, spark, nodes)


def test_an_opaque_replay_in_memory_leaves_no_row_of_the_dead_attempt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A run that ends when one table of two holds a txid is replayed with other rows, once."""
    nodes = MemoryNodes()
    tables = [RecordingCommitter(tmp_path / name) for name in "ab"]

    def topology() -> Topology:
        script = {(1, 0): [("x", 1)], (1, 1): [("y", 2)], (2, 0): [("z", 3)]}
        made = Topology("opaque", TopologyConfig(max_group_commit=1))
        stream = made.stream("s", MemoryOpaqueSpout(script, SCHEMA))
        for table in tables:
            stream.partition_persist(table)
        return made

    def rows() -> list[list[Any]]:
        return [sorted(tuple(row) for row in table.read(spark).collect()) for table in tables]

    def kill(point: str, attempt: object) -> None:
        if (point, str(attempt)) == ("between-publications", "1:0"):
            raise RuntimeError("power cut")

    stop = observe(kill)
    try:
        with pytest.raises(BatchError, match="power cut"):
            run_in_memory(topology(), spark, nodes)
    finally:
        stop()
    assert [len(table.published()) for table in tables] == [1, 0]
    run_in_memory(topology(), spark, nodes)
    assert rows() == [[("y", 2), ("z", 3)]] * 2
