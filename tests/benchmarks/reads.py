"""(j): reading a state of 10^4 to 10^7 keys that a run of many txids has left behind.

The first txid brings every key, each of the others some rows with random keys. Then the whole state
is read, as the end of a busy run left it, and, when another run with one more txid has had time for
the compactions that were due, read again, and the values of 1, 100 and 10,000 keys. Beside it the
same rows in a plain Delta table, of which a reader knows nothing: all of it, or those that a
semi-join with the keys leaves.

Then the run goes on, as fast as it can, and all of the state, all of the plain table and 100 keys
are read in turn meanwhile. Last, another topology asks the state for the keys of each of its
batches.

    python -m tests.benchmarks.reads --keys 1000000 log upsert plain
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deltalake import DeltaTable
from pydantic import BaseModel

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from tests.benchmarks.meter import Meter
from tests.benchmarks.ours import stations_ms, together_ms
from tests.benchmarks.results import percentile
from tests.benchmarks.task import Answer, Task, answer, session
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.embedded import EmbeddedZooKeeper
from txn.interfaces import Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Way", "measure", "run"]

Way = Literal["upsert", "log", "plain"]
ROWS = 1_000
"""In each txid after the first."""
LATER = 1_000_000
"""Txids that a run beside which the state is read never comes to the end of."""
SETTLED_SECS = 120
"""Without a new version for so long, no compaction is due, however long it takes."""
QUERIED, WARM = 20, 5
"""Batches of a topology that asks the state, and those that are not counted."""
ASKED = (1, 100, 10_000)
"""How many keys are asked for at once."""
_STRIDE = 2_654_435_761
"""Odd, so that its multiples by the row's number are spread over the keys."""


class Numbers(BaseModel):
    """The rows of a batch."""

    start: int
    end: int


class AllThenSome(Spout[Numbers]):
    """Every key in the first txid, some rows of random keys in each of the others.

    Args:
        keys: how many there are.
        batches: txids after the first.
        rows: in each of these.
        first: rows of the first; None: one of each key.
    """

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Numbers

    def __init__(self, keys: int, batches: int, rows: int, first: int | None = None) -> None:
        self._keys, self._batches, self._rows = keys, batches, rows
        self._first = (0, keys) if first is None else (keys, first)

    def open(self, spark: SparkSession, previous: Numbers | None) -> StructType:
        """The columns are known."""
        return rows_of(spark, 0, 0, self._keys).schema

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Numbers | None
    ) -> Numbers | None:
        """The numbers of the next rows."""
        if attempt.txid > 1 + self._batches:
            return None
        start, count = self._first if previous is None else (previous.end, self._rows)
        return Numbers(start=start, end=start + count)

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Numbers
    ) -> DataFrame:
        """Rows by their numbers."""
        return rows_of(spark, metadata.start, metadata.end, self._keys)


def rows_of(spark: SparkSession, start: int, end: int, keys: int) -> DataFrame:
    """Rows `start` to `end`: the first `keys` have each key once."""
    from pyspark.sql import functions as sf

    number = sf.col("id")
    later = sf.pmod(number * _STRIDE, sf.lit(keys))
    word = sf.when(number < keys, number).otherwise(later).alias("key")
    return spark.range(start, end, 1, 2 if end - start > 100_000 else 1).select(
        word, (number % 10).alias("amount")
    )


def measure(
    spark: SparkSession, folder: Path, *, way: Way, keys: int, batches: int, rows: int, laps: int
) -> dict[str, Any]:
    """Build the state, then read it.

    Args:
        folder: an empty folder.
        batches: txids after the one that brings every key.
        rows: in each of these.
        laps: how often each reading is timed, after two untimed ones.

    Returns:
        "ended_ms", "full_ms" and "get_ms" (number of keys -> milliseconds): a list of laps each;
        "correct"; "files" and "bytes" of the table. Of a state also "busy_ms", what was read beside
        a run -> a list of laps, and "staged_ms", milliseconds that a batch takes to be staged by a
        topology that asks the state for its keys ("query") and by one that does not ("none").
    """
    from pyspark.sql import functions as sf

    expected = (
        rows_of(spark, 0, keys + (batches + 1) * rows, keys)
        .groupBy("key")
        .agg(sf.count(sf.lit(1)).alias("rows"), sf.sum("amount").alias("amount"))
    )
    records = keys + batches * rows
    path = folder / "table"
    began = time.monotonic()
    if way == "plain":
        expected.coalesce(2).write.format("delta").save(str(path))
    else:
        _run(spark, folder, way, keys, batches, rows)
    build_s = time.monotonic() - began
    state = StateTable(path)

    def read() -> DataFrame:
        return spark.read.format("delta").load(str(path)) if way == "plain" else state.read(spark)

    ended_ms = _timed(lambda: _drain(read()), laps)
    correct = True
    if way != "plain":
        (sums,) = read().agg(sf.count("key"), sf.sum("rows")).collect()
        correct = tuple(sums) == (keys, records)
        _compacted(spark, folder, way, keys, batches + 1, rows)

    def get(wanted: Sequence[int]) -> DataFrame:
        if way != "plain":
            return state.get(spark, list(wanted))
        asked = spark.createDataFrame([(key,) for key in wanted], "key long")
        return read().join(sf.broadcast(asked), "key", "left_semi")

    lists = {count: [n * _STRIDE % keys for n in range(min(count, keys // 2))] for count in ASKED}
    found = {count: get(wanted).collect() for count, wanted in lists.items()}
    correct = correct and all(
        {row["key"] for row in found[count]} == set(wanted) and len(found[count]) == len(wanted)
        for count, wanted in lists.items()
    )
    columns = ("key", "rows", "amount")
    correct = correct and not read().select(*columns).exceptAll(expected.select(*columns)).count()
    some = spark.createDataFrame([tuple(row) for row in found[100]], read().schema)
    correct = correct and not some.select(*columns).exceptAll(expected.select(*columns)).count()
    files = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    told = {
        "way": way,
        "keys": keys,
        "ended_ms": ended_ms,
        "full_ms": _timed(lambda: _drain(read()), laps),
        "get_ms": {
            count: _timed(lambda wanted=wanted: get(wanted).collect(), laps)
            for count, wanted in lists.items()
        },
        "correct": correct and read().count() == keys,
        "build_s": round(build_s, 1),
        "files": files["numFiles"],
        "bytes": files["sizeInBytes"],
    }
    if way != "plain":
        expected.coalesce(2).write.format("delta").save(str(folder / "plain"))
        told["busy_ms"] = _beside_a_run(spark, folder, way, keys, rows, laps, lists[100])
        told["staged_ms"] = {
            name: _staged(spark, folder / name, keys, rows, asks)
            for name, asks in (("query", state), ("none", None))
        }
    return told


def _drain(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _timed(run: Callable[[], object], laps: int, *, untimed: int = 2) -> list[float]:
    """Milliseconds of each lap, after some untimed ones."""
    times = []
    for _ in range(laps + untimed):
        began = time.perf_counter()
        run()
        times.append(round((time.perf_counter() - began) * 1000, 1))
    return times[untimed:]


def _compacted(
    spark: SparkSession, folder: Path, way: Way, keys: int, batches: int, rows: int
) -> None:
    """Let the topology go on with one more txid until its table has had no version for a while."""
    path, seen = str(folder / "table"), []
    with EmbeddedZooKeeper(folder / "zookeeper", protect=True) as server:
        running = _topology(folder, way, keys, batches, rows).start(spark, zookeeper=server.hosts)
        try:
            while len(seen) < SETTLED_SECS or len(set(seen[-SETTLED_SECS:])) > 1:
                time.sleep(1)
                table = DeltaTable(path)
                seen.append(table.version())
                if way == "log" and len(seen) > 2 and len(table.file_uris()) == 1:
                    break
        finally:
            running.stop()


def _beside_a_run(
    spark: SparkSession, folder: Path, way: Way, keys: int, rows: int, laps: int, some: list[int]
) -> dict[str, list[float]]:
    """Milliseconds of each reading while the topology goes on."""
    state, plain = StateTable(folder / "table"), str(folder / "plain")
    readings: dict[str, Callable[[], object]] = {
        "all": lambda: _drain(state.read(spark)),
        "plain": lambda: _drain(spark.read.format("delta").load(plain)),
        "100 keys": lambda: state.get(spark, some).collect(),
    }
    times: dict[str, list[float]] = {name: [] for name in readings}
    with EmbeddedZooKeeper(folder / "zookeeper", protect=True) as server:
        running = _topology(folder, way, keys, LATER, rows).start(spark, zookeeper=server.hosts)
        try:
            for _ in range(laps + 2):
                for name, read in readings.items():
                    times[name] += _timed(read, 1, untimed=0)
        finally:
            report = running.stop()
    assert len(report.batches) > laps, "the run stood still"
    return {name: each[2:] for name, each in times.items()}


def _staged(
    spark: SparkSession, folder: Path, keys: int, rows: int, state: StateTable | None
) -> float | None:
    """Milliseconds, p50, from a txid's START until its batch is staged; one at a time."""
    topology = Topology("queries", TopologyConfig(max_spout_pending=1))
    stream = topology.stream("rows", AllThenSome(keys, WARM + QUERIED - 1, rows, first=rows))
    stream = stream.transform(lambda batch: batch.withColumnRenamed("amount", "more"))
    if state is not None:
        stream = stream.state_query(state, on="key")
    stream.partition_persist(AppendTable(folder / "table"))
    zookeeper = f"embedded:{folder}/zookeeper"
    report = topology.run(spark, zookeeper=zookeeper, until="caught_up")
    stations = stations_ms(list(report.batches)[WARM:])
    return percentile(together_ms(stations, ("processing", "staged")), 0.5)


def _run(spark: SparkSession, folder: Path, way: Way, keys: int, batches: int, rows: int) -> None:
    topology = _topology(folder, way, keys, batches, rows)
    with EmbeddedZooKeeper(folder / "zookeeper", protect=True) as server:
        topology.run(spark, zookeeper=server.hosts, until="caught_up")


def _topology(folder: Path, way: Way, keys: int, batches: int, rows: int) -> Topology:
    topology = Topology("reads", TopologyConfig(max_spout_pending=8))
    buckets = max(4, keys // 500_000)
    table = StateTable(folder / "table", "opaque", layout=way, buckets=buckets)
    stream = topology.stream("rows", AllThenSome(keys, batches, rows))
    stream.group_by("key").persistent_aggregate(table, rows=Count(), amount=Sum("amount"))
    return topology


def run(task: Task) -> Iterator[Answer]:
    """Option `way`; `x` is the number of keys."""
    assert task.x is not None
    spark, way = session("reads"), task.options["way"]
    with Meter() as meter:
        told = measure(
            spark,
            task.folder,
            way=way,
            keys=task.x,
            batches=task.size.read_batches,
            rows=ROWS,
            laps=task.size.read_laps,
        )
    spark.stop()
    figures = {"all": told["full_ms"], "all, run ended": told["ended_ms"]}
    for series, laps in {**figures, "100 keys": told["get_ms"][100]}.items():
        value = percentile(laps, 0.5) or 0.0
        detail = {name: told[name] for name in told.keys() - {"way", "keys", "correct"}}
        yield answer(value, meter, correct=told["correct"], contender=f"{way}, {series}", **detail)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print JSON, one line per way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--laps", type=int, default=7)
    parser.add_argument("ways", nargs="+", choices=["upsert", "log", "plain"])
    args = parser.parse_args(argv)
    spark = session("reads")
    for way in args.ways:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            told = measure(
                spark,
                Path(folder),
                way=way,
                keys=args.keys,
                batches=args.batches,
                rows=args.rows,
                laps=args.laps,
            )
            told["ended_p50"] = percentile(told["ended_ms"], 0.5)
            told["full_p50"] = percentile(told["full_ms"], 0.5)
            told["get_p50"] = {n: percentile(ms, 0.5) for n, ms in told["get_ms"].items()}
            busy = told.get("busy_ms", {}).items()
            told["busy_p50"] = {name: percentile(ms, 0.5) for name, ms in busy}
        print(json.dumps(told), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
