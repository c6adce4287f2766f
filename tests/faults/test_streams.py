"""Several streams in one topology, and spouts of the user's own, through the whole pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from tests.faults.support import Points, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import TopologyError
from txn.interfaces import PartitionedSpout, Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

SCHEMA = "k string, v bigint"


@pytest.fixture
def topology(warehouse: Path) -> Topology:
    """A topology with a name of this test's own."""
    return Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))


def spout(*batches: list[Any], schema: str = SCHEMA) -> MemoryTransactionalSpout:
    """The given batches."""
    return MemoryTransactionalSpout(batches, schema)


def totals(warehouse: Path) -> list[tuple[Any, ...]]:
    """The rows of the table "totals"."""
    return rows_of(warehouse / "totals", "k", "n", "total")


def fail_once(*which: str) -> Points:
    """An observer that fails the given attempts after their staging."""

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) in which:
            raise FailedException("once")

    return Points(after_staging=fail)


def test_merged_streams_count_into_one_table_also_when_one_of_them_is_idle(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """A stream that has nothing left to read adds nothing; the other goes on.

    Trident rows 17 and 20.
    """
    long = topology.stream("long", spout([("a", 1)], [("b", 2)], [("a", 3)]))
    short = topology.stream("short", spout([("a", 10), ("c", 30)]))
    merged = long.merge(short)
    merged.partition_persist(AppendTable(warehouse / "rows"))
    merged.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals"), n=Count(), total=Sum("v")
    )
    with observing(fail_once("1:0", "2:0")):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert report.committed_txid == 3
    assert totals(warehouse) == [("a", 3, 14), ("b", 1, 2), ("c", 1, 30)]
    assert rows_of(warehouse / "rows", "k", "v", "txid") == [
        ("a", 1, 1),
        ("a", 3, 3),
        ("a", 10, 1),
        ("b", 2, 2),
        ("c", 30, 1),
    ]


def test_joined_streams_meet_within_the_txid(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """Rows of the same batch are joined; a batch in which one side is idle has no match.

    Trident row 21.
    """
    left = topology.stream("left", spout([("a", 1), ("b", 2)], [("a", 3)], [("a", 5)]))
    names = [[("a", "one")], [("a", "two"), ("a", "three")]]
    right = topology.stream("right", spout(*names, schema="k string, name string"))
    left.join(right, on="k").partition_persist(AppendTable(warehouse / "joined"))
    with observing(fail_once("2:0")):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert report.committed_txid == 3
    assert rows_of(warehouse / "joined", "k", "v", "name", "txid") == [
        ("a", 1, "one", 1),
        ("a", 3, "three", 2),
        ("a", 3, "two", 2),
    ]


def test_one_stream_into_three_tables_is_computed_from_one_result(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """Tables fed by one transform agree, a global total and a per-batch aggregate included.

    Trident row 43a.
    """
    positive = topology.stream("s", spout([("a", 1), ("b", -2)], [("a", 3), ("c", 4)])).transform(
        lambda df: df.where("v > 0")
    )
    positive.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals"), n=Count(), total=Sum("v")
    )
    positive.persistent_aggregate(StateTable(warehouse / "all"), n=Count(), total=Sum("v"))
    positive.aggregate(total=Sum("v")).partition_persist(AppendTable(warehouse / "batches"))
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert totals(warehouse) == [("a", 2, 4), ("c", 1, 4)]
    assert rows_of(warehouse / "all", "n", "total") == [(3, 8)]
    assert rows_of(warehouse / "batches", "txid", "total") == [(1, 1), (2, 7)]


class Offset(BaseModel):
    """Where a batch of `CountingSpout` begins."""

    first: int


class CountingSpout(Spout[Offset]):
    """Only the two methods that a spout must have: the numbers 1 to 6, two per batch."""

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Offset

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Offset | None
    ) -> Offset | None:
        """The next two numbers."""
        first = previous.first + 2 if previous is not None else 1
        return Offset(first=first) if first <= 6 else None

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Offset
    ) -> DataFrame:
        """The numbers as `n`."""
        return spark.range(metadata.first, metadata.first + 2).withColumnRenamed("id", "n")


def test_a_spout_with_only_the_two_mandatory_methods_runs(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """Columns that are not known beforehand are learnt with the first batch.

    Trident row 63.
    """
    numbers = topology.stream("numbers", CountingSpout())
    numbers.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    numbers.persistent_aggregate(StateTable(warehouse / "sum"), total=Sum("n"))
    with observing(fail_once("1:0", "3:0")):
        topology.run(spark, zookeeper=zookeeper.hosts, until=2)
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert (report.first_txid, report.committed_txid) == (3, 3)
    expected = [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
    assert rows_of(warehouse / "rows", "n", "txid") == expected
    assert rows_of(warehouse / "sum", "total") == [(21,)]


def test_a_column_that_an_unknown_schema_turns_out_to_lack_is_refused_before_any_job(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """The message names stream and column, and nothing is committed."""
    topology.stream("numbers", CountingSpout()).persistent_aggregate(
        StateTable(warehouse / "sum"), total=Sum("m")
    )
    with pytest.raises(TopologyError, match=r"Stream 'numbers' has no column 'm'. It has: n"):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert not (warehouse / "sum").exists()


class ShelfSpout(PartitionedSpout):
    """Partitions of numbered books; a new shelf appears after the first batch."""

    kind = SpoutKind.TRANSACTIONAL
    SHELVES: Mapping[str, int] = {"left": 3, "right": 1, "late": 2}

    def get_partitions(self) -> list[str]:
        """The shelves that are there."""
        return ["left", "right"] if self.asked == 0 else list(self.SHELVES)

    def __init__(self) -> None:
        self.asked = 0

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> Any | None:
        """The next book of the shelf."""
        self.asked += partition == "right"
        book = 1 if previous is None else previous["book"] + 1
        return {"book": book} if book <= self.SHELVES[partition] else None

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """One row per planned book."""
        rows = [(shelf, position["book"]) for shelf, position in sorted(positions.items())]
        values = ", ".join(f"('{shelf}', {book})" for shelf, book in rows)
        return spark.sql(f"SELECT * FROM VALUES {values} AS books(shelf, book)")


def test_each_partition_of_a_partitioned_spout_goes_on_from_its_own_position(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """Partitions run dry and appear at different times; no book is lost or read twice."""
    books = topology.stream("books", ShelfSpout())
    books.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    with observing(fail_once("2:0")):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert rows_of(warehouse / "rows", "shelf", "book", "txid") == [
        ("late", 1, 2),
        ("late", 2, 3),
        ("left", 1, 1),
        ("left", 2, 2),
        ("left", 3, 3),
        ("right", 1, 1),
    ]
