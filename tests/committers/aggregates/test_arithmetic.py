"""Totals are exact or refused: every digit of wide decimals, and ranges, in any session."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DecimalType

from committers.aggregates import (
    Aggregate,
    Avg,
    CollectSet,
    First,
    FirstN,
    Fold,
    Last,
    Max,
    Min,
    Sum,
    Variance,
)
from committers.aggregates.totals import exact_add
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from tests.committers.conftest import Driver, publication
from tests.thorough import THOROUGH
from txn import Topology
from txn.dataflow.graph import Aggregation, Source
from txn.errors import BatchError, TopologyError
from txn.spark.own_session import computing_session

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
            left, right = (sf.expr(f"try_cast({name} AS {kind.simpleString()})") for name in "ab")
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
            with pytest.raises(Exception, match=r"Sum\(x\) leaves the range"):
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
PLACES = [[3], [1, 1, 1], [2, 1]] if THOROUGH else [[3], [2, 1]]
"""How many rows each batch has: the total overflows within one, or over several."""


@pytest.mark.parametrize("ansi", ["ansi", "lenient"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_total_out_of_range_is_refused_by_name(
    driver: Any, warehouse: Path, layout: str, ansi: str
) -> None:
    """In both layouts a total is exact to the last digit of its stored type; otherwise the batch
    fails and names the table and the aggregate. So it is in any session; the table keeps what it
    had.
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
                said = rf"Sum\(x\) of table {path} leaves the range"
                with pytest.raises(Exception, match=said):
                    state.read(session).collect()


M = 2**63 - 1
RANDOM = [[random.Random(n).randint(-M, M) for _ in range(9)] for n in range(3)]
IN_RANGE = {
    # key -> the batches: totals whose sums on the way leave the range
    "over batches": [[M], [-M], [M]],
    "in a batch": [[M, M, -M, -5], [], [-M]],
    "both signs": [[-M, -M, M, M, -M, -1], [M, M, -M], []],
    "halves": [[2**32, -1, 2**31, -(2**31), 2**32 - 1], [-(2**32), -1], [-(2**33) + 1, 7]],
    "random": [[*ones, *(-one for one in ones), n] for n, ones in enumerate(RANDOM)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_total_has_to_be_in_range(driver: Any, warehouse: Path, layout: str) -> None:
    """A sum of bigints is right whatever the order of rows and txids, in any session."""
    schema = "k string, v bigint"
    for number, session in enumerate((driver.spark, lenient(driver.spark))):
        own = Driver(session)
        state = StateTable(warehouse / str(number), layout=layout, buckets=1)
        values = {"s": Sum("v"), "m": Avg("v")}
        committer = own.open(state.bind(["k"], values), schema)
        wanted: dict[str, list[int]] = {key: [] for key in IN_RANGE}
        for txid in range(3):
            rows = [(key, v) for key, batches in IN_RANGE.items() for v in batches[txid]]
            for key, v in rows:
                wanted[key].append(v)
            own.commit(committer, own.frame(rows, schema).coalesce(1), txid + 1)
        found = {row["k"]: (row["s"], row["m"]) for row in state.read(session).collect()}
        assert {key: total for key, (total, _) in found.items()} == {
            key: sum(each) for key, each in wanted.items()
        }
        for key, each in wanted.items():
            assert found[key][1] == pytest.approx(sum(each) / len(each))


WIDE = {
    # type -> (means that are kept, means that have no room): (values, ...)
    "decimal(38,0)": ([("1e32", "-1e0")], [("9e33",), ("-1e32",), ("1e32", "1e32")]),
    "decimal(36,2)": ([("99999999999999999999999999999999.99",)], [("-9999e30",)]),
    "decimal(38,5)": ([("999999999999999999999999999999999.99999", "-9e32")], [("1e32",)]),
    "decimal(38,6)": ([("-99999999999999999999999999999999.999999",)], []),
}


def test_a_mean_that_could_not_be_read_is_refused(driver: Any, warehouse: Path) -> None:
    """The batch fails whose mean has more digits than a mean has room for, and not the readers."""
    schema = ", ".join(f"c{n} {kind}" for n, kind in enumerate(WIDE))
    values = {f"m{n}": Avg(f"c{n}") for n in range(len(WIDE))}
    for number, layout in enumerate((*LAYOUTS, "log")):
        own = Driver(driver.spark if number < 2 else lenient(driver.spark))
        state = StateTable(warehouse / str(number), layout=layout, buckets=1)
        committer = own.open(state.bind([], values), schema)

        def rows(column: int, texts: tuple[str, ...], own: Driver = own) -> Any:
            cells = [[None] * column + [Decimal(t)] + [None] * (3 - column) for t in texts]
            return own.frame(cells, schema)

        txid, wanted = 1, {}
        for column, (kept, refused) in enumerate(WIDE.values()):
            for texts in refused if number < 2 or column == 0 else ():
                with pytest.raises(OverflowError, match=rf"Avg\(c{column}\) of table"):
                    own.commit(committer, rows(column, texts), txid)
            for texts in kept:
                own.commit(committer, rows(column, texts), txid)
                total = sum(map(Fraction, texts))
                wanted[f"m{column}"] = total / len(texts)
                txid += 1
        (row,) = state.read(driver.spark).collect()
        for name, mean in wanted.items():
            assert abs(Fraction(row[name]) - mean) <= Fraction(1, 2 * 10**6), name


def test_an_overflow_names_the_table_whose_total_it_is(driver: Any, warehouse: Path) -> None:
    """The total of a log table is put together in the job of the table below its new values."""
    schema, largest = "k string, v bigint", 2**63 - 1
    above, below = warehouse / "above", warehouse / "below"
    committer = driver.open(StateTable(above, layout="log").bind(["k"], {"s": Sum("v")}), schema)
    driver.commit(committer, driver.frame([("a", largest)], schema), 1)
    staged = driver.stage(committer, driver.frame([("a", 5)], schema), 2)
    turn = publication(2, rows=staged.rows).model_copy(update={"digest": staged.digest})
    changed = committer.changes(committer.prepare(staged, turn), turn).rows
    other = driver.open(AppendTable(below), "k string, s bigint, prev_s bigint")
    with pytest.raises(OverflowError, match=rf"Sum\(v\) of table {above} leaves .* {below}"):
        driver.stage(other, changed, 2)
    rows = driver.frame([("a", largest), ("a", 1)], schema)
    per_batch = Aggregation(SOURCE, ("k",), {"s": Sum("v")}).compute([rows])
    third = driver.open(AppendTable(warehouse / "third"), "k string, s bigint")
    with pytest.raises(OverflowError, match=rf"Sum\(v\) leaves .* {warehouse / 'third'}"):
        driver.stage(third, per_batch, 1)


SOURCE = Source("m", MemoryTransactionalSpout([], "v bigint"))


class Positive(Sum):
    """A sum of those that are not negative."""

    def partial(self) -> Column:
        return sf.sum(sf.when(sf.col("v") > 0, sf.col("v")))


class Capped(Sum):
    """A sum that stops at ten."""

    def combine(self, stored: Column, partial: Column) -> Column:
        both = sf.coalesce(stored, sf.lit(0)) + sf.coalesce(partial, sf.lit(0))
        return sf.least(sf.lit(10).cast("bigint"), both)


class Floored(Min):
    """The smallest, not below zero: made of what the parent makes."""

    def partial(self) -> Column:
        return sf.greatest(super().partial(), sf.lit(0).cast("bigint"))


class Halved:
    """What a mixin says counts like what a subclass says."""

    def partial(self) -> Column:
        return sf.sum(sf.col("v").cast("double") / 2)


class HalvedSum(Halved, Sum):
    """As the mixin has it."""


class Backwards(Fold):
    """A fold that forgets what it had."""

    def combine(self, stored: Column, partial: Column) -> Column:
        return self.initial(partial)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_subclass_keeps_its_own_arithmetic(driver: Any, warehouse: Path, layout: str) -> None:
    """What a subclass of a built-in aggregate overrides is what counts, in both layouts, also
    where several txids are put together, and in per-batch aggregates.
    """
    schema = "k string, v bigint"
    values: dict[str, Aggregate] = {
        "positive": Positive("v"),
        "capped": Capped("v"),
        "floored": Floored("v"),
        "halved": HalvedSum("v"),
        "plain": Sum("v"),
    }
    wanted = {"positive": 15, "capped": -85, "floored": 0, "halved": -42.5, "plain": -85}
    if layout == "upsert":
        values["last"] = Backwards("0L", "acc + row.v", "v")
        wanted["last"] = 3
    batches = [[("a", 5), ("a", -100), ("a", 7)], [("a", 3)]]
    state = StateTable(warehouse / "t", layout=layout)
    committer = driver.open(state.bind(["k"], values), schema)
    for txid, batch in enumerate(batches, 1):
        driver.commit(committer, driver.frame(batch, schema), txid)
    given = values if layout == "log" else None
    (row,) = state.read(driver.spark, aggregates=given).collect()
    assert {name: row[name] for name in wanted} == wanted
    high = driver.frame([("a", 200)], schema)
    driver.commit(committer, high, 3)
    (row,) = state.read(driver.spark, aggregates=given).collect()
    assert (row["capped"], row["plain"]) == (10, 115)
    node = Aggregation(SOURCE, ("k",), values)
    (row,) = node.compute([driver.frame(batches[0], schema)]).collect()
    assert [row[name] for name in ("positive", "floored", "halved")] == [12, 0, -44.0]


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
        with pytest.raises(Exception, match=r"Avg\(x\) leaves the range"):
            session.sql(f"SELECT {text}").select(mean).collect()


def test_texts_are_not_added_up(driver: Any, warehouse: Path) -> None:
    """Spark would make doubles of texts: sums, means and variances of them are refused by name."""
    for aggregate in (Sum("s"), Avg("s"), Variance("s")):
        committer = StateTable(warehouse / "t").bind([], {"x": aggregate})
        with pytest.raises(TopologyError, match="'s' is string"):
            committer.partials(driver.frame([], "s string"))
        per_batch = Aggregation(SOURCE, (), {"x": aggregate})
        with pytest.raises(TopologyError, match="'s' is string"):
            per_batch.compute([driver.frame([], "s string")])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_minus_zero_is_kept_as_zero(driver: Any, warehouse: Path, layout: str) -> None:
    """Of -0.0 and 0.0, one value in SQL, the same is kept in whatever order the batches come."""
    inside = "struct<d:double,`f.g`:float,t:string>"
    schema = f"v double, f float, s {inside}, a array<{inside}>"
    values: dict[str, Aggregate] = {
        "low": Min("v"),
        "high": Max("f"),
        "first": First("v", "f"),
        "set": CollectSet("v", 5),
        "low_struct": Min("s"),
        "last_array": Last("a", "v"),
        "set_of_structs": CollectSet("s", 5),
        "rows": FirstN(1, "v", "s", "a"),
    }
    found, made = [], []
    for number, order in enumerate([(-0.0, 0.0), (0.0, -0.0)]):
        state = StateTable(warehouse / str(number), layout=layout, buckets=1)
        committer = driver.open(state.bind(["k"], values), f"k int, {schema}")
        for txid, value in enumerate(order, 1):
            one = (value, value, "x")
            rows = [
                (1, value, value, one, [one]),
                (2, value, value, None, None),
                (3, value, value, (None, value, None), [None, (value, None, "y"), None]),
            ]
            driver.commit(committer, driver.frame(rows, f"k int, {schema}"), txid)
            frame = driver.frame(rows, f"k int, {schema}")
            made.append(
                repr(sorted(Aggregation(SOURCE, ("k",), values).compute([frame]).collect()))
            )
        found.append(repr(sorted(state.read(driver.spark).collect())))
    assert found[0] == found[1]
    assert "-0.0" not in found[0]
    assert len(set(made)) == 1
    assert "-0.0" not in made[0]
    none = next(row for row in state.read(driver.spark).collect() if row["k"] == 2)
    assert (none["low_struct"], none["last_array"], none["set_of_structs"]) == (None, None, [])
    assert (none["rows"][0]["s"], none["rows"][0]["a"]) == (None, None)
    nulls = next(row for row in state.read(driver.spark).collect() if row["k"] == 3)
    assert nulls["last_array"] == [None, (0.0, None, "y"), None]


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
