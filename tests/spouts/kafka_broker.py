"""A real Kafka broker (KRaft mode, one node) as a child process, out of its published jars.

    python -m tests.spouts.kafka_broker     # fetches the jars of the broker and of Spark's source

It dies with the process that started it, SIGKILL included (`txn/embedded/supervisor.py`), and
listens on loopback only, unless told otherwise: once without and once with a password (SASL/PLAIN).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from spouts.kafka import KafkaSpout
from tests.children import LOOPBACK, ChildServer, free_ports, wait_until
from txn.embedded.broker import broker_jars, configure_broker, format_data, java_command
from txn.errors import SetupError
from txn.machine.jars import package_jars
from txn.machine.listening import listens

__all__ = ["PASSWORD", "USER", "Broker", "records"]

USER, PASSWORD = "reader", "open-sesame-4711"
START_SECS = 90.0

SECURE = "SECURE"
"""The listener that wants a password."""


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
        self._child.start(java_command("kafka.Kafka"))
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
        plain, secure, controller = self._ports
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        properties = {
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": (
                f'{login} required user_{USER}="{PASSWORD}";'
            ),
            "auto.create.topics.enable": "false",
        }
        listeners = {"PLAINTEXT": plain, SECURE: secure}
        configure_broker(
            self.folder, self._host, listeners, controller, properties, {SECURE: "SASL_PLAINTEXT"}
        )
        format_data(self.folder)

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
