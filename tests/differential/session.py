"""The Spark session in which all programs of a process run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["COMPILED", "INTERPRETED", "QUICK", "session"]

QUICK = {
    "spark.driver.memory": "4g",
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # Spark 3.5 has another default
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Every program has plans that no other has: nothing that Java compiles for long is used twice."""
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
}


def session() -> SparkSession:
    """Two threads; memory for a thousand programs, of each of which something is left behind."""
    from txn.session import delta_session

    return delta_session("differential", master="local[2]", conf=QUICK)
