"""What observers cost a run: tiny batches with none and with two, in pairs; and one event alone.

python -m tests.benchmarks.observers [--batches 300] [--pairs 6]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.engine.reporting.broadcast import Broadcast
from txn.observers import Observer, RunEnded, RunEvent
from txn.session import delta_session
from txn.testing import run_in_memory

ATTEMPT = TransactionAttempt(1)


class Counting:
    """Counts events, as a collector of metrics does."""

    def __init__(self) -> None:
        self.events = 0

    def observe(self, event: RunEvent) -> None:
        """One more."""
        self.events += 1


def run(spark: SparkSession, batches: int, observers: list[Observer]) -> float:
    """Seconds of a run of tiny batches, one after the other."""
    rows = [[(str(at), at)] for at in range(batches)]
    with tempfile.TemporaryDirectory() as folder:
        topology = Topology("observed", TopologyConfig(max_spout_pending=1))
        stream = topology.stream("s", MemoryTransactionalSpout(rows, "k string, v bigint"))
        stream.partition_persist(AppendTable(Path(folder) / "rows"))
        report = run_in_memory(topology, spark, observers=observers)
    assert (report.batches_committed, report.observers) == (batches, [])
    return report.seconds


def span_us(observers: int, spans: int = 2_000) -> float:
    """Microseconds of a station: its beginning, its end and what stands around them."""
    broadcast = Broadcast("t", time.time, [Counting() for _ in range(observers)])
    broadcast.open()
    began = time.perf_counter()
    for _ in range(spans):
        with broadcast.span("stage", [ATTEMPT], "t"):
            pass
    seconds = time.perf_counter() - began
    assert broadcast.close(RunEnded(*broadcast.stamp(), "stopped", None, None, 0, 0.0)) == []
    return seconds / spans * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=6)
    options = parser.parse_args()
    logging.getLogger("txn").setLevel(logging.WARNING)
    spark = delta_session("observed", master="local[2]")
    run(spark, options.batches, [])  # warm
    ratios, seconds, events = [], {0: [], 2: []}, 0
    for pair in range(options.pairs):
        both = [Counting(), Counting()]
        for observers in ([], both) if pair % 2 else (both, []):
            seconds[len(observers)].append(run(spark, options.batches, list(observers)))
        ratios.append(seconds[2][-1] / seconds[0][-1])
        events = both[0].events
    spark.stop()
    figures = {
        "batches": options.batches,
        "ms_per_batch": {
            str(n): round(statistics.median(found) / options.batches * 1000, 2)
            for n, found in seconds.items()
        },
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 4),
        "events_per_batch": round(events / options.batches, 1),
        "us_per_station": {str(n): round(span_us(n), 1) for n in (0, 2)},
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
