"""Every aggregate over random rows in random batches, held against Spark's own over all of them."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from committers.aggregates import (
    Aggregate,
    CollectSet,
    Count,
    CountDistinct,
    First,
    FirstN,
    Last,
    LastN,
    Sum,
)
from tests.committers.aggregates.cases import OF_A_COLUMN, make_aggregate
from txn.interfaces import partials_over

BATCHES = 4
CASES = 60
SCHEMA = """case int, batch int, id int, ts int, i int, t tinyint, l bigint, d double,
    m decimal(10,2), s string, b boolean, z binary, `a.b``c` int"""

# value -> (the aggregate, what Spark itself makes of all rows of a case)
AGGREGATES: dict[str, tuple[Aggregate, Callable[[], Column]]] = {
    f"{name.lower()}_{column}": (
        make_aggregate(name, column),
        functools.partial(case.own, column, *case.arguments[0]),
    )
    for name, case in OF_A_COLUMN.items()
    for column in case.samples
} | {
    "count": (Count(), lambda: sf.count("*")),
    "odd_name": (Sum("a.b`c"), lambda: sf.sum("`a.b``c`")),
    "first_d": (First("d", "ts"), lambda: sf.expr("min(struct(ts, d)) FILTER (WHERE ts >= 0).d")),
    "last_s": (Last("s", "ts"), lambda: sf.expr("max(struct(ts, s)) FILTER (WHERE ts >= 0).s")),
    "set_d": (CollectSet("d", 99), lambda: sf.sort_array(sf.array_distinct(sf.collect_set("d")))),
    "about_z": (CountDistinct("z", 4), lambda: sf.expr("count(DISTINCT nullif(z, X''))")),
    "first_3": (FirstN(3, "ts", "d", "id"), lambda: _best_rows(3, "true")),
    "last_3": (LastN(3, "ts", "d", "id"), lambda: _best_rows(3, "false")),
}


def _best_rows(n: int, ascending: str) -> Column:
    rows = "collect_list(struct(ts, d, id)) FILTER (WHERE ts IS NOT NULL)"
    return sf.expr(f"slice(sort_array({rows}, {ascending}), 1, {n})")


def random_rows(seed: int) -> list[tuple[Any, ...]]:
    """Rows of `CASES` cases: few or many, in all batches or in some, with values at the edges."""
    source = random.Random(seed)
    rows: list[tuple[Any, ...]] = []
    for case in range(CASES):
        batches = source.sample(range(BATCHES), source.randint(1, BATCHES))
        nulls = source.choice([0.0, 0.2, 0.9, 1.0])

        def some(*values: Any, nulls: float = nulls) -> Any:
            return None if source.random() < nulls else source.choice(values)

        for _ in range(source.choice([1, 2, 5, 12])):
            number = some(-(2**31), -3, 0, 1, 7, 2**31 - 1)
            rows.append(
                (
                    case,
                    source.choice(batches),
                    len(rows),
                    some(1, 2, 3, 10),
                    number,
                    some(-128, -1, 0, 1, 127),
                    some(-(2**40), 0, 5, 2**40 + 1),
                    some(-0.0, 0.0, 0.25, -8.5, math.inf, math.nan, 1e15),
                    some(Decimal("0.01"), Decimal("-7.33"), Decimal("99999999.99")),
                    some("", "a", "ä", "zz"),
                    some(True, False),
                    some(b"", b"\x00", b"\xff"),
                    number,
                )
            )
    return rows


def partials_by_batch(rows: DataFrame, aggregates: dict[str, Aggregate]) -> DataFrame:
    """One row per case with `<value>_<batch>`: NULL in a batch in which the case has no row."""
    values = partials_over(rows, aggregates)
    partials = rows.groupBy("case", "batch").agg(
        sf.struct(*(value.alias(name) for name, value in values.items())).alias("all")
    )
    batches = [
        sf.first(sf.when(sf.col("batch") == batch, sf.col("all")), ignorenulls=True).alias(
            f"{batch}"
        )
        for batch in range(BATCHES)
    ]
    columns = [
        sf.col(f"`{batch}`.{name}").alias(f"{name}_{batch}")
        for batch in range(BATCHES)
        for name in aggregates
    ]
    return partials.groupBy("case").agg(*batches).select("case", *columns)


def combined(
    frame: DataFrame, aggregates: dict[str, Aggregate], **steps: tuple[object, object]
) -> DataFrame:
    """`frame` with `<value>_<step>` for each step = (left, right); computed, as a commit does."""
    columns = [
        aggregate.combine(sf.col(f"{name}_{left}"), sf.col(f"{name}_{right}")).alias(
            f"{name}_{step}"
        )
        for step, (left, right) in steps.items()
        for name, aggregate in aggregates.items()
    ]
    return frame.select("*", *columns).localCheckpoint()


def near(found: Any, wanted: Any, name: str) -> bool:
    """Equal; for floating point and estimates, up to what their arithmetic loses."""
    if found is None or wanted is None:
        return found is wanted
    if name.startswith("avg_m"):
        return bool(found.quantize(wanted, rounding="ROUND_HALF_UP") == wanted)
    if isinstance(wanted, float):
        return (math.isnan(found) and math.isnan(wanted)) or math.isclose(
            found, wanted, rel_tol=1e-9, abs_tol=1e-9
        )
    return bool(repr(found).replace("-0.0", "0.0") == repr(wanted).replace("-0.0", "0.0"))


def test_batches_combined_are_the_aggregate_over_everything(spark: SparkSession) -> None:
    """However rows fall into batches, and batches are combined, the result is Spark's over all.

    Trident rows 36, 44 and 47.
    """
    rows = spark.createDataFrame(random_rows(seed=1), SCHEMA)
    aggregates = {name: aggregate for name, (aggregate, _) in AGGREGATES.items()}
    parts = partials_by_batch(rows, aggregates).localCheckpoint()
    halves = combined(parts, aggregates, a=(0, 1), b=(2, 3))
    most = combined(halves, aggregates, pairs=("a", "b"), turned=("b", "a"), c=("a", 2))
    stored = combined(most, aggregates, chain=("c", 3))
    ways = ("pairs", "turned", "chain")
    results = [
        aggregate.result(sf.col(f"{name}_{way}")).alias(f"{name}_{way}")
        for name, aggregate in aggregates.items()
        for way in ways
    ]
    own = rows.groupBy("case").agg(*(make().alias(name) for name, (_, make) in AGGREGATES.items()))
    found = stored.select("case", *results).join(own, "case").collect()
    assert len(found) == CASES
    wrong = [
        (row["case"], name, way, row[f"{name}_{way}"], row[name])
        for row in found
        for name in aggregates
        for way in ways
        if not near(row[f"{name}_{way}"], row[name], name)
    ]
    assert wrong == []
