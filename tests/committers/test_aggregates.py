"""Aggregates as running state: SQL's treatment of NULL, one's own aggregates."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column
from pyspark.sql import functions as sf

from committers.aggregates import Aggregate, Count, Max, Min, Sum, identity
from committers.state_table import StateTable

ROOT = Path(__file__).parents[2]


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


def test_identities_name_class_and_column() -> None:
    """What a table remembers tells every aggregate from every other."""
    aggregates = [Count(), Count("v"), Sum("v"), Min("v"), Max("v"), Product("v")]
    names = ["Count(*)", "Count(v)", "Sum(v)", "Min(v)", "Max(v)", "Product(v)"]
    assert [identity(aggregate) for aggregate in aggregates] == names
    with pytest.raises(ValueError, match="Sum needs the name of a column"):
        Sum("")


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
    with pytest.raises(Exception, match="NUMERIC_VALUE_OUT_OF_RANGE|ARITHMETIC_OVERFLOW"):
        driver.commit(committer, driver.frame([(big,)], schema), 2)
    rows = state.read(driver.spark)
    assert (rows.schema["s"].dataType.simpleString(), rows.first()["s"]) == ("decimal(38,0)", big)
