"""What it costs to keep a published table up, and to read it.

    python -m tests.benchmarks.published [--keys 10000000] [--changed 10000] [--layout log]

A state of so many keys; then txids that each change some random keys, or keys beside each other
(`--near`). For each publication: seconds, and bytes of the files that it wrote. Then a full read of
the published table beside the same rows in a table that Delta has written. Printed as JSON.

    python -m tests.benchmarks.published --busy 200 [--layout log]

So many batches of 500,000 rows with 100,000 keys in one run, with a table that is published every
minute and without, in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from committers.aggregates import Count, Sum
from committers.published_table import PublishedTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from tests.benchmarks.results import percentile
from tests.benchmarks.task import session
from txn import Topology, TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.observers import MaintenanceDone, RunEvent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TXIDS, ROUNDS = 8, 3


def main(arguments: list[str]) -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="published", description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--changed", type=int, default=10_000, help="keys, per txid")
    parser.add_argument("--layout", default="log", choices=("log", "upsert"))
    parser.add_argument("--near", action="store_true", help="keys that change are neighbours")
    parser.add_argument("--vectors", action="store_true", help="deletion_vectors=True")
    parser.add_argument("--feed", action="store_true", help="change_feed=True")
    parser.add_argument("--busy", type=int, metavar="BATCHES", help="what a run pays for it")
    parser.add_argument("--laps", type=int, default=ROUNDS, help="of --busy, after a first one")
    chosen = parser.parse_args(arguments)
    spark = session("published")
    with tempfile.TemporaryDirectory(prefix="txn-published-") as folder:
        measure = busy if chosen.busy else measured
        print(json.dumps(measure(spark, Path(folder), chosen)))
    return 0


def measured(spark: SparkSession, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Seconds and bytes of the publications, and seconds of reads."""
    written(spark, folder, chosen)
    done: list[MaintenanceDone] = []

    class Publications:
        def observe(self, event: RunEvent) -> None:
            if isinstance(event, MaintenanceDone) and event.operation == "publish":
                done.append(event)

    with EmbeddedZooKeeper(folder / "zookeeper") as server:
        for txid in range(1, TXIDS + 1):  # each run ends with a publication
            topology = publishing(folder, chosen)
            observers = [Publications()]
            topology.run(spark, zookeeper=server.hosts, until=txid, observers=observers)
    seconds = [event.at - event.began for event in done if event.error is None]
    shown = PublishedTable(folder / "shown")
    plain = folder / "plain"
    shown.read(spark).write.format("delta").save(str(plain))
    reads = {"published": shown.read, "plain": lambda s: s.read.format("delta").load(str(plain))}
    read = {name: read_secs(spark, of) for name, of in reads.items()}
    return {
        **vars(chosen),
        "publications": len(seconds),
        "first_s": seconds[0],
        "next_s": seconds[1:],
        "next_p50_s": percentile(seconds[1:], 0.5),
        "bytes": bytes_by_version(folder / "shown"),
        "read_s": read,
        "read_ratio": read["published"] / read["plain"],
    }


def busy(spark: SparkSession, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Seconds of runs that publish, and of those that do not, the first of each left out."""
    rows = spark.range(500_000, numPartitions=1)
    rows.selectExpr("pmod(xxhash64(id), 100000) AS k", "id % 1000 AS v").write.parquet(
        str(folder / "rows")
    )
    (source,) = (folder / "rows").glob("*.parquet")
    (folder / "in").mkdir()
    for number in range(chosen.busy):
        (folder / "in" / f"{number:04}.parquet").hardlink_to(source)
    seconds: dict[str, list[float]] = {"plain": [], "published": []}
    for lap in range(chosen.laps + 1):
        for name, found in seconds.items():
            place = folder / f"{name}-{lap}"
            place.mkdir()
            (place / "in").symlink_to(folder / "in")
            topology = publishing(place, chosen, every="1 minute" if name == "published" else None)
            with EmbeddedZooKeeper(place / "zookeeper") as server:
                began = time.monotonic()
                topology.run(spark, zookeeper=server.hosts, until=chosen.busy)
                found.append(time.monotonic() - began)
    middle = {name: median(found[1:]) for name, found in seconds.items()}
    return {**vars(chosen), "seconds": seconds, "ratio": middle["published"] / middle["plain"]}


def publishing(folder: Path, chosen: argparse.Namespace, every: str | None = "1 day") -> Topology:
    """Count the events per key, and publish it."""
    pending: dict[str, Any] = {} if chosen.busy else {"max_spout_pending": 1}
    topology = Topology("published", TopologyConfig(**pending))
    spout = FileSpout(
        str(folder / "in" / "*.parquet"),
        format="parquet",
        schema="k bigint, v bigint",
        files_per_batch=1,
    )
    state = StateTable(folder / "state", layout=chosen.layout, buckets=16)
    kept = topology.stream("events", spout).group_by("k")
    totals = kept.persistent_aggregate(state, n=Count(), total=Sum("v"))
    asked = {"deletion_vectors": chosen.vectors, "change_feed": chosen.feed}
    if every is not None:
        totals.publish(folder / "shown", every=every, **asked)
    return topology


def written(spark: SparkSession, folder: Path, chosen: argparse.Namespace) -> None:
    """Write the files: all keys once, then those that change."""
    for txid in range(TXIDS):
        rows = spark.range(chosen.keys if txid == 0 else chosen.changed, numPartitions=1)
        key = "id"
        if txid and chosen.near:
            key = f"id + {txid * chosen.changed}"
        elif txid:
            key = f"pmod(xxhash64(id, {txid}), {chosen.keys})"
        into = folder / "new"
        rows.selectExpr(f"{key} AS k", "id % 1000 AS v").write.mode("overwrite").parquet(str(into))
        (file,) = into.glob("*.parquet")
        (folder / "in").mkdir(exist_ok=True)
        file.rename(folder / "in" / f"{txid:03}.parquet")


def read_secs(spark: SparkSession, rows: Any) -> float:
    """The median of some full reads."""

    def once() -> float:
        began = time.monotonic()
        frame: DataFrame = rows(spark)
        frame.selectExpr("sum(k)", "sum(n)", "sum(total)").collect()
        return time.monotonic() - began

    once()
    return sorted(once() for _ in range(ROUNDS))[ROUNDS // 2]


def bytes_by_version(table: Path) -> list[int]:
    """Bytes of the files that each version brings; one with a new deletion vector stays."""
    logs = sorted((table / "_delta_log").glob("*.json"))
    actions = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    return [
        sum(a["add"]["size"] for a in version if "add" in a and "deletionVector" not in a["add"])
        for version in actions[1:]
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
