"""A source that is away: its batch waits, tells so, is not counted, and goes on by itself."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from tests.faults.support import Points, attempts, observing, rows_of
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.errors import SourceUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

BATCHES = [[("a", 1)], [("b", 2)], [("c", 3)]]
PATIENCE_SECS = 60.0


class AwaySpout(MemoryTransactionalSpout):
    """Three batches, of which the first cannot be read, or planned, while the source is away."""

    def __init__(self, phase: str) -> None:
        super().__init__(BATCHES, "k string, v bigint")
        self._phase = phase
        self.back = Event()
        self.looks = 0
        self.looked_often = Event()

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: MemoryPosition | None
    ) -> MemoryPosition | None:
        """The batch after `previous`."""
        if self._phase == "planning" and previous is None:
            self._look()
        return super().initialize_transaction(attempt, previous)

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of the batch."""
        if self._phase == "processing" and metadata.index == 0:
            self._look()
        return super().emit_batch(spark, attempt, metadata)

    def _look(self) -> None:
        if self.back.is_set():
            return
        self.looks += 1
        if self.looks > 3:
            self.looked_often.set()
        raise SourceUnavailableError("partition p1 is away")


def build(spout: AwaySpout, warehouse: Path) -> Topology:
    """A topology that would give a batch up at its second failure."""
    config = TopologyConfig(max_batch_attempts=2, retry_backoff_ms=1, on_exhausted="quarantine")
    topology = Topology(warehouse.parent.name, config)
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows", "transactional"))
    return topology


@pytest.mark.parametrize("phase", ["planning", "processing"])
def test_a_batch_waits_for_its_source_and_then_goes_on(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, phase: str
) -> None:
    """An unavailable source uses up no attempts, and the status shows what the batch is waiting
    for.
    """
    spout = AwaySpout(phase)
    later = Event()

    def staged(attempt: TransactionAttempt) -> None:
        if attempt.txid == 3:
            later.set()

    with observing(Points(after_staging=staged)):
        running = build(spout, warehouse).start(spark, zookeeper=zookeeper.hosts, until="caught_up")
        assert spout.looked_often.wait(PATIENCE_SECS)
        if phase == "processing":
            assert later.wait(PATIENCE_SECS), "Later txids are processed meanwhile."
        status = running.status()
        spout.back.set()
        report = running.await_termination(PATIENCE_SECS)
    held = status.in_flight[0]
    assert (held.txid, held.failures, status.committed_txid) == (1, 0, 0)
    assert held.blocked == "SourceUnavailableError: partition p1 is away"
    assert held.blocked_since is not None
    assert status.held_up_by == "away"
    assert (report.ended, report.replays, list(report.failures)) == ("caught_up", 0, [])
    assert report.waits == spout.looks
    # A question to a source that is away is no try.
    assert attempts(report)[0] == ("1:0" if phase == "planning" else f"1:{spout.looks}")
    assert rows_of(warehouse / "rows", "k", "v", "txid") == [("a", 1, 1), ("b", 2, 2), ("c", 3, 3)]


def test_a_blocked_topology_stops_cleanly(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A stop does not wait for the source; the next run takes the batch up again."""
    spout = AwaySpout("processing")
    running = build(spout, warehouse).start(spark, zookeeper=zookeeper.hosts)
    assert spout.looked_often.wait(PATIENCE_SECS)
    assert running.stop(PATIENCE_SECS).ended == "stopped"
    spout.back.set()
    again: Any = build(spout, warehouse).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert again.committed_txid == 3
    assert rows_of(warehouse / "rows", "v") == [(1,), (2,), (3,)]
