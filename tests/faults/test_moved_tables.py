"""Tables that were moved, exchanged, copied or left out between two runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from tests.faults.support import CrashedError, crash_at, observing, rows_of
from txn import Topology, TopologyConfig
from txn.errors import RecoveryRefusedError, TableRefusedError
from txn.testing import MemoryNodes, MemoryProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("a", "b")


@dataclass
class World:
    """A topology of two streams, each with a table of the same columns."""

    spark: SparkSession
    folder: Path
    nodes: MemoryNodes = field(default_factory=MemoryNodes)

    def topology(self, paths: Mapping[str, str], count: int, **config: Any) -> Topology:
        """Stream "a" has the records a0, a1, ... in the table at `paths["a"]`, and so on."""
        settings = {name: tuple(str(self.folder / p) for p in ps) for name, ps in config.items()}
        topology = Topology("moved", TopologyConfig(max_group_commit=1, **settings))
        for name in NAMES:
            spout = MemoryTransactionalSpout([[(f"{name}{n}",)] for n in range(count)], "k string")
            stream = topology.stream(name, spout)
            stream.partition_persist(self.table(paths[name]))
        return topology

    def table(self, path: str) -> AppendTable:
        """A table in the folder."""
        return AppendTable(self.folder / path, "transactional")

    def run(self, paths: Mapping[str, str], count: int, **config: Any) -> None:
        """Run until `count` records of each stream are read."""
        topology = self.topology(paths, count, **config)
        store = MemoryProgress("moved", self.nodes)
        topology.start(self.spark, store=store, until="caught_up").await_termination()

    def crash(self, paths: Mapping[str, str], count: int, point: str) -> None:
        """As `run`, but it dies at its first txid."""
        with observing(crash_at(point)), pytest.raises(CrashedError):
            self.run(paths, count)

    def move(self, before: str, after: str) -> None:
        """Move a table's folder."""
        (self.folder / after).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / before).rename(self.folder / after)

    def assert_holds(self, paths: Mapping[str, str], count: int) -> None:
        """Each table has its own stream's records, each once."""
        for name, path in paths.items():
            held = rows_of(self.folder / path, "k")
            assert held == sorted((f"{name}{n}",) for n in range(count))


@pytest.fixture
def world(spark: SparkSession, warehouse: Path) -> World:
    """A world in which three txids are committed."""
    made = World(spark, warehouse)
    made.run({"a": "a", "b": "b"}, 3)
    return made


@pytest.mark.parametrize("point", ["after_start", "between_publications", "after_publish"])
def test_moved_tables_go_on_wherever_they_are(world: World, point: str) -> None:
    """A table that was moved is recognised by its id, whatever its new path looks like, and no
    other table is taken for it.
    """
    world.move("a", "new/b")
    world.move("b", "new/a")
    moved = {"a": "new/b", "b": "new/a"}
    world.crash(moved, 6, point)
    world.run(moved, 6)
    world.assert_holds(moved, 6)
    world.move("new/b", "a")
    back = {"a": "a", "b": "new/a"}
    world.run(back, 8)
    world.assert_holds(back, 8)


def test_a_table_that_holds_a_txid_that_is_not_committed_may_be_moved(world: World) -> None:
    """Also in the middle of a publication: the id says which table it is."""
    world.crash({"a": "a", "b": "b"}, 6, "between_publications")
    world.move("a", "x/1")
    world.move("b", "x/2")
    world.run({"a": "x/1", "b": "x/2"}, 6)
    world.assert_holds({"a": "x/1", "b": "x/2"}, 6)


def test_tables_that_were_exchanged_are_refused(world: World) -> None:
    """Nothing shows whether the program has exchanged them, too; under new names both go on."""
    world.move("a", "c")
    world.move("b", "a")
    world.move("c", "b")
    for paths in ({"a": "a", "b": "b"}, {"a": "b", "b": "a"}):
        with pytest.raises(RecoveryRefusedError, match="another table was put in its place"):
            world.run(paths, 6)
    world.move("b", "c")
    world.move("a", "d")
    world.run({"a": "c", "b": "d"}, 6)
    world.assert_holds({"a": "c", "b": "d"}, 6)


def test_a_copy_is_not_taken_for_a_table(world: World) -> None:
    """Beside the table it is refused as a second name; an old copy in its place as behind."""
    shutil.copytree(world.folder / "a", world.folder / "copy")
    with pytest.raises(TableRefusedError, match="one is a copy of the other"):
        world.run({"a": "a", "b": "copy"}, 6)
    world.run({"a": "a", "b": "b"}, 4)
    with pytest.raises(RecoveryRefusedError, match="'.*copy' holds txid 3.*txid 4"):
        world.run({"a": "copy", "b": "b"}, 6)
    world.run({"a": "a", "b": "b"}, 6)
    world.assert_holds({"a": "a", "b": "b"}, 6)


def test_a_table_that_was_dropped_is_not_taken_for_one_that_was_moved(world: World) -> None:
    """It holds txids of the topology, and is another table; each way out of the refusal works."""
    aside = DeltaTable(str(world.folder / "b")).to_pyarrow_table().num_rows
    world.run({"a": "a", "b": "c"}, 4, dropped_tables=["b"], new_tables=["c"])
    world.move("a", "here")
    with pytest.raises(RecoveryRefusedError, match="'.*b' is another table than '.*a'"):
        world.run({"a": "b", "b": "c"}, 5)
    assert DeltaTable(str(world.folder / "b")).to_pyarrow_table().num_rows == aside
    world.run({"a": "here", "b": "c"}, 5)
    assert rows_of(world.folder / "here", "k") == [(f"a{n}",) for n in range(5)]


def without_ids(world: World) -> None:
    """As an earlier release left the record of the program."""
    for path in [path for path in world.nodes.data if path.endswith("/program")]:
        text = world.nodes.data[path]
        world.nodes.data[path] = text[: text.index(b',"tables"')] + b"}"


def test_without_an_id_a_table_with_an_open_txid_is_moved_after_a_run(world: World) -> None:
    """The refusal names the order: first a run where the table was, then the move."""
    world.crash({"a": "a", "b": "b"}, 6, "between_publications")
    without_ids(world)
    world.move("a", "x")
    with pytest.raises(RecoveryRefusedError, match="'.*x' .* holds txid 4, .*where it was"):
        world.run({"a": "x", "b": "b"}, 6)
    world.move("x", "a")
    world.run({"a": "a", "b": "b"}, 6)
    world.move("a", "x")
    world.run({"a": "x", "b": "b"}, 8)
    world.assert_holds({"a": "x", "b": "b"}, 8)


def test_a_record_without_ids_is_enough_for_a_move(world: World) -> None:
    """An earlier release recorded none: a table is recognised by the txid that it holds, and its
    id is recorded from then on.
    """
    without_ids(world)
    world.move("a", "x")
    world.crash({"a": "x", "b": "b"}, 6, "after_start")
    world.run({"a": "x", "b": "b"}, 6)
    program = MemoryProgress("moved", world.nodes).peek().program
    assert program is not None
    assert program.tables.keys() == {str(world.folder / "x"), str(world.folder / "b")}
    world.move("b", "y")
    world.run({"a": "x", "b": "y"}, 8)
    world.assert_holds({"a": "x", "b": "y"}, 8)
