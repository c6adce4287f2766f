"""State tables without Spark: every aggregate and key type, as `StateTable.read` shows them."""

from __future__ import annotations

import datetime as dt
import math
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from committers import aggregates as agg
from committers.append_table import AppendTable
from committers.reading import frames
from committers.state_table import StateTable
from tests.committers.aggregates.cases import OF_A_COLUMN, make_aggregate
from tests.committers.aggregates.test_types import ALL, batches, column_of
from tests.committers.trino import assert_trino_parses
from txn.errors import SetupError, TableAbsentError, TableRefusedError

if TYPE_CHECKING:
    from pyspark.sql import Column


def values_of_everything() -> dict[str, Any]:
    """Every built-in aggregate over every type that it takes."""
    values: dict[str, Any] = {}
    for name, case in OF_A_COLUMN.items():
        for kind in ALL:
            if case.takes(kind):
                values[f"{name}_{column_of(kind)}"] = make_aggregate(name, column_of(kind))
    for kind in ALL:
        values[f"First_{column_of(kind)}"] = agg.First(column_of(kind), "o")
        values[f"Last_{column_of(kind)}"] = agg.Last(column_of(kind), "o")
    columns = [column_of(kind) for kind in ALL]
    return {
        **values,
        "rows": agg.Count(),
        "first_rows": agg.FirstN(2, "c_double", *columns),
        "last_rows": agg.LastN(2, "c_struct_a_int_b_string", *columns),
    }


def plain(value: Any) -> Any:
    """A value of Arrow that can be compared: NaN is NaN, and a float as exact as it has to be."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}") + 0.0
    return value


def rows_of(table: pa.Table, keys: list[str]) -> list[Any]:
    """Rows in an order of their own."""
    rows = [plain(row) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: str([row[key] for key in keys]))


def types_of(table: pa.Table) -> dict[str, str]:
    """Column -> type; names of elements and large forms mean nothing."""
    return {field.name: _text(field.type) for field in table.schema}


def _text(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {_text(f.type)}' for f in kind)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_text(kind.value_type)}>"
    return str(kind).replace("large_", "").replace("tz=Etc/UTC", "tz=UTC")


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("part", range(3))
def test_every_aggregate_reads_the_same_without_spark(
    driver: Any,
    as_spark: Any,
    in_spark: Any,
    with_delta_alone: Any,
    warehouse: Path,
    layout: str,
    part: int,
) -> None:
    """A reader without Spark sees of each table, as of each txid, value for value and type for type
    what `StateTable.read` shows. So does a Spark that knows only the query. With `layout="upsert"`,
    a table holds each value under its name as `StateTable.read` shows it.
    """
    schema = "k string, o bigint, " + ", ".join(f"{column_of(kind)} {kind}" for kind in ALL)
    values = dict([*values_of_everything().items()][part::3])
    state = StateTable(warehouse / "state", "transactional", layout=layout, buckets=2)
    committer = driver.open(state.bind(["k"], values), schema)
    for txid, rows in enumerate(batches(seed=7), 1):
        driver.commit(committer, driver.frame(rows, schema).coalesce(1), txid)
    for txid in (None, 2):
        wanted = as_spark(state, txid)
        for found in (state.to_arrow(txid), in_spark(state, txid)):
            assert types_of(found) == types_of(wanted)
            assert rows_of(found, ["k"]) == rows_of(wanted, ["k"])
    refused = assert_trino_parses(state, state.read(driver.spark).schema)
    if layout == "log":
        due = [n for n in values if n.startswith("CountDistinct_") or n.endswith("_rows")]
        instants = ("First_c_timestamp", "Last_c_timestamp", "CollectSet_c_timestamp")
        assert sorted(refused) == sorted([*due, *(n for n in instants if n in values)])
        return
    assert not refused
    columns = ["k", *values]
    for found in (
        DeltaTable(state.path).to_pyarrow_table(columns=columns),
        pl.read_delta(state.path, columns=columns).to_arrow(),
        with_delta_alone(state.path, columns),
    ):
        assert types_of(found) == types_of(as_spark(state))
        assert rows_of(found, ["k"]) == rows_of(as_spark(state), ["k"])


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_keys_of_every_type_read_the_same_without_spark(
    driver: Any, as_spark: Any, in_spark: Any, warehouse: Path, layout: str
) -> None:
    """NULL, NaN, -0.0, dates before 1582, bytes and nested values are keys like any other."""
    columns = [column_of(kind) for kind in ALL]
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(columns, ALL, strict=True))
    rows = [[row[2:] for row in batch] for batch in batches(seed=3)]
    state = StateTable(warehouse / "state", layout=layout, buckets=3)
    committer = driver.open(state.bind(columns, {"n": agg.Count()}), schema)
    for txid, batch in enumerate([*rows, rows[0]], 1):
        driver.commit(committer, driver.frame(batch, schema), txid)
    wanted = as_spark(state)
    for found in (state.to_arrow(), in_spark(state)):
        assert types_of(found) == types_of(wanted)
        assert rows_of(found, columns) == rows_of(wanted, columns)
        assert max(found["n"].to_pylist()) > 1
    refused = assert_trino_parses(state, state.read(driver.spark).schema)
    assert bool(refused) == (layout == "log")


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_removed_keys_are_not_read_without_spark(
    driver: Any, as_spark: Any, in_spark: Any, warehouse: Path, layout: str, semantics: str
) -> None:
    """A key that is removed, and one that comes back, are as `StateTable.read` shows them."""
    schema = "`d.ot` string, v bigint"
    folder = warehouse / "it's [a] * ?"
    state = StateTable(folder, semantics, layout, buckets=1, remove_where="`日本` = 0")
    committer = driver.open(state.bind(["d.ot"], {"日本": agg.Sum("v")}), schema)
    batches = ([("a", 1), ("b", 2)], [("a", -1), (None, 0)], [("a", 5)], [("b", -2)])
    for txid, batch in enumerate(batches, 1):
        driver.commit(committer, driver.frame(batch, schema), txid)
    for txid in (1, 2, 3, None):
        wanted = sorted(map(str, as_spark(state, txid).to_pylist()))
        for found in (state.to_arrow(txid), in_spark(state, txid)):
            assert sorted(map(str, found.to_pylist())) == wanted
    assert not assert_trino_parses(state, state.read(driver.spark).schema)
    assert state.to_arrow().to_pylist() == [{"d.ot": "a", "日本": 5}]


def test_rows_are_read_as_of_a_txid_without_spark(driver: Any, warehouse: Path) -> None:
    """A table of rows shows those up to the txid, with their txid."""
    table = AppendTable(warehouse / "rows")
    driver.open(table, "k string, n int")
    for txid, rows in enumerate(([("a", 1)], [("b", None)], [("c", 3)]), 1):
        driver.commit(table, driver.frame(rows, "k string, n int"), txid)
    assert table.to_arrow(2, columns=["txid", "k"]).to_pylist() == [
        {"txid": 1, "k": "a"},
        {"txid": 2, "k": "b"},
    ]
    frame = table.to_pandas()
    assert [str(kind) for kind in frame.dtypes] == ["string[pyarrow]", "int32[pyarrow]",
        "int64[pyarrow]"]  # fmt: skip
    assert table.to_polars(where="n IS NOT NULL")["n"].to_list() == [1, 3]
    assert table.to_duckdb().filter("txid > 1").order("k DESC").fetchall()[0] == ("c", 3, 3)


class Doubled(agg.Sum):
    """Shows another value than it stores, as only its own program knows."""

    def result(self, stored: Column) -> Column:
        """Twice the sum."""
        return stored * 2


def test_what_only_spark_can_read_is_refused_without_it(driver: Any, warehouse: Path) -> None:
    """Each refusal names the place and a way out that works."""
    state = StateTable(warehouse / "state", layout="log")
    with pytest.raises(TableAbsentError):
        state.to_arrow()
    committer = driver.open(state.bind(["k"], {"n": Doubled("v")}), "k string, v int")
    driver.commit(committer, driver.frame([("a", 1)], "k string, v int"), 1)
    with pytest.raises(TableRefusedError, match="whose result this program cannot compute"):
        state.to_arrow()
    plain = StateTable(warehouse / "plain")
    committer = driver.open(plain.bind(["k"], {"n": agg.Count()}), "k string")
    driver.commit(committer, driver.frame([("a",)], "k string"), 1)
    with pytest.raises(TableRefusedError, match="has no column 'm'. It has k, n"):
        plain.to_arrow(columns=["m"])
    with pytest.raises(TableRefusedError, match="has not reached txid 9"):
        plain.to_arrow(9)
    mapping = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
    mapping += "'delta.minWriterVersion' = '5'"
    driver.spark.sql(f"ALTER TABLE delta.`{plain.path}` SET TBLPROPERTIES ({mapping})")
    with pytest.raises(TableRefusedError, match=r"columnMapping.*Read it with Spark"):
        plain.to_arrow()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, warehouse: Path) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(SetupError, match=r"pip install 'txn-spark\[reader\]'"):
        StateTable(warehouse / "state").to_arrow()


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_changes_are_the_difference_of_two_txids(
    driver: Any, warehouse: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that come, go and change are those of both states; an upsert table reads only files that
    differ.
    """
    schema = "k string, f double, v int"
    state = StateTable(warehouse / "state", layout=layout, buckets=4, remove_where="n = 0")
    values = {"n": agg.Sum("v"), "last": agg.Last("v", "f")}
    committer = driver.open(state.bind(["k", "f"], values), schema)
    nan = math.nan
    batches = (
        [("a", 1.0, 1), ("b", nan, 2), (None, 0.5, 3), ("e", 1.0, 1)],
        [("a", 1.0, -1), ("b", nan, None), ("c", None, 4)],
        [("a", 1.0, 7), (None, 0.5, 1)],
        [("c", None, -4)],
    )
    for txid, batch in enumerate(batches, 1):
        driver.commit(committer, driver.frame(batch, schema), txid)
    states = {n: {key_of(row): row for row in state.to_arrow(n).to_pylist()} for n in range(1, 5)}
    for one, before in states.items():
        for two, after in states.items():
            kinds = {"delete": before.keys() - after.keys(), "insert": after.keys() - before.keys()}
            met = {k for k in before.keys() & after.keys() if plain(before[k]) != plain(after[k])}
            kinds |= {"update_preimage": met, "update_postimage": met}
            due = [
                (kind, plain((before if kind in ("delete", "update_preimage") else after)[key]))
                for kind, keys in kinds.items()
                for key in keys
            ]
            found = state.changes(one, two).to_arrow_table().to_pylist()
            told = [(row.pop("_change_type"), plain(row)) for row in found]
            assert sorted(map(str, told)) == sorted(map(str, due)), (one, two)
    seen: list[str] = []
    listed = frames._listed
    monkeypatch.setattr(frames, "_listed", lambda paths: seen.extend(paths) or listed(paths))
    state.changes(3, 4)
    assert len(seen) < (4 if layout == "upsert" else 99)


def key_of(row: dict[str, Any]) -> str:
    """The key of a row of `k` and `f`."""
    return str(plain({"k": row["k"], "f": row["f"]}))


def test_changes_of_rows_are_refused(driver: Any, warehouse: Path) -> None:
    """A table without keys has none; the way out works."""
    table = AppendTable(warehouse / "rows")
    driver.open(table, "k string")
    driver.commit(table, driver.frame([("a",)], "k string"), 1)
    with pytest.raises(TableRefusedError, match=r"its keys are none.*connection=\.\.\."):
        table.changes(1)
    both = duckdb.connect()
    one, two = (table.to_duckdb(txid, connection=both) for txid in (1, None))
    assert one.except_(two).fetchall() == []


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_single_keys_are_looked_up_without_spark(driver: Any, warehouse: Path, layout: str) -> None:
    """Values of one key, NULL and NaN among them, as of the version that was read last."""
    schema = "k string, f double, at timestamp, d decimal(30,2)"
    at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)
    key = ("it's", math.nan, at, Decimal("12345678901234567890.25"))
    state = StateTable(warehouse / "state", layout=layout)
    committer = driver.open(state.bind(["k", "f", "at", "d"], {"n": agg.Count()}), schema)
    driver.commit(committer, driver.frame([key, (None, None, None, None)], schema), 1)
    lookup = state.key_lookup()
    assert lookup.get(*key) == lookup.get(None, None, None, None) == {"n": 1}
    assert lookup.get("other", 1.0, at, Decimal(1)) is None
    driver.commit(committer, driver.frame([key], schema), 2)
    assert lookup.get(*key) == {"n": 1}
    lookup.refresh()
    assert lookup.get(*key) == {"n": 2}
    for wrong in (
        ("it's",),
        ("it's", True, at, key[3]),
        ("it's", 1.0, at.replace(tzinfo=None), key[3]),
        ("it's", 1.0, at, Decimal("0.125")),
        (7, 1.0, at, key[3]),
    ):
        with pytest.raises(TableRefusedError, match=r"whose keys are k VARCHAR, f DOUBLE.* d DEC"):
            lookup.get(*wrong)


def test_a_global_total_is_looked_up_without_a_key(driver: Any, warehouse: Path) -> None:
    """It has one row; a table of rows has no key, and says what to use."""
    total = StateTable(warehouse / "total")
    committer = driver.open(total.bind([], {"n": agg.Count()}), "k string")
    driver.commit(committer, driver.frame([("a",), ("b",)], "k string"), 1)
    assert total.key_lookup().get() == {"n": 2}
    rows = AppendTable(warehouse / "rows")
    driver.open(rows, "k string")
    driver.commit(rows, driver.frame([("a",)], "k string"), 1)
    with pytest.raises(TableRefusedError, match="Use to_duckdb"):
        rows.key_lookup()


def test_a_notebook_shows_a_state_with_its_txid_and_age(driver: Any, warehouse: Path) -> None:
    """As a table whose texts are escaped; before there is one, as in a terminal."""
    state = StateTable(warehouse / "state")
    assert state._repr_html_() is None
    committer = driver.open(state.bind(["k"], {"n": agg.Count()}), "k string")
    driver.commit(committer, driver.frame([("<b>",)], "k string"), 1)
    shown = state._repr_html_()
    assert shown is not None
    assert re.search(r"state as of txid 1, \d+ seconds ago", shown)
    assert "<tr><td>&lt;b&gt;</td><td>1</td></tr>" in shown


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("bigint", 2, [1.5, Decimal(2), True, 2**63, "2"]),
        ("date", dt.date(2024, 1, 1), [dt.datetime(2024, 1, 1, 23)]),
        (
            "timestamp_ntz",
            dt.datetime(2024, 1, 1),
            [dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)],
        ),
        (
            "decimal(10,2)",
            Decimal("1.23"),
            [Decimal("1.234"), 1.23, Decimal("1e9"), Decimal("NaN")],
        ),
        ("struct<a:int,b:string>", (1, "x"), [(1,), {"a": 1}, (1, 2), 1]),
        ("array<int>", [1, None], [1, ["1"]]),
        ("binary", b"x", ["x"]),
    ],
)
def test_only_a_key_of_its_type_is_looked_up(
    driver: Any, warehouse: Path, kind: str, right: Any, wrong: list[Any]
) -> None:
    """A value that DuckDB would round, cut or read as another one is refused by name."""
    state = StateTable(warehouse / "state")
    schema = f"k {kind}"
    committer = driver.open(state.bind(["k"], {"n": agg.Count()}), schema)
    driver.commit(committer, driver.frame([(right,)], schema), 1)
    lookup = state.key_lookup()
    assert lookup.get(right) == {"n": 1}
    for value in wrong:
        with pytest.raises(TableRefusedError, match="is not a key of state table"):
            lookup.get(value)


def test_nulls_within_values_come_first_as_for_spark(
    driver: Any, as_spark: Any, in_spark: Any, warehouse: Path
) -> None:
    """Also within arrays and structs, where DuckDB has them last; whatever a column is called."""
    kind = "array<struct<x:int,y:array<int>>>"
    schema = f"k string, o array<int>, v {kind}"
    values = {
        "a": agg.Min("o"),
        "b": agg.Max("v"),
        "e": agg.CollectSet("v", 3),
        "stored": agg.First("v", "o"),
        "merged": agg.LastN(2, "o", "v"),
    }
    state = StateTable(warehouse / "state", layout="log")
    committer = driver.open(state.bind(["k"], values), schema)
    orders = ([None], [1], [None, 1], [], [1, None])
    inner = ([(None, [1])], [(1, [None])], [(1, None)], [None], [(1, [0, None])])
    for txid, (order, value) in enumerate(zip(orders, inner, strict=True), 1):
        driver.commit(committer, driver.frame([("a", order, value)], schema), txid)
    for found in (state.to_arrow(), in_spark(state)):
        assert rows_of(found, ["k"]) == rows_of(as_spark(state), ["k"])
    assert not assert_trino_parses(state, state.read(driver.spark).schema)
    moments = StateTable(warehouse / "moments", layout="log")
    columns = "a int, b int"
    committer = driver.open(moments.bind(["a"], {"b": agg.Variance("b")}), columns)
    for txid, n in enumerate((1, 2, 4), 1):
        driver.commit(committer, driver.frame([(1, n)], columns), txid)
    for found in (moments.to_arrow(), in_spark(moments)):
        assert rows_of(found, ["a"]) == rows_of(as_spark(moments), ["a"])
    assert not assert_trino_parses(moments, moments.read(driver.spark).schema)


def test_columns_and_conditions_go_together(driver: Any, warehouse: Path) -> None:
    """A condition sees all columns; a column twice, or none, is refused, and a name of the feed."""
    state = StateTable(warehouse / "state")
    schema = "k string, v int"
    committer = driver.open(state.bind(["k"], {"v": agg.Sum("v")}), schema)
    driver.commit(committer, driver.frame([("a", 1), ("b", 3)], schema), 1)
    assert state.to_arrow(columns=["k"], where="v > 2").to_pylist() == [{"k": "b"}]
    for columns in (["k", "k"], []):
        with pytest.raises(TableRefusedError, match="names none, or one twice"):
            state.to_arrow(columns=columns)
    feed = StateTable(warehouse / "feed")
    named = "_change_type string"
    committer = driver.open(feed.bind(["_change_type"], {"n": agg.Count()}), named)
    driver.commit(committer, driver.frame([("a",)], named), 1)
    with pytest.raises(TableRefusedError, match="which changes have"):
        feed.changes(1)
