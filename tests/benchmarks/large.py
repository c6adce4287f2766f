"""A state of 10^8 keys in a `log` table, while batches go on and compaction runs.

    python -m tests.benchmarks.large [--keys 100000000] [--batches 400] [--rows 10000]

The first txid brings every key, each of the others some rows with random keys. Printed as JSON:
what the commit turn takes, what was compacted, and the most memory that the driver has used.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from committers.aggregates import Count, Sum
from committers.state_table import StateTable
from tests.benchmarks.memory import java_process, memory_kb
from tests.benchmarks.ours import stations_ms, together_ms
from tests.benchmarks.reads import AllThenSome
from tests.benchmarks.results import percentile
from tests.benchmarks.task import session
from tests.logs import commits
from txn import Topology, TopologyConfig
from txn.delta.folders import COMPACTION
from txn.embedded import EmbeddedZooKeeper

COMMIT_TURN = ("prepared", "published", "committed")


def measure(folder: Path, keys: int, batches: int, rows: int) -> dict[str, Any]:
    """Run it in `folder`.

    Returns:
        Milliseconds of the commit turn, but for the first txid's; megabytes of the driver's two
        processes.

    Raises:
        ValueError: the number of rows is no multiple of ten, whose sum is known.
        AssertionError: the table's totals are not those.
    """
    from pyspark.sql import functions as sf

    whole = keys + batches * rows
    if whole % 10:
        raise ValueError(f"{whole} rows: give numbers whose sum is a multiple of ten.")

    spark = session("large")
    topology = Topology("large", TopologyConfig(max_spout_pending=8))
    stream = topology.stream("rows", AllThenSome(keys, batches, rows))
    table = StateTable(folder / "table", "opaque", layout="log")
    stream.group_by("key").persistent_aggregate(table, rows=Count(), amount=Sum("amount"))
    with EmbeddedZooKeeper(folder / "zookeeper", protect=True) as server:
        report = topology.run(spark, zookeeper=server.hosts, until="caught_up")
    turns = sorted(together_ms(stations_ms(list(report.batches)[1:]), COMMIT_TURN))
    totals = table.read(spark).agg(sf.count("*"), sf.sum("rows"), sf.sum("amount")).first()
    amount = 45 * (whole // 10)
    assert tuple(totals or ()) == (keys, whole, amount), totals
    told = {
        "keys": keys,
        "batches": report.batches_committed,
        "seconds": round(report.seconds, 1),
        "turn_ms": {share: percentile(turns, share) for share in (0.5, 0.99)} | {1.0: turns[-1]},
        "compactions": sum(COMPACTION.encode() in text for _, text in commits(folder / "table")),
        "most_mb": {
            name: round(memory_kb(process, "VmHWM") / 1024)
            for name, process in (("java", java_process()), ("python", os.getpid()))
        },
    }
    spark.stop()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000_000)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--rows", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        told = measure(Path(folder), options.keys, options.batches, options.rows)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
