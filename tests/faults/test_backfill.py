"""A table that comes late gets its history: the committed txids, read anew for it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.open_table import OpenTable
from committers.state_table import StateTable
from tests.faults.harness import read_log
from tests.faults.partitioned_run import SCHEMA, Literals
from tests.faults.support import CrashedError, clean_logs, crash_at, observing, rows_of
from tests.faults.test_recover import Poisonable, records
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.backends import open_backend
from txn.engine.work.tables import Tables
from txn.errors import (
    CommitConflictError,
    FailedException,
    RecoveryRefusedError,
    TopologyError,
)
from txn.interfaces import Publication, Published, SpoutKind
from txn.operations.changes.topology import compare_topology
from txn.operations.recover import read_tables, write
from txn.protocol.recovery import Newest
from txn.topology import TxnState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper


class World:
    """A topology whose program gets more tables from run to run."""

    def __init__(self, spark: SparkSession, hosts: str, folder: Path, kind: SpoutKind) -> None:
        self.spark = spark
        self.hosts = f"{hosts}/{folder.parent.name}"
        self.folder = folder
        self.kind = kind

    def run(
        self,
        counts: Mapping[str, int],
        tables: tuple[str, ...] = ("rows", "totals"),
        *,
        poison: frozenset[int] = frozenset(),
        **config: Any,
    ) -> int:
        """Run until so many records of each partition are read; the newest txid."""
        topology = self.topology(counts, tables, poison=poison, **config)
        report = topology.run(self.spark, zookeeper=self.hosts, until="caught_up")
        return report.committed_txid

    def topology(
        self,
        counts: Mapping[str, int],
        tables: tuple[str, ...],
        *,
        poison: frozenset[int] = frozenset(),
        **config: Any,
    ) -> Topology:
        """The topology over the first so many records of each partition."""
        data = {name: records(name, count) for name, count in counts.items()}
        spout: Literals = Poisonable(data, SCHEMA, take_per_partition=1, kind=self.kind)
        spout.poison = poison  # type: ignore[attr-defined]
        buckets = config.pop("buckets", 4)
        for name in ("backfilled_tables", "rebuilt_tables", "new_tables", "dropped_tables"):
            config[name] = tuple(str(self.folder / table) for table in config.get(name, ()))
        settings = {"max_batch_attempts": 1, "on_exhausted": "quarantine", "max_group_commit": 2}
        aside = AppendTable(self.folder / "aside", self.kind.value) if "aside" in tables else None
        topology = Topology("late", TopologyConfig(**{**settings, **config}), bad_rows=aside)
        stream = topology.stream("s", spout)
        states: dict[str, TxnState] = {}
        for table in tables:
            path, semantics = self.folder / table, self.kind.value
            if table == "aside":
                continue
            if table == "asked":
                asked = stream.state_query(states["late"], on="k", as_of="txid-1")
                asked.partition_persist(AppendTable(path, semantics))
                continue
            if "rows" in table:
                stream.partition_persist(AppendTable(path, semantics))
                continue
            layout = "log" if "log" in table else "upsert"
            own = buckets if table == "late" else 4
            state = StateTable(path, semantics, layout=layout, buckets=own)
            grouped = stream.group_by("k")
            states[table] = grouped.persistent_aggregate(state, n=Count(), total=Sum("v"))
        return topology

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Every row of an append table with its txid."""
        return rows_of(self.folder / table, "p", "i", "k", "v", "txid")

    def totals(self, table: str) -> list[tuple[Any, ...]]:
        """Keys and values as readers see them."""
        state = StateTable(self.folder / table).read(self.spark)
        return sorted(tuple(row) for row in state.collect())

    def expected(self, lost: frozenset[int] = frozenset()) -> list[tuple[Any, ...]]:
        """What plain Python makes of the rows of "rows"."""
        count, total = Counter[str](), Counter[str]()
        for _, _, key, value, _ in self.rows("rows"):
            count[key] += 1
            total[key] += value
        return sorted((key, count[key], total[key]) for key in count)


@pytest.fixture(params=[SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE], ids=lambda kind: kind.value)
def world(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
) -> World:
    """A new topology, for each kind of spout and table."""
    return World(spark, zookeeper.hosts, warehouse, request.param)


def test_a_table_that_comes_late_holds_every_record_once(world: World) -> None:
    """A new table that is filled with its history holds every record in the txid in which the
    other tables have it, also if the process dies while the table is filled.

    One txid of the history was quarantined, and another one has replayed it.
    """
    poison = frozenset({records("p1", 3)[2][3]})
    world.run({"p1": 5, "p2": 2}, poison=poison)
    before = world.run({"p1": 6, "p2": 4})
    tables = ("rows", "totals", "late_rows", "late", "late_log", "aside")  # none is set aside
    late = tables[2:5]
    for _ in range(2):
        with observing(crash_at("backfilled", 3)), pytest.raises(CrashedError):
            world.run({"p1": 6, "p2": 4}, tables, backfilled_tables=late)
    after = world.run({"p1": 9, "p2": 5}, tables, backfilled_tables=late)
    assert after > before
    assert world.rows("late_rows") == world.rows("rows")
    assert world.totals("late") == world.totals("late_log") == world.totals("totals")
    assert world.totals("totals") == world.expected()
    for table in late:
        txids = [one.txid for one in read_log(world.folder / table)]
        assert txids == list(range(1, after + 1))
    world.run({"p1": 10, "p2": 5}, tables)  # the setting may go
    assert world.rows("late_rows") == world.rows("rows")


def test_a_query_of_a_late_table_finds_its_history(world: World) -> None:
    """The first batch after a table was filled with its history already queries what the table was
    filled with.
    """
    before = world.run({"p1": 5, "p2": 2}, ("rows",))
    settings = {"backfilled_tables": ("late",), "new_tables": ("asked",)}
    after = world.run({"p1": 9, "p2": 5}, ("rows", "late", "asked"), **settings)
    rows = world.rows("rows")
    asked = rows_of(world.folder / "asked", "p", "i", "k", "n", "txid")
    assert {txid for *_, txid in asked} == set(range(before + 1, after + 1))
    for p, i, k, n, txid in asked:
        earlier = sum(key == k for _, _, key, _, own in rows if own < txid)
        assert (p, i, k, earlier or None) == (p, i, k, n)
    assert any(n for *_, n, txid in asked if txid == before + 1)


def test_a_late_table_takes_no_txid_without_its_planned_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A txid of which a part is not read again fails the filling; the next one reads it all."""
    counts, late = {"p1": 2, "p2": 2}, ("late_rows",)
    world.run(counts)
    emit = Poisonable.emit_partitions

    def emit_one(
        spout: Poisonable, spark: SparkSession, attempt: TransactionAttempt, at: Mapping[str, Any]
    ) -> DataFrame:
        return emit(spout, spark, attempt, {"p1": at["p1"]})

    with monkeypatch.context() as patch:
        patch.setattr(Poisonable, "emit_partitions", emit_one)
        patch.setattr(Poisonable, "parts_read", lambda *_: ["p1"])
        with pytest.raises(FailedException, match=r"late_rows': planned and never read: .* p2"):
            world.run(counts, ("rows", "totals", *late), backfilled_tables=late)
    world.run(counts, ("rows", "totals", *late), backfilled_tables=late)
    assert world.rows("late_rows") == world.rows("rows")


def test_a_table_is_filled_beside_the_former_program(world: World) -> None:
    """`Topology.backfill` leads nothing: the former program goes on, what it commits meanwhile is
    filled in by the next call or by the new program itself, and a call after that is refused.
    """
    tables, late = ("rows", "totals", "late_rows", "late"), ("late_rows", "late")
    paths = [str(world.folder / table) for table in late]
    first = world.run({"p1": 4})
    for counts in ({"p1": 4}, {"p1": 6, "p2": 2}):
        newest = world.run(counts)
        program = world.topology(counts, tables)
        filled = program.backfill(world.spark, paths, zookeeper=world.hosts)
        assert filled == dict.fromkeys(paths, newest)
        assert program.backfill(world.spark, paths, zookeeper=world.hosts) == {}
    assert newest > first
    assert world.rows("late_rows") == world.rows("rows")
    after = world.run({"p1": 8, "p2": 3}, tables, backfilled_tables=late)
    assert after > newest
    assert world.rows("late_rows") == world.rows("rows")
    assert world.totals("late") == world.totals("totals") == world.expected()
    with pytest.raises(TopologyError, match="has no table 'nowhere' to fill"):
        program.backfill(world.spark, ["nowhere"], zookeeper=world.hosts)


def test_a_second_filling_of_a_table_is_told(world: World) -> None:
    """Of two fillings at once the slower one ends with an error that names the table; started
    again, it finds nothing to do. The table has every txid once.
    """
    after = world.run({"p1": 6, "p2": 2})
    table, tables = str(world.folder / "late_rows"), ("rows", "totals", "late_rows")
    began = []

    def fill(counts: Mapping[str, int]) -> dict[str, int]:
        topology = world.topology(counts, tables, backfilled_tables=("late_rows",))
        return topology.backfill(world.spark, [table], zookeeper=world.hosts)

    def another(point: str, attempt: TransactionAttempt) -> None:
        if point == "backfilled" and not began:
            began.append(attempt)
            assert fill({"p1": 6, "p2": 2}) == {table: after}

    with (
        observing(another),
        pytest.raises(CommitConflictError, match=r"second `txn backfill`.*each txid once.*start "),
    ):
        fill({"p1": 6, "p2": 2})
    assert fill({"p1": 6, "p2": 2}) == {}  # it is not late any more
    assert world.rows("late_rows") == world.rows("rows")


def test_a_wiped_zookeeper_is_rebuilt_while_a_table_is_filled(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """`txn recover` leaves out the table that lacks txids, and the next run fills it."""
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.OPAQUE)
    world.run({"p1": 5})
    tables, late = ("rows", "totals", "late_rows"), ["late_rows"]
    with observing(crash_at("backfilled")), pytest.raises(CrashedError):
        world.run({"p1": 5}, tables, backfilled_tables=late)
    world.hosts += "-wiped"
    program = world.topology({"p1": 6}, tables, backfilled_tables=late)
    with open_backend(world.hosts, program.settings) as backend:
        write(backend, program, read_tables(program))
    world.run({"p1": 6}, tables, backfilled_tables=late)
    assert [row[1] for row in world.rows("rows")] == list(range(6))
    assert world.rows("late_rows") == world.rows("rows")


@pytest.mark.parametrize("beside", [False, True], ids=["by the run", "beside"])
def test_a_dropped_table_is_put_back(world: World, beside: bool) -> None:
    """A table that the program left out for a while gets the txids that it has missed, also if the
    program needs it in another shape by now.
    """
    tables, late = ("rows", "totals", "late_rows", "late"), ("late_rows", "late")
    world.run({"p1": 3}, tables)
    world.run({"p1": 6}, dropped_tables=late)
    with pytest.raises(RecoveryRefusedError, match=r"holds txid \d+, but ZooKeeper says"):
        world.run({"p1": 7}, tables)
    changed = {"buckets": 7, "rebuilt_tables": ["late"], "backfilled_tables": late}
    if beside:
        paths = [str(world.folder / table) for table in late]
        program = world.topology({"p1": 6}, tables, **changed)
        assert set(program.backfill(world.spark, paths, zookeeper=world.hosts)) == set(paths)
    world.run({"p1": 7}, tables, **changed)
    assert world.rows("late_rows") == world.rows("rows")
    assert world.totals("late") == world.totals("totals") == world.expected()


@pytest.mark.parametrize("goes_on", [True, False], ids=["txids behind it", "none behind it"])
def test_a_table_that_is_put_back_loses_what_a_dead_attempt_left_in_it(
    world: World, goes_on: bool
) -> None:
    """A table that held a txid of an attempt that failed when it was left out takes that back when
    it is put back; one that cannot is refused by name.

    `txn plan` tells so before, and `txn recover` takes such a txid for committed in no table. If
    no txid came behind it, the table is refused without the setting as well.
    """
    tables, late = ("late_rows", "rows", "totals"), ("late_rows",)
    newest = world.run({"p1": 2}, tables, max_group_commit=1)
    with observing(crash_at("between-publications", newest + 1)), pytest.raises(CrashedError):
        world.run({"p1": 3}, tables, max_group_commit=1)
    assert len(world.rows("late_rows")) == len(world.rows("rows")) + 1
    poison = frozenset({records("p1", 3)[2][3]})
    world.run({"p1": 3}, poison=poison, dropped_tables=late, max_group_commit=1)
    if goes_on:
        world.run({"p1": 4}, dropped_tables=late, max_group_commit=1)
    failed = "from attempt 0, which failed after"
    if not goes_on:
        with pytest.raises(RecoveryRefusedError, match=failed):
            world.run({"p1": 5}, tables, max_group_commit=1)
    program = world.topology({"p1": 5}, tables, backfilled_tables=late, max_group_commit=1)
    told = [p.change.what for p in compare_topology(program, world.hosts).changes]
    world.hosts += "-wiped"
    with open_backend(world.hosts, program.settings) as backend:
        write(backend, program, read_tables(program))
    if world.kind is SpoutKind.TRANSACTIONAL:
        assert failed in told[0]
        with pytest.raises(RecoveryRefusedError, match=failed):
            world.run({"p1": 5}, tables, backfilled_tables=late, max_group_commit=1)
        return
    assert told[0].startswith(f"it lacks txids {newest + 1} to ")
    world.run({"p1": 5}, tables, backfilled_tables=late, max_group_commit=1)
    assert world.rows("late_rows") == world.rows("rows")


def test_a_leader_takes_over_from_a_filling_that_still_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader fills a table from where a filling beside it has come when the table is fenced, not
    from where it was when the leader has read it first.
    """
    tables, late = ("rows", "totals", "late_rows"), ("late_rows",)
    world.run({"p1": 4})
    program = world.topology({"p1": 4}, tables)
    fence = Tables.fence

    def fill_and_fence(opened: Tables) -> Newest:
        program.backfill(world.spark, [str(world.folder / "late_rows")], zookeeper=world.hosts)
        return fence(opened)

    monkeypatch.setattr(Tables, "fence", fill_and_fence)
    world.run({"p1": 5}, tables, backfilled_tables=late)
    assert world.rows("late_rows") == world.rows("rows")


def test_before_the_first_commit_no_table_is_late(world: World) -> None:
    """Tables that hold txid 1 of two dead attempts get it anew, also those of backfilled_tables."""
    late = ("late_rows",)
    for tables in (("late_rows", "rows"), ("rows", "late_rows")):
        with observing(crash_at("between-publications")), pytest.raises(CrashedError):
            world.run({"p1": 1}, tables, backfilled_tables=late)
    world.run({"p1": 2}, tables, backfilled_tables=late)
    assert [row[1] for row in world.rows("rows")] == [0, 1]
    assert world.rows("late_rows") == world.rows("rows")


def test_a_version_that_lacks_a_file_ends_the_filling(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a filled table has published is compared with what was staged for it, as in a run."""
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.TRANSACTIONAL)
    world.run({"p1": 3})
    publish = AppendTable.publish

    def forgetful(table: AppendTable, *args: Any) -> Published:
        done = publish(table, *args)
        return replace(done, files=done.files[1:]) if table.name.endswith("late_rows") else done

    monkeypatch.setattr(AppendTable, "publish", forgetful)
    tables = ("rows", "totals", "late_rows")
    with pytest.raises(FailedException, match=r"late_rows, with txid \d+ .*other files"):
        world.run({"p1": 3}, tables, backfilled_tables=["late_rows"])


def test_a_filling_changes_no_table_that_the_leader_knows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose log was listed a moment too early seems to hold nothing: `txn backfill` fills
    its next generation nevertheless, and leaves the table to the leader.
    """
    tables = ("rows", "late")
    world.run({"p1": 3}, tables)
    path = str(world.folder / "late")
    version = DeltaTable(path).version()
    newest = OpenTable.last_publication

    def stale(table: OpenTable) -> tuple[int, Publication] | None:
        return None if table.name == path else newest(table)

    monkeypatch.setattr(OpenTable, "last_publication", stale)
    changed = world.topology({"p1": 3}, tables, buckets=8, backfilled_tables=["late"])
    assert changed.backfill(world.spark, [path], zookeeper=world.hosts)
    assert DeltaTable(path).version() == version
    monkeypatch.undo()
    world.run({"p1": 4}, tables, buckets=8, backfilled_tables=["late"])
    assert world.totals("late") == world.expected()


def test_a_started_table_is_not_left_out_before_its_first_commit(world: World) -> None:
    """A program that lacks a table which a start has filled is refused, also if nothing was
    committed since; `txn plan` says so.
    """
    after = world.run({"p1": 4}, ("rows",))
    assert after == world.run({"p1": 4}, ("rows", "late"), backfilled_tables=("late",))
    former = world.topology({"p1": 5}, ("rows",))
    assert compare_topology(former, world.hosts).is_refused
    with pytest.raises(RecoveryRefusedError, match="does not name table '.*late' of topology"):
        world.run({"p1": 5}, ("rows",))
    world.run({"p1": 5}, ("rows",), dropped_tables=("late",))
    world.run({"p1": 6}, ("rows",))  # the setting may go


def test_history_that_is_gone_is_told_before_anything_happens(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """Where the logs go back to a later txid only, the start is refused and names it; the setting
    of the message lets the table begin there.
    """
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.TRANSACTIONAL)
    first = world.run({"p1": 3}, max_group_commit=1)
    clean_logs(world.folder / "rows", world.folder / "totals")
    world.run({"p1": 5}, max_group_commit=1)
    tables = ("rows", "totals", "late_rows")
    with pytest.raises(RecoveryRefusedError, match=f"filled from txid {first} on: .*new_tables="):
        world.run({"p1": 6}, tables, backfilled_tables=["late_rows"])
    assert not (warehouse / "late_rows" / "_delta_log").exists()
    late = ["late_rows"]
    world.run({"p1": 6}, tables, backfilled_tables=late, new_tables=late)
    assert world.rows("late_rows") == [row for row in world.rows("rows") if row[-1] >= first]


def test_a_table_behind_a_state_has_no_history(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """New values of a state are gone with their txid: such a table is refused by name."""
    world = World(spark, zookeeper.hosts, warehouse, SpoutKind.TRANSACTIONAL)
    world.run({"p1": 2})
    data = {"p1": records("p1", 3)}
    topology = Topology("late", TopologyConfig(backfilled_tables=(str(warehouse / "moves"),)))
    stream = topology.stream("s", Literals(data, SCHEMA, take_per_partition=1, kind=world.kind))
    stream.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    state = stream.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals", "transactional"), n=Count(), total=Sum("v")
    )
    state.new_values().partition_persist(AppendTable(warehouse / "moves", "transactional"))
    with pytest.raises(TopologyError, match=r"reads a state, .* name it in new_tables"):
        topology.run(spark, zookeeper=world.hosts, until="caught_up")
