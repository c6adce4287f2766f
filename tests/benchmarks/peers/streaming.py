"""Structured Streaming, one file a micro-batch, `availableNow`, checkpoint on the local disk.

- merge: `foreachBatch`: the batch's counts merged into a Delta table, guarded by a txid column that
  holds the batch id. Tuned: the source of the MERGE is a local checkpoint that is not materialised
  again, no file statistics, two shuffle partitions.
- stateful: `groupBy().count()` with its state in RocksDB (changelog checkpoints), complete mode,
  into Delta's sink, which keeps out repeated batches itself.
- append: the rows, into Delta's sink.

Timed: from the start of the query to its end. Not timed: the same query over the warm-up files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.data import SCHEMA
from tests.benchmarks.meter import Meter
from tests.benchmarks.task import (
    Answer,
    Task,
    answer,
    lap_figures,
    measured_warm,
    same_counts,
    session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["run"]

_CONF = {
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


def run(task: Task) -> Iterator[Answer]:
    """Options: `mode`, "merge", "stateful" or "append"."""
    write = _MODES[str(task.options["mode"])]
    spark = session("streaming", _CONF)
    for out, meter, query in measured_warm(task, partial(_run, spark, write)):
        yield _answer(spark, task, out, meter, query)
    spark.stop()


def _answer(
    spark: SparkSession, task: Task, out: Path, meter: Meter, query: StreamingQuery
) -> Answer:
    progress = [one for one in query.recentProgress if one["numInputRows"] > 0]
    shown = spark.read.format("delta").load(str(out / "table"))
    counts = shown.groupBy("word").count() if task.options["mode"] == "append" else shown
    value = len(progress) / meter.seconds if task.workload == "b" else meter.seconds
    return answer(
        value,
        meter,
        correct=same_counts(spark, counts.select("word", "count"), task.input.expected),
        seconds=round(meter.seconds, 3),
        batches=len(progress),
        phases_s={
            phase: round(sum(one["durationMs"].get(phase, 0) for one in progress) / 1000, 2)
            for phase in _PHASES
        },
        **lap_figures([one["durationMs"]["triggerExecution"] / 1000 for one in progress]),
    )


def _run(
    spark: SparkSession,
    write: Callable[[SparkSession, DataFrame, str], DataStreamWriter],
    files: Path,
    folder: Path,
) -> StreamingQuery:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    writer = write(spark, stream, str(folder / "table"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def _merge(spark: SparkSession, stream: DataFrame, table: str) -> DataStreamWriter:
    from delta.tables import DeltaTable
    from pyspark.sql import functions as sf

    empty = spark.createDataFrame([], "word string, count long, txid long")
    empty.write.format("delta").option("delta.enableDeletionVectors", "false").save(table)
    target = DeltaTable.forPath(spark, table)

    def merge(rows: DataFrame, batch_id: int) -> None:
        counts = rows.groupBy("word").count()
        # Not persist(): DELTA_MERGE_SOURCE_CACHED_DURING_EXECUTION.
        source = counts.withColumn("txid", sf.lit(batch_id).cast("bigint")).localCheckpoint()
        (
            target.alias("t")
            .merge(source.alias("s"), "t.word = s.word")
            .whenMatchedUpdate(
                condition="t.txid < s.txid", set={"count": "t.count + s.count", "txid": "s.txid"}
            )
            .whenNotMatchedInsertAll()
            .execute()
        )

    return stream.writeStream.foreachBatch(merge).outputMode("append")


def _stateful(_: SparkSession, stream: DataFrame, table: str) -> DataStreamWriter:
    counts = stream.groupBy("word").count()
    return counts.writeStream.format("delta").outputMode("complete").option("path", table)


def _append(_: SparkSession, stream: DataFrame, table: str) -> DataStreamWriter:
    return stream.writeStream.format("delta").outputMode("append").option("path", table)


_MODES: dict[str, Callable[[SparkSession, DataFrame, str], DataStreamWriter]] = {
    "merge": _merge,
    "stateful": _stateful,
    "append": _append,
}
