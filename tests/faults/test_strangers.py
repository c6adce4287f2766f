"""Tables that somebody else restored, replaced, wrote to or looked after; all of it real."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, Field, write_deltalake

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from tests.faults.harness import read_log
from tests.faults.support import Points, observing, rows_of
from txn import Topology, TopologyConfig
from txn.delta.upkeep import carry_out, plan_optimize, plan_vacuum
from txn.errors import (
    RecoveryRefusedError,
    StateError,
    TableChangedError,
    TableRefusedError,
    TxnError,
)
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper
    from txn.engine.reporting.report import RunReport

BATCHES = [[("a", 1), ("b", 2)], [("a", 10)], [("c", 5)], [("b", 7), ("c", 1)], [("a", 100)]]
TABLES = ("rows", "totals", "log")
LAYOUTS = {"totals": "upsert", "log": "log"}


@dataclass
class World:
    """A topology over three tables, run as often as one likes."""

    spark: SparkSession
    hosts: str
    folder: Path
    tables: Sequence[str] = TABLES

    def run(self, batches: int, chroot: str = "") -> RunReport:
        """Run until so many batches are committed; each is a version of its own."""
        topology = Topology("strangers", TopologyConfig(max_group_commit=1))
        spout = MemoryTransactionalSpout(BATCHES[:batches], "k string, v bigint")
        stream = topology.stream("s", spout)
        for name in self.tables:
            if name == "rows":
                stream.partition_persist(AppendTable(self.folder / name))
            else:
                state = StateTable(self.folder / name, layout=LAYOUTS[name])
                stream.group_by("k").persistent_aggregate(state, n=Count(), s=Sum("v"))
        return topology.run(self.spark, zookeeper=self.hosts + chroot, until="caught_up")

    def table(self, name: str) -> DeltaTable:
        """A table, as of now."""
        return DeltaTable(str(self.folder / name))

    def sql(self, statement: str, name: str) -> None:
        """A statement of somebody's Spark; `{}` is the table."""
        self.spark.sql(statement.format(f"delta.`{self.folder / name}`")).collect()

    def versions(self) -> list[int]:
        """The newest version of each table."""
        return [self.table(name).version() for name in self.tables]

    def assert_holds(self, batches: int) -> None:
        """Every table holds what plain Python makes of so many batches."""
        records = [record for batch in BATCHES[:batches] for record in batch]
        if "rows" in self.tables:
            assert rows_of(self.folder / "rows", "k", "v") == sorted(records)
        keys = sorted({key for key, _ in records})
        expected = [
            (key, sum(k == key for k, _ in records), sum(v for k, v in records if k == key))
            for key in keys
        ]
        for name in (name for name in self.tables if name in LAYOUTS):
            state = StateTable(self.folder / name).read(self.spark)
            assert sorted(map(tuple, state.select("k", "n", "s").collect())) == expected


@pytest.fixture
def world(spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path) -> World:
    """A world of this test alone."""
    return World(spark, f"{zookeeper.hosts}/{warehouse.parent.name}", warehouse)


def append(world: World, name: str) -> None:
    """One of the table's rows once more."""
    table = world.table(name)
    write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")


def restore(world: World, name: str) -> None:
    """To the version before the newest one that changed a row."""
    log = read_log(world.folder / name)
    world.sql(f"RESTORE TABLE {{}} TO VERSION AS OF {log[-1].version - 1}", name)


CHANGES: dict[str, tuple[str, Callable[[World, str], object], str]] = {
    "insert": (
        "rows",
        lambda w, t: w.sql("INSERT INTO {0} SELECT * FROM {0} LIMIT 1", t),
        r"\(WRITE by .*Spark.*added rows",
    ),
    "append": ("totals", append, r"\(WRITE by .*delta-rs.*added rows"),
    "delete": ("log", lambda w, t: w.sql("DELETE FROM {} WHERE k = 'a'", t), r"\(DELETE by "),
    "update": (
        "totals",
        lambda w, t: w.sql("UPDATE {} SET k = 'z' WHERE k = 'a'", t),
        r"\(UPDATE by ",
    ),
    "restore-rows": ("rows", restore, r"\(RESTORE to version \d+ by .*removed rows"),
    "restore-totals": ("totals", restore, r"\(RESTORE to version \d+ by "),
    "restore-log": ("log", restore, r"\(RESTORE to version \d+ by "),
}


@pytest.mark.parametrize(("name", "change", "told"), CHANGES.values(), ids=CHANGES.keys())
def test_a_table_that_somebody_changed_between_runs_is_refused(
    world: World, name: str, change: Callable[[World, str], object], told: str
) -> None:
    """A table that somebody else wrote to or restored to an older version is refused, between runs
    and during a run, and the error names the version, the operation, the writer and the way back.
    """
    world.tables = (name,)
    world.run(3)
    version = world.table(name).version()
    change(world, name)
    before = world.versions()
    with pytest.raises(TableChangedError, match=f"/{name} .*version {version + 1} {told}") as error:
        world.run(4)
    assert world.versions() == before
    assert f"TO VERSION AS OF {version}." in str(error.value)
    world.sql(f"RESTORE TABLE {{}} TO VERSION AS OF {version}", name)
    assert world.run(5).committed_txid == 5
    world.assert_holds(5)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("rows", append, "WRITE by "),
        ("totals", append, "WRITE by "),
        ("rows", restore, r"RESTORE to version \d+ by "),
        ("log", restore, r"RESTORE to version \d+ by "),
    ],
)
def test_a_table_that_somebody_changes_during_a_run_stops_it(
    world: World, name: str, change: Callable[[World, str], object], told: str
) -> None:
    """The topology stops before it publishes on top of somebody else's change, and goes on when
    that was taken back.
    """
    world.tables = (name,)
    world.run(2)
    version = []

    def meanwhile(attempt: object) -> None:
        if str(attempt) == "4:0":
            version.append(world.table(name).version())
            change(world, name)

    with (
        observing(Points(before_publish=meanwhile)),
        pytest.raises(TableChangedError, match=rf"/{name} .*\({told}"),
    ):
        world.run(5)
    assert world.table(name).version() == version[0] + 1
    assert read_log(world.folder / name)[-1].txid == 3
    world.sql(f"RESTORE TABLE {{}} TO VERSION AS OF {version[0]}", name)
    assert world.run(5).committed_txid == 5
    world.assert_holds(5)


def look_after(world: World, name: str, operation: str) -> None:
    """`txn optimize` and `txn vacuum`, with the shortest retention that there is."""
    storage = Storage(str(world.folder / name))
    if operation == "optimize":
        carry_out(storage, plan_optimize(storage, "strangers"))
    else:
        carry_out(storage, plan_vacuum(storage, "strangers", 0))


HARMLESS: dict[str, Callable[[World, str], object]] = {
    "optimize": lambda w, t: w.sql("OPTIMIZE {}", t),
    "vacuum": lambda w, t: w.sql("VACUUM {}", t),
    "compact": lambda w, t: w.table(t).optimize.compact(),
    "txn-optimize": lambda w, t: look_after(w, t, "optimize"),
    "txn-vacuum": lambda w, t: look_after(w, t, "vacuum"),
    "description": lambda w, t: w.table(t).alter.set_table_description("of the month"),
}


@pytest.mark.parametrize("harmless", HARMLESS.values(), ids=HARMLESS.keys())
def test_maintenance_by_somebody_else_is_harmless(
    world: World, harmless: Callable[[World, str], object]
) -> None:
    """OPTIMIZE and VACUUM, by somebody else or by our own commands, and descriptions are harmless,
    in a run and between.
    """
    world.run(3)
    for name in TABLES:
        harmless(world, name)

    def again(attempt: object) -> None:
        if str(attempt) == "4:0":
            for name in TABLES:
                harmless(world, name)

    with observing(Points(before_publish=again)):
        world.run(5)
    world.assert_holds(5)


def test_a_column_that_somebody_added_is_refused_with_its_version(world: World) -> None:
    """A changed schema is refused by column, version and operation, and so is a changed property
    that cannot be honoured.
    """
    world.tables = ("rows",)
    world.run(2)
    table = world.table("rows")
    table.alter.add_columns([Field("note", "string")])
    with pytest.raises(TableRefusedError, match=rf"'note'.*version {table.version()} \(ADD COLUMN"):
        world.run(3)


def replaced_by_nobody(world: World, name: str) -> None:
    shutil.rmtree(world.folder / name)


def replaced_by_a_stranger(world: World, name: str) -> None:
    rows = world.table(name).to_pyarrow_table()
    shutil.rmtree(world.folder / name)
    write_deltalake(str(world.folder / name), rows)


def replaced_by_ourselves(world: World, name: str) -> None:
    """The same topology on another ensemble, which has come to the same txid by another way."""
    kept = world.folder.parent / "kept"
    world.folder.rename(kept)
    world.folder.mkdir()
    for batches in (2, 3):
        world.run(batches, "/other")
    made = world.folder.parent / "made"
    world.folder.rename(made)
    kept.rename(world.folder)
    shutil.rmtree(world.folder / name)
    shutil.move(made / name, world.folder / name)


@pytest.mark.parametrize(
    ("name", "replace", "error", "told"),
    [
        ("rows", replaced_by_nobody, RecoveryRefusedError, "holds txid none.*deleted, replaced"),
        ("log", replaced_by_nobody, RecoveryRefusedError, "holds txid none.*deleted, replaced"),
        ("totals", replaced_by_a_stranger, TableRefusedError, "no topology has made"),
        ("rows", replaced_by_ourselves, StateError, "from another ensemble: its log names"),
        ("totals", replaced_by_ourselves, StateError, "from another ensemble: its log names"),
    ],
)
def test_a_table_that_was_replaced_between_runs_is_refused(
    world: World,
    name: str,
    replace: Callable[[World, str], None],
    error: type[TxnError],
    told: str,
) -> None:
    """A table that was deleted, or created again by somebody else or by the same topology on
    another ensemble, is refused by name, and no new table takes its place.
    """
    world.tables = (name,)
    world.run(3)
    replace(world, name)
    there = (world.folder / name).exists()
    with pytest.raises(error, match=f"{name}'?.*({told})"):
        world.run(4)
    assert (world.folder / name).exists() == there


@pytest.mark.parametrize(("name", "anew"), [("rows", False), ("rows", True), ("totals", True)])
def test_a_table_that_is_replaced_during_a_run_stops_it(
    world: World, name: str, anew: bool
) -> None:
    """Nothing is appended to a table that was deleted, or made anew, while the topology runs."""
    world.tables = (name,)
    world.run(2)
    saved = world.folder.parent / "saved"

    def replace(attempt: object) -> None:
        if str(attempt) == "4:0":
            log = world.folder / name / "_delta_log"
            shutil.copytree(log, saved)
            rows = world.table(name).to_pyarrow_table()
            shutil.rmtree(log)
            if anew:
                write_deltalake(str(world.folder / name), rows)

    with observing(Points(before_publish=replace)), pytest.raises(TableChangedError) as error:
        world.run(5)
    assert f"{name} is no longer the one" in str(error.value)
    log = world.folder / name / "_delta_log"
    assert len(list(log.glob("*.json"))) == anew
    shutil.rmtree(log, ignore_errors=True)
    shutil.copytree(saved, log)
    assert world.run(5).committed_txid == 5
    world.assert_holds(5)
