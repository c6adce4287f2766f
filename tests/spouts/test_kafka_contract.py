"""The Kafka spout passes the contract kit, in both kinds, over a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spouts.kafka import KafkaSpout
from tests.spouts.kafka_broker import Broker
from txn.testing import SpoutContract

if TYPE_CHECKING:
    from pyspark.sql import Row

_names = itertools.count()
_broker: list[Broker] = []


@pytest.fixture(scope="module", autouse=True)
def broker(kafka: Broker) -> Iterator[None]:
    """The broker, for the objects that the kit makes by itself."""
    _broker.append(kafka)
    yield
    _broker.clear()


class TestKafkaOpaque(SpoutContract):
    """Two partitions at first; small batches, so that several follow."""

    kind = "opaque"
    seeds = (1,)

    def make_source(self, folder: Path) -> None:
        self.partitions = 2
        self.topic = _broker[0].create(f"contract-{self.kind}-{next(_names)}", self.partitions)

    def make_spout(self, folder: Path) -> KafkaSpout:
        return KafkaSpout(
            _broker[0].servers, topics=[self.topic], kind=self.kind, max_records_per_batch=3
        )

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        for number in ids:
            _broker[0].produce(self.topic, [number], partition=number % self.partitions)

    def record_id(self, row: Row) -> int:
        return int(bytes(row["value"]))

    def add_partition(self, folder: Path) -> None:
        self.partitions += 1
        _broker[0].grow(self.topic, self.partitions)


class TestKafkaTransactional(TestKafkaOpaque):
    """The same, identical at every replay."""

    kind = "transactional"
