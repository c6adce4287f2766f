"""What an attempt leaves in memory when it is over."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from txn import Topology, TransactionAttempt
from txn.testing import run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Watched(MemoryTransactionalSpout):
    """A spout that knows which of its DataFrames are still alive."""

    emitted: list[weakref.ref[DataFrame]]

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of a batch."""
        frame = super().emit_batch(spark, attempt, metadata)
        self.emitted.append(weakref.ref(frame))
        return frame


def test_a_finished_attempt_holds_no_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    """Each is let go with its attempt, without Python's collector."""
    spout = Watched([[("a",)], [("b",), ("a",)], [("c",)]], "k string")
    spout.emitted = []
    topology = Topology("released")
    stream = topology.stream("s", spout)
    stream.partition_persist(AppendTable(tmp_path / "rows"))
    totals = stream.group_by("k").persistent_aggregate(StateTable(tmp_path / "totals"), n=Count())
    totals.new_values().partition_persist(AppendTable(tmp_path / "changes"))
    gc.disable()
    try:
        report = run_in_memory(topology, spark)
        alive = [frame for frame in spout.emitted if frame() is not None]
    finally:
        gc.enable()
    assert (report.committed_txid, len(spout.emitted) >= 3, alive) == (3, True, [])
