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
from typing import TYPE_CHECKING, Any

from tests.benchmarks.data import SCHEMA
from tests.benchmarks.meter import Meter
from tests.benchmarks.store import Place
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

__all__ = ["CONF", "run", "run_query"]

CONF = {
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
    mode = str(task.options["mode"])
    near = task.options.get("checkpoint") == "disk"
    with task.place as place:
        spark = session("streaming", CONF, place)
        run_one = partial(run_query, spark, place, mode, near=near)
        for out, meter, (query, requests) in measured_warm(task, run_one):
            table = f"{place.at(out, spark=True)}/table"
            yield _answer(spark, task, table, meter, query, requests)
        spark.stop()


def _answer(
    spark: SparkSession,
    task: Task,
    table: str,
    meter: Meter,
    query: StreamingQuery,
    requests: dict[str, Any],
) -> Answer:
    progress = [one for one in query.recentProgress if one["numInputRows"] > 0]
    shown = spark.read.format("delta").load(table)
    counts = shown.groupBy("word").count() if task.options["mode"] == "append" else shown
    value = len(progress) / meter.seconds if task.is_rate else meter.seconds
    return answer(
        value,
        meter,
        correct=same_counts(spark, counts.select("word", "count"), task.input.expected),
        seconds=round(meter.seconds, 3),
        batches=len(progress),
        **requests,
        phases_s={
            phase: round(sum(one["durationMs"].get(phase, 0) for one in progress) / 1000, 2)
            for phase in _PHASES
        },
        **lap_figures([one["durationMs"]["triggerExecution"] / 1000 for one in progress]),
    )


def run_query(
    spark: SparkSession, place: Place, mode: str, part: str, folder: Path, *, near: bool = False
) -> tuple[StreamingQuery, dict[str, Any]]:
    """Run the query; itself, and what it asked of a store.

    Args:
        near: keep the checkpoint on this machine's disk.
    """
    place.forget()
    files, out = place.files(part, spark=True), place.at(folder, spark=True)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(files)
    writer = _MODES[mode](spark, stream, f"{out}/table")
    checkpoint = f"{folder if near else out}/checkpoint"
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one["numInputRows"] > 0]
    return query, place.told(len(batches))


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
