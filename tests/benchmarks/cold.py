"""(q) and (r): cold processes, as a scheduler or a user starts them. Nothing is warmed up.

(q): a process's start to its end, over the files of (a): ours with an embedded ZooKeeper, one plain
Spark job, Structured Streaming, Flink. (r): a process's start to its first committed batch, of one
CSV file, and to the end of the first Delta write of a bare Spark session.

    python -m tests.benchmarks.cold NAME DATA FOLDER     # what a contender's process does
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committers.aggregates import Count
from committers.state_table import StateTable
from spouts.files import FileSpout
from tests.benchmarks.data import SCHEMA, DataSet
from tests.benchmarks.meter import Meter
from tests.benchmarks.ours import spout, table_of
from tests.benchmarks.peers import flink, streaming
from tests.benchmarks.store import Disk
from tests.benchmarks.task import Answer, Task, answer, same_counts, session
from txn import Topology
from txn.observers import BatchCommitted, RunEvent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run"]

BEYOND = "beyond the bare session"
CSV_ROWS = 27_000
LIMIT_SECS = 900


def run(task: Task) -> Iterator[Answer]:
    """Option `be`: a name of `PROGRAMS`, or "flink"; or `several`, measured one after the other."""
    several = task.options.get("several")
    if several is None:
        yield _whole(task, str(task.options["be"]))
        return
    csv = task.folder / "numbers.csv"
    csv.write_text("".join(f"k{n % 500},{n}\n" for n in range(CSV_ROWS)), "utf-8")
    seconds = {}
    for name, program in several.items():
        with Meter() as meter:
            began = time.time()
            _process(program, csv, task.folder / program)
        seconds[name] = float((task.folder / program / "at").read_text()) - began
        yield _told(seconds[name], meter, contender=name, exit_s=meter.seconds)
    bare, ours = seconds.values()
    yield _told(ours - bare, meter, contender=BEYOND)


def _whole(task: Task, program: str) -> Answer:
    folder = task.folder / "run"
    folder.mkdir()
    if program == "flink":
        command = flink.command(task.input, folder.resolve(), warm_secs=-1.0, timed_secs=0.0)
        with Meter() as meter:
            flink.output_of(command)
        correct = flink.is_right(task.input, folder / "timed-0")
        return _told(meter.seconds, meter, correct=correct)
    with Meter() as meter:
        _process(program, task.input.folder, folder)
    spark = session("cold")
    counts = spark.read.format("delta").load(str(folder / "table"))
    if program == "ours":
        counts = StateTable(folder / "table").read(spark)
    correct = same_counts(spark, counts.select("word", "count"), task.input.expected)
    spark.stop()
    return _told(meter.seconds, meter, correct=correct)


def _told(value: float, meter: Meter, *, correct: bool = True, **detail: Any) -> Answer:
    """An answer that does not say what others used: processes that have ended count among them."""
    return replace(answer(value, meter, correct=correct, **detail), noise=None)


def _process(program: str, data: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", __spec__.name, program, str(data), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECS)
    if done.returncode != 0:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr[-2000:]}")


# --- what the processes do -------------------------------------------------------------------


def _ours(spark: SparkSession, data: Path, folder: Path) -> None:
    topology = Topology("cold")
    rows = topology.stream("rows", spout(str(data / "rows")))
    table = table_of("log", str(folder / "table"))
    assert isinstance(table, StateTable)
    rows.group_by("word").persistent_aggregate(table, count=Count())
    topology.run(spark, zookeeper=f"embedded:{folder}/zookeeper", until="caught_up")


def _plain(spark: SparkSession, data: Path, folder: Path) -> None:
    counts = spark.read.schema(SCHEMA).parquet(str(data / "rows")).groupBy("word").count()
    counts.write.format("delta").save(str(folder / "table"))


def _merge(spark: SparkSession, data: Path, folder: Path) -> None:
    streaming.run_query(spark, Disk(DataSet(data)), "merge", "rows", folder)


class _Noting:
    """Writes down when the first batch was committed."""

    def __init__(self, folder: Path) -> None:
        self._at = folder / "at"

    def observe(self, event: RunEvent) -> None:
        if isinstance(event, BatchCommitted) and not self._at.exists():
            _note(self._at, event.at)


def _first(spark: SparkSession, data: Path, folder: Path) -> None:
    topology = Topology("first")
    files = FileSpout(str(data), format="csv", schema="k string, v bigint", files_per_batch=1)
    table = StateTable(folder / "table", layout="log")
    rows = topology.stream("rows", files)
    rows.group_by("k").persistent_aggregate(table, rows=Count())
    at, noting = f"embedded:{folder}/zookeeper", _Noting(folder)
    topology.run(spark, zookeeper=at, until="caught_up", observers=[noting])


def _bare(spark: SparkSession, data: Path, folder: Path) -> None:
    rows: DataFrame = spark.read.schema("k string, v bigint").csv(str(data))
    rows.groupBy("k").count().write.format("delta").save(str(folder / "table"))
    _note(folder / "at", time.time())


def _note(at: Path, when: float) -> None:
    at.write_text(str(when), "utf-8")


PROGRAMS: dict[str, Callable[[SparkSession, Path, Path], None]] = {
    "ours": _ours,
    "plain": _plain,
    "merge": _merge,
    "first": _first,
    "bare": _bare,
}

if __name__ == "__main__":
    name, data, folder = sys.argv[1:]
    started = session(name, streaming.CONF if name == "merge" else None)
    PROGRAMS[name](started, Path(data), Path(folder))
    started.stop()
