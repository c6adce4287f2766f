"""Capabilities of Trident that have no test elsewhere: see docs/trident.md for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from tests.faults.support import rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

SENTENCES = [[("the cow jumped",), ("over",)], [("the moon",)]]


@pytest.fixture
def topology(warehouse: Path) -> Topology:
    """A topology with a name of this test's own."""
    return Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))


def test_row_wise_functions_and_filters(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """Functions append columns, emit many or no rows; filters, maps and projections.

    Trident rows 2, 26, 27, 28 and 30.
    """

    def words(df: DataFrame) -> DataFrame:
        return df.selectExpr("sentence", "explode(split(sentence, ' ')) AS word")

    def lengths(df: DataFrame) -> DataFrame:
        return (
            df.selectExpr("*", "length(word) AS length")
            .where("length > 3")
            .select("word", "length")
        )

    stream = topology.stream("s", MemoryTransactionalSpout(SENTENCES, "sentence string"))
    stream.transform(words).transform(lengths).partition_persist(AppendTable(warehouse / "words"))
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert rows_of(warehouse / "words", "word", "length", "txid") == [
        ("jumped", 6, 1),
        ("moon", 4, 2),
        ("over", 4, 1),
    ]


def test_repartitioning_changes_no_result(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """Shuffled, partitioned by a column, or all in one task: the counts are the same.

    Trident row 32.
    """
    stream = topology.stream("s", MemoryTransactionalSpout(SENTENCES, "sentence string"))
    ways = {
        "shuffle": lambda df: df.repartition(5),
        "partition_by": lambda df: df.repartition("sentence"),
        "global": lambda df: df.coalesce(1),
    }
    for name, way in ways.items():
        stream.transform(way).group_by("sentence").persistent_aggregate(
            StateTable(warehouse / name), n=Count()
        )
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    expected = [("over", 1), ("the cow jumped", 1), ("the moon", 1)]
    assert [rows_of(warehouse / name, "sentence", "n") for name in ways] == [expected] * 3


class CommittingSpout(MemoryTransactionalSpout):
    """Remembers the commit turns that it hears of, and refuses the first one of txid 2."""

    def __init__(self) -> None:
        super().__init__(SENTENCES, "sentence string")
        self.turns: list[tuple[str, int]] = []

    def commit(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> None:
        """Called in the commit turn."""
        self.turns.append((str(attempt), metadata.index))
        if str(attempt) == "2:0":
            raise FailedException("not this one")


def test_a_spout_hears_of_the_commit_turn_and_may_fail_it(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """A committing spout is called in each turn, in order; its FailedException replays the batch.

    A group that fails so is dissolved: its txids are called again, each in a turn of its own.

    Storm lets that exception kill the worker (STORM-88). Trident rows 9 and 64.
    """
    spout = CommittingSpout()
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows"))
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    group = [("1:0", 0), ("2:0", 1)]
    alone = [("1:0", 0), ("2:0", 1), ("2:1", 1)]
    assert spout.turns in (alone, group + alone)
    assert report.replays == 1
    assert rows_of(warehouse / "rows", "txid") == [(1,), (1,), (2,)]
