"""The fingerprint of staged rows: what it tells, and what it must not depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from committers.aggregates import Count, Max, Min, Sum
from committers.staging.row_digest import differing_columns, row_digest, summarize
from committers.state_table import StateTable
from txn.interfaces import CommitterContext


def digest(folder: Path, *files: list[Any]) -> str:
    """Of one column `v`, spread over files."""
    summaries = []
    for number, values in enumerate(files):
        parquet.write_table(pa.table({"v": values}), folder / f"{number}")
        summaries.append(summarize(parquet.read_metadata(folder / f"{number}")))
    return row_digest(summaries, sum(map(len, files)))


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ([[1, 2, None]], [[2, None], [1]], []),
        ([["é", "z"], [None]], [[None, "z", "é"]], []),
        ([[1, 2]], [[1, 3]], ["v"]),
        ([[1, None]], [[1, 1]], ["v"]),
        ([[None, None]], [[None], [None]], []),
        ([["a" * 3000]], [["b" * 3000]], []),
        ([[1.5]], [[2.5]], []),
    ],
)
def test_nulls_and_bounds_are_compared(
    warehouse: Path, one: list[Any], other: list[Any], differ: list[str]
) -> None:
    """However the rows lie in files; long strings and floating point are left out."""
    assert differing_columns(digest(warehouse, *one), digest(warehouse, *other)) == differ


def test_only_columns_of_both_are_compared() -> None:
    """An older publication without a digest, or one that lacks a column, refuses nothing."""
    assert differing_columns("", "a=1") == differing_columns("a=1,b=2", "a=1") == []
    assert differing_columns("a=1,b=2", "b=3,a=1") == ["b"]


def test_partial_aggregates_have_one_digest_whatever_the_shuffle(
    driver: Any, warehouse: Path
) -> None:
    """An identical replay of a state table passes with another number of shuffle partitions."""
    values = {
        "n": Count(), "s": Sum("i"), "m": Sum("m"), "low": Min("t"), "high": Max("ts"),
    }  # fmt: skip
    table = StateTable(warehouse, "transactional", buckets=2).bind(["k"], values)
    staged = []
    for attempt, partitions in enumerate((1, 5)):
        session = driver.spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        session.conf.set("spark.sql.adaptive.enabled", "false")
        batch = session.range(0, 60, 1, partitions).selectExpr(
            "string(id % 11) AS k", "id AS i", "CAST(id AS decimal(20,3)) / 7 AS m",
            "repeat('x', int(id % 5)) AS t", "timestamp_micros(id * 999999) AS ts",
        )  # fmt: skip
        table.open(session, CommitterContext("tests", 1), table.partials(batch).schema)
        if not staged:
            table.fence()
        staged.append(driver.stage(table, batch, 1, attempt))
    one, two = staged
    assert len(two.files) > len(one.files)
    assert {part.partition("=")[0] for part in one.digest.split(",")} == {"k", "txid", *values}
    assert two.digest == one.digest
    assert [driver.turn(table, each).skipped for each in staged] == [False, True]
