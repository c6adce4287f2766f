"""Storage of a source and of a table that fails for a moment, in the middle of a run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from spouts.memory import MemoryTransactionalSpout
from tests.faults.harness import wait_for
from tests.faults.support import Points, observing, rows_of
from txn import Topology, TopologyConfig, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper


class Mount:
    """A folder that can be away: every look into it fails then, whoever looks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = folder.with_name(f"{folder.name}-kept")
        self.went = False

    def go(self) -> None:
        """Take it away, once."""
        if not self.went:
            self._folder.rename(self._kept)
            self._folder.symlink_to(self._folder)  # ELOOP for root, too
            self.went = True

    def come_back(self) -> None:
        """As if nothing had been."""
        self._folder.unlink()
        self._kept.rename(self._folder)


@pytest.mark.parametrize(
    ("where", "point"),
    [
        ("source", "after_plan"),
        ("rows/_delta_log", "before_publish"),
        ("counts/_delta_log", "before_publish"),
    ],
)
def test_a_batch_waits_for_storage_that_fails_for_a_moment(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    where: str,
    point: str,
) -> None:
    """While storage fails, the batch waits visibly and uses up no attempts, and then continues
    exactly once.
    """
    source = warehouse / "source"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.csv").write_text(f"{'abc'[number]},{number}\n")
    mount = Mount(warehouse / where)
    config = TopologyConfig(max_spout_pending=1, max_batch_attempts=1, retry_backoff_ms=1)
    topology = Topology(warehouse.parent.name, config)
    files = FileSpout(
        f"{source}/*.csv", format="csv", schema="k string, v bigint", files_per_batch=1
    )
    stream = topology.stream("s", files)
    stream.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    counts = StateTable(warehouse / "counts", "transactional", buckets=2)
    stream.group_by("k").persistent_aggregate(counts, n=Count())

    def strike(attempt: TransactionAttempt) -> None:
        if attempt.txid == 2:
            mount.go()

    with observing(Points(**{point: strike})):
        running = topology.start(spark, zookeeper=zookeeper.hosts, until="caught_up")
        wait_for(
            lambda: any(batch.blocked for batch in running.status().in_flight),
            what=lambda: str(running.status()),
            gone=lambda: not running.is_active,
        )
        blocked = next(b for b in running.status().in_flight if b.blocked)
        mount.come_back()
        report = running.await_termination(120)
    assert (blocked.txid, blocked.failures) == (2, 0)
    assert "Storage" in str(blocked.blocked)
    assert (report.ended, report.committed_txid, report.replays) == ("caught_up", 3, 0)
    assert rows_of(warehouse / "rows", "k", "v", "txid") == [("a", 0, 1), ("b", 1, 2), ("c", 2, 3)]
    assert rows_of(warehouse / "counts", "k", "n") == [("a", 1), ("b", 1), ("c", 1)]


def test_a_table_is_read_when_its_storage_is_back(spark: SparkSession, warehouse: Path) -> None:
    """Whoever reads a table, or asks what it was at a txid, waits for storage as a batch does."""
    topology = Topology("t", TopologyConfig(max_group_commit=1))
    table = StateTable(str(warehouse / "counts"), semantics="transactional", layout="upsert")
    batches = [[("a",), ("b",)], [("a",)]]
    stream = topology.stream("s", MemoryTransactionalSpout(batches, "k string"))
    stream.group_by("k").persistent_aggregate(table, n=Count())
    topology.run(spark, zookeeper=f"embedded:{warehouse}/zookeeper", until="caught_up")

    for txid, expected in ((None, [("a", 2), ("b", 1)]), (1, [("a", 1), ("b", 1)])):
        mount = Mount(warehouse / "counts")
        mount.go()
        back = threading.Timer(0.5, mount.come_back)
        back.start()
        assert sorted(map(tuple, table.read(spark, txid=txid).collect())) == expected
        back.join()
