"""OPTIMIZE and VACUUM by schedule of a running leader: real processes beside real batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from tests.delta.owned_tables import WEEK, put_file
from tests.faults.harness import wait_for
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

BATCHES = [[(f"k{n % 5}", n)] for n in range(40)]
ALWAYS = 1e-9
SECS = 120.0


def test_a_leader_looks_after_its_tables_beside_its_batches(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """OPTIMIZE and VACUUM follow each other while batches are published, groups among them: every
    row stays counted once, and what dead processes left goes.
    """
    every = {"optimize_every_hours": ALWAYS, "vacuum_every_hours": ALWAYS}
    topology = Topology("kept", TopologyConfig(batch_emit_interval_ms=20, **every))
    stream = topology.stream(
        "s", MemoryTransactionalSpout(BATCHES, "k string, v bigint", cycle=True)
    )
    rows = warehouse / "rows"
    stream.partition_persist(AppendTable(rows))
    for name, layout in (("totals", "upsert"), ("log", "log")):
        state = StateTable(warehouse / name, layout=layout)
        stream.group_by("k").persistent_aggregate(state, n=Count())
    running = topology.start(spark, zookeeper=f"{zookeeper.hosts}/{warehouse.parent.name}")
    try:
        wait_for(lambda: optimized(rows) > 1, what="two OPTIMIZE", seconds=SECS)
        left = [
            put_file(warehouse / name, "data/compaction-ab/part-0.parquet", 2 * WEEK)
            for name in ("rows", "totals", "log")
        ]
        gone = [file.exists for file in left]
        wait_for(lambda: not any(there() for there in gone), what="VACUUM", seconds=SECS)
    finally:
        committed = running.stop().committed_txid
    records = [BATCHES[txid % len(BATCHES)][0] for txid in range(committed)]
    assert rows_of(rows, "k", "v") == sorted(records)
    counts = sorted(Counter(key for key, _ in records).items())
    for name in ("totals", "log"):
        found = StateTable(warehouse / name).read(spark).select("k", "n").collect()
        assert sorted(map(tuple, found)) == counts


def optimized(table: Path) -> int:
    """How often OPTIMIZE has rewritten files of a table."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    history = DeltaTable(str(table)).history()
    return sum(entry["operation"] == "OPTIMIZE" for entry in history)
