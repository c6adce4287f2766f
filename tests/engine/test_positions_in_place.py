"""A spout that moves its positions in place, in the objects that it was handed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.interfaces import PartitionedSpout, SpoutKind
from txn.testing import MemoryNodes, MemoryProgress, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS, BATCHES = 10, 12
PARTITIONS = {"a": 0, "b": 1_000}
"""partition -> its first number."""


class MovesInPlace(PartitionedSpout):
    """Numbers, whose positions it changes while it plans, and again while it emits."""

    def __init__(self, kind: SpoutKind) -> None:
        self.kind = kind

    def open(self, spark: SparkSession, previous: Any) -> StructType:
        """The columns are known."""
        return spark.range(0).schema

    def get_partitions(self) -> list[str]:
        """Two."""
        return [*PARTITIONS]

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> Any | None:
        """The next numbers: `previous` itself, moved on."""
        if attempt.txid > BATCHES:
            return None
        position = {"start": 0, "end": 0} if previous is None else previous
        position["start"] = position["end"]
        position["end"] += ROWS
        return position

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """The numbers, counted down in the position while they are taken."""
        frames = []
        for partition, position in positions.items():
            first = PARTITIONS[partition]
            start, end = first + position["start"], first + position["end"]
            frames.append(spark.range(start, end, 1, 1))
            position["start"] = position["end"] = -1
        return reduce(lambda one, other: one.union(other), frames)


@pytest.mark.parametrize("kind", [SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE])
def test_positions_that_a_spout_moves_in_place_are_its_own(
    spark: SparkSession, tmp_path: Path, kind: SpoutKind
) -> None:
    """What was planned is what is read, and what COMMITTED says: each row once."""
    topology, nodes = Topology("moves", TopologyConfig()), MemoryNodes()
    table = AppendTable(tmp_path / "table", "opaque")
    topology.stream("rows", MovesInPlace(kind)).partition_persist(table)
    run_in_memory(topology, spark, nodes)
    found = sorted(row[0] for row in table.read(spark).collect())
    expected = [first + n for first in PARTITIONS.values() for n in range(ROWS * BATCHES)]
    assert found == expected
    last = {"start": ROWS * (BATCHES - 1), "end": ROWS * BATCHES}
    committed = MemoryProgress("moves", nodes).peek().committed
    assert committed.spouts["rows"]["read"] == {"a": last, "b": last}
