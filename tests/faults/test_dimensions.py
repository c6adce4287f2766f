"""Lookups in a table that others change: a txid reads one version of it, whatever fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import CrashedError, Points, crash_at, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.engine.work.derived import require_derivable
from txn.errors import RecoveryRefusedError, TopologyError, TxnError
from txn.operations.history import history
from txn.operations.recover import read_tables
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Spout

SCHEMA = "id int, carrier string"
BATCHES = [[(1, "a"), (2, "b")], [(3, "a"), (4, "x")], [(5, "b"), (6, None)], [(7, "a")]]


@pytest.fixture
def carriers(warehouse: Path) -> Path:
    """A table with two carriers, version 0."""
    path = warehouse / "carriers"
    warehouse.mkdir(exist_ok=True)
    rename(path, 0)
    return path


def rename(path: Path, version: int) -> None:
    """Another process replaces all names: they say in which version."""
    names = {"carrier": ["a", "b"], "name": [f"A{version}", f"B{version}"], "more": [1, 2]}
    write_deltalake(path, pa.table(names), mode="overwrite")
    assert DeltaTable(path).version() == version


def named(warehouse: Path, spout: Spout[Any], carriers: Path, **config: Any) -> Topology:
    """Rows with the names of their carriers, in a table of rows and one of totals."""
    settings = {"retry_backoff_ms": 1, "max_spout_pending": 2, "max_group_commit": 1, **config}
    made, kind = Topology("named", TopologyConfig(**settings)), spout.kind.value
    rows = made.stream("s", spout).lookup(carriers, on="carrier", columns=["name"])
    rows.partition_persist(AppendTable(warehouse / "rows", kind))
    counts = StateTable(warehouse / "counts", kind, buckets=2)
    rows.group_by("name").persistent_aggregate(counts, n=Count())
    return made


def check_whole(warehouse: Path, batches: list[list[tuple[int, str | None]]]) -> None:
    """Each txid's rows have the names of the version that history shows, in both tables."""
    tables = [str(warehouse / name) for name in ("rows", "counts")]
    versions = {e.txid: [*e.dimensions.values()] for e in history("named", tables)}
    expected = [
        (number, f"{carrier.upper()}{versions[txid][0]}" if carrier in ("a", "b") else None, txid)
        for txid, rows in enumerate(batches, 1)
        for number, carrier in rows
    ]
    found = rows_of(warehouse / "rows", "id", "name", "txid")
    assert found == expected
    names = [name for _, name, _ in expected]
    assert rows_of(warehouse / "counts", "name", "n", key=str) == sorted(
        ((name, names.count(name)) for name in {*names}), key=str
    )


def between(carriers: Path, at: Callable[[TransactionAttempt], bool]) -> Points:
    """The table changes after each START of some attempts."""

    def change(attempt: TransactionAttempt) -> None:
        if at(attempt):
            rename(carriers, DeltaTable(carriers).version() + 1)

    return Points(after_start=change)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_every_attempt_reads_the_version_of_the_first_start(
    spark: SparkSession, warehouse: Path, carriers: Path, kind: str
) -> None:
    """A txid reads one version of a table that others change, in every attempt and every table:
    the newest when it was planned.
    """
    script = {(txid, n): rows for txid, rows in enumerate(BATCHES, 1) for n in range(9)}
    spout = (
        MemoryOpaqueSpout(script, SCHEMA)
        if kind == "opaque"
        else MemoryTransactionalSpout(BATCHES, SCHEMA)
    )
    failed: set[int] = set()

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.txid in (2, 3) and attempt.txid not in failed:
            failed.add(attempt.txid)
            raise FailedException("published, but not committed")

    changes = between(carriers, lambda attempt: True)
    with observing(changes), observing(Points(after_publish=fail)):
        report = run_in_memory(named(warehouse, spout, carriers), spark)
    assert report.replays >= 2
    check_whole(warehouse, BATCHES)
    tables = [str(warehouse / "rows")]
    versions = [next(iter(e.dimensions.values())) for e in reversed(history("named", tables))]
    assert versions == sorted({*versions})


@pytest.mark.parametrize("point", ["after_start", "after_publish", "before_committed"])
def test_a_successor_reads_the_version_of_the_start(
    spark: SparkSession, warehouse: Path, carriers: Path, point: str
) -> None:
    """After a crash, and after `txn recover`, an open txid reads the version that it began with."""
    nodes = MemoryNodes()
    spout = MemoryTransactionalSpout(BATCHES, SCHEMA)
    made = named(warehouse, spout, carriers)
    with observing(crash_at(point, 2)), pytest.raises(CrashedError):
        run_in_memory(made, spark, nodes)
    started = {b.txid: b.dimensions for b in nodes.status("named").progress.batches}
    assert started[2] == {str(carriers): 0}
    for batch in read_tables(made).progress.batches if point == "after_publish" else ():
        assert batch.dimensions == started[batch.txid]
    rename(carriers, 1)
    run_in_memory(made, spark, nodes)
    check_whole(warehouse, BATCHES)
    assert rows_of(warehouse / "rows", "name", key=str)[0] == ("A0",)


def test_an_open_txid_may_get_a_lookup(
    spark: SparkSession, warehouse: Path, carriers: Path
) -> None:
    """A txid that a former program has begun without the lookup reads the newest version."""
    nodes, spout = MemoryNodes(), MemoryTransactionalSpout(BATCHES, SCHEMA)
    plain = Topology("named", TopologyConfig(max_spout_pending=1))
    stream = plain.stream("s", spout).transform(lambda df: df.selectExpr("*", "'none' AS name"))
    stream.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    with observing(crash_at("after_start", 2)), pytest.raises(CrashedError):
        run_in_memory(plain, spark, nodes)
    rename(carriers, 1)
    made = Topology("named", TopologyConfig(max_spout_pending=1))
    rows = made.stream("s", spout).lookup(carriers, "carrier", ["name"])
    rows.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    run_in_memory(made, spark, nodes)
    names = rows_of(warehouse / "rows", "txid", "name", key=str)
    assert names[:4] == [(1, "none"), (1, "none"), (2, "A1"), (2, None)]


def test_a_table_that_is_filled_reads_the_versions_of_its_txids(
    spark: SparkSession, warehouse: Path, carriers: Path
) -> None:
    """A table that comes later has the names that the others have."""
    nodes, spout = MemoryNodes(), MemoryTransactionalSpout(BATCHES, SCHEMA)

    def program(*tables: str, **config: Any) -> Topology:
        made = Topology("named", TopologyConfig(max_spout_pending=1, **config))
        rows = made.stream("s", spout).lookup(carriers, on=["carrier"])
        for table in tables:
            rows.partition_persist(AppendTable(warehouse / table))
        return made

    with observing(between(carriers, lambda attempt: True)):
        run_in_memory(program("rows"), spark, nodes)
    late = str(warehouse / "late")
    run_in_memory(program("rows", "late", backfilled_tables=(late,)), spark, nodes)
    columns = ("id", "name", "more", "txid")
    assert rows_of(warehouse / "late", *columns) == rows_of(warehouse / "rows", *columns)


def test_a_key_that_the_table_has_twice_gives_two_rows(
    spark: SparkSession, warehouse: Path, carriers: Path
) -> None:
    """A lookup is a left join: NULL matches nothing, and no row is lost."""
    write_deltalake(
        carriers,
        pa.table({"carrier": ["a", None], "name": ["again", "null"], "more": [3, 4]}),
        mode="append",
    )
    made = Topology("named")
    batch = [(1, "a"), (2, None), (3, "x")]
    rows = made.stream("s", MemoryTransactionalSpout([batch], SCHEMA))
    rows.lookup(carriers, on="carrier").partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    found = rows_of(warehouse / "rows", "id", "name", key=str)
    assert found == [(1, "A0"), (1, "again"), (2, None), (3, None)]


def test_a_version_that_is_gone_is_named(
    spark: SparkSession, warehouse: Path, carriers: Path
) -> None:
    """Files that VACUUM has deleted fail the batch by name; nothing is written in their place."""
    nodes, spout = MemoryNodes(), MemoryTransactionalSpout(BATCHES, SCHEMA)
    made = named(warehouse, spout, carriers, max_batch_attempts=2)
    with observing(crash_at("after_start", 2)), pytest.raises(CrashedError):
        run_in_memory(made, spark, nodes)
    before = rows_of(warehouse / "rows", "id", "txid")
    rename(carriers, 1)
    table = DeltaTable(carriers)
    deleted = table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(TxnError, match=deleted[0]):
        run_in_memory(made, spark, nodes)
    assert rows_of(warehouse / "rows", "id", "txid") == before


def test_what_cannot_be_looked_up_is_refused(
    spark: SparkSession, warehouse: Path, carriers: Path
) -> None:
    """A table or a column that does not exist, or is there twice, is named before anything is
    written.
    """

    def refused(table: Path, told: str, on: str = "carrier", columns: Any = None) -> None:
        made = Topology("wrong")
        rows = made.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
        rows = rows.lookup(table, on, columns)
        rows.partition_persist(AppendTable(warehouse / "rows"))
        with pytest.raises(TopologyError, match=told):
            run_in_memory(made, spark)
        assert not (warehouse / "rows").exists()

    refused(warehouse / "missing", "looks rows up in table '.*missing', which does not exist")
    refused(carriers, "has no column 'nme'. Its columns are carrier, name, more", columns=["nme"])
    refused(carriers, "'id'", on="id")
    refused(warehouse / "rows", "a table of this topology")
    write_deltalake(warehouse / "ids", pa.table({"carrier": ["a"], "id": [1]}))
    refused(warehouse / "ids", "would add a second column 'id' of table")
    made = Topology("wrong")
    with pytest.raises(TopologyError, match="names no column"):
        made.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA)).lookup(carriers, [])


def test_stored_rows_do_not_pass_a_lookup(warehouse: Path, carriers: Path) -> None:
    """A state below a lookup is not filled from rows above it, which lost their txids' versions."""
    made = Topology("named")
    rows = made.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    rows.partition_persist(AppendTable(warehouse / "rows"))
    names = rows.lookup(carriers, "carrier").group_by("name")
    names.persistent_aggregate(StateTable(warehouse / "n"), n=Count())
    stored, state = made.sinks
    with pytest.raises(TopologyError, match="also depends on table '.*carriers'"):
        require_derivable(state, stored)


def test_another_table_at_the_path_is_named(
    spark: SparkSession, warehouse: Path, carriers: Path
) -> None:
    """A table that was deleted and made anew lacks the version of an open txid."""
    rename(carriers, 1)
    nodes, spout = MemoryNodes(), MemoryTransactionalSpout(BATCHES, SCHEMA)
    made = named(warehouse, spout, carriers)
    with observing(crash_at("after_start", 1)), pytest.raises(CrashedError):
        run_in_memory(made, spark, nodes)
    shutil.rmtree(carriers)
    rename(carriers, 0)
    with pytest.raises((TopologyError, RecoveryRefusedError), match="version 1 of table"):
        run_in_memory(made, spark, nodes)


def test_a_damaged_log_is_named(spark: SparkSession, warehouse: Path, carriers: Path) -> None:
    """A table whose log cannot be read is refused with its place, before anything is written."""
    (log,) = (carriers / "_delta_log").glob("*.json")
    log.write_text("no commit\n")
    with pytest.raises(TopologyError, match="carriers cannot be loaded: "):
        run_in_memory(named(warehouse, MemoryTransactionalSpout(BATCHES, SCHEMA), carriers), spark)
    assert not (warehouse / "rows").exists()
