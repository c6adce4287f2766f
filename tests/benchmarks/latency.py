"""From the broker's timestamp of a record to the moment when a reader of the table can see it.

    python -m tests.benchmarks.latency [--rates 1000,50000] [--secs 120] [--warm-secs 40]

Records arrive steadily in 8 partitions of a Kafka topic, each stamped by the broker as it stores
them. They become visible with the commit file of the version that has them, whose time the file
system tells. Contenders, one process after the other, each with a topic of its own:

- ours:   a KafkaSpout and an AppendTable, exactly once
- SS:     readStream Kafka -> writeStream Delta with a checkpoint, one micro-batch after the other

Records that arrive while the process warms up are not counted. "growth" puts p50 of the last
quarter of the time beside that of the first one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet
from pyspark.sql import SparkSession

from committers.append_table import AppendTable
from spouts.kafka import KafkaSpout
from tests.benchmarks.task import MASTER, MEMORY
from tests.children import wait_until
from tests.logs import commits
from tests.spouts.kafka_broker import Broker, send
from txn import Topology, TopologyConfig
from txn.session import delta_session

PARTITIONS = 8
TICK_SECS = 0.005
START_SECS = 120.0
QUANTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}


# --- the contenders, each in a process of its own ----------------------------------------------


def by_topology(servers: str, topic: str, folder: Path, until: Path) -> None:
    """A topology into an append table."""
    spark = _session()
    topology = Topology(topic, TopologyConfig())
    spout = KafkaSpout(servers, topics=[topic])
    topology.stream("records", spout).partition_persist(AppendTable(str(folder / "table")))
    running = topology.start(spark, zookeeper=f"embedded:{folder}/zookeeper")
    _wait_for(until)
    running.stop()


def by_streaming(servers: str, topic: str, folder: Path, until: Path) -> None:
    """Structured Streaming into a Delta table."""
    query = (
        _session({"spark.databricks.delta.stats.collect": "false"})
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "table"))
    )
    _wait_for(until)
    query.stop()


def _session(conf: Mapping[str, str] | None = None) -> SparkSession:
    own = {"spark.driver.memory": MEMORY, **(conf or {})}
    return delta_session("latency", MASTER, own, packages=KafkaSpout.packages)


def _wait_for(until: Path) -> None:
    while not until.exists():
        time.sleep(0.2)


CONTENDERS: dict[str, Callable[[str, str, Path, Path], None]] = {
    "ours": by_topology,
    "SS": by_streaming,
}


def produce(servers: str, topic: str, rate: int, until: Path) -> None:
    """Records of about 100 bytes, evenly over time and over partitions."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    value, began, sent = b"x" * 90, time.monotonic(), 0
    while not until.exists():
        due = int((time.monotonic() - began) * rate)
        for number in range(sent, due):
            send(producer, topic, value, partition=number % PARTITIONS)
        sent = due
        producer.poll(0)
        time.sleep(TICK_SECS)
    assert producer.flush(60) == 0


# --- measuring ---------------------------------------------------------------------------------


def latencies(table: Path, first_ms: int, last_ms: int) -> np.ndarray[Any, Any]:
    """(the broker's timestamp, milliseconds until visible) of each record in that time."""
    found = []
    for version, text in commits(table):
        seen_ms = (table / "_delta_log" / f"{version:020d}.json").stat().st_mtime_ns / 1e6
        actions = map(json.loads, text.splitlines())
        for path in (action["add"]["path"] for action in actions if "add" in action):
            column = parquet.read_table(table / path, columns=["timestamp"])["timestamp"]
            at = column.to_numpy().astype("datetime64[us]").astype(np.int64) / 1e3
            found.append(np.stack([at, seen_ms - at]))
    both = np.concatenate(found, axis=1)
    return both[:, (both[0] >= first_ms) & (both[0] < last_ms)]


def figures(found: np.ndarray[Any, Any]) -> dict[str, float]:
    """Quantiles in milliseconds, and the growth."""
    at, took = found
    quarter = (at.max() - at.min()) / 4
    first, last = took[at < at.min() + quarter], took[at > at.max() - quarter]
    told = {name: round(float(np.percentile(took, share)), 1) for name, share in QUANTILES.items()}
    return {
        **told,
        "most": round(float(took.max()), 1),
        "growth": round(float(np.median(last) / np.median(first)), 2),
        "records": int(at.size),
    }


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """This module in a process of its own, which ends by itself when it is told to."""
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, *arguments])
    try:
        yield process
        assert process.wait(120) == 0, arguments
    finally:
        process.kill()


def measure(broker: Broker, folder: Path, name: str, rate: int, options: Any) -> dict[str, float]:
    """One contender at one rate."""
    folder.mkdir()
    topic = broker.create(folder.name, PARTITIONS, message_timestamp_type="LogAppendTime")
    until, table = folder / "end", folder / "table"
    told = ("--servers", broker.servers, "--folder", str(folder), "--rates", str(rate))
    with child("--be", "producer", *told), child("--be", name, *told) as contender:
        log = table / "_delta_log"
        wait_until(
            lambda: contender.poll() is not None or (log / f"{1:020d}.json").exists(),
            "the first commit",
            START_SECS,
        )
        time.sleep(options.warm_secs)
        first_ms = time.time_ns() // 1_000_000
        time.sleep(options.secs)
        last_ms = time.time_ns() // 1_000_000
        time.sleep(5)  # what came last becomes visible
        until.touch()
    broker.delete(topic)
    found = figures(latencies(table, first_ms, last_ms))
    expected = rate * (last_ms - first_ms) / 1000
    assert abs(found["records"] - expected) < 0.02 * expected, (found, expected)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="1000,50000", help="records a second")
    parser.add_argument("--secs", type=float, default=120)
    parser.add_argument("--warm-secs", type=float, default=40)
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rates = [int(rate) for rate in options.rates.split(",")]
    if options.be:
        folder: Path = options.folder
        if options.be == "producer":
            produce(options.servers, folder.name, rates[0], folder / "end")
        else:
            CONTENDERS[options.be](options.servers, folder.name, folder, folder / "end")
        return
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "kafka") as broker:
        for rate in rates:
            for contender in options.contenders.split(","):
                folder = Path(name) / f"{contender.lower()}-{rate}"
                found = measure(broker, folder, contender, rate, options)
                print(json.dumps({"contender": contender, "rate": rate, **found}), flush=True)


if __name__ == "__main__":
    main()
