"""Our own Spark jobs without any guarantee: what exactly-once is measured against.

The same spout plans and reads the same files, the same committer makes the partial aggregates (or
leaves the rows as they are), as many txids share a job and as many jobs run at once as in a run of
ours that lags. Each job then writes Parquet files, and that is all: no ZooKeeper, no acker, no
footers read, nothing published. A crash would leave some files, nobody could say of which batches.

Timed: from the planning of the first batch to the end of the last job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from committers.aggregates import Count
from committers.expressions import bigint, side_by_side
from committers.staging.writing import write_options
from committers.state_table import StateTable
from spouts.files import FileBatch, FileSpout
from tests.benchmarks.ours import spout, table_of
from tests.benchmarks.task import Answer, Task, answer, measured_warm, same_counts, session
from txn import TopologyConfig, TransactionAttempt
from txn.interfaces import Committer
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["jobs_and_group", "run"]

Planned = tuple[TransactionAttempt, FileBatch]


def run(task: Task) -> Iterator[Answer]:
    """Options: `layout`, "log" or "append"."""
    layout = str(task.options["layout"])
    spark = session("unguarded")

    def write(part: str, out: Path) -> tuple[int, int]:
        return _write_all(spark, layout, str(task.input.folder / part), out)

    for out, meter, (jobs, group) in measured_warm(task, write):
        written = spark.read.parquet(f"{out}/*")
        grouped = written.groupBy("word")
        counts = grouped.count() if layout == "append" else grouped.agg({"count": "sum"})
        correct = same_counts(spark, counts.toDF("word", "count"), task.input.expected)
        yield answer(meter.seconds, meter, correct=correct, jobs_at_once=jobs, txids_per_job=group)
    spark.stop()


def jobs_and_group(config: TopologyConfig) -> tuple[int, int]:
    """(Spark jobs at once, txids in each) of a run with this configuration that lags."""
    return config.max_processing_jobs, config.max_group_processing


def _write_all(spark: SparkSession, layout: str, files: str, out: Path) -> tuple[int, int]:
    jobs, size = jobs_and_group(TopologyConfig())
    source = spout(files)
    source.open(spark, None)
    table = table_of(layout, str(out))
    bound = table.bind(["word"], {"count": Count()}) if isinstance(table, StateTable) else table
    planned = list(_plan(source))
    options = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
    options |= write_options(Storage(str(out)), "word" if layout == "log" else None)
    groups = [planned[start : start + size] for start in range(0, len(planned), size)]

    def write(group: Sequence[Planned]) -> None:
        frames = [_partials(spark, source, bound, one) for one in group]
        rows = side_by_side(frames)
        rows.write.options(**options).parquet(str(out / str(group[0][0].txid)))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(write, groups))
    return jobs, size


def _plan(source: FileSpout) -> Iterator[Planned]:
    attempt, previous = TransactionAttempt(1, 0), None
    while (planned := source.initialize_transaction(attempt, previous)) is not None:
        yield attempt, planned
        attempt, previous = TransactionAttempt(attempt.txid + 1, 0), planned


def _partials(
    spark: SparkSession, source: FileSpout, committer: Committer, planned: Planned
) -> DataFrame:
    """What is staged of one txid: one task, and the txid as a column, as in a run of ours."""
    attempt, metadata = planned
    rows = source.emit_batch(spark, attempt, metadata).coalesce(1)
    return committer.partials(rows).withColumn("txid", bigint(attempt.txid))
