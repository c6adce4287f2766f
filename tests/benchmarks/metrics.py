"""What metrics cost a run: tiny batches with none and with a scraped exporter, in pairs.

python -m tests.benchmarks.metrics [--batches 300] [--pairs 8] [--goal 1.02]

The exporter is scraped twice a second, thirty times as often as Prometheus does it by default.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.benchmarks.observers import ATTEMPT, run
from txn.metrics import PrometheusMetrics
from txn.observers import Observer, StationEnded
from txn.session import delta_session


@contextmanager
def scraped(metrics: PrometheusMetrics, every_secs: float = 0.5) -> Iterator[list[int]]:
    """Somebody reads its page; the sizes of the answers."""
    stop, sizes, url = threading.Event(), [], f"http://127.0.0.1:{metrics.port}/metrics"

    def read() -> None:
        while not stop.wait(every_secs):
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    sizes.append(len(answer.read()))
            except OSError:  # the run has ended, and the port with it
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield sizes
    finally:
        stop.set()
        thread.join()


def event_us(events: int = 20_000) -> float:
    """Microseconds in which one event is taken in."""
    metrics = PrometheusMetrics()
    event = StationEnded(time.time(), "t", 1, (ATTEMPT,), "process", time.time())
    began = time.perf_counter()
    for _ in range(events):
        metrics.observe(event)
    return (time.perf_counter() - began) / events * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--goal", type=float, default=1.02)
    options = parser.parse_args()
    logging.getLogger("txn").setLevel(logging.WARNING)
    spark = delta_session("measured", master="local[2]")
    run(spark, options.batches, [])  # warm
    seconds: dict[bool, list[float]] = {False: [], True: []}
    largest = 0
    for pair in range(options.pairs):
        for with_metrics in (False, True) if pair % 2 else (True, False):
            if not with_metrics:
                seconds[False].append(run(spark, options.batches, []))
                continue
            metrics = PrometheusMetrics("0")
            observers: list[Observer] = [metrics]
            with scraped(metrics) as sizes:
                seconds[True].append(run(spark, options.batches, observers))
            largest = max(largest, *sizes)
    spark.stop()
    ratios = [on / off for on, off in zip(seconds[True], seconds[False], strict=True)]
    ratio = statistics.median(ratios)
    figures = {
        "batches": options.batches,
        "ms_per_batch": {
            name: round(statistics.median(seconds[key]) / options.batches * 1000, 2)
            for name, key in (("without", False), ("with", True))
        },
        "ratios": [round(each, 4) for each in ratios],
        "median_ratio": round(ratio, 4),
        "goal": options.goal,
        "us_per_event": round(event_us(), 2),
        "bytes_per_scrape": largest,
    }
    print(json.dumps(figures, indent=1))
    sys.exit(ratio > options.goal)


if __name__ == "__main__":
    main()
