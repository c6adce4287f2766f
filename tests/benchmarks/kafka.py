"""Records/s of the Kafka spout beside Structured Streaming's Kafka source, on the same topic.

    python -m tests.benchmarks.kafka [--records 1000000] [--per-batch 100000] [--rounds 3]
        [--streaming-per-batch 100000] [--ways spout batch] [--warm-rounds 1]

Five ways to read the whole topic, one after the other, round by round, in one Spark session; at
first a round to warm up, which is not counted. All ways to Delta write the same columns.

- spout:        a topology of a KafkaSpout and an AppendTable: exactly once, in ZooKeeper and Delta
- streaming:    readStream Kafka -> writeStream Delta with a checkpoint, trigger availableNow
- batch:        one plain batch read of the topic, written to Delta
- spout read, streaming read: the same without a table (Spark's sink "noop")
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
from pyspark.sql import DataFrame, SparkSession

from committers.append_table import AppendTable
from spouts.kafka import KafkaSpout
from tests.spouts.kafka_broker import Broker, send
from txn import Topology, TransactionAttempt
from txn.session import delta_session

TOPIC = "benchmark"
PARTITIONS = 8


def fill(broker: Broker, records: int) -> None:
    """Records of about 100 bytes over all partitions."""
    broker.create(TOPIC, PARTITIONS)
    producer = broker.producer(**{"linger.ms": 50})
    filler = "x" * 80
    for number in range(records):
        value = f'{{"n": {number}, "f": "{filler}"}}'.encode()
        send(producer, TOPIC, value, key=str(number % 1000).encode(), partition=number % PARTITIONS)
    assert producer.flush(120) == 0


def spout(broker: Broker, per_batch: int) -> KafkaSpout:
    """The spout under test."""
    return KafkaSpout(broker.servers, topics=[TOPIC], max_records_per_batch=per_batch)


def by_spout(spark: SparkSession, broker: Broker, folder: Path, per_batch: int) -> None:
    """A topology into an append table."""
    topology = Topology(folder.name)
    stream = topology.stream("records", spout(broker, per_batch))
    stream.partition_persist(AppendTable(str(folder / "table")))
    topology.run(spark, zookeeper=f"embedded:{folder}/zookeeper", until="caught_up")


def by_streaming(spark: SparkSession, broker: Broker, folder: Path, per_batch: int) -> None:
    """Structured Streaming into a Delta table."""
    query = (
        stream_reader(spark, broker, per_batch)
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination()


def by_batch(spark: SparkSession, broker: Broker, folder: Path, per_batch: int) -> None:
    """One Spark job: no batches, no guarantee, nothing to go on from."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    rows = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    rows.write.format("delta").save(str(folder / "table"))


def by_spout_read(spark: SparkSession, broker: Broker, folder: Path, per_batch: int) -> None:
    """The spout's batches, planned and read, into nothing."""
    source = spout(broker, per_batch)
    source.open(spark, None)
    attempt = TransactionAttempt(1, 0)
    planned = source.initialize_transaction(attempt, None)
    while planned is not None:
        batch = source.emit_batch(spark, attempt, planned)
        batch.write.format("noop").mode("overwrite").save()
        attempt = TransactionAttempt(attempt.txid + 1, 0)
        planned = source.initialize_transaction(attempt, planned)


def by_streaming_read(spark: SparkSession, broker: Broker, folder: Path, per_batch: int) -> None:
    """Structured Streaming into nothing."""
    query = (
        stream_reader(spark, broker, per_batch)
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def stream_reader(spark: SparkSession, broker: Broker, per_batch: int) -> DataFrame:
    """Structured Streaming's source over the topic."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )


WAYS: dict[str, Callable[[SparkSession, Broker, Path, int], None]] = {
    "spout": by_spout,
    "streaming": by_streaming,
    "batch": by_batch,
    "spout read": by_spout_read,
    "streaming read": by_streaming_read,
}

COMPARED = (("spout", "streaming"), ("spout", "batch"), ("spout read", "streaming read"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--per-batch", type=int, default=100_000)
    parser.add_argument("--streaming-per-batch", type=int, help="default: as --per-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-rounds", type=int, default=1, help="before them, and not counted")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    rates: dict[str, list[float]] = {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "kafka") as broker:
        fill(broker, options.records)
        conf = {"spark.driver.memory": "2g"}
        spark = delta_session("kafka", "local[2]", conf, packages=KafkaSpout.packages)
        for number in range(1 - options.warm_rounds, options.rounds + 1):
            for way, found in rates.items():
                folder = Path(name) / f"{way.replace(' ', '-')}-{number}"
                began = time.monotonic()
                per_batch = options.streaming_per_batch if "streaming" in way else None
                WAYS[way](spark, broker, folder, per_batch or options.per_batch)
                rate = options.records / (time.monotonic() - began)
                if (folder / "table").exists():
                    rows = deltalake.DeltaTable(str(folder / "table")).to_pyarrow_table(
                        columns=["offset"]
                    )
                    assert rows.num_rows == options.records, (way, rows.num_rows)
                print(f"round {number} {way:15} {rate:10,.0f} records/s", flush=True)
                if number > 0:
                    found.append(rate)
        spark.stop()
    median = {way: statistics.median(values) for way, values in rates.items()}
    result = {
        "records": options.records,
        "per_batch": options.per_batch,
        "records_per_s": {way: round(rate) for way, rate in median.items()},
        **{
            f"{one} to {other}": [
                round(a / b, 2) for a, b in zip(rates[one], rates[other], strict=True)
            ]
            for one, other in COMPARED
            if one in rates and other in rates
        },
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
