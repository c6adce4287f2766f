"""Reading a state table: as of a txid, by keys, through aggregates with a `result`."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from packaging.version import Version
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from committers.aggregates import Aggregate, Avg, Count, Max, Sum
from committers.publishing.files import ActiveFile
from committers.state import stored as stored_files
from committers.state.stored import StoredState
from committers.state_table import StateTable
from txn.errors import TableRefusedError
from txn.interfaces import CommitterContext
from txn.spark.versions import pyspark_version
from txn.storage.storage import Storage

AFTER_3_5 = Version(pyspark_version()) >= Version("4.0")

SCHEMA = "k string, v bigint"


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """The rows of a DataFrame, in an order of their own."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


# --- as of a txid ----------------------------------------------------------------------------


def test_the_state_as_of_every_txid(driver: Any, warehouse: Path) -> None:
    """Reading a txid shows what its last attempt published, whatever was published before or after.

    Where a table holds nothing of a txid, the state is that of the txid before.
    """
    state = StateTable(warehouse / "t", buckets=1)
    committer = state.bind(["k"], {"s": Sum("v")})
    driver.open(committer, SCHEMA)
    driver.commit(committer, driver.frame([("a", 1)], SCHEMA), 3)
    driver.commit(committer, driver.frame([("dead", 1)], SCHEMA), 5, first=4)
    driver.commit(committer, driver.frame([("a", 10)], SCHEMA), 4, attempt=1, epoch=2)
    driver.commit(committer, driver.frame([("a", 100)], SCHEMA), 7, epoch=2, first=6)
    spark = driver.spark
    early, *later = (state.read(spark, txid=t).withColumn("t", sf.lit(t)) for t in (2, 3, 5, 7))
    found = early.unionAll(later[0]).unionAll(later[1]).unionAll(later[2])
    assert rows(found) == [("a", 1, 3), ("a", 11, 5), ("a", 111, 7)]
    with pytest.raises(TableRefusedError, match="not reached txid 8: .* holds is 7"):
        state.read(spark, txid=8)
    with pytest.raises(
        TableRefusedError, match="holds txids 6 to 7 together. Read it as of 7, or of 5"
    ):
        state.read(spark, txid=6)
    with pytest.raises(TableRefusedError, match="Version 99 .* cannot be read: .* newest .* is 4"):
        state.snapshot(spark, 99)
    DeltaTable(str(warehouse / "t")).create_checkpoint()
    for version in (0, 1, 2):
        (warehouse / "t" / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(
        TableRefusedError, match="txid 3: version 2 .* cleaned .* oldest readable txid is 4"
    ):
        state.read(spark, txid=3)
    with pytest.raises(TableRefusedError, match="Version 3 .* cannot be read"):
        state.read(spark, txid=4)


def test_a_table_without_a_txid(driver: Any, warehouse: Path) -> None:
    """A table that is missing, and one that holds nothing yet, say so."""
    state = StateTable(warehouse / "t")
    with pytest.raises(TableRefusedError, match="no table at .*/t yet"):
        state.read(driver.spark, txid=1)
    driver.open(state.bind(["k"], {"n": Count()}), SCHEMA)
    with pytest.raises(TableRefusedError, match="not reached txid 1: .* holds is none"):
        state.read(driver.spark, txid=1)


def vacuum(path: Path) -> None:
    """Delete every file that the newest version does not have."""
    DeltaTable(str(path)).vacuum(0, enforce_retention_duration=False, dry_run=False)


def test_a_query_whose_files_go_while_another_thread_follows_the_log(
    driver: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are gone are looked up anew, also when the commit turn knows the new ones."""
    committer = StateTable(warehouse / "t", layout="log").bind(["k"], {"s": Sum("v")})
    driver.open(committer, SCHEMA)
    for txid in (1, 2):
        driver.commit(committer, driver.frame([("a", txid)], SCHEMA), txid)
    rows_in, meanwhile = committer._reader.rows, [1]

    def rewritten(*args: Any) -> Any:
        if meanwhile:
            meanwhile.clear()
            DeltaTable(str(warehouse / "t")).optimize.compact()
            vacuum(warehouse / "t")
            committer._log.refresh()
        return rows_in(*args)

    monkeypatch.setattr(committer._reader, "rows", rewritten)
    assert rows(committer.state_as_of(2, exact=False).rows) == [("a", 3)]
    assert not meanwhile


def test_a_state_whose_files_were_vacuumed_after_a_crash_is_refused_by_name(
    driver: Any, warehouse: Path
) -> None:
    """A transactional upsert table that is ahead has no rows of the txid before any more."""
    state = StateTable(warehouse / "t", semantics="transactional")
    committer = driver.open(state.bind(["k"], {"s": Sum("v")}), SCHEMA)
    for txid in (1, 2):
        driver.commit(committer, driver.frame([("a", txid)], SCHEMA), txid)
    vacuum(warehouse / "t")
    committer = driver.open(state.bind(["k"], {"s": Sum("v")}), SCHEMA, epoch=2)
    with pytest.raises(TableRefusedError, match="as of txid 1: .* at txid 2, and VACUUM"):
        committer.state_as_of(1, exact=True)


# --- by keys ---------------------------------------------------------------------------------


def test_a_key_that_spark_would_round_is_refused(driver: Any, warehouse: Path) -> None:
    """It would find the row of another key; a key of exactly the type is found."""
    for kind, right, wrong in (
        ("decimal(5,2)", Decimal("1.2"), ("1.199", "1.201", "99999", "1000", "NaN", "1E+3")),
        ("decimal(38,0)", Decimal(10**38 - 1), (str(10**38), "0.5")),
        ("date", dt.date(2024, 1, 1), (dt.datetime(2024, 1, 1, 5),)),
        ("float", 0.1, (1e300, -1e300)),
        ("string", "a\n", ("\ud800", 1)),
    ):
        name = kind.partition("(")[0] + str(len(wrong))
        state = StateTable(warehouse / name)
        committer = driver.open(state.bind(["k"], {"s": Sum("v")}), f"k {kind}, v bigint")
        batch = [(right, 1), (None, 2)]
        driver.commit(committer, driver.frame(batch, f"k {kind}, v bigint"), 1)
        assert [row.s for row in state.get(driver.spark, [right]).collect()] == [1]
        for key in wrong:
            asked = Decimal(key) if kind.startswith("decimal") else key
            with pytest.raises(TableRefusedError, match="is not a key of state table"):
                state.get(driver.spark, [asked])


@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_the_list_that_is_a_key_of_an_array_column_is_that_key(
    driver: Any, warehouse: Path, layout: str
) -> None:
    """Of one element, too, which is not that element: `[None]` is not the key NULL."""
    state = StateTable(warehouse / "t", layout=layout)
    schema = "k array<int>, v bigint"
    committer = driver.open(state.bind(["k"], {"s": Sum("v")}), schema)
    driver.commit(committer, driver.frame([([None], 1), (None, 2), ([7], 3)], schema), 1)
    for asked, expected in (
        ([[None]], [([None], 1)]),
        ([([None],), {"k": [7]}], [([None], 1), ([7], 3)]),
        ([None], [(None, 2)]),
        ([(None,)], [(None, 2)]),
        ([[7], [7, 8]], [([7], 3)]),
    ):
        found = [tuple(row) for row in state.get(driver.spark, asked).collect()]
        assert sorted(found, key=str) == sorted(expected, key=str)


def test_get_reads_the_buckets_of_the_keys_and_no_other(driver: Any, warehouse: Path) -> None:
    """Keys may be bare values, tuples, dicts or a DataFrame; other buckets' files are not read."""
    state = StateTable(warehouse / "t", buckets=8)
    committer = state.bind(["k"], {"n": Count(), "s": Sum("v")})
    driver.open(committer, SCHEMA)
    batch = [(f"k{i}", i) for i in range(40)] + [(None, 7)]
    driver.commit(committer, driver.frame(batch, SCHEMA), 1)
    spark = driver.spark
    everything = DeltaTable(str(state.path)).file_uris()
    assert len(everything) == 8
    forms = [["k3"], [("k3",)], [{"k": "k3"}], driver.frame([("k3",), ("k3",)], "k string")]
    gets = [state.get(spark, form) for form in forms]
    (used,) = {frozenset(get.inputFiles()) for get in gets}
    assert len(used) == 1
    for uri in everything:
        if not any(name.endswith(uri) for name in used):
            Path(uri).unlink()
    union = gets[0].unionAll(gets[1]).unionAll(gets[2]).unionAll(gets[3])
    assert rows(union) == [("k3", 1, 3)] * 4
    nothing = state.get(spark, [])
    assert (nothing.columns, rows(nothing)) == (["k", "n", "s"], [])


def test_get_by_several_keys_and_null(driver: Any, warehouse: Path) -> None:
    """NULL is a key like any other; a key that the table does not have is left out."""
    state = StateTable(warehouse / "t", buckets=2)
    schema = "x string, y int"
    committer = state.bind(["x", "y"], {"n": Count()})
    driver.open(committer, schema)
    driver.commit(committer, driver.frame([("a", 1), ("a", None), ("b", 1)], schema), 1)
    wanted: list[Any] = [("a", None), {"y": 1, "x": "b"}, ("c", 1)]
    assert rows(state.get(driver.spark, wanted)) == [("a", None, 1), ("b", 1, 1)]


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("tinyint", [-128, 127, 0]),
        ("bigint", [-(2**63), 2**63 - 1, 7]),
        ("date", [dt.date(1, 1, 1), dt.date(2026, 2, 28), dt.date(9999, 12, 31)]),
        ("boolean", [True, False]),
        ("string", ["it's", "\\'); DROP", "", "\U0001f600", "NULL"]),
        ("double", [-0.0, 1.5, float("nan")]),
    ],
)
def test_get_by_any_type(
    driver: Any, warehouse: Path, layout: str, kind: str, values: list[Any]
) -> None:
    """Each value finds itself, NULL too, and nothing else; many keys at once as well."""
    state = StateTable(warehouse / "t", layout=layout)
    committer = state.bind(["k"], {"s": Sum("v")})
    schema = f"k {kind}, v bigint"
    driver.open(committer, schema)
    batch = [(value, number) for number, value in enumerate([*values, None])]
    driver.commit(committer, driver.frame(batch, schema), 1)
    found = [state.get(driver.spark, [value]) for value, _ in batch]
    union = found[0].withColumn("asked", sf.lit(0))
    for number, one in enumerate(found[1:], 1):
        union = union.unionAll(one.withColumn("asked", sf.lit(number)))
    assert sorted((row.s, row.asked) for row in union.collect()) == [(n, n) for _, n in batch]
    for many in ([*values * 100, None], values * 100):
        got = state.get(driver.spark, many).collect()
        assert sorted(row.s for row in got) == [n for value, n in batch if value in many]


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_get_of_a_list_is_one_job(driver: Any, warehouse: Path, layout: str) -> None:
    """Its buckets, and what the log says, are found without one."""
    state = StateTable(warehouse / "t", layout=layout)
    committer = driver.open(state.bind(["k"], {"s": Sum("v")}), SCHEMA)
    driver.commit(committer, driver.frame([(f"k{n}", n) for n in range(20)], SCHEMA), 1)
    context = driver.spark.sparkContext
    context.setJobGroup(f"get-{layout}", "get")
    try:
        assert rows(state.get(driver.spark, ["k3", "k7", "none"])) == [("k3", 3), ("k7", 7)]
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    jobs = context.statusTracker().getJobIdsForGroup(f"get-{layout}")
    # Before Spark 4.0 the keys are rows of an RDD: sending them to the tasks is a job of its own.
    assert len(jobs) == (1 if AFTER_3_5 or layout == "log" else 2)


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_a_table_with_features_of_readers(driver: Any, warehouse: Path, layout: str) -> None:
    """Rows that somebody's DELETE has only marked do not show: Delta's own reader reads them."""
    state = StateTable(warehouse / "t", layout=layout, buckets=1)
    committer = driver.open(state.bind(["k"], {"s": Sum("v")}), SCHEMA)
    driver.commit(committer, driver.frame([("a", 1), ("b", 2), ("c", 3)], SCHEMA), 1)
    table, spark = f"delta.`{state.path}`", driver.spark
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM {table} WHERE k = 'b'")
    assert "deletionVector" in "".join(
        path.read_text() for path in (warehouse / "t" / "_delta_log").glob("*.json")
    )
    assert rows(state.read(spark)) == [("a", 1), ("c", 3)]
    assert rows(state.get(spark, ["a", "b"])) == [("a", 1)]
    assert rows(state.read(spark, txid=1)) == [("a", 1), ("b", 2), ("c", 3)]


# --- a log table in two parts ----------------------------------------------------------------


@pytest.mark.parametrize("small", [[(None, 1)], []], ids=["null", "no null"])
def test_only_keys_of_small_files_are_merged(
    driver: Any,
    warehouse: Path,
    small: list[tuple[None, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the largest part alone has is shown as it is; the sum is what it is of all.

    Keys are compared with care for NULL only where the small files have one.
    """
    monkeypatch.setattr(stored_files, "SPLIT_FROM_BYTES", 0)
    state = StateTable(warehouse / "t", layout="log")
    committer = state.bind(["k"], {"n": Count(), "s": Sum("v")})
    driver.open(committer, SCHEMA)
    batches = [
        [(f"k{n}", n) for n in range(3_000)] + [(None, 5)],
        [("k1", 7), *small, ("new", 2), ("k1", 8)],
        [("k2999", 1), ("new", 3), ("k1", 1)],
    ]
    expected: dict[str | None, list[int]] = {}
    for txid, batch in enumerate(batches, 1):
        driver.commit(committer, driver.frame(batch, SCHEMA), txid)
        for key, value in batch:
            expected.setdefault(key, []).append(value)
    shown = state.read(driver.spark)
    plan = shown._jdf.queryExecution().optimizedPlan().toString()
    assert "LeftAnti" in plan
    assert ("<=>" in plan) is bool(small)
    assert rows(shown) == sorted(((k, len(v), sum(v)) for k, v in expected.items()), key=repr)
    found = rows(state.get(driver.spark, ["k1", "k5", "new", None, "nobody"]))
    assert [row[:2] for row in found] == [("k1", 4), ("k5", 1), ("new", 2), (None, 1 + len(small))]


def active(path: str, size: int, low: int | None, high: int | None) -> ActiveFile:
    """A file of a log table with its bounds of `txid`."""
    return ActiveFile(path, size, {}, low, high)


def test_a_log_table_of_one_txid_is_shown_as_it_lies(driver: Any, warehouse: Path) -> None:
    """Each key has one row, so nothing is grouped; with a second txid it is."""
    state = StateTable(warehouse / "t", layout="log")
    committer = state.bind(["k"], {"n": Count(), "s": Sum("v")})
    driver.open(committer, SCHEMA)
    for txid, total in ((1, 3), (2, 6)):
        driver.commit(committer, driver.frame([("a", 1), ("a", 2), (None, 5)], SCHEMA), txid)
        shown = state.read(driver.spark)
        plan = shown._jdf.queryExecution().optimizedPlan().toString()
        assert ("Aggregate" in plan) is (txid > 1)
        assert rows(shown) == rows(
            driver.frame(
                [("a", 2 * txid, total), (None, txid, 5 * txid)], "k string, n long, s long"
            )
        )


@pytest.mark.parametrize(
    ("files", "once"),
    [
        ([active("data/1-0-x/a", 90, 1, 1), active("data/2-0-y/a", 9, 2, 2)], ["data/1-0-x/a"]),
        # A folder of a job that several txids shared.
        ([active("data/1-0-x/a", 90, 1, 1), active("data/1-0-x/b", 9, 2, 2)], ["data/1-0-x/a"]),
        (
            [
                active("data/compaction-x/a", 60, 1, 8),
                active("data/compaction-x/b", 60, 2, 9),
                active("data/9-0-y/a", 50, 9, 9),
            ],
            ["data/compaction-x/a", "data/compaction-x/b"],
        ),
        # Several txids in one file; unknown bounds; somebody else's file.
        ([active("data/1-0-x/a", 90, 1, 2), active("data/2-0-y/a", 9, 2, 2)], None),
        ([active("data/1-0-x/a", 90, None, 1), active("data/2-0-y/a", 9, 2, 2)], None),
        ([active("part-0.parquet", 90, 1, 1), active("data/2-0-y/a", 9, 2, 2)], None),
        # Nothing is left, or too much; or all of it is small.
        ([active("data/1-0-x/a", 9, 1, 1)], ["data/1-0-x/a"]),
        ([active("data/1-0-x/a", 90, 1, 1), active("data/2-0-y/a", 60, 2, 2)], None),
        ([active("data/1-0-x/a", 79, 1, 1), active("data/2-0-y/a", 9, 2, 2)], None),
    ],
)
def test_which_files_have_each_key_once(
    spark: SparkSession,
    files: list[ActiveFile],
    once: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one compaction or one attempt of one txid wrote, if the rest is small beside it."""
    monkeypatch.setattr(stored_files, "SPLIT_FROM_BYTES", 80)
    stored = StoredState(spark, Storage("/t"), tuple(files), StructType(), {})
    parts = stored.in_two()
    if once is None:
        assert parts is None
        return
    assert parts is not None
    assert [file.path for file in parts[0].files] == once
    assert [*parts[0].files, *parts[1].files] == files


# --- refused keys, and what is shown ---------------------------------------------------------


def test_keys_that_are_not_the_tables_are_refused(driver: Any, warehouse: Path) -> None:
    """The error names the column and the type that the table has."""
    state = StateTable(warehouse / "t")
    driver.open(state.bind(["k", "w"], {"n": Count()}), "k string, w int")
    spark = driver.spark
    refused: dict[str, Any] = {
        "'a' is not a key of state table .* are 'k' string, 'w' int": ["a"],
        r"\('a',\) is not a key": [("a",)],
        "{'k': 'a'} is not a key": [{"k": "a"}],
        r"\(3, 1\) is not a key": [(3, 1)],
        "a list or a DataFrame, and 'a' is neither. For this one key give \\['a'\\]": "a",
        "a list or a DataFrame, and 3 is neither": 3,
        "a list or a DataFrame, and {'k': 'a', 'w': 1} is neither": {"k": "a", "w": 1},
        "do not have the types of state table .*'w' int: .*(UNACCEPTABLE|CANNOT_ACCEPT).* .b.": [
            ("a", "b")
        ],
        "Column 'w' of the given keys is missing": driver.frame([], "k string"),
        "Column 'w' of the given keys is bigint, .* it is int": driver.frame(
            [], "k string, w bigint"
        ),
        "Column 'z' .* is string, .* no such column": driver.frame([], "k string, w int, z string"),
    }
    for message, keys in refused.items():
        with pytest.raises(TableRefusedError, match=message):
            state.get(spark, keys)
    one = StateTable(warehouse / "one")
    driver.open(one.bind(["k"], {"n": Count()}), SCHEMA)
    for key in (("a", 1), {"w": "a"}, ["a", "b"], 3, (3,)):
        with pytest.raises(TableRefusedError, match=r"is not a key of state table"):
            one.get(spark, [key])
    whole = StateTable(warehouse / "global")
    driver.open(whole.bind([], {"n": Count()}), SCHEMA)
    with pytest.raises(TableRefusedError, match="global aggregate: it has one row and no keys"):
        whole.get(spark, [()])


def test_windows_as_keys(driver: Any, warehouse: Path) -> None:
    """A late row updates its event-time window exactly once."""
    state = StateTable(warehouse / "t", buckets=2)
    committer = state.bind(["window", "k"], {"s": Sum("v")})
    day = dt.datetime(2013, 1, 1)

    def batch(*events: tuple[int, str, int]) -> Any:
        found = [(day + dt.timedelta(minutes=minute), key, value) for minute, key, value in events]
        frame = driver.frame(found, "at timestamp, k string, v bigint")
        return frame.withColumn("window", sf.window("at", "1 hour")).drop("at")

    schema = committer.partials(batch()).schema
    committer.open(driver.spark, CommitterContext("tests", 1), schema)
    committer.fence()
    driver.commit(committer, batch((5, "a", 1), (65, "a", 10), (70, "b", 100)), 1)
    driver.commit(committer, batch((130, "a", 1000), (119, "dead", 9)), 2)
    driver.commit(committer, batch((59, "a", 5), (119, "b", 200)), 2, attempt=1)
    first, second = day, day + dt.timedelta(hours=1)
    expected = [(first, "a", 6), (second, "a", 10), (second, "b", 300)]
    found = state.read(driver.spark).select("window.start", "k", "s")
    assert rows(found) == sorted(expected, key=repr)
    wanted = [((first, second), "a"), ((second, second + dt.timedelta(hours=1)), "b")]
    got = state.get(driver.spark, wanted).select("window.start", "k", "s")
    assert rows(got) == [(first, "a", 6), (second, "b", 300)]
    assert len(DeltaTable(str(state.path)).file_uris()) <= 2


# --- aggregates that store something else ----------------------------------------------------


class Range(Aggregate):
    """A user's own: partials are structs, an array is stored, readers see its span.

    `initial` and `combine` count the txids that touched a key, so that the test can tell them.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    def partial(self) -> Column:
        column = sf.col(str(self.column))
        return sf.struct(sf.min(column).alias("low"), sf.max(column).alias("high"))

    def initial(self, partial: Column) -> Column:
        return sf.array(partial["low"], partial["high"], sf.lit(1))

    def combine(self, stored: Column, partial: Column) -> Column:
        low = sf.least(stored[0], partial["low"])
        return sf.array(low, sf.greatest(stored[1], partial["high"]), stored[2] + 1)

    def zero(self) -> Column:
        return sf.struct(sf.lit(0).alias("low"), sf.lit(0).alias("high"))

    def result(self, stored: Column) -> Column:
        return sf.concat_ws("..", stored)


OWN: dict[str, Aggregate] = {"span": Range("v")}


def test_an_aggregate_stores_initial_and_shows_result(
    driver: Any, warehouse: Path, make_publication: Any
) -> None:
    """Partials, stored values and what readers see may be of three types, replays included."""
    for semantics in ("opaque", "transactional"):
        state = StateTable(warehouse / semantics, semantics, buckets=1)
        committer = state.bind(["k"], {"n": Count(), **OWN})
        schema = "k string, v int"
        driver.open(committer, schema)
        driver.commit(committer, driver.frame([("a", 3), ("a", 5)], schema), 1)
        if semantics == "opaque":
            driver.commit(committer, driver.frame([("a", 99), ("dead", 1)], schema), 2)
        staged = driver.stage(committer, driver.frame([("a", 1), ("b", 7)], schema), 2, attempt=1)
        own = make_publication(2, 1, rows=staged.rows)
        prepared = committer.prepare(staged, own)
        changes = committer.changes(prepared, own).rows
        expected = [("a", 3, "1..5..2", 2, "3..5..1"), ("b", 1, "7..7..1", None, None)]
        assert (rows(changes), changes.schema["prev_span"].dataType.simpleString()) == (
            expected,
            "string",
        )
        committer.publish(prepared, own)
        found = state.read(driver.spark, aggregates=OWN)
        assert rows(found) == [row[:3] for row in expected]
        got = state.get(driver.spark, ["b"], aggregates=OWN)
        assert rows(got) == [("b", 1, "7..7..1")]


def test_the_zero_of_an_aggregate_whose_empty_partial_is_not_null(
    driver: Any, warehouse: Path
) -> None:
    """A global aggregate of an empty batch has the zero for its partial, a full one has not."""
    state = StateTable(warehouse / "t")
    committer = state.bind([], OWN)
    driver.open(committer, "v int")
    driver.commit(committer, driver.frame([], "v int"), 1)
    assert rows(state.read(driver.spark, aggregates=OWN)) == [("0..0..1",)]
    driver.commit(committer, driver.frame([(4,)], "v int"), 2)
    assert rows(state.read(driver.spark, aggregates=OWN)) == [("0..4..2",)]


def test_results_of_builtin_aggregates_need_no_topology(driver: Any, warehouse: Path) -> None:
    """The table names them, or holds what they show; one that is handed in is the table's own."""
    state = StateTable(warehouse / "t", buckets=1)
    committer = state.bind(["k"], {"n": Count(), "mean": Avg("v")})
    driver.open(committer, SCHEMA)
    driver.commit(committer, driver.frame([("a", 1), ("a", 4)], SCHEMA), 1)
    assert rows(state.read(driver.spark)) == [("a", 2, 2.5)]
    other = StateTable(warehouse / "own")
    driver.open(other.bind(["k"], OWN), SCHEMA)
    refused: dict[str, dict[str, Aggregate] | None] = {
        "'span' .* is Range\\(v\\), but aggregates= has Range\\(w\\)": {"span": Range("w")},
        "no value 'spam'": {**OWN, "spam": Max("v")},
    }
    for message, aggregates in refused.items():
        with pytest.raises(TableRefusedError, match=message):
            other.read(driver.spark, aggregates=aggregates)
