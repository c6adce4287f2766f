"""Aggregates as running state: SQL's treatment of NULL, one's own aggregates."""

from __future__ import annotations

import statistics
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from committers.aggregates import (
    Aggregate,
    Avg,
    BitXor,
    BoolAnd,
    BoolOr,
    CollectSet,
    Count,
    CountDistinct,
    First,
    FirstN,
    Fold,
    Last,
    Max,
    Min,
    StdDev,
    Sum,
)
from committers.state_table import StateTable

ROOT = Path(__file__).parents[3]


class Product(Aggregate):
    """A user's own aggregate."""

    def __init__(self, column: str) -> None:
        self.column = column

    def partial(self) -> Column:
        return sf.product(sf.col(str(self.column)))

    def combine(self, stored: Column, partial: Column) -> Column:
        return stored * partial

    def zero(self) -> Column:
        return sf.lit(1.0)


def test_importing_the_aggregates_is_cheap() -> None:
    """A program that only describes a topology does not load pyspark for it."""
    code = "import sys, committers.aggregates; print('pyspark' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (said.stdout, said.stderr) == ("False\n", "")


def test_every_aggregate_over_three_batches(driver: Any, warehouse: Path) -> None:
    """Keys without any value, with a first value later, and with values in every batch."""
    values = {
        "rows": Count(),
        "known": Count("v"),
        "total": Sum("v"),
        "low": Min("v"),
        "high": Max("v"),
        "first": Min("s"),
        "last": Max("s"),
        "amount": Sum("d"),
        "product": Product("v"),
    }
    state = StateTable(warehouse / "t", buckets=2)
    committer = state.bind(["k"], values)
    schema = "k string, v int, s string, d decimal(10,2)"
    driver.open(committer, schema)
    cent = Decimal("0.01")
    batches = [
        [("a", 2, "x", cent), ("n", None, None, None), ("late", None, None, None)],
        [("a", 3, "b", cent), ("a", None, "z", None), ("late", 5, "q", cent)],
        [("a", -1, "y", cent), ("n", None, None, None)],
    ]
    for txid, batch in enumerate(batches, 1):
        driver.commit(committer, driver.frame(batch, schema), txid)
    found = {row["k"]: tuple(row)[1:] for row in state.read(driver.spark).collect()}
    assert found["a"] == (4, 3, 4, -1, 3, "b", "z", 3 * cent, -6.0)
    assert found["n"] == (2, 0, None, None, None, None, None, None, None)
    # The user's own combine, NULL * 5, is NULL as SQL has it: it said nothing about NULL.
    assert found["late"] == (2, 1, 5, 5, 5, "q", "q", cent, None)


def test_the_zero_of_a_global_aggregate(driver: Any, warehouse: Path) -> None:
    """No rows at all give each aggregate's zero."""
    state = StateTable(warehouse / "t")
    values = {"n": Count(), "s": Sum("v"), "p": Product("v")}
    committer = state.bind([], values)
    driver.open(committer, "v int")
    driver.commit(committer, driver.frame([], "v int"), 1)
    driver.commit(committer, driver.frame([(3,)], "v int"), 2)
    assert [tuple(row) for row in state.read(driver.spark).collect()] == [(1, 3, 3.0)]


def test_running_values_keep_their_type(driver: Any, warehouse: Path) -> None:
    """A decimal sum does not grow with every batch, and one that does not fit is an error."""
    state = StateTable(warehouse / "t")
    committer = state.bind([], {"s": Sum("v")})
    schema = "v decimal(38,0)"
    driver.open(committer, schema)
    big = Decimal(6 * 10**37)
    driver.commit(committer, driver.frame([(big,)], schema), 1)
    with pytest.raises(OverflowError, match=r"Sum\(v\) of table .* leaves the range"):
        driver.commit(committer, driver.frame([(big,)], schema), 2)
    rows = state.read(driver.spark)
    assert rows.schema["s"].dataType.simpleString() == "decimal(38,0)"
    assert [row["s"] for row in rows.collect()] == [big]


STATISTICS: dict[str, Aggregate] = {
    "mean": Avg("v"),
    "price": Avg("d"),
    "spread": StdDev("v"),
    "all": BoolAnd("b"),
    "any": BoolOr("b"),
    "bits": BitXor("v"),
    "first": First("s", "at"),
    "last": Last("s", "at"),
    "lowest": FirstN(2, "v", "s"),
    "names": CollectSet("s", 2),
    "about": CountDistinct("s"),
    "story": Fold("''", "acc || row.s || '.'", "at", "s"),
}
STATISTICS_SCHEMA = "k string, at int, v int, s string, b boolean, d decimal(10,2)"


def test_what_is_stored_differs_from_what_is_read(driver: Any, warehouse: Path) -> None:
    """Averages, sketches, ordered values and folds go through a Delta table over four batches.

    Trident row 45.
    """
    state = StateTable(warehouse / "t", buckets=2)
    committer = state.bind(["k"], STATISTICS)
    driver.open(committer, STATISTICS_SCHEMA)
    cent = Decimal("0.01")
    batches = [
        [("a", 20, 3, "m", True, cent), ("a", 10, 4, "p", None, None)],
        [("a", 30, 1, "c", False, 2 * cent), ("n", None, None, None, None, None)],
        [("a", 5, None, "z", None, None), ("late", 1, 7, "x", True, cent)],
        [("n", 50, None, "q", None, None)],  # its story is NULL by now and starts again
    ]
    for txid, batch in enumerate(batches, 1):
        driver.commit(committer, driver.frame(batch, STATISTICS_SCHEMA), txid)
    rows = {row["k"]: row.asDict(True) for row in state.read(driver.spark).collect()}
    spread = statistics.stdev([3, 4, 1])
    assert rows["a"].pop("spread") == pytest.approx(spread)
    assert rows["a"] == {
        "k": "a",
        "mean": 8 / 3,
        "price": Decimal("0.015"),
        "all": False,
        "any": True,
        "bits": 3 ^ 4 ^ 1,
        "first": "z",
        "last": "c",
        "lowest": [{"v": 1, "s": "c"}, {"v": 3, "s": "m"}],
        "names": ["c", "m"],
        "about": 4,
        "story": "p.m.c.z.",  # by time within a batch, by txid from batch to batch
    }
    alone = {"first": "q", "last": "q", "lowest": [], "names": ["q"], "about": 1, "story": "q."}
    assert rows["n"] == dict.fromkeys(STATISTICS) | {"k": "n"} | alone
    assert (rows["late"]["spread"], rows["late"]["story"]) == (None, "x.")
    stored = driver.spark.read.format("delta").load(str(warehouse / "t")).schema
    assert stored["mean"].dataType.simpleString() == "struct<sum:bigint,count:bigint>"
    assert stored["about"].dataType.simpleString() == "binary"
    assert stored["prev_story"].dataType.simpleString() == "string"


def test_a_global_aggregate_of_nothing_is_its_zero(driver: Any, warehouse: Path) -> None:
    """An empty first batch gives NULL, 0 or an empty array, and the next one starts from there."""
    state = StateTable(warehouse / "t")
    committer = state.bind([], STATISTICS)
    driver.open(committer, STATISTICS_SCHEMA)
    driver.commit(committer, driver.frame([], STATISTICS_SCHEMA), 1)
    empty = {"lowest": [], "names": [], "about": 0, "story": ""}
    row = state.read(driver.spark).first()
    assert row is not None
    assert row.asDict() == dict.fromkeys(STATISTICS) | empty
    one = [("a", 20, 3, "m", True, Decimal("0.01"))]
    driver.commit(committer, driver.frame(one, STATISTICS_SCHEMA), 2)
    row = state.read(driver.spark).first()
    assert row is not None
    found = row.asDict(True)
    assert (found["mean"], found["about"], found["names"], found["story"]) == (3.0, 1, ["m"], "m.")
    assert (found["lowest"], found["first"]) == ([{"v": 3, "s": "m"}], "m")


def test_sketches_count_many_values_nearly(spark: SparkSession) -> None:
    """20,000 distinct values in overlapping batches are counted within four standard errors."""
    about = CountDistinct("v", 12)
    rows = spark.range(24_000).selectExpr("id % 20000 AS v", "id DIV 6000 AS batch")
    parts = rows.groupBy("batch").agg(about.partial().alias("part"))
    one, two, three, four = (
        sf.first(sf.when(sf.col("batch") == batch, sf.col("part")), True) for batch in range(4)
    )
    whole = about.combine(about.combine(one, about.combine(two, three)), four)
    row = parts.agg(about.result(whole), about.zero()).first()
    assert row is not None
    assert abs(row[0] - 20_000) < 4 * 20_000 * 1.04 / 64
    empty = spark.range(0).agg(CountDistinct("id").partial()).first()
    assert empty is not None
    assert row[1] == empty[0]


def test_sums_that_do_not_fit_are_errors(spark: SparkSession) -> None:
    """Averages and sums of integers fail on overflow in `combine`; they never wrap."""
    top = spark.createDataFrame([(2**62,)], "v bigint").agg(
        Sum("v").partial().alias("s"), Avg("v").partial().alias("a")
    )
    for aggregate, column in ((Sum("v"), "s"), (Avg("v"), "a")):
        twice = aggregate.combine(sf.col(column), sf.col(column))
        with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
            top.select(aggregate.result(twice)).collect()


@pytest.mark.parametrize(
    ("aggregate", "said"),
    [
        (CountDistinct("d"), "hll_sketch_agg"),
        (Fold("0", "acc + row.v * 1.5D", "at", "v"), "aggregate"),
        (Fold("0", "acc + nothing.v", "at", "v"), "nothing"),
        (Fold("0 +", "acc", "at", "v"), "PARSE_SYNTAX_ERROR"),
    ],
)
def test_wrong_types_are_refused_before_any_job(
    driver: Any, warehouse: Path, aggregate: Aggregate, said: str
) -> None:
    """A type or an expression that an aggregate cannot take is refused when its table is opened."""
    committer = StateTable(warehouse / "t").bind(["k"], {"x": aggregate})
    with pytest.raises(PySparkException, match=said):
        driver.open(committer, STATISTICS_SCHEMA)
