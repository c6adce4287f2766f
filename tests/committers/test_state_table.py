"""State tables: running values by key, exactly once whatever is replayed."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as sf

from committers.aggregates import Aggregate, Count, Max, Min, Sum
from committers.state_table import StateTable
from txn.attempts import TransactionAttempt
from txn.errors import (
    FencedError,
    RecoveryRefusedError,
    StagedFileError,
    TableChangedError,
    TableRefusedError,
    TopologyError,
)
from txn.interfaces import CommitterContext, Staged, StagedFile

A, B, C, D = ("a", 1), ("b", 10), ("c", 100), ("d", 1000)


def stored(table: Any) -> dict[str, dict[str, Any]]:
    """K -> whole row, bookkeeping included."""
    return {row["k"]: row for row in table.rows()}


def test_values_run_on_over_batches(totals: Any) -> None:
    """Keys seen before are combined, new keys are added, untouched keys stay."""
    table = totals()
    table.commit(1, [A, A, B])
    table.commit(2, [A, C])
    assert table.read() == {"a": (3, 3), "b": (1, 10), "c": (1, 100)}


def test_opaque_rows_keep_their_previous_values(totals: Any) -> None:
    """An updated row carries the value and txid before; a new row carries none."""
    table = totals()
    table.commit(1, [A, B])
    table.commit(2, [A, C])
    rows = stored(table)
    names = ("n", "s", "txid", "prev_n", "prev_s", "prev_txid")
    assert {key: tuple(row[name] for name in names) for key, row in rows.items()} == {
        "a": (2, 2, 2, 1, 1, 1),
        "b": (1, 10, 1, None, None, None),
        "c": (1, 100, 2, None, None, None),
    }


def test_read_has_no_bookkeeping_columns(totals: Any) -> None:
    """`StateTable(path).read` returns keys and values in their order and nothing else."""
    table = totals()
    table.commit(1, [A])
    assert StateTable(table.path).read(table.driver.spark).columns == ["k", "n", "s"]


def test_read_is_a_snapshot(totals: Any) -> None:
    """A DataFrame that was read before a publication does not show it, even when run later."""
    table = totals()
    table.commit(1, [A])
    before = StateTable(table.path).read(table.driver.spark)
    table.commit(2, [A])
    assert [tuple(row) for row in before.collect()] == [("a", 1, 1)]


def test_reading_a_table_that_does_not_exist(driver: Any, warehouse: Path) -> None:
    """The error names the path and says where the table comes from."""
    with pytest.raises(TableRefusedError, match="no table at .*nowhere"):
        StateTable(warehouse / "nowhere").read(driver.spark)


def test_only_touched_buckets_are_rewritten(totals: Any) -> None:
    """Files of buckets without a key of the batch stay, and each touched bucket has one file.

    Trident row 50.
    """
    table = totals()
    first = table.commit(1, [(f"key-{i}", i) for i in range(200)])
    assert sorted(f.partition["txn_bucket"] for f in first.files) == ["0", "1", "2", "3"]
    second = table.commit(2, [("key-7", 1)])
    commit = json_actions(table.path, second.version)
    assert len(second.files) == 1
    assert [a["remove"]["partitionValues"] for a in commit if "remove" in a] == [
        dict(second.files[0].partition)
    ]


def json_actions(path: Path, version: int) -> list[dict[str, Any]]:
    text = (path / "_delta_log" / f"{version:020d}.json").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_many_batches_agree_with_plain_python(totals: Any) -> None:
    """Twelve batches with repeated, null and new keys give what a dictionary gives.

    Trident row 51.
    """
    table = totals()
    expected: dict[Any, list[int]] = {}
    for txid in range(1, 13):
        rows = [
            (None if i % 11 == 0 else f"k{(i * txid) % 37}", (i * 7 + txid) % 13)
            for i in range(120)
        ]
        for key, value in rows:
            entry = expected.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += value
        table.commit(txid, rows)
    assert table.read() == {key: tuple(entry) for key, entry in expected.items()}


# --- guards ----------------------------------------------------------------------------------


DEAD = [("a", 5), ("dead", 7)]  # what attempt 2:0 published before it failed
BASE = [("a", 1), ("b", 10)]


def totals_of(*batches: list[tuple[str, int]]) -> dict[Any, tuple[int, int]]:
    sums: dict[Any, tuple[int, int]] = {}
    for key, value in [row for batch in batches for row in batch]:
        n, s = sums.get(key, (0, 0))
        sums[key] = (n + 1, s + value)
    return sums


def test_transactional_tables_store_no_previous_values(totals: Any) -> None:
    """Only opaque tables pay for `prev_` columns."""
    table = totals("transactional")
    table.commit(1, [A])
    assert sorted(stored(table)["a"]) == ["k", "n", "s", "txid", "txn_bucket"]


def test_what_a_zombie_published_before_the_fence_is_reverted(totals: Any) -> None:
    """A new leader that knows nothing of txid 2 finds it in the table and takes it back."""
    table = totals("opaque")
    table.commit(1, BASE)
    zombie = table.committer
    table.commit(2, DEAD)
    table.reopen(2)
    table.commit(2, [("b", 1)], attempt=0, epoch=2)
    assert table.read() == totals_of(BASE, [("b", 1)])
    batch = table.driver.frame([A], table.SCHEMA)
    with pytest.raises(FencedError, match="taken over by epoch 2"):
        table.driver.commit(zombie, batch, 3, epoch=1)
    assert table.read() == totals_of(BASE, [("b", 1)])


def test_a_coordinator_that_forgot_is_refused(totals: Any) -> None:
    """A new leader that begins again at a txid committed long ago is sent to `txn recover`."""
    table = totals("opaque")
    for txid in (1, 2, 3):
        table.commit(txid, [A])
    table.reopen(2)
    with pytest.raises(RecoveryRefusedError, match="txn recover"):
        table.commit(1, [A], epoch=2)
    assert table.read() == {"a": (3, 3)}


# --- types and keys --------------------------------------------------------------------------


KEYS: dict[str, list[Any]] = {
    "string": ["", "a", "ä", None, "a\x00b", "x" * 100],
    "int": [0, -1, 2**31 - 1, None],
    "bigint": [0, -(2**63), None],
    "boolean": [True, False, None],
    "date": [dt.date(1970, 1, 1), dt.date(1600, 1, 1), dt.date(9999, 12, 31), None],
    "decimal(20,4)": [Decimal("0"), Decimal("-1.2345"), None],
    "binary": [bytearray(b""), bytearray(b"\x00\xff"), None],
    "double": [0.0, -0.0, float("nan"), float("inf"), 1.5, None],
    "timestamp": [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 23, 59, 59, 999999), None],
    "array<int>": [[1, 2], [], None],
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_type_of_key_groups_as_sql_does(driver: Any, warehouse: Path, kind: str) -> None:
    """Two batches through the table equal one GROUP BY over both, nulls, NaN and -0.0 included."""
    committer = StateTable(warehouse / "t").bind(["g"], {"n": Count(), "s": Sum("v")})
    schema = f"g {kind}, v bigint"
    driver.open(committer, schema)
    rows = [(key, number) for number, key in enumerate(KEYS[kind] * 2)]
    batches = [driver.frame(rows, schema), driver.frame(rows[::2], schema)]
    for txid, batch in enumerate(batches, 1):
        driver.commit(committer, batch, txid)
    both = batches[0].unionAll(batches[1])
    expected = both.groupBy("g").agg(sf.count("*").alias("n"), sf.sum("v").alias("s")).collect()
    found = StateTable(warehouse / "t").read(driver.spark).collect()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    files = DeltaTable(str(warehouse / "t")).file_uris()
    assert len(files) <= (8 if kind.startswith("array") else 4)


def test_several_keys_with_nulls(driver: Any, warehouse: Path) -> None:
    """A null is a group of its own in each key column."""
    committer = StateTable(warehouse / "t").bind(["x", "y"], {"n": Count()})
    schema = "x string, y int"
    driver.open(committer, schema)
    rows = [("a", 1), ("a", None), (None, 1), (None, None), ("a", 1)]
    for txid in (1, 2):
        driver.commit(committer, driver.frame(rows, schema), txid)
    found = {tuple(row) for row in StateTable(warehouse / "t").read(driver.spark).collect()}
    assert found == {("a", 1, 4), ("a", None, 2), (None, 1, 2), (None, None, 2)}


def test_a_global_aggregate_is_one_row(driver: Any, warehouse: Path) -> None:
    """Without keys there is one row, zero before the first record, reverted like any other.

    Trident rows 37 and 52.
    """
    state = StateTable(warehouse / "t")
    committer = state.bind([], {"n": Count(), "s": Sum("v"), "low": Min("v")})
    schema = "v bigint"
    driver.open(committer, schema)

    def value() -> list[tuple[Any, ...]]:
        return [tuple(row) for row in state.read(driver.spark).collect()]

    driver.commit(committer, driver.frame([], schema), 1)
    assert value() == [(0, None, None)]
    driver.commit(committer, driver.frame([(5,), (7,)], schema), 2)
    assert value() == [(2, 12, 5)]
    driver.commit(committer, driver.frame([(1,)], schema), 2, attempt=1)
    assert value() == [(1, 1, 1)]


def test_a_group_commit_marks_rows_with_its_last_txid(driver: Any, totals: Any) -> None:
    """The rows of one version carry the last txid that it holds."""
    table = totals()
    driver.commit(table.committer, driver.frame([A], table.SCHEMA), 3, first=1)
    assert stored(table)["a"]["txid"] == 3


def test_names_with_odd_characters(driver: Any, warehouse: Path) -> None:
    """Columns with dots and folders with blanks and glob characters are names like any other."""
    path = warehouse / "we ird [x] {y} %q"
    committer = StateTable(path).bind(["a.b"], {"n.m": Max("c-d")})
    schema = "`a.b` string, `c-d` int"
    driver.open(committer, schema)
    for txid in (1, 2):
        driver.commit(committer, driver.frame([("x", txid), ("y", 7)], schema), txid)
    driver.commit(committer, driver.frame([("x", 9)], schema), 2, attempt=1)
    rows = StateTable(path).read(driver.spark).collect()
    assert sorted(map(tuple, rows)) == [("x", 9), ("y", 7)]


# --- files, other writers, other readers -----------------------------------------------------


def test_staged_partials_are_invisible_and_cleaned(totals: Any, driver: Any) -> None:
    """Scratch lies outside the table's data until the txid is committed, then it is gone."""
    table = totals()
    table.commit(1, [A])
    staged = driver.stage(table.committer, driver.frame([A, B], table.SCHEMA), 2)
    assert table.read() == {"a": (1, 1)}
    assert all(file.path.startswith("_txn/2-0-") for file in staged.files)
    driver.turn(table.committer, staged)
    table.committer.committed(staged.attempt)
    assert [(table.path / file.path).exists() for file in staged.files] == [False] * len(
        staged.files
    )
    assert table.read() == {"a": (2, 2), "b": (1, 10)}


def test_a_staged_file_that_vanished(totals: Any, driver: Any) -> None:
    """Partials that are gone before the commit turn fail the batch and leave the table alone."""
    table = totals()
    table.commit(1, [A])
    staged = driver.stage(table.committer, driver.frame([A], table.SCHEMA), 2)
    (table.path / staged.files[0].path).unlink()
    with pytest.raises(StagedFileError, match="is gone"):
        driver.turn(table.committer, staged)
    assert table.read() == {"a": (1, 1)}


def test_a_new_file_that_is_truncated_before_publication(
    totals: Any, driver: Any, make_publication: Any
) -> None:
    """The rewritten bucket is checked right before the append."""
    table = totals()
    table.commit(1, [A])
    staged = driver.stage(table.committer, driver.frame([A], table.SCHEMA), 2)
    own = make_publication(2, rows=1)
    prepared = table.committer.prepare(staged, own)
    file = table.path / prepared.adds[0].path
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StagedFileError, match="now has"):
        table.committer.publish(prepared, own)
    assert table.read() == {"a": (1, 1)}


def test_optimize_between_publications(totals: Any, driver: Any) -> None:
    """Spark's OPTIMIZE may run at any time between two batches, also before a replay."""
    table = totals()
    for txid in (1, 2):
        table.commit(txid, [(f"k{i}", i) for i in range(50)])
    driver.spark.sql(f"OPTIMIZE delta.`{table.path}` ZORDER BY (k)")
    table.commit(3, [("k1", 1), A])
    table.commit(3, [A], attempt=1)
    expected = totals_of([(f"k{i}", i) for i in range(50)] * 2, [A])
    assert table.read() == expected


def test_optimize_between_prepare_and_publish(
    totals: Any, driver: Any, make_publication: Any
) -> None:
    """When OPTIMIZE rewrites a touched bucket meanwhile, the version is prepared again."""
    table = totals()
    table.commit(1, [A, B])
    staged = driver.stage(table.committer, driver.frame([A], table.SCHEMA), 2)
    own = make_publication(2, rows=1)
    prepared = table.committer.prepare(staged, own)
    driver.spark.sql(f"OPTIMIZE delta.`{table.path}` ZORDER BY (k)")
    published = table.committer.publish(prepared, own)
    assert published.version > prepared.read_version + 1
    assert published.prepared is not None
    assert {f.path for f in published.files} == {f.path for f in published.prepared.adds}
    assert table.read() == {"a": (2, 2), "b": (1, 10)}


def test_somebody_else_changes_rows_meanwhile(
    totals: Any, driver: Any, make_publication: Any
) -> None:
    """Nothing is published on top of a foreign UPDATE, unless a user says that it is to stand."""
    table = totals()
    table.commit(1, [A, B])
    staged = driver.stage(table.committer, driver.frame([A], table.SCHEMA), 2)
    own = make_publication(2, rows=1)
    prepared = table.committer.prepare(staged, own)
    driver.spark.sql(f"UPDATE delta.`{table.path}` SET s = 50 WHERE k = 'a'")
    with pytest.raises(TableChangedError, match="replaced 1 files with 1 others") as told:
        table.committer.publish(prepared, own)
    driver.spark.sql(re.search(r"ALTER TABLE .*?\)", str(told.value))[0])
    table.reopen(2)
    table.commit(2, [A], attempt=1, epoch=2)
    assert table.read() == {"a": (2, 51), "b": (1, 10)}


def test_ordinary_readers_agree(totals: Any, driver: Any) -> None:
    """Spark's Delta reader and delta-rs see the same rows as `StateTable.read`."""
    table = totals()
    for txid in (1, 2, 3):
        table.commit(txid, [(f"k{i % (10 * txid)}", i) for i in range(60)])
    by_path = driver.spark.read.format("delta").load(str(table.path))
    by_spark = {row["k"]: (row["n"], row["s"]) for row in by_path.collect()}
    by_state = StateTable(table.path).read(driver.spark).collect()
    assert by_spark == table.read() == {row["k"]: (row["n"], row["s"]) for row in by_state}


def test_readers_with_predicates_find_every_row(totals: Any, driver: Any) -> None:
    """Skipping files by their statistics loses nothing."""
    table = totals()
    for txid in (1, 2, 3):
        table.commit(txid, [(f"key-{i:03}", i) for i in range(txid * 20)])
    rows = driver.spark.read.format("delta").load(str(table.path))
    probes = [
        rows.where((sf.col("k") == row["k"]) & (sf.col("s") == row["s"])).select(
            "k", "s", "txid", "prev_txid"
        )
        for row in table.rows()[::6]
    ]
    found = probes[0]
    for probe in probes[1:]:
        found = found.unionAll(probe)
    expected = {(r["k"], r["s"], r["txid"], r["prev_txid"]) for r in table.rows()[::6]}
    assert {tuple(row) for row in found.collect()} == expected


def test_a_sum_that_overflows_raises(totals: Any, driver: Any) -> None:
    """A running sum out of range is an error, with ANSI mode off in the user's session, too."""
    table = totals()
    table.commit(1, [("a", 2**63 - 1)])
    driver.spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(OverflowError, match=r"Sum\(v\) of table .* leaves the range"):
            table.commit(2, [("a", 1)])
    finally:
        driver.spark.conf.unset("spark.sql.ansi.enabled")
    assert table.read() == {"a": (1, 2**63 - 1)}


# --- refusals --------------------------------------------------------------------------------


def rebind(driver: Any, path: Path, **changes: Any) -> None:
    """Open the table of `totals` with something changed."""
    settings: dict[str, Any] = {
        "keys": ["k"],
        "values": {"n": Count(), "s": Sum("v")},
        "schema": "k string, v bigint",
        "semantics": "opaque",
        "buckets": 4,
        "topology": "tests",
        **changes,
    }
    state = StateTable(path, settings["semantics"], buckets=settings["buckets"])
    committer = state.bind(settings["keys"], settings["values"])
    driver.open(committer, settings["schema"], 2, settings["topology"])


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another topology": ({"topology": "other"}, "belongs to topology 'tests'"),
    "other aggregate": ({"values": {"n": Count(), "s": Max("v")}}, "Sum\\(v\\)"),
}


@pytest.mark.parametrize(("changes", "message"), CHANGES.values(), ids=CHANGES.keys())
def test_a_table_of_another_shape_is_refused(
    totals: Any, driver: Any, changes: dict[str, Any], message: str
) -> None:
    """Another owner and another aggregate are refused by name; other shapes are in
    test_changing_shape.
    """
    table = totals()
    table.commit(1, [A])
    with pytest.raises(TableRefusedError, match=message):
        rebind(driver, table.path, **changes)


NAMES: dict[str, tuple[list[str], dict[str, Aggregate], str]] = {
    "txid as key": (["txid"], {"n": Count()}, "'txid' as a key"),
    "in capitals": (["k"], {"TXID": Count()}, "'TXID' as a value"),
    "previous value": (["prev_n"], {"n": Count()}, "'prev_n' as a key"),
    "previous txid": (["k"], {"prev_txid": Count()}, "'prev_txid'"),
    "bucket": (["k"], {"txn_bucket": Count()}, "'txn_bucket'"),
    "key and value": (["k"], {"K": Count()}, "taken by a key"),
    "nothing": (["k"], {}, "no aggregate"),
}


@pytest.mark.parametrize(("keys", "values", "message"), NAMES.values(), ids=NAMES.keys())
def test_reserved_names_are_refused(
    warehouse: Path, keys: list[str], values: dict[str, Aggregate], message: str
) -> None:
    """A name that the table needs for itself is refused before anything runs."""
    with pytest.raises(TopologyError, match=message):
        StateTable(warehouse / "t").bind(keys, values)


def test_unknown_settings_are_refused(warehouse: Path) -> None:
    """Unknown layouts, unknown semantics and no buckets are refused by name."""
    with pytest.raises(TopologyError, match="layout='heap'"):
        StateTable(warehouse / "t", layout="heap")
    with pytest.raises(TopologyError, match="semantics='exactly'"):
        StateTable(warehouse / "t", semantics="exactly")
    with pytest.raises(TopologyError, match="has '%41'"):
        StateTable(warehouse / "100%41").bind(["k"], {"n": Count()})
    with pytest.raises(TopologyError, match="0 hash buckets"):
        StateTable(warehouse / "t", buckets=0)


def test_a_table_that_does_not_exist_yet_is_left_for_later(driver: Any, warehouse: Path) -> None:
    """Without a schema nothing is made; an idle txid passes; the table comes with its columns."""
    state = StateTable(warehouse / "t")
    committer = state.bind(["k"], {"n": Count()})
    committer.open(driver.spark, CommitterContext("tests", 3), None)
    committer.fence()
    assert (committer.last_publication(), (warehouse / "t").exists()) == (None, False)
    idle = driver.turn(committer, Staged(TransactionAttempt(1), ()), epoch=3)
    assert (idle.version, idle.skipped) == (-1, True)
    batch = driver.frame([("a",)], "k string")
    committer.open(driver.spark, CommitterContext("tests", 3), committer.partials(batch).schema)
    driver.commit(committer, batch, 2, epoch=3)
    assert [tuple(row) for row in state.read(driver.spark).collect()] == [("a", 1)]


def test_columns_that_change_between_batches_are_refused(totals: Any, driver: Any) -> None:
    """A batch whose values have another type never reaches the table."""
    table = totals()
    table.commit(1, [A])
    other = driver.frame([("a", 1.5)], "k string, v double")
    with pytest.raises(TopologyError, match="Column 's' .* is double"):
        driver.stage(table.committer, other, 2)


def test_staged_files_know_their_bucket_and_rows(totals: Any, driver: Any) -> None:
    """What was staged is described file by file: bucket, bytes, rows."""
    table = totals()
    batch = driver.frame([(f"k{i}", 1) for i in range(40)], table.SCHEMA)
    staged = driver.stage(table.committer, batch, 1)
    assert staged.rows == 40
    assert {f.partition["txn_bucket"] for f in staged.files} == {"0", "1", "2", "3"}

    def size(file: StagedFile) -> int:
        return (table.path / file.path).stat().st_size

    assert [f.size for f in staged.files] == [size(f) for f in staged.files]
