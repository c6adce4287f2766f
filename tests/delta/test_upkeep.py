"""OPTIMIZE and VACUUM of a topology's tables: what is chosen, what is done, what is left alone."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.owned_tables import WEEK, add_txids, age, make_table, put_file
from tests.stores.proxy import Proxy, puts
from tests.stores.s3 import S3Server, storage_options
from txn.delta.commits import commit_path
from txn.delta.upkeep import carry_out, least_hours, plan_optimize, plan_vacuum
from txn.engine.loop.upkeep_child import main
from txn.errors import CommitConflictError, UserError
from txn.storage.storage import Storage


def files_of(table: Path) -> list[str]:
    """Every Parquet file in a table's folder."""
    return sorted(str(file.relative_to(table)) for file in table.rglob("*.parquet"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """An append table of topology "orders", with four small files."""
    make_table(tmp_path / "rows")
    return tmp_path / "rows"


# --- optimize --------------------------------------------------------------------------------


def test_optimize_puts_small_files_together(table: Path) -> None:
    """Four files of a row become one with the same rows; no row came or went by the log."""
    storage = Storage(str(table))
    plan = plan_optimize(storage, "orders")
    assert (plan.files, plan.chosen, plan.chosen_bytes) == (4, 4, plan.bytes)
    assert DeltaTable(str(table)).version() == 4
    done = carry_out(storage, plan)
    found = DeltaTable(str(table))
    assert (done.chosen, done.written, found.version()) == (4, 1, 5)
    assert len(found.file_uris()) == 1
    rows = pa.table(found.to_pyarrow_table())
    assert sorted(rows["x"].to_pylist()) == [1, 2, 3, 4]
    assert plan_optimize(storage, "orders").chosen == 0


def test_optimize_gives_bounds_that_are_certain(tmp_path: Path) -> None:
    """Delta-rs leaves NaN out of bounds, and rounds decimals and times: readers would skip rows."""
    path = str(tmp_path / "rows")
    rows = {
        "x": pa.array([1], pa.int64()),
        "t": pa.array([date(2024, 2, 29)]),
        "s": pa.array(["a" * 100]),
        "d": pa.array([float("nan")]),
        "m": pa.array([Decimal("12345678901234567890.1")], pa.decimal128(38, 18)),
        "ts": pa.array([datetime(2024, 1, 1, microsecond=1, tzinfo=timezone.utc)]),
        "n": pa.array([datetime(2024, 1, 1, microsecond=1)]),
        "st": pa.array([{"x": 1, "d": float("nan")}]),
        "a": pa.array([[1, None]], pa.list_(pa.int64())),
    }
    own = {"txn.topology": "orders", "txn.kind": "append"}
    schema = pa.table(rows).schema
    DeltaTable.create(path, schema, configuration=own, raise_if_key_not_exists=False)
    for _ in range(2):
        write_deltalake(path, pa.table(rows), mode="append")
    assert carry_out(Storage(path), plan_optimize(Storage(path), "orders")).written == 1
    commit = (tmp_path / "rows" / commit_path(3)).read_text().splitlines()
    (add,) = (json.loads(line)["add"] for line in commit if '"add"' in line)
    stats = json.loads(add["stats"])
    assert [set(stats[name]) for name in ("minValues", "maxValues", "nullCount")] == [
        {"x", "t", "s"}
    ] * 3
    assert stats["numRecords"] == 2


def test_optimize_leaves_large_files_alone(table: Path) -> None:
    """A file of the size that the table asks for is not rewritten."""
    DeltaTable(str(table)).alter.set_table_properties({"delta.targetFileSize": "10"})
    assert plan_optimize(Storage(str(table)), "orders").chosen == 0


@pytest.mark.parametrize(
    ("kind", "word"), [("upsert", "bucket"), ("log", "itself"), ("log-with-removal", "itself")]
)
def test_optimize_leaves_state_tables_to_their_layout(tmp_path: Path, kind: str, word: str) -> None:
    """A state table looks after its own files; the plan says so."""
    make_table(tmp_path / "state", kind=kind)
    plan = plan_optimize(Storage(str(tmp_path / "state")), "orders")
    assert plan.chosen == 0
    assert plan.skipped is not None
    assert word in plan.skipped


@pytest.mark.parametrize(
    ("topology", "word"), [("sales", "topology 'sales'"), (None, "no topology")]
)
def test_tables_of_others_are_left_alone(tmp_path: Path, topology: str | None, word: str) -> None:
    """Neither operation touches a table that the topology has not made."""
    make_table(tmp_path / "t", topology=topology)
    storage = Storage(str(tmp_path / "t"))
    for plan in (plan_optimize(storage, "orders"), plan_vacuum(storage, "orders", 0)):
        assert plan.chosen == 0
        assert word in str(plan.skipped)


def test_an_optimize_that_lost_its_race_says_so(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If what it rewrites was removed meanwhile, nothing is committed, and the error says so."""
    storage = Storage(str(table))
    plan = plan_optimize(storage, "orders")
    stale = DeltaTable(str(table))
    DeltaTable(str(table)).delete()
    monkeypatch.setattr("txn.delta.upkeep.find", lambda _: stale)
    with pytest.raises(CommitConflictError, match=r"was not committed.*run it again"):
        carry_out(storage, plan)
    assert DeltaTable(str(table)).file_uris() == []


# --- vacuum ----------------------------------------------------------------------------------


def test_vacuum_deletes_what_was_replaced_long_ago(table: Path) -> None:
    """Files that a version replaced go after the retention, and a version that needs none of them
    is not written for it.
    """
    storage = Storage(str(table))
    before = files_of(table)
    carry_out(storage, plan_optimize(storage, "orders"))
    assert plan_vacuum(storage, "orders").chosen == 0
    plan = plan_vacuum(storage, "orders", 0)
    assert sorted(plan.paths) == before
    assert carry_out(storage, plan).chosen == 4
    assert not set(before) & set(files_of(table))
    found = DeltaTable(str(table))
    assert (found.version(), found.to_pyarrow_table().num_rows) == (5, 4)


def test_vacuum_finds_files_that_a_checkpoint_has_forgotten(table: Path) -> None:
    """A checkpoint no longer has removed files once they expired; they are found all the same."""
    DeltaTable(str(table)).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    )
    storage = Storage(str(table))
    carry_out(storage, plan_optimize(storage, "orders"))
    DeltaTable(str(table)).create_checkpoint()
    assert DeltaTable(str(table)).vacuum(0, enforce_retention_duration=False) == []
    assert plan_vacuum(storage, "orders").chosen == 4


def test_the_retention_counts_from_the_replacement(table: Path) -> None:
    """A file that was replaced a moment ago is kept, however old it is."""
    storage = Storage(str(table))
    for name in files_of(table):
        age(table / name, 2 * WEEK)
    carry_out(storage, plan_optimize(storage, "orders"))
    assert plan_vacuum(storage, "orders").chosen == 0


def test_a_longer_retention_than_the_tables_counts_from_the_replacement(table: Path) -> None:
    """A checkpoint forgets replaced files by the table's own retention; the log still has them.

    If the log is too short to tell, nothing is deleted, and the table says so.
    """
    DeltaTable(str(table)).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    )
    for name in files_of(table):
        age(table / name, 2 * WEEK)
    storage = Storage(str(table))
    carry_out(storage, plan_optimize(storage, "orders"))
    DeltaTable(str(table)).create_checkpoint()
    assert plan_vacuum(storage, "orders", WEEK).chosen == 0
    assert plan_vacuum(storage, "orders", 0).chosen == 4
    (table / commit_path(0)).unlink()
    told = plan_vacuum(storage, "orders", WEEK)
    assert told.chosen == 0
    assert "log does not reach back 168 hours" in (told.skipped or "")


def test_vacuum_spares_what_may_still_be_published(table: Path) -> None:
    """Staged files of newer txids, and of groups that the newest txid belongs to, are kept however
    old; so is a compaction whose intent is there, and all that is hidden. Older leftovers go.
    """
    add_txids(table, range(5, 71))
    staged = [
        put_file(table, f"data/{name}/part-0.parquet", 2 * WEEK)
        for name in ("71-0-ab", "70-1-cd", "7-0-ef")
    ]
    staged.append(put_file(table, "data/compaction-aa/part-0.parquet", 2 * WEEK))
    put_file(table, "_txn/compaction-aa/intent.json", 2 * WEEK)
    put_file(table, "_txn/3-0-ab/part-0.parquet", 2 * WEEK)
    put_file(table, "_txn_progress/segment", 2 * WEEK)
    left = [
        put_file(table, f"data/{name}/part-0.parquet", 2 * WEEK)
        for name in ("6-0-ab", "6-2-cd", "compaction-bb")
    ]
    young = put_file(table, "data/5-0-ab/part-0.parquet", WEEK - 2)
    storage = Storage(str(table))
    plan = plan_vacuum(storage, "orders")
    assert plan.paths == tuple(sorted(str(file.relative_to(table)) for file in left))
    carry_out(storage, plan)
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in [*staged, young])


def test_vacuum_leaves_a_table_within_alone(table: Path) -> None:
    """Files of a table that lies in this one's folder are its own, however old; leftovers of a job
    that wrote a log of its own are this table's.
    """
    make_table(table / "inner" / "rows")
    inner = [file for file in (table / "inner").rglob("*") if file.is_file()]
    for file in inner:
        age(file, 2 * WEEK)
    add_txids(table, range(5, 71))
    names = ("part-0.parquet", commit_path(0))
    left = [put_file(table, f"data/3-0-ab/{name}", 2 * WEEK) for name in names]
    plan = plan_vacuum(Storage(str(table)), "orders")
    assert sorted(plan.paths) == sorted(str(file.relative_to(table)) for file in left)
    assert len(inner) == 9


@pytest.mark.parametrize("hours", [1, None])
def test_a_retention_that_is_too_short_is_refused(tmp_path: Path, hours: int | None) -> None:
    """Below what a running topology needs nothing is planned, whoever says so: option or table."""
    make_table(tmp_path / "rows", delta_deletedFileRetentionDuration="interval 90 minutes")
    storage = Storage(str(tmp_path / "rows"))
    with pytest.raises(UserError, match=r"for (1|1\.5) hours.*Keep them for 2 hours") as error:
        plan_vacuum(storage, "orders", hours, least=2)
    assert error.value.number == "TXN-320"
    assert plan_vacuum(storage, "orders", 2, least=2).chosen == 0


@pytest.mark.parametrize(("secs", "attempts", "hours"), [(300, 5, 1), (3600, 5, 5), (3601, 1, 2)])
def test_files_are_kept_as_long_as_a_batch_may_take(secs: float, attempts: int, hours: int) -> None:
    """Never below an hour, and as long as all attempts of a batch may take."""
    assert least_hours(secs, attempts) == hours


# --- by order of a leader --------------------------------------------------------------------


def order(table: Path, operation: str, least: int = 1) -> dict[str, object]:
    """What a leader's process writes to the one that does it."""
    return {
        "operation": operation,
        "topology": "orders",
        "location": str(table),
        "options": {},
        "least_hours": least,
    }


def test_a_schedule_keeps_files_for_long_enough(tmp_path: Path) -> None:
    """Where the table's retention is too short for a running topology, the longer one counts."""
    table = tmp_path / "rows"
    make_table(table, delta_deletedFileRetentionDuration="interval 0 hours")
    old = put_file(table, "data/compaction-bb/part-0.parquet", 3)
    young = put_file(table, "data/compaction-cc/part-0.parquet", 1)
    told = main(order(table, "vacuum", least=2))
    assert (told["chosen_files"], told["error"]) == (1, None)
    assert (old.exists(), young.exists()) == (False, True)


def test_an_order_that_fails_is_answered_with_the_reason(table: Path) -> None:
    """Whatever is wrong with a table is an answer, in one line."""
    (table / "_delta_log" / f"{3:020}.json").write_text("{broken")
    told = main(order(table, "optimize"))
    assert told["chosen_files"] == 0
    assert told["error"]
    assert "\n" not in told["error"]


# --- on S3 -----------------------------------------------------------------------------------


def test_both_work_on_s3(s3: S3Server, request: pytest.FixtureRequest) -> None:
    """With the table's options alone: the commit is one conditional PUT, the deletion one request
    for all files.
    """
    bucket = s3.bucket(request.node.name)
    with Proxy(s3.url) as proxy:
        options = storage_options(proxy.url)
        make_table(f"s3://{bucket}/rows", options=options)
        storage = Storage(f"s3://{bucket}/rows", options)
        proxy.log.clear()
        done = carry_out(storage, plan_optimize(storage, "orders"))
        assert (done.chosen, done.written) == (4, 1)
        commits = [entry for entry in proxy.log if puts("_delta_log/")(entry.request)]
        assert [entry.request.operation for entry in commits] == ["PUT IF ABSENT"]
        proxy.log.clear()
        assert carry_out(storage, plan_vacuum(storage, "orders", 0)).chosen == 4
        operations = [entry.request.operation for entry in proxy.log]
        assert operations.count("DELETE MANY") == 1
        assert not any(operation.startswith("PUT") for operation in operations)
    assert len([key for key in s3.keys(bucket) if key.endswith(".parquet")]) == 1
