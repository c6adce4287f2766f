"""`verify="rows"`: counts into and out of a staging job, over real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.engine.base.row_counts import COUNT_COLUMN, Conservation
from txn.errors import FailedException, SourceChangedError
from txn.interfaces import Staged, StagedFile

BATCHES = [[("a", 1), ("b", 2), ("a", 3)], [], [("b", 4)]]


def grouped(rows: DataFrame) -> DataFrame:
    """Rows by key with the count column, as a state table makes them."""
    return rows.groupBy("k").count().withColumnRenamed("count", COUNT_COLUMN)


def staged(rows: int) -> Staged:
    """A staging job that says it wrote so many rows."""
    return Staged(TransactionAttempt(1), (StagedFile("f", size=1, rows=rows),))


def counted(spark: SparkSession, partials: Any) -> Conservation:
    """Counts over three rows in two groups, once they were computed."""
    counts = Conservation()
    rows = spark.sql("SELECT * FROM VALUES ('a', 1), ('b', 2), ('a', 3) AS t(k, v)")
    counts.leaving(partials(grouped(counts.entering(rows)))).write.format("noop").mode(
        "overwrite"
    ).save()
    return counts


def test_counts_that_agree_pass(spark: SparkSession) -> None:
    """Three rows enter, two partials that stand for three leave, two rows are in the files.

    Trident row 15.
    """
    counts = counted(spark, lambda partials: partials)
    counts.check(staged(2), "t")
    assert counts._entered.get == {"rows": 3}
    assert counts._left.get == {"rows": 3, "partials": 2}


def test_a_lost_group_fails_the_batch(spark: SparkSession) -> None:
    """A partial that is dropped after the aggregation takes its rows with it."""
    counts = counted(spark, lambda partials: partials.where("k = 'a'"))
    with pytest.raises(FailedException, match="3 entered, 2 left as 1 partials"):
        counts.check(staged(1), "t")


def test_rows_that_reach_nothing_are_conserved(spark: SparkSession) -> None:
    """Spark leaves out the rows of a join without any result, some releases their counts, too."""
    counts = Conservation()
    rows = counts.entering(spark.sql("SELECT * FROM VALUES ('a', 1), ('b', 2) AS t(k, v)"))
    nothing = rows.join(rows.select("k"), "k", "left_anti")
    counts.leaving(grouped(nothing)).write.format("noop").mode("overwrite").save()
    counts.check(staged(0), "t")
    with pytest.raises(FailedException, match="the staged files hold 1"):
        counts.check(staged(1), "t")


def test_a_file_with_fewer_rows_than_were_written_fails_the_batch(spark: SparkSession) -> None:
    """The footers of the staged files must hold every partial."""
    with pytest.raises(FailedException, match="the staged files hold 1"):
        counted(spark, lambda partials: partials).check(staged(1), "t")


def test_a_topology_that_verifies_rows_has_the_same_totals(
    spark: SparkSession, zookeeper: Any, warehouse: Path
) -> None:
    """Grouped, global and append tables, an empty batch among them, with rows counted."""
    topology = Topology("conserved", TopologyConfig(verify="rows"))
    stream = topology.stream("m", MemoryTransactionalSpout(BATCHES, "k string, v long"))
    stream.partition_persist(AppendTable(warehouse / "rows"))
    stream.group_by("k").persistent_aggregate(StateTable(warehouse / "keys"), total=Sum("v"))
    stream.persistent_aggregate(StateTable(warehouse / "all"), n=Count())
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    keys = StateTable(warehouse / "keys").read(spark).collect()
    assert report.replays == 0
    assert sorted((row.k, row.total) for row in keys) == [("a", 4), ("b", 6)]
    assert [row.n for row in StateTable(warehouse / "all").read(spark).collect()] == [4]
    assert AppendTable(warehouse / "rows").read(spark).count() == 4


class ShortSpout(MemoryTransactionalSpout):
    """Loses a row of its first batch, as a replay after a source's retention would."""

    def emit_batch(self, spark: SparkSession, attempt: Any, metadata: Any) -> DataFrame:
        """The planned rows but one."""
        rows = super().emit_batch(spark, attempt, metadata)
        return rows.where("v <> 3") if metadata.index == 0 else rows


def test_a_source_that_returns_other_rows_than_it_planned_stops_the_run(
    spark: SparkSession, zookeeper: Any, warehouse: Path
) -> None:
    """With verify="rows", a transactional source that returns fewer rows than START recorded stops
    the run.
    """
    topology = Topology("short", TopologyConfig(verify="rows"))
    stream = topology.stream("m", ShortSpout(BATCHES, "k string, v long"))
    stream.group_by("k").persistent_aggregate(StateTable(warehouse / "keys"), total=Sum("v"))
    stream.partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(SourceChangedError, match=r"'m' returned 2 rows for attempt 1:0, but 3"):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert AppendTable(warehouse / "rows").read(spark).count() == 0
