"""One Spark job over all rows into a Delta table: no batches at all, the least that Spark can do.

Timed: reading, counting and the one Delta commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.data import SCHEMA
from tests.benchmarks.task import Answer, Task, answer, measured_warm, same_counts, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]


def run(task: Task) -> Iterator[Answer]:
    """No options."""
    spark = session("plain")

    def count(part: str, out: Path) -> object:
        return _count(spark, task.input.folder / part, out)

    for out, meter, _ in measured_warm(task, count):
        counts = spark.read.format("delta").load(str(out))
        correct = same_counts(spark, counts, task.input.expected)
        yield answer(meter.seconds, meter, correct=correct)
    spark.stop()


def _count(spark: SparkSession, files: Path, out: Path) -> None:
    rows = spark.read.schema(SCHEMA).parquet(str(files))
    rows.groupBy("word").count().write.format("delta").mode("overwrite").save(str(out))
