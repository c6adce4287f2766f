"""A table's next generation is filled beside the running topology, and takes its place at once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryTransactionalSpout
from tests.faults.partitioned_run import SCHEMA, Literals
from tests.faults.support import CrashedError, clean_logs, crash_at, observing, rows_of
from tests.faults.test_recover import records
from txn import Topology, TopologyConfig
from txn.errors import RecoveryRefusedError, TableRefusedError, TopologyError
from txn.interfaces import SpoutKind
from txn.operations.changes.topology import compare_topology
from txn.spark.lazy import sf
from txn.topology import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

ALL = ("rows", "totals", "partials")


class World:
    """A topology with a table of each kind, and the program that changes all of them."""

    def __init__(self, spark: SparkSession, hosts: str, folder: Path, kind: SpoutKind) -> None:
        self.spark = spark
        self.hosts = f"{hosts}/{folder.parent.name}"
        self.folder = folder
        self.kind = kind

    def topology(
        self,
        counts: Mapping[str, int],
        *,
        changed: bool = False,
        history: bool = True,
        renames: bool = True,
        factor: int = 2,
        **config: Any,
    ) -> Topology:
        """The topology over the first so many records of each partition.

        Args:
            changed: a new value, a renamed key, more buckets, and another transform.
            history: False: only what the tables' own rows allow.
            renames: False: without the renamed key.
            factor: what the other transform multiplies with, 2 or 3.
        """
        data = {name: records(name, count) for name, count in counts.items()}
        spout = Literals(data, SCHEMA, take_per_partition=1, kind=self.kind)
        for name in ("backfilled_tables", "rebuilt_tables"):
            config[name] = tuple(str(self.folder / table) for table in config.get(name, ()))
        topology = Topology("shop", TopologyConfig(max_group_commit=2, **config))
        stream = topology.stream("s", spout)
        semantics = self.kind.value
        key = "key" if changed and renames else "k"
        were = {"key": "k"} if key == "key" else None
        times = _doubled if factor == 2 else _tripled
        rows = stream.transform(times) if changed and history else stream
        if key == "key":
            rows = rows.transform(lambda frame: frame.withColumnRenamed("k", "key"))
        extra = {"most": Max("v")} if changed else {}
        append = AppendTable(self.folder / "rows", semantics, columns_were=were)
        rows.partition_persist(append)
        for table, layout in (("totals", "upsert"), ("partials", "log")):
            buckets = 7 if changed else 4
            state = StateTable(self.folder / table, semantics, layout, buckets, columns_were=were)
            rows.group_by(key).persistent_aggregate(state, n=Count(), total=Sum("v"), **extra)
        return topology

    def run(self, counts: Mapping[str, int], **program: Any) -> int:
        """Run until so many records of each partition are read; the newest txid."""
        topology = self.topology(counts, **program)
        report = topology.run(self.spark, zookeeper=self.hosts, until="caught_up")
        return report.committed_txid

    def fill(
        self, counts: Mapping[str, int], *, rows: bool = False, **program: Any
    ) -> dict[str, int]:
        """Fill the next generation of every table."""
        paths = [str(self.folder / table) for table in ALL]
        topology = self.topology(counts, changed=True, history=not rows, **program)
        from_rows = paths if rows else ()
        return topology.backfill(self.spark, paths, from_rows=from_rows, zookeeper=self.hosts)

    def table(self, table: str, txid: int | None = None) -> list[tuple[Any, ...]]:
        """Keys and values as readers see them, as of a txid."""
        state = StateTable(self.folder / table).read(self.spark, txid)
        return sorted(tuple(row) for row in state.collect())

    def expected(self, counts: Mapping[str, int], factor: int = 1) -> list[tuple[Any, ...]]:
        """What plain Python makes of all records: key, number, total, greatest value."""
        values: dict[str, list[int]] = {}
        for name, count in counts.items():
            for _, _, key, value in records(name, count):
                values.setdefault(key, []).append(factor * value)
        return sorted((k, len(v), sum(v), max(v)) for k, v in values.items())


def _doubled(frame: DataFrame) -> DataFrame:
    return frame.withColumn("v", sf.col("v") * 2)


def _tripled(frame: DataFrame) -> DataFrame:
    return frame.withColumn("v", sf.col("v") * 3)


@pytest.fixture(params=[SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE], ids=lambda kind: kind.value)
def world(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
) -> World:
    """A new topology, for each kind of spout and table."""
    return World(spark, zookeeper.hosts, warehouse, request.param)


def test_a_next_generation_takes_a_tables_place_at_one_txid(world: World) -> None:
    """A next generation that was filled beside the running topology takes the table's place
    between two txids, with the history of new values and transforms, wherever the process dies.
    """
    before = world.run({"p1": 4, "p2": 2})
    former = {table: world.table(table) for table in ("totals", "partials")}
    with observing(crash_at("backfilled", 3)), pytest.raises(CrashedError):
        world.fill({"p1": 4, "p2": 2})
    filled = world.fill({"p1": 4, "p2": 2})
    assert set(filled.values()) == {before}
    middle = world.run({"p1": 6, "p2": 3})  # the former program goes on, and sees none of it
    assert [row[:3] for row in world.expected({"p1": 6, "p2": 3})] == world.table("totals")
    counts = {"p1": 7, "p2": 3}
    for point in ("backfilled", "shape-staged", "shape-changed", "shape-changed"):
        with observing(crash_at(point, middle)), pytest.raises(CrashedError):
            world.run(counts, changed=True, backfilled_tables=ALL)
    world.run(counts, changed=True, backfilled_tables=ALL)
    for table in ("totals", "partials"):
        assert world.table(table) == world.expected(counts, factor=2)
        assert world.table(table, before) == former[table]
        assert not [*(world.folder / table).glob("generation-*/_delta_log/*")]
    new = [(*row[:3], 2 * row[3]) for name in counts for row in records(name, counts[name])]
    assert [row[:4] for row in rows_of(world.folder / "rows", "p", "i", "key", "v")] == sorted(new)
    world.run({"p1": 8, "p2": 3}, changed=True, backfilled_tables=ALL)  # the setting may stay
    assert world.table("totals") == world.expected({"p1": 8, "p2": 3}, factor=2)


def test_a_rebuild_beside_the_running_topology_keeps_every_row(world: World) -> None:
    """A next generation may begin with the table's own rows, which needs no history: the rows of
    later txids are read anew, and a new value begins behind the copied ones.
    """
    middle = world.run({"p1": 4, "p2": 2})
    world.fill({"p1": 4, "p2": 2}, rows=True)
    world.run({"p1": 5, "p2": 3})
    world.fill({"p1": 5, "p2": 3}, rows=True)  # it goes on behind its newest txid
    counts = {"p1": 7, "p2": 3}
    world.run(counts, changed=True, history=False, backfilled_tables=ALL)
    for table in ("totals", "partials"):
        assert [row[:3] for row in world.table(table)] == [
            row[:3] for row in world.expected(counts)
        ]
        properties = DeltaTable(str(world.folder / table)).metadata().configuration
        assert properties["txn.since"] == f'{{"most": {middle + 1}}}'
    new = [row for name in counts for row in records(name, counts[name])]
    assert [row[:4] for row in rows_of(world.folder / "rows", "p", "i", "key", "v")] == sorted(new)


def test_a_generation_waits_for_a_txid_that_the_table_holds_alone(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """`txn plan` refuses what a start refuses: a next generation cannot take the place of a table
    that holds a txid which others lack, also if the table could take it back.
    """
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.OPAQUE)
    middle = world.run({"p1": 4})
    rows = str(warehouse / "rows")
    new = {"changed": True, "renames": False, "rebuilt_tables": ALL[1:]}
    program = world.topology({"p1": 4}, backfilled_tables=["rows"], **new)
    program.backfill(spark, [rows], zookeeper=world.hosts)
    with observing(crash_at("between-publications", middle + 1)), pytest.raises(CrashedError):
        world.run({"p1": 6})
    comparison = compare_topology(program, world.hosts)
    assert comparison.is_refused
    assert any(f"txid {middle + 1}, which a crash" in p.change.what for p in comparison.changes)
    with pytest.raises(TableRefusedError, match=f"--until {middle + 1}"):
        world.run({"p1": 6}, backfilled_tables=["rows"], **new)
    world.run({"p1": 6})
    world.run({"p1": 7}, backfilled_tables=["rows"], **new)
    doubled = sorted((*row[:3], 2 * row[3]) for row in records("p1", 7))
    assert [row[:4] for row in rows_of(warehouse / "rows", "p", "i", "k", "v")] == doubled


def test_a_generation_of_another_program_is_refused(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A next generation that another program has filled, or that lacks a file, is refused by name;
    the way out of the message works.
    """
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.OPAQUE)
    counts = {"p1": 3}
    world.run(counts)
    world.fill(counts, rows=True)
    with pytest.raises(TableRefusedError, match="generation-1, and fill it again"):
        world.run(counts, backfilled_tables=("totals",))
    world.run({"p1": 4})  # not named, so left alone
    folder = warehouse / "totals" / "generation-1"
    next(folder.glob("data/**/*.parquet")).unlink()
    with pytest.raises(TableRefusedError, match=r"File data/\S+ .* is gone.*, and fill it again"):
        world.run({"p1": 4}, changed=True, history=False, backfilled_tables=ALL)
    shutil.rmtree(folder)
    world.fill({"p1": 4}, rows=True)
    next(folder.glob("data/**/*.parquet")).unlink()
    with pytest.raises(TableRefusedError, match=r"its file data/\S+ is gone.*, and fill it again"):
        world.run({"p1": 4}, changed=True, history=False, backfilled_tables=ALL)
    shutil.rmtree(folder)
    world.fill({"p1": 4}, rows=True)
    world.run({"p1": 4}, changed=True, history=False, backfilled_tables=ALL)
    assert [row[:3] for row in world.table("totals")] == [
        row[:3] for row in world.expected({"p1": 4})
    ]


def test_one_filling_from_own_rows_and_from_the_source(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """Of two tables that are filled at once, one may begin with its own rows."""
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.OPAQUE)
    counts = {"p1": 3}
    last = world.run(counts)
    rows, totals = str(warehouse / "rows"), str(warehouse / "totals")
    program = world.topology(counts, changed=True, renames=False, history=False)
    filled = program.backfill(spark, [rows, totals], from_rows=[totals], zookeeper=world.hosts)
    assert filled == {rows: last, totals: last}


def test_a_generation_that_lost_its_history_is_to_be_deleted_first(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """Where the logs lose what a half-filled generation lacks, the refusal names the txids and the
    folder, and its way out works.
    """
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.OPAQUE)
    first = world.run({"p1": 2})
    world.fill({"p1": 2})
    for count in range(3, 8):
        last = world.run({"p1": count})
    clean_logs(*(warehouse / table for table in ALL))
    lacks = rf"txids {first + 1} to \d+ read was cleaned.*delete the folder .*, and let it"
    with pytest.raises(RecoveryRefusedError, match=lacks):
        world.fill({"p1": 7})
    for table in ALL:
        shutil.rmtree(warehouse / table / "generation-1")
    assert set(world.fill({"p1": 7}, rows=True).values()) == {last}


@pytest.mark.parametrize("table", ["rows", "late"])
def test_what_a_program_with_other_transforms_has_filled_is_refused(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, table: str
) -> None:
    """A filling, a start and `txn plan` refuse a next generation, or a late table, of which another
    program computed the rows; filled again, it has those of the present program.
    """
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.OPAQUE)
    path = str(warehouse / table)

    def program(count: int, factor: int, *, late: bool = True) -> Topology:
        topology = world.topology({"p1": count}, backfilled_tables=[table] if late else [])
        stream = Stream(topology, topology.sinks[0].parent)
        if late and table == "late":
            times = {2: _doubled, 3: _tripled}[factor]
            stream.transform(times).partition_persist(AppendTable(path, "opaque"))
        elif late:
            topology = world.topology(
                {"p1": count},
                changed=True,
                renames=False,
                factor=factor,
                backfilled_tables=[table],
                rebuilt_tables=ALL[1:],
            )
        return topology

    def run(topology: Topology) -> None:
        topology.run(spark, zookeeper=world.hosts, until="caught_up")

    run(program(3, 2, late=False))
    program(3, 2).backfill(spark, [path], zookeeper=world.hosts)
    other = program(4, 3)
    for attempt in (
        lambda: other.backfill(spark, [path], zookeeper=world.hosts),
        lambda: run(program(4, 3)),
    ):
        with pytest.raises(RecoveryRefusedError, match=r"computes other rows.*delete the folder"):
            attempt()
    told = compare_topology(other, world.hosts)
    assert told.is_refused
    folder = warehouse / table / ("generation-1" if table == "rows" else "")
    assert any(
        f"elete the folder {folder}" in p.change.way_out + p.change.what for p in told.changes
    )
    shutil.rmtree(folder)
    program(3, 3).backfill(spark, [path], zookeeper=world.hosts)
    run(program(4, 3))
    tripled = sorted((*row[:3], 3 * row[3]) for row in records("p1", 4))
    assert [row[:4] for row in rows_of(warehouse / table, "p", "i", "k", "v")] == tripled


def test_a_history_that_is_gone_leaves_the_tables_own_rows(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """Where the logs have lost what the first txids read, the refusal names the other way."""
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.TRANSACTIONAL)
    world.run({"p1": 4})
    clean_logs(*(warehouse / name for name in ALL))
    with pytest.raises(RecoveryRefusedError, match="--from"):
        world.fill({"p1": 4})
    world.fill({"p1": 4}, rows=True)
    world.run({"p1": 5}, changed=True, history=False, backfilled_tables=ALL)
    assert [row[:3] for row in world.table("totals")] == [
        row[:3] for row in world.expected({"p1": 5})
    ]


def test_history_comes_from_a_table_that_holds_the_stream(world: World) -> None:
    """Where the logs and the sources have forgotten the first txids, an append table of the same
    stream has their rows: a next generation gets new values with their whole history from it.
    """
    folder = world.folder
    world.run({"p1": 4, "p2": 2})
    clean_logs(*(folder / name for name in ALL))
    own = {"changed": True, "renames": False, "history": False}
    program = world.topology({"p1": 4, "p2": 2}, **own)
    tables = [str(folder / name) for name in ("totals", "partials")]

    def fill(*tables: str, source: str = "rows") -> None:
        program.backfill(
            world.spark, tables, from_rows=[str(folder / source)], zookeeper=world.hosts
        )

    with pytest.raises(TopologyError, match="'.*partials' is no append table of a stream"):
        fill(tables[0], source="partials")
    fill(*tables)
    counts = {"p1": 6, "p2": 3}
    world.run(counts, **own, backfilled_tables=("totals", "partials"))
    for table in ("totals", "partials"):
        assert world.table(table) == world.expected(counts)
        assert "txn.since" not in DeltaTable(str(folder / table)).metadata().configuration


def test_a_generation_is_no_rows_for_a_reader_of_the_table(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A `DeltaSpout` behind a table whose generation changes goes on without a row twice."""
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.TRANSACTIONAL)
    hosts = f"{world.hosts}-behind"

    def follow() -> None:
        behind = Topology("behind")
        spout = DeltaSpout(warehouse / "rows", new_columns="ignore")
        behind.stream("r", spout).transform(lambda rows: rows.select("p", "i")).partition_persist(
            AppendTable(warehouse / "copies", "transactional")
        )
        behind.run(spark, zookeeper=hosts, until="caught_up")

    world.run({"p1": 3})
    follow()
    world.fill({"p1": 3}, renames=False)
    world.run({"p1": 5}, changed=True, renames=False, backfilled_tables=ALL)
    follow()
    assert rows_of(warehouse / "copies", "p", "i") == [("p1", i) for i in range(5)]


def test_the_types_of_all_tables_are_refused_at_once(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A column that a transform widens is refused in one error for every table that has it."""

    def run(kind: str, **config: Any) -> None:
        topology = Topology("wider", TopologyConfig(**config))
        rows = topology.stream("s", MemoryTransactionalSpout([[("a", 1)]], "k string, v int"))
        wide = rows.transform(lambda frame: frame.withColumn("v", sf.col("v").cast(kind)))
        wide.partition_persist(AppendTable(warehouse / "rows"))
        totals = StateTable(warehouse / "totals")
        wide.group_by("k").persistent_aggregate(totals, most=Max("v"))
        topology.run(spark, zookeeper=f"{zookeeper.hosts}/wider", until="caught_up")

    run("int")
    with pytest.raises(TableRefusedError, match=r"rows differs.*'v' changes.*totals differs"):
        run("bigint")
    run("bigint", rebuilt_tables=(str(warehouse / "rows"), str(warehouse / "totals")))
    read = StateTable(warehouse / "totals").read(spark)
    assert [tuple(row) for row in read.collect()] == [("a", 1)]
