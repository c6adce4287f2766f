"""`Aggregate.merge`: several partials of one key at once, held against `combine` one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from committers.aggregates import Aggregate, Avg, Count, Fold, Sum, Variance
from tests.committers.aggregates.test_algebra import (
    AGGREGATES,
    CASES,
    SCHEMA,
    near,
    random_rows,
)

ALL: dict[str, Aggregate] = {
    **{name: aggregate for name, (aggregate, _) in AGGREGATES.items()},
    "folded": Fold("''", "concat(acc, ':', coalesce(string(row.ts), '-'))", "ts", "id"),
}


def partials(rows: DataFrame, aggregates: dict[str, Aggregate]) -> DataFrame:
    """One row per case and batch, with a batch of NULL partials for every third case."""
    made = rows.groupBy("case", sf.col("batch").cast("bigint").alias("txid")).agg(
        *(aggregate.partial().alias(name) for name, aggregate in aggregates.items())
    )
    nothing = made.where("case % 3 = 0").select("case").distinct()
    nothing = nothing.withColumn("txid", sf.lit(2).cast("bigint"))
    return made.unionByName(nothing, allowMissingColumns=True)


def one_by_one(aggregate: Aggregate, parts: DataFrame, name: str) -> Column:
    """The contract's default: `combine` along the txids."""
    if isinstance(aggregate, Fold):
        return Aggregate.merge(  # rows are not combined with rows: they are put in a line
            _Concatenated(), sf.col(name), sf.col("txid"), parts.schema[name].dataType
        )
    kind = parts.schema[name].dataType
    return Aggregate.merge(aggregate, sf.col(name), sf.col("txid"), kind)


class _Concatenated(Count):
    def combine(self, stored: Column, partial: Column) -> Column:
        return sf.coalesce(sf.concat(stored, partial), stored, partial)


def test_merged_partials_are_combined_partials(spark: SparkSession) -> None:
    """For every aggregate: `merge` of all partials of a key is what `combine` makes of them in the
    order of their txids, NULL partials included, and readers see the same; in the same type.
    """
    rows = spark.createDataFrame(random_rows(seed=5), SCHEMA)
    parts = partials(rows, ALL).localCheckpoint()
    columns = []
    for name, aggregate in ALL.items():
        kind = parts.schema[name].dataType
        merged = aggregate.merge(sf.col(name), sf.col("txid"), kind)
        chained = one_by_one(aggregate, parts, name)
        columns += [merged.alias(f"{name}_merged"), chained.alias(f"{name}_chained")]
    found = parts.groupBy("case").agg(*columns).localCheckpoint()
    for name in ALL:
        assert found.schema[f"{name}_merged"].dataType.simpleString() == (
            parts.schema[name].dataType.simpleString()
        )
    shown = [
        aggregate.result(aggregate.initial(sf.col(f"{name}_{way}"))).alias(f"{name}_{way}_shown")
        for name, aggregate in ALL.items()
        for way in ("merged", "chained")
    ]
    answers = found.select("*", *shown).collect()
    assert len(answers) == CASES
    wrong = [
        (row["case"], name, row[f"{name}_merged{end}"], row[f"{name}_chained{end}"])
        for row in answers
        for name in ALL
        for end in ("", "_shown")
        if not alike(row[f"{name}_merged{end}"], row[f"{name}_chained{end}"], name)
    ]
    assert wrong == []


def test_one_partial_merged_is_itself(spark: SparkSession) -> None:
    """A key with one partial keeps it, whatever the aggregate; with none but NULL it has NULL."""
    rows = spark.createDataFrame(random_rows(seed=6), SCHEMA)
    parts = partials(rows, ALL).where("txid = 2").localCheckpoint()
    columns = [
        aggregate.merge(sf.col(name), sf.col("txid"), parts.schema[name].dataType).alias(
            f"m_{name}"
        )
        for name, aggregate in ALL.items()
    ]
    parts = (
        parts.groupBy("case")
        .agg(*(sf.max_by(n, "count").alias(n) for n in ALL))
        .join(parts.groupBy("case").agg(*columns), "case")
    )
    wrong = [
        (row["case"], name, row[name], row[f"m_{name}"])
        for row in parts.collect()
        for name in ALL
        if row["count"] is not None and not alike(row[name], row[f"m_{name}"], name)
    ]
    assert wrong == []


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("aggregate", [Sum("x"), Count(), Avg("x")], ids=repr)
def test_a_merged_total_never_wraps(spark: SparkSession, aggregate: Aggregate, ansi: str) -> None:
    """A total that leaves its type's range is an error, also where the session would wrap it."""
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", ansi)
    value = "named_struct('sum', x, 'count', 1L)" if isinstance(aggregate, Avg) else "x"
    parts = session.sql(f"SELECT {value} AS p, id FROM (SELECT {2**62}L AS x, id FROM range(2))")
    merged = aggregate.merge(sf.col("p"), sf.col("id"), parts.schema["p"].dataType)
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        parts.agg(merged.alias("p")).collect()


def test_a_merged_variance_keeps_its_digits(spark: SparkSession) -> None:
    """Partials with means of a thousand million and a spread of 1 do not lose the spread."""
    rows = spark.range(40).selectExpr("id % 8 AS txid", "1e9D + id % 2 AS x")
    parts = rows.groupBy("txid").agg(Variance("x").partial().alias("p")).localCheckpoint()
    merged = Variance("x").merge(sf.col("p"), sf.col("txid"), parts.schema["p"].dataType)
    (found,) = parts.agg(merged.alias("p")).select(Variance("x").result(sf.col("p"))).first() or ()
    assert math.isclose(found, 10 / 39, rel_tol=1e-7)


def alike(found: Any, wanted: Any, name: str) -> bool:
    """As `near`, also within stored structs; the bytes of a sketch depend on the order."""
    if isinstance(found, bytes | bytearray) and wanted is not None:
        return len(found) == len(wanted)
    if not hasattr(found, "asDict") or not hasattr(wanted, "asDict"):
        return near(found, wanted, "avg_m" if name.startswith("avg_m") else "double")
    if "m2" in found.asDict() and found["m2"] is not None:
        # The mean is known as well as the spread allows.
        close = math.isclose(found["mean"], wanted["mean"], abs_tol=1e-9 * math.sqrt(found["m2"]))
        return close and all(near(found[part], wanted[part], "double") for part in ("count", "m2"))
    return all(near(a, b, "double") for a, b in zip(found, wanted, strict=True))
