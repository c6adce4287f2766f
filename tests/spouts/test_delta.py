"""A Delta table as a spout: what is planned out of its log, what is read, what is refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.sql import functions as sf

from spouts.delta import DeltaBatch, DeltaSpout
from txn.attempts import TransactionAttempt
from txn.errors import SourceChangedError, TopologyError
from txn.interfaces import Lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPT = TransactionAttempt(1)


def append(path: Path, *values: int, **how: Any) -> None:
    """One more version, with these rows."""
    write_deltalake(str(path), pa.table({"v": list(values)}), mode="append", **how)


def plan(spout: DeltaSpout, previous: DeltaBatch | None = None) -> DeltaBatch | None:
    """The next batch, as it comes back out of ZooKeeper."""
    batch = spout.initialize_transaction(ATTEMPT, previous)
    return batch and DeltaBatch.model_validate_json(batch.model_dump_json())


def planned(spout: DeltaSpout, previous: DeltaBatch | None = None) -> list[list[int]]:
    """Versions of every batch, until there is nothing more to read."""
    found = []
    while (batch := plan(spout, previous)) is not None:
        found.append([version.version for version in batch.versions])
        previous = batch
    return found


def rows(spark: SparkSession, spout: DeltaSpout, batch: DeltaBatch) -> list[tuple[Any, ...]]:
    """The rows of one batch, sorted."""
    return sorted(tuple(r) for r in spout.emit_batch(spark, ATTEMPT, batch).collect())


def first(spout: DeltaSpout) -> DeltaBatch:
    """The first batch; there is one."""
    batch = plan(spout)
    assert batch is not None
    return batch


# --- what is read ------------------------------------------------------------------------------


def test_each_version_is_a_batch_with_the_rows_it_added(
    spark: SparkSession, warehouse: Path
) -> None:
    """A table that Spark appends to comes version by version, OPTIMIZE is passed over, and the
    batches together are the table.
    """
    table = warehouse / "[odd] na*me"
    data = spark.range(40).select("id", sf.lit(None).cast("string").alias("k"))
    for part in (0, 1):
        data.where(f"id % 2 = {part}").write.format("delta").mode("append").save(f"file:{table}")
    DeltaTable(str(table)).optimize.compact()
    append_to = data.where("id < 3").repartition(2)
    append_to.write.format("delta").mode("append").save(f"file:{table}")
    spout = DeltaSpout(table)
    schema = spout.open(spark, None)
    assert schema is not None
    assert schema.simpleString() == data.schema.simpleString()
    batches, lags, previous = [], [], None
    while (batch := plan(spout, previous)) is not None:
        batches.append(batch)
        lags.append(spout.lag(batch))
        previous = batch
    assert [*lags, spout.lag(previous)] == [Lag(versions=left) for left in (3, 2, 0, 0)]
    assert [spout.planned_lag(b) for b in batches] == [Lag(versions=n) for n in (1, 1, 2)]
    assert [[v.version for v in batch.versions] for batch in batches] == [[0], [1], [3]]
    found = [[r[0] for r in rows(spark, spout, batch)] for batch in batches]
    assert found == [list(range(0, 40, 2)), list(range(1, 40, 2)), [0, 1, 2]]
    frame = spout.emit_batch(spark, ATTEMPT, batches[0])
    assert frame.schema == schema == spout.open(spark, batches[-1])
    assert spout.parts_read(frame, batches[0]) == spout.planned_parts(batches[0]) == ["version 0"]
    assert [spout.planned_rows(batch) for batch in batches] == [20, 20, 3]
    log = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    added = [action["add"]["size"] for action in map(json.loads, log) if "add" in action]
    assert spout.planned_bytes(batches[0]) == sum(added) > 0


def test_only_the_planned_files_are_read(spark: SparkSession, warehouse: Path) -> None:
    """Spark's plan names the files of the batch's versions and no other, and a part that lost a
    file is not said to be read.
    """
    for value in range(4):
        append(warehouse, value)
    spout = DeltaSpout(warehouse, versions_per_batch=2)
    spout.open(spark, None)
    batch = plan(spout, first(spout))
    assert batch is not None
    frame = spout.emit_batch(spark, ATTEMPT, batch)
    assert len(frame.inputFiles()) == 2
    assert [tuple(r) for r in frame.orderBy("v").collect()] == [(2,), (3,)]
    one = spark.read.parquet(frame.inputFiles()[0])
    assert len(spout.parts_read(one, batch)) == 1


def test_partition_columns_come_from_the_log(spark: SparkSession, warehouse: Path) -> None:
    """Values, odd characters, dates and NULLs of partition columns are those of the table."""
    data = pa.table(
        {
            "d": [dt.date(2024, 1, 1), None, dt.date(2024, 1, 1)],
            "v": [1, 2, 3],
            "k": ["a/b %20", "x", None],
        }
    )
    write_deltalake(str(warehouse), data, partition_by=["d", "k"])
    spout = DeltaSpout(warehouse)
    spout.open(spark, None)
    frame = spout.emit_batch(spark, ATTEMPT, first(spout))
    expected = [tuple(row.values()) for row in data.to_pylist()]
    assert sorted(map(tuple, frame.collect()), key=lambda r: r[1]) == expected
    assert frame.schema == spout.open(spark, None)
    assert spout.parts_read(frame, first(spout)) == ["version 0"]


def test_recorded_changes_are_read_with_their_kind(spark: SparkSession, warehouse: Path) -> None:
    """With changes=True updates and deletes come as rows of Delta's change data feed."""
    append(warehouse, 1, 2, 3, configuration={"delta.enableChangeDataFeed": "true"})
    table = DeltaTable(str(warehouse))
    table.update(predicate="v = 2", updates={"v": "20"})
    table.optimize.compact()
    table.delete("v = 3")
    spout = DeltaSpout(warehouse, changes=True, versions_per_batch=2)
    schema = spout.open(spark, None)
    one = first(spout)
    two = plan(spout, one)
    assert two is not None
    frames = [spout.emit_batch(spark, ATTEMPT, batch) for batch in (one, two)]
    found = [
        sorted((r["_commit_version"], r["_change_type"], r["v"]) for r in frame.collect())
        for frame in frames
    ]
    assert found == [
        [(0, "insert", n) for n in (1, 2, 3)]
        + [(1, "update_postimage", 20), (1, "update_preimage", 2)],
        [(table.version(), "delete", 3)],
    ]
    assert [(f.name, f.dataType) for f in frames[0].schema] == [
        (f.name, f.dataType)
        for f in schema  # type: ignore[union-attr]
    ]
    assert plan(spout, two) is None


# --- positions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"), [("first", [[0], [1], [2]]), (1, [[1], [2]]), (7, []), ("latest", [[]])]
)
def test_where_the_first_batch_begins(warehouse: Path, start: Any, expected: list[Any]) -> None:
    """At version 0, at a given version, or behind the newest one: an empty batch keeps that."""
    for value in range(3):
        append(warehouse, value)
    assert planned(DeltaSpout(warehouse, start=start)) == expected


def test_latest_is_kept_over_a_restart(spark: SparkSession, warehouse: Path) -> None:
    """What is appended after the empty first batch is read, also by another process."""
    append(warehouse, 1)
    batch = first(DeltaSpout(warehouse, start="latest"))
    assert rows(spark, DeltaSpout(warehouse, start="latest"), batch) == []
    append(warehouse, 2)
    assert planned(DeltaSpout(warehouse, start="latest"), batch) == [[1]]


def test_a_table_that_is_not_there_yet_is_waited_for(spark: SparkSession, warehouse: Path) -> None:
    """Nothing to read until somebody makes the table; the folder is not made here."""
    spout = DeltaSpout(warehouse / "later")
    assert (spout.open(spark, None), plan(spout)) == (None, None)
    assert list(warehouse.iterdir()) == []
    append(warehouse / "later", 1)
    assert planned(spout) == [[0]]


def test_many_versions_without_rows_move_the_position(warehouse: Path) -> None:
    """An empty batch lets the log be cleaned up behind versions that have nothing to read."""
    append(warehouse, 1)
    table = DeltaTable(str(warehouse))
    for number in range(100):
        table.alter.set_table_properties({"custom": f"{number}"}, raise_if_not_exists=False)
    spout = DeltaSpout(warehouse)
    batch = plan(spout, first(spout))
    assert batch is not None
    assert (batch.versions, batch.last_version) == ((), 100)
    assert plan(spout, batch) is None


# --- refusals ----------------------------------------------------------------------------------


def test_a_version_that_removes_rows_is_refused_when_its_turn_comes(warehouse: Path) -> None:
    """A DELETE is named with its version and what to do; what lies before it is delivered."""
    append(warehouse, 1, 2)
    DeltaTable(str(warehouse)).delete("v = 1")
    spout = DeltaSpout(warehouse)
    batch = first(spout)
    with pytest.raises(SourceChangedError, match=r"version 1 \(DELETE\) removes .*changes=True"):
        plan(spout, batch)


def test_another_schema_is_refused_by_name(warehouse: Path) -> None:
    """A column that is added while the table is read stops the spout at that version."""
    append(warehouse, 1)
    spout = DeltaSpout(warehouse)
    batch = first(spout)
    wider = pa.table({"v": [2], "w": ["x"]})
    write_deltalake(str(warehouse), wider, mode="append", schema_mode="merge")
    told = "version 1 .*changed the columns.*'w' is string, not.*new_columns='ignore'"
    with pytest.raises(SourceChangedError, match=told):
        plan(spout, batch)
    assert planned(DeltaSpout(warehouse, start=1)) == [[1]]


def test_a_history_with_other_columns_is_refused_with_a_version_that_can_be_read(
    warehouse: Path,
) -> None:
    """A new topology is told from which version on the columns are those of now, however often
    they changed before.
    """
    append(warehouse, 1)
    for version, name in enumerate("wxu", 1):
        table = pa.table({name: [1]})
        write_deltalake(str(warehouse), table, mode="overwrite", schema_mode="overwrite")
        told = f"version 0 .*changed the columns.*start={version + 1}[.]"
        with pytest.raises(SourceChangedError, match=told):
            first(DeltaSpout(warehouse))
    write_deltalake(str(warehouse), table, mode="append")
    assert planned(DeltaSpout(warehouse, start=4)) == [[4]]


@pytest.mark.parametrize("changes", [False, True])
def test_a_column_that_was_added_later_is_null_in_the_versions_before(
    spark: SparkSession, warehouse: Path, changes: bool
) -> None:
    """The whole history of a table can be read, with the columns that it has when the reading
    begins; one that comes after that is not read, and stops the spout at its own version.
    """
    row = {"v": [2], "w": ["b"], "s": [[{"x": 1}]]}
    made = {"configuration": {"delta.enableChangeDataFeed": "true"}}
    append(warehouse, 1, **made)
    for added in ("w string FIRST", "s ARRAY<STRUCT<x: BIGINT>>"):
        spark.sql(f"ALTER TABLE delta.`{warehouse}` ADD COLUMN {added}")
    write_deltalake(str(warehouse), pa.table(row), mode="append", schema_mode="merge")
    spark.sql(f"ALTER TABLE delta.`{warehouse}` ADD COLUMN s.element.y BIGINT")
    spark.sql(f"ALTER TABLE delta.`{warehouse}` ALTER COLUMN v FIRST")
    spout = DeltaSpout(warehouse, versions_per_batch=9, changes=changes)
    spout.open(spark, None)
    batch = first(spout)
    assert [version.version for version in batch.versions] == [0, 3]
    append(warehouse, 3, schema_mode="merge")
    spark.sql(f"ALTER TABLE delta.`{warehouse}` ADD COLUMN later BIGINT")
    frame = spout.emit_batch(spark, ATTEMPT, batch)
    assert frame.columns[:3] == ["v", "w", "s"]
    assert "later" not in frame.columns
    found = [tuple(row) for row in frame.select("v", "w", "s").orderBy("v").collect()]
    assert found == [(1, None, None), (2, "b", [(1, None)])]
    batch = plan(spout, batch)
    assert batch is not None
    assert [version.version for version in batch.versions] == [6]
    with pytest.raises(SourceChangedError, match="version 7 .*'later' is long, not absent"):
        plan(spout, batch)


def test_a_log_that_was_cleaned_up_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """Versions that left the log before they were read are named, at planning and at replay."""
    for value in range(3):
        append(warehouse, value)
    DeltaTable(str(warehouse)).create_checkpoint()
    batch = first(DeltaSpout(warehouse))
    for version in (0, 1):
        (warehouse / f"_delta_log/{version:020d}.json").unlink()
    with pytest.raises(SourceChangedError, match=r"needs version 1, but versions 1 to 1 are no"):
        plan(DeltaSpout(warehouse), batch)
    with pytest.raises(SourceChangedError, match="versions 0 to 1 .* set start=2"):
        plan(DeltaSpout(warehouse))
    with pytest.raises(SourceChangedError, match="version 0 was planned, but is no longer in"):
        DeltaSpout(warehouse).emit_batch(spark, ATTEMPT, batch)
    assert planned(DeltaSpout(warehouse, start=2)) == [[2]]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "first": (lambda log: (log / f"{0:020}.json").write_text('{"bro'), f"{0:020}.json"),
    "cut": (lambda log: os.truncate(log / f"{1:020}.json", 200), f"{1:020}.json"),
    "checkpoint": (
        lambda log: (log / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1"),
        "delete it and _delta_log/_last_checkpoint instead",
    ),
    "no checkpoint": (
        lambda log: (log / f"{1:020}.checkpoint.parquet").unlink(),
        "delete it and _delta_log/_last_checkpoint instead",
    ),
}


@pytest.mark.parametrize(("damage", "told"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_log_is_refused_and_not_waited_for(
    warehouse: Path, damage: Callable[[Path], object], told: str
) -> None:
    """The file is named if it is a commit, without another language's backtrace."""
    for value in range(2):
        append(warehouse, value)
    if "checkpoint" in told:
        DeltaTable(str(warehouse)).create_checkpoint()
    spout = DeltaSpout(warehouse)
    batch = first(spout)
    damage(warehouse / "_delta_log")
    for step in (
        lambda: spout.open(cast("SparkSession", None), None),
        lambda: plan(spout),
        lambda: spout.emit_batch(cast("SparkSession", None), ATTEMPT, batch),
    ):
        with pytest.raises(SourceChangedError, match=f"Source table .* damaged.*{told}") as refused:
            step()
        assert refused.value.number == "TXN-315"
        assert "unknown" not in str(refused.value)
    (warehouse / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
    if "checkpoint" in told:
        (warehouse / "_delta_log" / f"{1:020}.checkpoint.parquet").unlink(missing_ok=True)
        assert planned(DeltaSpout(warehouse)) == [[0], [1]]


def test_a_vacuumed_file_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """A planned file that VACUUM took is named; it is never an empty batch."""
    for value in range(2):
        append(warehouse, value)
    spout = DeltaSpout(warehouse, versions_per_batch=2)
    batch = first(spout)
    table = DeltaTable(str(warehouse))
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceChangedError, match=r"of versions 0 to 1, planned for 1:0, is gone"):
        spout.emit_batch(spark, ATTEMPT, batch)


def test_a_replaced_table_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """Another table at the same path, or none, is noticed by its id at every step."""
    table = warehouse / "t"
    append(table, 1)
    spout = DeltaSpout(table)
    batch = first(spout)
    shutil.rmtree(table)
    with pytest.raises(SourceChangedError, match="read up to version 0, is gone"):
        plan(spout, batch)
    append(table, 1)
    append(table, 2)
    for step in (
        lambda: plan(spout, batch),
        lambda: spout.emit_batch(spark, ATTEMPT, batch),
        lambda: DeltaSpout(table).open(spark, batch),
    ):
        with pytest.raises(SourceChangedError, match="was replaced"):
            step()


def test_a_log_entry_that_was_changed_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """A replay finds the files that were planned, or nothing is read."""
    append(warehouse, 1)
    batch = first(DeltaSpout(warehouse))
    entry = warehouse / f"_delta_log/{0:020d}.json"
    entry.write_text("\n".join(x for x in entry.read_text().splitlines() if '{"add"' not in x))
    with pytest.raises(SourceChangedError, match="planned with 1 files of .* now has 0 files"):
        DeltaSpout(warehouse).emit_batch(spark, ATTEMPT, batch)


REFUSED = {
    "state": ({"txn.kind": "upsert", "txn.topology": "up"}, {}, "state table of topology 'up'"),
    "changes": ({}, {"changes": True}, "delta.enableChangeDataFeed to true"),
}


@pytest.mark.parametrize(("properties", "how", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_tables_that_cannot_be_read_right(
    spark: SparkSession, warehouse: Path, properties: Any, how: Any, message: str
) -> None:
    """State tables, and tables that record no changes, are refused with advice."""
    schema = Schema.from_arrow(pa.schema({"v": pa.int64()}))
    table = DeltaTable.create(
        str(warehouse), schema, configuration=properties, raise_if_key_not_exists=False
    )
    assert table.version() == 0
    with pytest.raises(TopologyError, match=message):
        DeltaSpout(warehouse, **how).open(spark, None)


def test_features_that_change_how_files_are_read(spark: SparkSession, warehouse: Path) -> None:
    """Column mapping is refused by name; deletion vectors are refused where a version has one."""
    spark.sql(
        f"CREATE TABLE delta.`{warehouse}/mapped` (v bigint) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    with pytest.raises(TopologyError, match="'columnMapping'"):
        DeltaSpout(warehouse / "mapped").open(spark, None)
    spark.range(0, 9, 1, 1).write.format("delta").option(
        "delta.enableDeletionVectors", "true"
    ).save(f"{warehouse}/vectors")
    spark.sql(f"DELETE FROM delta.`{warehouse}/vectors` WHERE id = 3")
    spout = DeltaSpout(warehouse / "vectors")
    spout.open(spark, None)
    batch = first(spout)
    assert rows(spark, spout, batch) == [(n,) for n in range(9)]
    with pytest.raises(SourceChangedError, match="version 1 .* removes or rewrites"):
        plan(spout, batch)


def test_changes_cannot_be_switched_on_a_running_stream(
    spark: SparkSession, warehouse: Path
) -> None:
    """How a table is read is part of the position."""
    append(warehouse, 1)
    batch = first(DeltaSpout(warehouse))
    with pytest.raises(TopologyError, match="changes=False so far"):
        DeltaSpout(warehouse, changes=True).open(spark, batch)


@pytest.mark.parametrize(
    "how",
    [{"start": "newest"}, {"start": -1}, {"versions_per_batch": 0}, {"bytes_per_batch": 0}],
)
def test_settings_that_mean_nothing(how: Any) -> None:
    """A wrong start or limit is refused when the spout is made."""
    with pytest.raises(TopologyError, match=r"start at|_per_batch of 1 or more"):
        DeltaSpout("t", **how)
