"""The partials of batches: expressions are made once for rows of the same columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from committers.aggregates import Sum
from committers.state.partials import PartialRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType


class Asked(Sum):
    """A sum that notes the types for which it was asked."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.kinds: list[str] = []

    def partial_of(self, kinds: Mapping[str, DataType]) -> Column:
        """As `Sum`."""
        self.kinds.append(kinds["v"].simpleString())
        return super().partial_of(kinds)


def test_expressions_are_made_once_for_the_same_columns(spark: SparkSession) -> None:
    """A batch of other types, with a count or in another session has its own; sums are right."""
    asked = Asked("v")
    partials = PartialRows(["k"], {"s": asked})
    other = spark.newSession()
    found = []
    for session, kind, count in (
        (spark, "bigint", None),
        (spark, "bigint", None),
        (spark, "double", None),
        (spark, "bigint", "n"),
        (other, "bigint", None),
        (other, "bigint", None),
    ):
        batch = session.range(3).selectExpr("'a' AS k", "id AS v")
        typed = batch.selectExpr("k", f"CAST(v AS {kind}) AS v")
        result = partials.of(typed, count)
        assert result.sparkSession is session
        found.append([tuple(row) for row in result.collect()])
    assert found == [[("a", 3)], [("a", 3)], [("a", 3.0)], [("a", 3, 3)], [("a", 3)], [("a", 3)]]
    assert asked.kinds == ["bigint", "double", "bigint", "bigint"]


def test_a_global_aggregate_has_one_row_of_each_batch(spark: SparkSession) -> None:
    """Of the same expressions, whether the batch has rows or not."""
    partials = PartialRows([], {"s": Sum("v")})
    for rows, expected in ((3, (3, 3)), (0, (None, 0)), (3, (3, 3))):
        batch = spark.range(rows).selectExpr("id AS v")
        assert [tuple(row) for row in partials.of(batch, "n").collect()] == [expected]
