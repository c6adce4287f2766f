"""The text of Spark's plan of a Kafka batch: what this release of Spark makes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from spouts.kafka.relation import offsets_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, topic: str, numbers: range) -> DataFrame:
    """A batch of Kafka's source: each partition from its number to ten times that; no broker."""
    assigned = {topic: [*numbers]}
    starts = {topic: {str(n): n for n in numbers}}
    ends = {topic: {str(n): 10 * n for n in numbers}}
    options = {"assign": assigned, "startingOffsets": starts, "endingOffsets": ends}
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    return reader.options(**{name: json.dumps(value) for name, value in options.items()}).load()


@pytest.mark.parametrize("partitions", [1, 4, 5, 300])
def test_the_offsets_of_a_plan_are_those_that_were_given(
    spark: SparkSession, partitions: int
) -> None:
    """Scala words small maps otherwise than large ones; no text is cut off; unions have several."""
    some = frame(spark, "a.b-c_d", range(1, partitions + 1))
    both = some.where("key IS NULL").unionAll(frame(spark, "other", range(7, 8)))
    expected = {f"a.b-c_d-{n}": (n, 10 * n) for n in range(1, partitions + 1)}
    assert list(offsets_read(both)) == [expected, {"other-7": (7, 70)}]


def test_a_plan_without_kafka_reads_no_offsets(spark: SparkSession) -> None:
    """As of a batch that has nothing to read."""
    assert list(offsets_read(spark.range(1).toDF("offset"))) == []
