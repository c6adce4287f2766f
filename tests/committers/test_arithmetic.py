"""Totals are exact or refused: every digit of wide decimals, and ranges, in any session."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DecimalType

from committers.aggregates import Aggregate, Avg, CollectSet, First, Max, Min, Sum, Variance
from committers.aggregates_base import exact_add
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from tests.committers.conftest import Driver
from txn import Topology
from txn.errors import BatchError, TopologyError
from txn.interfaces import computing_session

EXACT = Context(prec=100)
SCALES = (1, 10, 18, 37, 38)
LAYOUTS = ("upsert", "log")
LENIENT = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true",
}


def lenient(spark: SparkSession) -> SparkSession:
    """A session in which a bigint wraps and a decimal that does not fit is NULL."""
    session = spark.newSession()
    for key, value in LENIENT.items():
        session.conf.set(key, value)
    return session


def pairs(scale: int, count: int) -> list[tuple[Decimal | None, Decimal | None]]:
    """Random pairs of decimals of 38 digits, and those at the edges."""
    random_number = random.Random(scale)
    greatest = 10**38 - 1
    edges = [0, 1, -1, greatest, -greatest, greatest - 1, 5 * 10**37, -5 * 10**37]
    found: list[int | None] = [None, *edges]
    both = [(one, other) for one in found for other in found]
    for _ in range(count):
        one, other = (random_number.randint(0, 10 ** random_number.randint(1, 38)) for _ in "ab")
        both.append((one * random_number.choice((1, -1)), other * random_number.choice((1, -1))))
    return [
        tuple(None if n is None else Decimal(n).scaleb(-scale, EXACT) for n in pair)  # type: ignore[misc]
        for pair in both
    ]


def test_two_decimals_of_38_digits_are_added_exactly(spark: SparkSession) -> None:
    """Every digit of the sum is right in the session of a commit turn, whatever the user's says."""
    for session in (spark, computing_session(lenient(spark), {})):
        columns: list[Column] = []
        rows: list[tuple[Any, ...]] = []
        cases: list[tuple[int, Decimal | None, Decimal | None]] = []
        for number, scale in enumerate(SCALES):
            kind = DecimalType(38, scale)
            for one, other in pairs(scale, 200):
                total = None if one is None or other is None else EXACT.add(one, other)
                if total is not None and len(total.as_tuple().digits) > 38:
                    continue
                cases.append((number, one, other))
                texts = [None if x is None else format(x, "f") for x in (one, other)]
                rows.append((len(rows), number, *texts))
            left, right = (sf.col(name).try_cast(kind) for name in "ab")
            total_column = sf.when(sf.col("scale") == number, exact_add(left, right, kind, "it"))
            columns.append(total_column.cast("string").alias(f"s{number}"))
        frame = session.createDataFrame(rows, "id int, scale int, a string, b string")
        wrong = []
        for row in frame.select("id", *columns).collect():
            number, one, other = cases[row["id"]]
            found = row[f"s{number}"]
            known = [value for value in (one, other) if value is not None]
            wanted = (
                EXACT.add(known[0], known[-1] if len(known) > 1 else Decimal(0)) if known else None
            )
            if (None if found is None else Decimal(found)) != wanted:
                wrong.append((SCALES[number], one, other, found))
        assert wrong == []


def test_a_sum_of_39_digits_is_an_error(spark: SparkSession) -> None:
    """One unit of the last place too much raises, in both signs and in any session."""
    kind = DecimalType(38, 10)
    greatest = Decimal(10**38 - 1).scaleb(-10, EXACT)
    for session in (spark, lenient(spark)):
        for sign in (1, -1):
            row = (EXACT.multiply(greatest, sign), Decimal(sign).scaleb(-10))
            frame = session.createDataFrame([row], "a decimal(38,10), b decimal(38,10)")
            total = exact_add(sf.col("a"), sf.col("b"), kind, "Sum(x)")
            with pytest.raises(PySparkException, match=r"Sum\(x\) leaves the range"):
                frame.select(total).collect()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_decimals_add_up_over_many_batches(driver: Any, warehouse: Path, layout: str) -> None:
    """Six times 1e-10 is 6e-10, and four times 3e-18 is 12e-18, as sums and as means."""
    schema = "a decimal(28,10), b decimal(38,18), c decimal(38,38)"
    state = StateTable(warehouse / layout, layout=layout)
    values = {f"{kind.__name__}_{c}": kind(c) for c in "abc" for kind in (Sum, Avg)}
    committer = driver.open(state.bind([], values), schema)
    small = (Decimal("1e-10"), Decimal("3e-18"), Decimal("7e-38"))
    for txid in range(1, 7):
        driver.commit(committer, driver.frame([small], schema), txid)
    (row,) = state.read(driver.spark).collect()
    assert [row[f"Sum_{c}"] for c in "abc"] == [EXACT.multiply(6, one) for one in small]
    assert [row[f"Avg_{c}"] for c in "abc"] == list(small)


HUGE = {
    "bigint": [2**62, 2**62 - 1, 2**62],
    "decimal(38,0)": [Decimal(4 * 10**37)] * 3,
    "decimal(38,10)": [Decimal("4e27")] * 3,
}
PLACES = [[3], [1, 1, 1], [2, 1]]
"""How many rows each batch has: the total overflows within one, or over several."""


@pytest.mark.parametrize("ansi", ["ansi", "lenient"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_total_out_of_range_is_refused_by_name(
    driver: Any, warehouse: Path, layout: str, ansi: str
) -> None:
    """A total is exact to the last digit of the type that it is kept in, in both layouts, or the
    batch fails and names table and aggregate. So it is in any session; the table keeps what it had.
    """
    session = lenient(driver.spark) if ansi == "lenient" else driver.spark
    own = Driver(session)
    for number, (kind, rows) in enumerate(HUGE.items()):
        for place, sizes in enumerate(PLACES):
            total: Aggregate = Avg("x") if place == 0 else Sum("x")
            path = warehouse / f"{number}-{place}"
            state = StateTable(path, layout=layout, buckets=1)
            committer = own.open(state.bind([], {"total": total}), f"x {kind}")
            left = iter(rows)
            batches = [[(next(left),) for _ in range(size)] for size in sizes]
            for txid, batch in enumerate(batches[:-1], 1):
                own.commit(committer, own.frame(batch, f"x {kind}"), txid)
            before = state.read(session).collect() if len(sizes) > 1 else []
            last = own.frame(batches[-1], f"x {kind}")
            if layout == "upsert" or len(sizes) == 1:
                with pytest.raises(
                    OverflowError, match=rf"{type(total).__name__}\(x\) of table"
                ) as e:
                    own.commit(committer, last, len(sizes))
                assert str(path) in str(e.value)
                assert not any(str(one[0]) in str(e.value) for one in batches[-1])
                assert DeltaTable(str(path)).version() <= len(sizes)
                assert (state.read(session).collect() if before else []) == before
            else:
                own.commit(committer, last, len(sizes))
                with pytest.raises(PySparkException, match=r"Sum\(x\) leaves the range"):
                    state.read(session).collect()


def test_a_run_stops_at_the_txid_whose_total_is_out_of_range(
    spark: SparkSession, zookeeper: Any, warehouse: Path
) -> None:
    """It is the data's fault: nothing is replayed, the txids before are stored, the run resumes."""
    sizes = [2**62, 2**62 - 1, 2**62]
    reports = []
    for attempt in (1, 2):
        topology = Topology("overflow")
        spout = MemoryTransactionalSpout([[(size,)] for size in sizes], "v bigint")
        total = StateTable(warehouse / "t", "transactional")
        topology.stream("m", spout).persistent_aggregate(total, total=Sum("v"))
        with pytest.raises(BatchError, match=r"Batch 3:\d+ .* Sum\(v\) of table .*/t leaves") as e:
            topology.run(lenient(spark), zookeeper=zookeeper.hosts, until="caught_up")
        reports.append((attempt, "Progress is intact" in str(e.value)))
        assert [row["total"] for row in total.read(spark).collect()] == [2**63 - 1]
    assert reports == [(1, True), (2, True)]


def test_a_mean_that_has_no_room_is_an_error_and_not_null(spark: SparkSession) -> None:
    """The quotient of a sum of 38 digits in front of the point raises in any session."""
    for session in (spark, lenient(spark)):
        text = "named_struct('sum', cast('9e37' as decimal(38,0)), 'count', 1L) AS m"
        mean = Avg("x").result(sf.col("m"))
        with pytest.raises(PySparkException, match=r"Avg\(x\) leaves the range"):
            session.sql(f"SELECT {text}").select(mean).collect()


def test_texts_are_not_added_up(driver: Any, warehouse: Path) -> None:
    """Spark would make doubles of texts: sums, means and variances of them are refused by name."""
    for aggregate in (Sum("s"), Avg("s"), Variance("s")):
        committer = StateTable(warehouse / "t").bind([], {"x": aggregate})
        with pytest.raises(TopologyError, match="'s' is string"):
            committer.partials(driver.frame([], "s string"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_minus_zero_is_kept_as_zero(driver: Any, warehouse: Path, layout: str) -> None:
    """Of -0.0 and 0.0, one value in SQL, the same is kept in whatever order the batches come."""
    schema = "v double, f float"
    values: dict[str, Aggregate] = {
        "low": Min("v"),
        "high": Max("f"),
        "first": First("v", "f"),
        "set": CollectSet("v", 5),
    }
    found = []
    for number, order in enumerate([(-0.0, 0.0), (0.0, -0.0)]):
        state = StateTable(warehouse / str(number), layout=layout, buckets=1)
        committer = driver.open(state.bind([], values), schema)
        for txid, value in enumerate(order, 1):
            driver.commit(committer, driver.frame([(value, value)], schema), txid)
        found.append(repr(state.read(driver.spark).collect()))
    assert found[0] == found[1]
    assert "-0.0" not in found[0]


def test_append_tables_keep_minus_zero(driver: Any, warehouse: Path) -> None:
    """An append table holds what came: NaN, both zeros, empty strings and NULL stay apart."""
    schema = "d double, s string, b binary, n struct<x:double,y:array<string>>"
    rows = [
        (-0.0, "", b"", ("-0.0", None)),
        (0.0, None, None, (None, ["", None])),
        (float("nan"), " ", b"\0", None),
    ]
    rows = [
        (d, s, b, None if n is None else (None if n[0] is None else float(n[0]), n[1]))
        for d, s, b, n in rows
    ]  # type: ignore[index,misc]
    table = AppendTable(warehouse / "t")
    committer = driver.open(table, schema)
    driver.commit(committer, driver.frame(rows, schema), 1)
    found = DeltaTable(str(warehouse / "t")).to_pyarrow_table().to_pylist()
    shown = [repr((r["d"], r["s"], r["b"], r["n"] and tuple(r["n"].values()))) for r in found]
    assert sorted(shown) == sorted(map(repr, rows))
