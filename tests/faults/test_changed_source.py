"""A topology that reads a table of another topology, while that one's program changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryTransactionalSpout
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.errors import SourceChangedError, TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

BATCHES: list[list[Any]] = [[("a", 1), ("b", 2)], [("c", 3)], [("d", 4)], [("e", 5)], [("f", 6)]]


class World:
    """Two topologies: "writer" fills a table, "reader" reads it into another one."""

    def __init__(self, spark: SparkSession, hosts: str, folder: Path) -> None:
        self.spark = spark
        self.hosts = f"{hosts}/{folder.parent.name}"
        self.source, self.copy = folder / "rows", folder / "copy"

    def write(self, txids: int, select: tuple[str, ...], **more: Any) -> None:
        """Run a program that writes these columns, up to a txid."""
        config = TopologyConfig(max_group_commit=1, **more.pop("config", {}))
        topology = Topology("writer", config)
        spout = MemoryTransactionalSpout(BATCHES[:txids], "k string, v int")
        rows = topology.stream("s", spout).transform(lambda df: df.selectExpr(*select))
        rows.partition_persist(AppendTable(self.source, "transactional", **more))
        topology.run(self.spark, zookeeper=self.hosts, until="caught_up")

    def read(self, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
        """Run the reader; what it has copied, without the txid."""
        topology = Topology("reader")
        stream = topology.stream("rows", DeltaSpout(self.source, **options))
        kept = stream.transform(lambda df: df.drop("txid"))
        kept.partition_persist(AppendTable(self.copy, "transactional"))
        topology.run(self.spark, zookeeper=self.hosts, until="caught_up")
        return rows_of(self.copy, *columns)


@pytest.fixture
def world(spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path) -> World:
    """A new one."""
    return World(spark, zookeeper.hosts, warehouse)


def test_a_reader_of_a_changed_table_gets_every_row_once(world: World) -> None:
    """A new column, a rebuild and a dropped column of a table are no rows for the topology that
    reads it; a column that it needs and that is gone stops it by name.
    """
    world.write(1, ("k", "v"))
    assert world.read("k", "v") == [("a", 1), ("b", 2)]
    world.write(2, ("k", "v", "v * 2 AS w"))
    with pytest.raises(SourceChangedError, match="'w' is integer, not absent.*'ignore'; .*'add'"):
        world.read("k", "v")
    assert world.read("k", "v", new_columns="ignore") == [("a", 1), ("b", 2), ("c", 3)]
    source = str(world.source)
    renamed = {"columns_were": {"twice": "w"}, "config": {"rebuilt_tables": (source,)}}
    world.write(3, ("k", "v", "v * 2 AS twice"), **renamed)
    four = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert world.read("k", "v", new_columns="ignore") == four
    world.write(4, ("k", "v"), config={"dropped_columns": (f"{source}:twice",)})
    assert world.read("k", "v", new_columns="ignore") == [*four, ("e", 5)]
    assert [row[:2] for row in rows_of(world.source, "k", "v")] == [*four, ("e", 5)]
    world.write(5, ("v",), config={"dropped_columns": (f"{source}:k",)})
    with pytest.raises(SourceChangedError, match="'k' is absent, not string"):
        world.read("k", "v", new_columns="ignore")


def test_a_reader_takes_new_columns_when_it_starts(world: World) -> None:
    """With new_columns="add" a column that the table got later is read from the next start on, and
    is NULL before; a table that the reader fills gets it, too.
    """
    world.write(1, ("k", "v"))
    assert world.read("k", "v", new_columns="add") == [("a", 1), ("b", 2)]
    world.write(2, ("k", "v", "v * 2 AS w"))
    expected = [("a", 1, None), ("b", 2, None), ("c", 3, 6)]
    assert world.read("k", "v", "w", new_columns="add") == expected
    world.write(3, ("k", "v", "v * 2 AS w"))
    assert world.read("k", "v", "w", new_columns="add") == [*expected, ("d", 4, 8)]


def test_what_becomes_of_new_columns_is_one_of_three() -> None:
    """Another word is refused by name."""
    with pytest.raises(TopologyError, match="new_columns='keep'. Give 'fail', 'ignore' or 'add'"):
        DeltaSpout("t", new_columns="keep")  # type: ignore[arg-type]
