"""The queries that `sql()` prints for Spark and Trino, beside the tables of test_frames.py."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlglot

from committers import aggregates as agg
from committers.append_table import AppendTable
from committers.state_table import StateTable
from tests.committers.test_frames import rows_of
from tests.committers.test_state_table_expiry import LAST, MINUTE, World
from tests.committers.trino import assert_trino_parses
from txn.errors import TableRefusedError
from txn.interfaces import Expiry

WINDOW = "struct<start:timestamp,end:timestamp>"


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (LAST, "string"),
        (Expiry("key", 10 * MINUTE, "k"), "timestamp"),
        (Expiry("window end", 10 * MINUTE), WINDOW),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_keys_that_have_ended_are_in_no_query(
    driver: Any,
    as_spark: Any,
    in_spark: Any,
    warehouse: Path,
    layout: str,
    rule: Expiry,
    kind: str,
    *,
    nested: bool,
) -> None:
    """Each rule, as of each txid, with keys that begin anew; Trino merges nothing by instants."""
    world = World(driver, warehouse / "t", f"k {kind}, at timestamp", nested=nested)
    world.start(rule, layout)
    batches = [(0, [(1, 1), (5, 5)]), (12, [(13, 13)]), (14, [(1, 20), (13, 14)]), (24, [(29, 25)])]
    for mark, rows in batches:
        world.commit(mark, *((str(k) if kind == "string" else k, n) for k, n in rows))
    for txid in (1, 2, 3, None):
        wanted = rows_of(as_spark(world.state, txid), ["k"])
        assert 0 < len(wanted) < 4
        for found in (world.state.to_arrow(txid), in_spark(world.state, txid)):
            assert rows_of(found, ["k"]) == wanted
    refused = assert_trino_parses(world.state, world.state.read(driver.spark).schema)
    assert refused == ([*world.keys, "at"] if layout == "log" else [])


def test_totals_in_spark_are_exact_in_every_mode_or_an_error(
    driver: Any, in_spark: Any, warehouse: Path
) -> None:
    """Without ANSI, too, whole numbers may leave their range on the way to a total, which may not;
    means of decimals have all digits.
    """
    schema = "k string, v bigint, m decimal(38,18)"
    most = 2**63 - 1
    state = StateTable(warehouse / "state", layout="log")
    values = {"n": agg.Sum("v"), "mean": agg.Avg("m")}
    committer = driver.open(state.bind(["k"], values), schema)
    for txid, number in enumerate((most, 1, -1), 1):
        driver.commit(committer, driver.frame([("a", number, Decimal(number % 7))], schema), txid)
    for ansi in ("true", "false"):
        driver.spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            assert in_spark(state).to_pylist() == state.to_arrow().to_pylist()
            with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW: a total or a mean leaves"):
                in_spark(state, 2)
        finally:
            driver.spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("folder", ["it's [a] * ?", "b`a`ck", "日 本"])
def test_tables_are_named_by_path_or_in_a_catalog(
    driver: Any, in_spark: Any, warehouse: Path, folder: str
) -> None:
    """A table of rows as of a txid, whatever its path; names of a catalog are quoted."""
    table = AppendTable(warehouse / folder)
    driver.open(table, "k string")
    for txid, k in enumerate("ab", 1):
        driver.commit(table, driver.frame([(k,)], "k string"), txid)
    assert in_spark(table, 1).to_pylist() == [{"txid": 1, "k": "a"}]
    assert in_spark(table, columns=["k"]).num_rows == 2
    named = sqlglot.parse_one(table.sql(dialect="trino", table="lake.a b.order"), dialect="trino")
    assert '"lake"."a b"."order" FOR VERSION AS OF 2' in named.sql("trino")
    assert "FROM `x`.`t` VERSION AS OF" in table.sql(dialect="spark", table="x.t")
    for wrong in ({"dialect": "oracle"}, {"table": "x.t"}):
        with pytest.raises(ValueError, match="the dialects are duckdb, spark, trino"):
            table.sql(**wrong)


def test_what_trino_cannot_compute_is_refused_by_name(driver: Any, warehouse: Path) -> None:
    """Sketches, and instants by which it would merge, where readers merge; the ways out work."""
    schema = "k string, at timestamp, v int"
    values = {"d": agg.CountDistinct("v"), "last": agg.Last("v", "at"), "seen": agg.Max("at")}
    upsert, log = (StateTable(warehouse / one, layout=one) for one in ("upsert", "log"))
    for state in (upsert, log):
        committer = driver.open(state.bind(["k"], values), schema)
        driver.commit(committer, driver.frame([("a", None, 1)], schema), 1)
    assert "FOR VERSION AS OF" in upsert.sql(dialect="trino")
    with pytest.raises(TableRefusedError, match=r"cannot compute value 'd'.*CountDistinct\(v"):
        log.sql(dialect="trino")
    with pytest.raises(TableRefusedError, match=r"those of last\. Ask .*, leave .*'upsert'"):
        log.sql(columns=["k", "last", "seen"], dialect="trino")
    assert "FOR VERSION AS OF" in log.sql(columns=["k", "seen"], dialect="trino")


def test_steps_of_a_query_have_names_that_no_column_has(
    driver: Any, in_spark: Any, warehouse: Path
) -> None:
    """A column of a step's former name is not taken for the step: `stored.value` is no key."""
    schema = "value string, v double, o int"
    for layout, name in (("upsert", "stored"), ("log", "merged")):
        state = StateTable(warehouse / layout, layout=layout)
        committer = driver.open(state.bind(["value"], {name: agg.First("v", "o")}), schema)
        driver.commit(committer, driver.frame([("a", math.pi, 1)], schema), 1)
        wanted = [{"value": "a", name: math.pi}]
        assert state.to_arrow().to_pylist() == in_spark(state).to_pylist() == wanted
