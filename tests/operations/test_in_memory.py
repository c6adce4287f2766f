"""Everything that people do with a topology, without ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.operations import recover
from txn.operations.quarantine import quarantined_in
from txn.operations.status import status_of
from txn.operations.transfer import export_progress, import_progress
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = TopologyConfig(on_exhausted="quarantine", max_batch_attempts=1, max_group_commit=1)


def test_a_topology_is_operated_in_memory(spark: SparkSession, warehouse: Path) -> None:
    """A quarantined txid is listed, requested and replayed once; progress moves to other nodes by a
    file, and to empty ones from the tables, and the next run goes on from there.
    """

    def topology(*batches: list[Any]) -> Topology:
        made = Topology("orders", CONFIG)
        stream = made.stream("s", MemoryTransactionalSpout(list(batches), "k string, v int"))
        stream.partition_persist(AppendTable(warehouse / "rows"))
        return made

    def read() -> list[tuple[Any, ...]]:
        return rows_of(warehouse / "rows", "v", "txid")

    nodes = MemoryNodes()
    run_in_memory(topology([("a", 1)], [ValueError("poison"), ("b", 2)], [("c", 3)]), spark, nodes)
    (aside,) = quarantined_in(nodes.status("orders"))
    assert ("poison" in aside.record.error, aside.record.txid, aside.replay) == (True, 2, None)
    assert nodes.request_replays("orders", [2]) == [2]
    assert [entry.replay for entry in quarantined_in(nodes.status("orders"))] == ["requested"]

    mended = topology([("a", 1)], [("b", 2)], [("c", 3)])
    run_in_memory(mended, spark, nodes)
    assert read() == [(1, 1), (2, 4), (3, 3)]
    status = status_of(nodes.status("orders")).to_json()
    assert (status["committed_txid"], status["epoch"], status["quarantined"]) == (4, 2, 0)

    moved = MemoryNodes()
    assert import_progress(moved, export_progress(nodes, "orders")) == 3
    run_in_memory(topology([("a", 1)], [("b", 2)], [("c", 3)], [("d", 4)]), spark, moved)
    assert read() == [(1, 1), (2, 4), (3, 3), (4, 5)]

    wiped = MemoryNodes()
    recovered = recover.read_tables(mended)
    assert recover.is_needed(wiped, mended, recovered)
    assert recover.write(wiped, mended, recovered) == 5
    assert not recover.is_needed(wiped, mended, recovered)
    last = topology([("a", 1)], [("b", 2)], [("c", 3)], [("d", 4)], [("e", 5)])
    run_in_memory(last, spark, wiped)
    assert read() == [(1, 1), (2, 4), (3, 3), (4, 5), (5, 6)]
