"""What Spark reads of a Kafka batch, and what becomes of a batch that is no longer there."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.kafka import KafkaSpout
from tests.children import wait_until
from tests.faults.support import rows_of
from tests.spouts.kafka_broker import PASSWORD, USER, Broker
from txn import Topology
from txn.attempts import TransactionAttempt
from txn.engine.base.failures import is_lost_work
from txn.errors import (
    FailedException,
    SourceChangedError,
    SourceUnavailableError,
    TopologyError,
    TxnError,
)
from txn.interfaces import PartitionPositions
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPT = TransactionAttempt(1, 0)
ROOT = Path(__file__).parents[2]

_names = itertools.count()


@pytest.fixture
def topic(kafka: Broker) -> str:
    """A topic of this test, with six partitions: more than Scala prints as a small map."""
    return kafka.create(f"read-{next(_names)}", 6)


def plan(spout: KafkaSpout, previous: PartitionPositions | None = None) -> PartitionPositions:
    """A batch that has something to read."""
    planned = spout.initialize_transaction(ATTEMPT, previous)
    assert planned is not None
    return planned


def read(spark: SparkSession, spout: KafkaSpout, metadata: PartitionPositions) -> DataFrame:
    """The batch, which really reads all it was planned to read."""
    batch = spout.emit_batch(spark, ATTEMPT, metadata)
    assert spout.parts_read(batch, metadata) == spout.planned_parts(metadata)
    return batch


def values(batch: DataFrame) -> list[str]:
    """The values as text, sorted."""
    return sorted(row.v for row in batch.selectExpr("CAST(value AS string) AS v").collect())


def test_records_come_with_key_headers_and_timestamp(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """Key, value, place, timestamp and headers are as they were produced; the schema is known."""
    spout = KafkaSpout(kafka.secure_servers, topics=[topic], include_headers=True, options=secure())
    schema = spout.open(spark, None)
    when = int(time.time() * 1000) - 3_600_000
    headers = [("origin", b"web"), ("empty", None)]
    kafka.produce(topic, ["one"], key=b"k", headers=headers, timestamp=when, partition=4)
    metadata = plan(spout)
    batch = read(spark, spout, metadata)
    assert batch.schema == schema
    (row,) = batch.withColumn("ms", batch.timestamp.cast("double") * 1000).collect()
    assert (bytes(row.key), bytes(row.value)) == (b"k", b"one")
    assert (row.topic, row.partition, row.offset) == (topic, 4, 0)
    assert (round(row.ms), row.timestampType) == (when, 0)
    assert [(h.key, h.value and bytes(h.value)) for h in row.headers] == headers
    spark = spark.newSession()
    for kind in ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"):
        spark.conf.set("spark.sql.timestampType", kind)
        empty = spout.emit_batch(spark, ATTEMPT, PartitionPositions())
        assert (empty.schema.simpleString(), empty.count()) == (schema.simpleString(), 0)


def test_a_batch_is_its_offsets_and_nothing_else(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """Batches follow on without gap or overlap, whatever comes meanwhile and however often read."""
    for partition in range(6):
        kafka.produce(topic, [f"{partition}{n}" for n in range(5)], partition=partition)
    spout = KafkaSpout(kafka.servers, topics=[topic], max_records_per_partition=3)
    first = plan(spout)
    second = plan(spout, first)
    kafka.produce(topic, ["late"])
    expected = [f"{partition}{n}" for partition in range(6) for n in range(5)]
    assert values(read(spark, spout, first)) == [v for v in expected if v[1] in "012"]
    assert values(read(spark, spout, second)) == [v for v in expected if v[1] in "34"]
    assert values(read(spark, spout, first)) == [v for v in expected if v[1] in "012"]


def test_executors_keep_their_connections_from_batch_to_batch(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """A consumer for each partition, and not for each partition of each batch; nobody is warned."""
    spout = KafkaSpout(kafka.secure_servers, topics=[topic], options=secure())
    spout.open(spark, None)
    before, metadata = connections(kafka), None
    for number in range(4):
        for partition in range(6):
            kafka.produce(topic, [number], partition=partition)
        metadata = plan(spout, metadata)
        assert values(read(spark, spout, metadata)) == [str(number)] * 6
    # A consumer has two, one to find the broker by and one to read by; the rest are the driver's.
    assert connections(kafka) - before < 4 * 6
    loggers = spark._jvm.org.apache.logging.log4j.LogManager
    provider = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
    assert str(loggers.getLogger(provider).getLevel()) == "ERROR"


def connections(kafka: Broker) -> int:
    """Those that clients have to the port with a password: Java's here, and few others."""
    port = f"{int(kafka.secure_servers.rpartition(':')[2]):04X}"
    texts = (Path(f"/proc/net/{kind}").read_text() for kind in ("tcp", "tcp6"))
    lines = [line.split() for text in texts for line in text.splitlines()]
    established = "01"
    return sum(line[2].endswith(f":{port}") and line[3] == established for line in lines)


def test_what_was_fetched_ahead_of_a_topic_is_not_taken_for_that_of_another(
    spark: SparkSession, kafka: Broker
) -> None:
    """A topic is made anew under its name: from then on its own records are read."""
    topic = kafka.create(f"again-{next(_names)}")
    spout = KafkaSpout(kafka.servers, topics=[topic], max_records_per_batch=2, on_data_loss="skip")
    spout.open(spark, None)
    kafka.produce(topic, [f"old{n}" for n in range(8)])
    metadata = plan(spout)
    assert values(read(spark, spout, metadata)) == ["old0", "old1"]
    kafka.delete(topic)
    kafka.create(topic)
    kafka.produce(topic, [f"new{n}" for n in range(8)])
    found: list[str] = []
    while len(found) < 8:
        metadata = plan(spout, metadata)
        found += values(read(spark, spout, metadata))
    assert found == [f"new{n}" for n in range(8)]


def test_parts_that_were_not_read_are_missing(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """A DataFrame over fewer partitions, or other offsets of one, does not pass for the batch."""
    for partition in range(3):
        kafka.produce(topic, range(5), partition=partition)
    spout = KafkaSpout(kafka.servers, topics=[topic])
    metadata = plan(spout)
    part = dict(list(metadata.read.items())[:2])
    first, second = part
    part[second] = {**part[second], "end": 4}
    batch = spout.emit_partitions(spark, ATTEMPT, part)
    assert spout.parts_read(batch, metadata) == [first]


def test_aborted_records_are_left_out(spark: SparkSession, kafka: Broker, topic: str) -> None:
    """With read_committed, what a transaction aborted is in no batch, and the rest is whole."""
    kafka.produce(topic, ["before"])
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0
        end(30)
    spout = KafkaSpout(kafka.servers, topics=[topic])
    name = f"{topic}-0"
    wait_until(lambda: plan(spout).read[name]["end"] == 5, "both transactions are over")
    assert values(read(spark, spout, plan(spout))) == ["before", "yes"]


@pytest.mark.parametrize(
    ("kind", "expected"), [("opaque", FailedException), ("transactional", SourceChangedError)]
)
@pytest.mark.parametrize("fault", ["expired", "recreated", "shrunk"])
def test_a_batch_that_is_no_longer_there(
    spark: SparkSession, kafka: Broker, topic: str, kind: str, expected: type, fault: str
) -> None:
    """A planned batch that is gone is planned anew (opaque), or stops the run (transactional)."""
    kafka.produce(topic, range(5))
    kafka.produce(topic, range(5), partition=5)
    spout = KafkaSpout(kafka.servers, topics=[topic], kind=kind)
    metadata = plan(spout)
    if fault == "expired":
        kafka.expire(topic, 0, 2)
    else:
        kafka.delete(topic)
        kafka.create(topic, 6 if fault == "recreated" else 1)
        kafka.produce(topic, range(9))
    with pytest.raises(expected, match=f"{topic}.*") as error:
        spout.emit_batch(spark, ATTEMPT, metadata)
    assert not isinstance(error.value, SourceUnavailableError)


def test_records_that_vanish_under_a_job_fail_the_batch_only(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """A job that finds its records gone fails loudly, and is one to replay, not to stop for."""
    kafka.produce(topic, range(5))
    spout = KafkaSpout(kafka.servers, topics=[topic], on_data_loss="skip")
    batch = spout.emit_batch(spark, ATTEMPT, plan(spout))
    kafka.expire(topic, 0, 3)
    with pytest.raises(Exception, match="(?s)data may have been lost") as error:
        batch.collect()
    assert is_lost_work(error.value)


@pytest.mark.parametrize("on_loss", ["error", "skip"])
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_topic_that_is_made_again_while_it_is_read(
    spark: SparkSession, kafka: Broker, topic: str, warehouse: Path, kind: str, on_loss: Any
) -> None:
    """Records of a Kafka topic that takes another one's place during the read are counted once."""
    kafka.produce(topic, ["a0", "a1", "a2"])
    spout = KafkaSpout(kafka.servers, topics=[topic], kind=kind, on_data_loss=on_loss)
    made = Topology("again")
    values = made.stream("s", spout).transform(
        lambda df: df.selectExpr("CAST(value AS string) AS v")
    )
    values.partition_persist(AppendTable(warehouse / "rows"))
    nodes = MemoryNodes()
    run_in_memory(made, spark, nodes)
    kafka.produce(topic, ["b0", "b1", "b2"], partition=1)
    emit = spout.emit_partitions

    def emitted(*given: Any) -> DataFrame:
        batch = emit(*given)
        spout.emit_partitions = emit  # type: ignore[method-assign]
        kafka.delete(topic)
        kafka.create(topic, 6)
        kafka.produce(topic, ["c0", "c1", "c2", "c3"], partition=1)
        return batch

    spout.emit_partitions = emitted  # type: ignore[method-assign]
    if (kind, on_loss) == ("opaque", "skip"):
        assert run_in_memory(made, spark, nodes).replays == 1
    else:
        with pytest.raises(TxnError, match="was deleted and created again"):
            run_in_memory(made, spark, nodes)
    more = ["c0", "c1", "c2", "c3"] if (kind, on_loss) == ("opaque", "skip") else []
    assert [v for (v,) in rows_of(warehouse / "rows", "v")] == ["a0", "a1", "a2", *more]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_batch_whose_topic_is_gone_waits(
    spark: SparkSession, kafka: Broker, topic: str, kind: str
) -> None:
    """Whatever the kind, a batch of a deleted topic waits, and says for which topic."""
    kafka.produce(topic, range(5))
    spout = KafkaSpout(kafka.servers, topics=[topic], kind=kind)
    metadata = plan(spout)
    kafka.delete(topic)
    with pytest.raises(SourceUnavailableError, match=f"batch 1:0: topic '{topic}' is gone"):
        spout.emit_batch(spark, ATTEMPT, metadata)


def test_a_missing_topic_is_refused_when_the_topology_starts(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """A topic that was never read must exist; one that was read may be gone by now."""
    both = KafkaSpout(kafka.servers, topics=[topic, f"no-{topic}"])
    with pytest.raises(TopologyError, match=f"topic 'no-{topic}', which the brokers do not have"):
        both.open(spark, None)
    position = {"start": 0, "end": 1, "topic_id": "a"}
    was_read = PartitionPositions(latest={f"no-{topic}-0": position})
    assert both.open(spark, was_read) is not None


def test_a_session_without_kafkas_source_is_told_what_to_do(tmp_path: Path, topic: str) -> None:
    """The error says how to start the session; nothing has run by then."""
    code = (
        "from txn.session import delta_session\n"
        "from spouts.kafka import KafkaSpout\n"
        "spark = delta_session('none', 'local[1]', {'spark.driver.memory': '1g'})\n"
        "KafkaSpout('localhost:1', topics=['a'])._reader.rows(spark, {})\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    assert "SetupError: KafkaSpout('localhost:1', topics=['a']) needs Spark's" in said.stderr
    assert "packages=KafkaSpout.packages" in said.stderr


def secure() -> dict[str, Any]:
    """Settings for the listener that wants a password."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
    }
