"""(j): reading a state of 10^4 to 10^7 keys that a run of many txids has left behind.

The first txid brings every key, each of the others some rows with random keys. Then the whole state
is read, and the values of 1, 100 and 10,000 keys. Beside it the same rows in a plain Delta table,
of which a reader knows nothing: all of it, or those that a semi-join with the keys leaves.

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

from pydantic import BaseModel

from committers.aggregates import Count, Sum
from committers.state_table import StateTable
from tests.benchmarks.meter import Meter
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
    """

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Numbers

    def __init__(self, keys: int, batches: int, rows: int) -> None:
        self._keys, self._batches, self._rows = keys, batches, rows

    def open(self, spark: SparkSession, previous: Numbers | None) -> StructType:
        """The columns are known."""
        return rows_of(spark, 0, 0, self._keys).schema

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Numbers | None
    ) -> Numbers | None:
        """The numbers of the next rows."""
        if attempt.txid > 1 + self._batches:
            return None
        start, count = (0, self._keys) if previous is None else (previous.end, self._rows)
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
        "full_ms" and "get_ms" (number of keys -> milliseconds): a list of laps each; "correct";
        "files" and "bytes" of the table.
    """
    from pyspark.sql import functions as sf

    expected = (
        rows_of(spark, 0, keys + batches * rows, keys)
        .groupBy("key")
        .agg(sf.count(sf.lit(1)).alias("rows"), sf.sum("amount").alias("amount"))
    )
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

    def get(wanted: Sequence[int]) -> DataFrame:
        if way != "plain":
            return state.get(spark, list(wanted))
        asked = spark.createDataFrame([(key,) for key in wanted], "key long")
        return read().join(sf.broadcast(asked), "key", "left_semi")

    def full() -> None:
        read().write.format("noop").mode("overwrite").save()

    lists = {count: [n * _STRIDE % keys for n in range(min(count, keys // 2))] for count in ASKED}
    found = {count: get(wanted).collect() for count, wanted in lists.items()}
    correct = all(
        {row["key"] for row in found[count]} == set(wanted) and len(found[count]) == len(wanted)
        for count, wanted in lists.items()
    )
    columns = ("key", "rows", "amount")
    correct = correct and not read().select(*columns).exceptAll(expected.select(*columns)).count()
    some = spark.createDataFrame([tuple(row) for row in found[100]], read().schema)
    correct = correct and not some.select(*columns).exceptAll(expected.select(*columns)).count()
    files = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    return {
        "way": way,
        "keys": keys,
        "full_ms": _timed(full, laps),
        "get_ms": {
            count: _timed(lambda wanted=wanted: get(wanted).collect(), laps)
            for count, wanted in lists.items()
        },
        "correct": correct and read().count() == keys,
        "build_s": round(build_s, 1),
        "files": files["numFiles"],
        "bytes": files["sizeInBytes"],
    }


def _timed(run: Callable[[], object], laps: int) -> list[float]:
    """Milliseconds of each lap."""
    times = []
    for _ in range(laps + 2):
        began = time.perf_counter()
        run()
        times.append(round((time.perf_counter() - began) * 1000, 1))
    return times[2:]


def _run(spark: SparkSession, folder: Path, way: Way, keys: int, batches: int, rows: int) -> None:
    topology = Topology("reads", TopologyConfig(max_spout_pending=8))
    buckets = max(4, keys // 500_000)
    table = StateTable(folder / "table", "opaque", layout=way, buckets=buckets)
    stream = topology.stream("rows", AllThenSome(keys, batches, rows))
    stream.group_by("key").persistent_aggregate(table, rows=Count(), amount=Sum("amount"))
    with EmbeddedZooKeeper(folder / "zookeeper", protect=True) as server:
        topology.run(spark, zookeeper=server.hosts, until="caught_up")


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
    for series, laps in (("all", told["full_ms"]), ("100 keys", told["get_ms"][100])):
        value = percentile(laps, 0.5) or 0.0
        detail = {name: told[name] for name in ("full_ms", "get_ms", "build_s", "files", "bytes")}
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
            told["full_p50"] = percentile(told["full_ms"], 0.5)
            told["get_p50"] = {n: percentile(ms, 0.5) for n, ms in told["get_ms"].items()}
        print(json.dumps(told), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
