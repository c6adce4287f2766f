"""A real Kafka broker (KRaft mode, one node) as a child process, out of its published jars.

    python -m tests.spouts.kafka_broker     # fetches the jars of the broker and of Spark's source

It dies with the process that started it, SIGKILL included (`txn/embedded/supervisor.py`), and
listens on loopback only, unless told otherwise: once without and once with a password (SASL/PLAIN).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from spouts.kafka import KafkaSpout
from tests.children import LOOPBACK, ChildServer, free_ports, java, listens, wait_until
from txn.errors import SetupError
from txn.machine.ivy import Request, fetch
from txn.machine.jars import cache_folder, package_jars

__all__ = ["PASSWORD", "USER", "Broker", "broker_jars", "records"]

VERSION = "4.1.0"
MODULES = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",  # or the broker would have no log at all
)
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
USER, PASSWORD = "reader", "open-sesame-4711"
START_SECS = 90.0

JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xms128m",
    "-Xmx512m",
    "-Djava.awt.headless=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
)

PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{plain},SECURE://{host}:{secure},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SECURE://{host}:{secure}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
log.dirs=data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=2097152
controlled.shutdown.enable=false
"""

LOG4J = """\
status=error
appender.file.type=File
appender.file.name=file
appender.file.fileName=server.log
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
"""


def broker_jars() -> list[Path]:
    """The broker's jars, fetched if they are not there yet."""
    folder = cache_folder() / "jars" / f"kafka-broker-{VERSION}"
    if not folder.is_dir():
        fetch(folder, Request(f"The jars of Kafka's broker {VERSION}", MODULES))
    return sorted(folder.glob("*.jar"))


class Broker(ChildServer):
    """One broker in a folder, on ports that stay the same over restarts.

    Args:
        folder: holds its data, its configuration and its log.
        host: the address at which it listens.
    """

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        super().__init__(folder)
        self._host = host
        self._ports = free_ports(3)
        self.servers = f"{host}:{self._ports[0]}"
        self.secure_servers = f"{host}:{self._ports[1]}"
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None

    # --- its life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it and wait until it answers."""
        if not (self.folder / "server.properties").exists():
            self._format()
        self._child.start(self._java("kafka.Kafka"))
        wait_until(self._answers, "the broker answers", START_SECS)

    @contextmanager
    def away(self) -> Iterator[None]:
        """The broker is killed for the time of the block; records and ports stay."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    # --- topics and records ----------------------------------------------------------------------

    @property
    def admin(self) -> AdminClient:
        """A client of ours, for the tests."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.servers, **QUIET})
        return self._admin

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Create a topic; its name. Underscores in the names of settings stand for dots."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([new])[topic].result(30)
        wait_until(lambda: self._serves(topic, partitions), f"{topic} is there")
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: not self._partitions(topic), f"{topic} is gone")

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions until there are that many."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        wait_until(lambda: self._serves(topic, partitions), f"{topic} has grown")
        self._producer = None  # it would learn of them in its own time

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below an offset, as retention does."""
        where = TopicPartition(topic, partition, before)
        self.admin.delete_records([where])[where].result(30)

    def produce(
        self, topic: str, values: Iterable[Any], partition: int = 0, **message: Any
    ) -> None:
        """Write records to a partition and wait until the broker has them."""
        if self._producer is None:
            self._producer = self.producer()
        for value in values:
            send(self._producer, topic, str(value).encode(), partition=partition, **message)
        assert self._producer.flush(60) == 0

    def producer(self, **config: Any) -> Producer:
        """A producer whose records are safe with the broker when `flush` returns 0."""
        own = {"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 5}
        return Producer({**own, **QUIET, **config})

    # --- inside ----------------------------------------------------------------------------------

    def _format(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(LOG4J, "ascii")
        plain, secure, controller = self._ports
        text = PROPERTIES.format(
            host=self._host,
            plain=plain,
            secure=secure,
            controller=controller,
            user=USER,
            password=PASSWORD,
        )
        (self.folder / "server.properties").write_text(text, "ascii")
        format_it = ("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c")
        with (self.folder / "server.out").open("wb") as out:
            subprocess.run(
                self._java(*format_it), cwd=self.folder, check=True, stdout=out, stderr=out
            )

    def _java(self, main: str, *arguments: str) -> list[str]:
        return java(broker_jars(), JVM_FLAGS, main, *arguments, "server.properties")

    def _answers(self) -> bool:
        self._child.check()
        if not listens(self._ports[0], self._host):
            return False
        try:
            found = self.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        leaders = [p.leader for topic in found.topics.values() for p in topic.partitions.values()]
        return bool(found.brokers) and -1 not in leaders

    def _serves(self, topic: str, partitions: int) -> bool:
        """Whether every partition has a leader that knows it is one."""
        if len(self._partitions(topic)) != partitions:
            return False
        wanted = {
            TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)
        }
        try:
            return all(answer.result() for answer in self.admin.list_offsets(wanted).values())
        except KafkaException:
            self._admin = None  # it would keep to the leaders that it knows
            return False

    def _partitions(self, topic: str) -> Mapping[int, Any]:
        """The partitions that have a leader; those of a topic that is gone are none."""
        found = self.admin.list_topics(topic, timeout=10).topics[topic]
        if found.error is not None:
            return {}
        return {number: p for number, p in found.partitions.items() if p.leader >= 0}


QUIET: Mapping[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
}


def send(producer: Producer, topic: str, value: bytes, **message: Any) -> None:
    """Hand a record to the producer, waiting while its queue is full."""
    while True:
        try:
            producer.produce(topic, value, on_delivery=must_arrive, **message)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def must_arrive(error: Any, message: Any) -> None:
    """A record that the broker did not take is no record of a test."""
    assert error is None, error


def records(count: int, start: int = 0) -> list[str]:
    """Values that are all different: `start` and up, as text."""
    return [str(number) for number in range(start, start + count)]


if __name__ == "__main__":
    try:
        broker_jars()
        package_jars(KafkaSpout.packages)
    except SetupError as error:
        sys.exit(str(error))
