"""Files that get a column while a topology reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from committers.append_table import AppendTable
from spouts.files import FileSpout
from tests.faults.support import CrashedError, crash_at, observing, rows_of
from txn import Topology, TopologyConfig
from txn.errors import SourceChangedError, TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

FORMS = ("csv", "json", "parquet")


class World:
    """A folder of files of one format, and a topology that copies them, one file in a txid."""

    def __init__(self, spark: SparkSession, hosts: str, folder: Path, form: str) -> None:
        self.spark, self.form = spark, form
        self.hosts = f"{hosts}/{folder.parent.name}"
        self.folder, self.copy = folder / "in", folder / "copy"
        self.folder.mkdir(parents=True)

    def write(self, name: str, **columns: list[Any]) -> None:
        """Write a file with these columns."""
        path, rows = self.folder / f"{name}.{self.form}", list(zip(*columns.values(), strict=True))
        if self.form == "parquet":
            parquet.write_table(pa.table(columns), path)
        elif self.form == "json":
            path.write_text(
                "".join(json.dumps(dict(zip(columns, r, strict=True))) + "\n" for r in rows)
            )
        else:
            path.write_text("\n".join(",".join(map(str, row)) for row in (tuple(columns), *rows)))

    def topology(self, *columns: str, **options: Any) -> Topology:
        """Read all files; `columns` are used by name."""
        topology = Topology("files", TopologyConfig(max_group_commit=1, max_spout_pending=3))
        header = {"header": True} if self.form == "csv" else {}
        options = {"files_per_batch": 1, **header, **options}
        spout = FileSpout(self.folder / f"*.{self.form}", format=self.form, **options)
        rows = topology.stream("s", spout)
        if columns:
            rows = rows.transform(lambda df: df.select(*columns))
        rows.partition_persist(AppendTable(self.copy, "transactional"))
        return topology

    def read(self, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
        """Run to the end; what was copied."""
        topology = self.topology(**options)
        topology.run(self.spark, zookeeper=self.hosts, until="caught_up", progress=False)
        return rows_of(self.copy, *columns)

    def crash(self, topology: Topology, point: str, txid: int) -> None:
        """Run until a txid comes to a point, and die there."""
        with pytest.raises(CrashedError), observing(crash_at(point, txid)):
            topology.run(self.spark, zookeeper=self.hosts, until="caught_up", progress=False)


@pytest.fixture(params=FORMS)
def world(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
) -> World:
    """A world of one format."""
    return World(spark, zookeeper.hosts, warehouse, request.param)


def test_a_column_that_files_get_later_stops_the_run_or_is_left_out(world: World) -> None:
    """With new_columns="fail" the run stops before the file and names the column; with "ignore" it
    reads on without it, and a notice names it.
    """
    world.write("a", k=["a"], v=[1])
    world.write("b", k=["b"], v=[2], w=[3])
    with pytest.raises(SourceChangedError, match=r"b\.\w+ has columns .*: w\..*'ignore'.*'add'"):
        world.read(schema="k string, v long", new_columns="fail")
    assert rows_of(world.copy, "k", "v") == [("a", 1)]
    options = {"schema": "k string, v long", "new_columns": "ignore"}
    assert world.read("k", "v", **options) == [("a", 1), ("b", 2)]
    topology = world.topology(**options)
    world.write("c", w=[3], k=["c"], v=[4])
    topology.run(world.spark, zookeeper=world.hosts, until="caught_up", progress=False)
    (source,) = topology.definition.sources
    assert ["reach no table: w." in text for text in source.spout.notices()] == [True]
    assert rows_of(world.copy, "k", "v") == [("a", 1), ("b", 2), ("c", 4)]


def test_a_run_commits_what_it_has_planned_and_stops_before_a_new_column(world: World) -> None:
    """With new_columns="add" a run ends by name before a file with a column that no earlier file
    has; the next start infers the column's type and reads it.
    """
    for number in range(21):  # one more than a start looks at
        world.write(f"a{number:02}", k=[f"n{number:02}"], v=[number])
    world.write("z", k=["z"], v=[4], w=[3])
    options = {"new_columns": "add", "files_per_batch": 30}
    with pytest.raises(SourceChangedError, match="z.* columns .*: w.*Start the run again"):
        world.read("k", "v", **options)
    old = [(f"n{number:02}", number) for number in range(21)]
    assert rows_of(world.copy, "k", "v") == old
    added = world.read("k", "v", "w", **options)
    assert added == [*((*row, None) for row in old), ("z", 4, 3)]


def test_a_schema_with_a_new_column_is_told_of_new_columns(world: World) -> None:
    """A schema that has got a column is refused, and the message names the way to have it read."""
    world.write("a", k=["a"], v=[1])
    assert world.read("k", "v", schema="k string, v long") == [("a", 1)]
    with pytest.raises(TopologyError, match=r"get later \(w\): new_columns='add' reads it"):
        world.read(schema="k string, v long, w long")
    options = {"schema": "k string, v long, w long", "new_columns": "add"}
    assert world.read("k", "v", "w", **options) == [("a", 1, None)]


@pytest.mark.parametrize("schema", [None, "k string, v long"])
def test_a_new_column_is_added_at_the_next_start(world: World, schema: str | None) -> None:
    """With new_columns="add" a start reads a column of files that have arrived since, of its
    declared schema or of an inferred one; files without it have NULL, whenever they arrive.
    """
    world.write("a", k=["a"], v=[1])
    options = {"schema": schema, "new_columns": "add"}
    assert world.read("k", "v", **options) == [("a", 1)]
    world.write("b", k=["b"], v=[2])
    world.write("c", v=[4], w=[3], k=["c"])
    if schema is not None:
        with pytest.raises(SourceChangedError, match="c.* columns .*: w.*Add them to the spout's"):
            world.read("k", "v", **options)
        assert rows_of(world.copy, "k", "v") == [("a", 1), ("b", 2)]
        options["schema"] = f"w long, {schema}"
    expected = [("a", 1, None), ("b", 2, None), ("c", 4, 3)]
    assert world.read("k", "v", "w", **options) == expected
    world.write("d", k=["d"], v=[5])
    assert world.read("k", "v", "w", **options) == [*expected, ("d", 5, None)]


POINTS = ("after-start", "before-publish", "after-publish", "after-committed")


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_from_before_the_column_is_replayed_with_null(world: World, point: str) -> None:
    """Killed before and after the column is added, every record comes once; a program that uses
    the column replays a batch that was planned without it, and finds NULL.
    """
    for number, name in enumerate("abcd"):
        world.write(name, k=[name], v=[number])
    world.crash(world.topology("k", "v", new_columns="add"), point, 2)
    world.write("e", k=["e"], v=[4], w=[9])
    world.write("f", k=["f"], v=[5], w=[8])
    topology = world.topology("k", "v", "w", new_columns="add")
    world.crash(topology, point, 3)
    world.crash(world.topology("k", "v", "w", new_columns="add"), point, 6)
    topology = world.topology("k", "v", "w", new_columns="add")
    topology.run(world.spark, zookeeper=world.hosts, until="caught_up", progress=False)
    old = [(name, number, None) for number, name in enumerate("abcd")]
    assert rows_of(world.copy, "k", "v", "w") == [*old, ("e", 4, 9), ("f", 5, 8)]


def test_what_becomes_of_new_columns_of_files_is_one_of_three() -> None:
    """Another word is refused by name."""
    with pytest.raises(TopologyError, match="new_columns='keep'. Give 'fail', 'ignore' or 'add'"):
        FileSpout("t/*.csv", format="csv", new_columns="keep")  # type: ignore[arg-type]
