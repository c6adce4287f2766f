"""The doubles that the package ships, held against the real things where there are any."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.one_by_one import OneByOne
from tests.zookeeper.progress_store import start
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.engine.base.killpoints import observe
from txn.errors import BatchError, FencedError
from txn.protocol.records import EpochRecord
from txn.testing import (
    ManualClock,
    MemoryNodes,
    MemoryProgress,
    RecordingCommitter,
    run_in_memory,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, v int"


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
        made = Topology("memory", TopologyConfig(max_group_commit=1))
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
            nodes.epochs["replaced"] = EpochRecord(epoch=2)
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

    stop = observe(OneByOne(kill))
    try:
        with pytest.raises(BatchError, match="power cut"):
            run_in_memory(topology(), spark, nodes)
    finally:
        stop()
    assert [len(table.published()) for table in tables] == [1, 0]
    run_in_memory(topology(), spark, nodes)
    assert rows() == [[("y", 2), ("z", 3)]] * 2
