"""One Spark job over all rows into a Delta table: no batches at all, the least that Spark can do.

Timed: reading, counting and the one Delta commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.data import SCHEMA
from tests.benchmarks.task import (
    Answer,
    Task,
    answer,
    measured,
    same_counts,
    session,
    timed,
    warm_up,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]


def run(task: Task) -> Iterator[Answer]:
    """No options."""
    spark = session("plain")
    warm_up(task, lambda folder: _count(spark, task.input.warm, folder))
    for out, meter, _ in measured(timed(task), lambda out: _count(spark, task.input.rows, out)):
        counts = spark.read.format("delta").load(str(out))
        correct = same_counts(spark, counts, task.input.expected)
        yield answer(meter.seconds, meter, correct=correct)
    spark.stop()


def _count(spark: SparkSession, files: Path, out: Path) -> None:
    rows = spark.read.schema(SCHEMA).parquet(str(files))
    rows.groupBy("word").count().write.format("delta").mode("overwrite").save(str(out))
