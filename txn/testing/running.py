"""Run a topology without ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txn.testing.progress import MemoryNodes, MemoryProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.engine.reporting.report import RunReport
    from txn.observers import Observer
    from txn.topology import Topology, Until

__all__ = ["run_in_memory"]


def run_in_memory(
    topology: Topology,
    spark: SparkSession,
    nodes: MemoryNodes | None = None,
    *,
    until: Until = "caught_up",
    observers: Sequence[Observer] = (),
) -> RunReport:
    """Run a topology without ZooKeeper: real Spark, spouts and tables, progress in memory.

    Args:
        nodes: the nodes of an earlier run; the next run with the same object goes on from there.
        until: as for `Topology.run`; so are `observers`.

    Raises:
        TxnError: the error that ended the run.
    """
    store = MemoryProgress(topology.name, nodes)
    running = topology.start(spark, until=until, store=store, observers=observers)
    return running.await_termination()
