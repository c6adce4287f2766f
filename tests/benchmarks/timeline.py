"""Where the time of a batch goes: every station, p50 and p95, over real batches.

    python -m tests.benchmarks.timeline [--batches 60] [--rows 10000] [--tables append|upsert|both]

"coordination" is what exactly-once adds to a batch that is staged anyway: START and COMMITTED in
ZooKeeper, the acker, and the publications (leadership check, files checked, append, read back).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology
from txn.engine.reporting.report import STATIONS, BatchReport
from txn.session import delta_session

COORDINATION = ("started", "processed", "published", "committed")


def make_input(spark: SparkSession, folder: Path, batches: int, rows: int) -> None:
    """One Parquet file a batch: key out of a tenth as many keys as rows, and an amount."""
    for batch in range(batches):
        frame = spark.range(rows).selectExpr(
            f"pmod(xxhash64(id, {batch}), {max(1, rows // 10)}) AS key", "id % 100 AS amount"
        )
        scratch = folder / f"scratch-{batch}"
        frame.coalesce(1).write.parquet(str(scratch))
        (part,) = scratch.glob("part-*.parquet")
        part.rename(folder / f"{batch:05d}.parquet")


def run(spark: SparkSession, folder: Path, tables: str) -> list[BatchReport]:
    """Run all batches; their reports."""
    topology = Topology("timeline")
    rows = topology.stream(
        "rows",
        FileSpout(
            str(folder / "*.parquet"),
            format="parquet",
            schema="key long, amount long",
            files_per_batch=1,
        ),
    )
    if tables != "upsert":
        rows.partition_persist(AppendTable(str(folder / "tables" / "rows")))
    if tables != "append":
        rows.group_by("key").persistent_aggregate(
            StateTable(str(folder / "tables" / "totals")), n=Count(), total=Sum("amount")
        )
    report = topology.run(spark, zookeeper=f"embedded:{folder}/zookeeper", until="caught_up")
    return list(report.batches)


def durations_ms(batches: list[BatchReport]) -> dict[str, list[float]]:
    """Station -> milliseconds from the station before it, one per batch; and "coordination"."""
    series: dict[str, list[float]] = {}
    for batch in batches:
        reached = [(s, batch.times[s]) for s in STATIONS if s in batch.times]
        steps = {
            station: (now - before) * 1000
            for (_, before), (station, now) in itertools.pairwise(reached)
        }
        steps["coordination"] = sum(steps.get(name, 0.0) for name in COORDINATION)
        for station, value in steps.items():
            series.setdefault(station, []).append(value)
    return series


def quantiles(values: list[float]) -> dict[str, float]:
    """p50 and p95."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p95": round(cuts[94], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tables", choices=("append", "upsert", "both"), default="both")
    parser.add_argument("--warm", type=int, default=15, help="first batches left out")
    options = parser.parse_args()
    began = time.monotonic()
    spark = delta_session("timeline", master="local[2]")
    session = time.monotonic() - began
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_input(spark, folder, options.batches, options.rows)
        began = time.monotonic()
        batches = run(spark, folder, options.tables)
        seconds = time.monotonic() - began
    warm = batches[options.warm :]
    rate = (len(warm) - 1) / (warm[-1].times["committed"] - warm[0].times["committed"])
    result = {
        "batches": len(batches),
        "rows": options.rows,
        "tables": options.tables,
        "session_s": round(session, 2),
        "run_s": round(seconds, 2),
        "warm_batches_per_s": round(rate, 2),
        "ms": {name: quantiles(values) for name, values in durations_ms(warm).items()},
    }
    print(json.dumps(result, indent=1))
    spark.stop()


if __name__ == "__main__":
    main()
