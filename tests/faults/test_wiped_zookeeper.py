from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.errors import RecoveryRefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper


@pytest.mark.parametrize("runs", [1, 2])
def test_wiped_zookeeper_is_refused_and_recovery_is_named(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, runs: int
) -> None:
    """Tables that are ahead of ZooKeeper are refused, and the error says how to recover."""
    path = str(warehouse / "rows")

    def start(chroot: str) -> None:
        # Both txids in one version would be what a crash before the first COMMITTED leaves, too.
        topology = Topology("wiped", TopologyConfig(max_group_commit=1))
        spout = MemoryTransactionalSpout([[(1,)], [(2,)]], "n int")
        topology.stream("numbers", spout).partition_persist(AppendTable(path))
        hosts = f"{zookeeper.hosts}/{warehouse.parent.name}-{chroot}"
        topology.run(spark, zookeeper=hosts, until="caught_up")

    for _ in range(runs):
        start("before")
    before = DeltaTable(path).version()
    with pytest.raises(RecoveryRefusedError, match="`txn recover FILE.py:TOPOLOGY`"):
        start("wiped")
    assert DeltaTable(path).version() == before
    assert sorted(r["n"] for r in AppendTable(path).read(spark).collect()) == [1, 2]
