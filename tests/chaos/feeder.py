"""Feeds the sources while the run goes on: records into a Kafka topic, files into a folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from tests.chaos.history import History
from tests.chaos.records import line_of
from tests.spouts.kafka_broker import Broker

__all__ = ["PARTITIONS", "Feeder"]

PARTITIONS = 4
HEAD_START = 0.02
"""This share of everything is there at once."""
STEP_SECS = 0.2
FLUSH_SECS = 300.0


class Feeder(threading.Thread):
    """Both sources, as evenly as it goes; what was fed is written into the history in the end.

    Args:
        put: writes a file, by its name and content.
        records: for each of the two sources.
        per_file: records of a file.
        seconds: over which they are spread.
    """

    def __init__(
        self,
        broker: Broker,
        topic: str,
        put: Callable[[str, str], None],
        history: History,
        *,
        records: int,
        per_file: int,
        seconds: float,
    ) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._topic = topic
        self._put = put
        self._history = history
        self._records = records
        self._per_file = per_file
        self._seconds = seconds
        self._hurry = threading.Event()
        self._given_up = threading.Event()
        self._produced = self._written = 0
        self._misplaced: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until everything is there."""
        try:
            self._feed()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self.error = error

    def finish(self) -> None:
        """Feed the rest at once, wait for its end, and write down what was fed.

        The broker must be there.
        """
        self._hurry.set()
        self.join()
        if self.error is not None:
            raise self.error
        for partition in range(PARTITIONS):
            numbers = range(partition, self._records, PARTITIONS)
            part = f"{self._topic}-{partition}"
            self._input("kafka", part, first=partition, step=PARTITIONS, count=len(numbers))
        for first in range(0, self._records, self._per_file):
            count = min(self._per_file, self._records - first)
            self._input("files", _name(first // self._per_file), first=first, step=1, count=count)

    def give_up(self) -> None:
        """Feed nothing more."""
        self._given_up.set()

    def _input(self, stream: str, part: str, **which: Any) -> None:
        self._history.add("input", stream=stream, part=part, start=0, **which)

    def _feed(self) -> None:
        producer = self._broker.producer(**{"message.timeout.ms": 600_000, "linger.ms": 20})
        began = time.monotonic()
        while min(self._produced, self._written) < self._records and not self._given_up.is_set():
            share = HEAD_START + (time.monotonic() - began) / self._seconds
            wanted = self._records if self._hurry.is_set() else int(min(1.0, share) * self._records)
            for number in range(self._produced, wanted):
                self._produce(producer, number)
            self._produced = max(self._produced, wanted)
            producer.poll(0)
            while self._written + self._per_file <= wanted or (
                self._written < wanted == self._records
            ):
                self._write_file()
            self._hurry.wait(STEP_SECS)
        left = 0 if self._given_up.is_set() else producer.flush(FLUSH_SECS)
        assert left == 0, f"{left} records did not reach the broker"
        assert not self._misplaced, f"records elsewhere than they were sent: {self._misplaced[:3]}"

    def _produce(self, producer: Producer, number: int) -> None:
        def arrived(error: KafkaError | None, message: Message) -> None:
            # The oracle takes it to have this offset.
            if error is not None or message.offset() != number // PARTITIONS:
                self._misplaced.append(f"{number}: {error or message.offset()}")

        value, partition = line_of(number).encode(), number % PARTITIONS
        while True:
            try:
                producer.produce(self._topic, value, partition=partition, on_delivery=arrived)
            except BufferError:
                producer.poll(0.05)
            else:
                return

    def _write_file(self) -> None:
        first = self._written
        numbers = range(first, min(self._records, first + self._per_file))
        content = "".join(f"{line_of(number)}\n" for number in numbers)
        self._put(_name(first // self._per_file), content)
        self._written = numbers.stop


def _name(number: int) -> str:
    return f"part-{number:06}.csv"
