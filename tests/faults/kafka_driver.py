"""The program under fault over Kafka: run as a process of its own by `tests.faults.test_kafka`.

    python -m tests.faults.kafka_driver '{"folder": ..., "servers": ..., "topic": ...}'

A topic's records (key: a name, value: a number) go into an append table "rows" and an upsert table
"totals". Points and signals are those of `tests.faults.driver`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.kafka import KafkaSpout
from tests.faults.driver import main
from tests.faults.harness import Spec
from txn import Topology, TopologyConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KafkaSpec"]


class KafkaSpec(Spec):
    """What one driver process is to do."""

    servers: str
    topic: str
    per_batch: int


def numbers(records: DataFrame) -> DataFrame:
    """Key and value as what they stand for, with the place that each record had."""
    return records.selectExpr(
        "CAST(key AS string) AS k", "CAST(CAST(value AS string) AS bigint) AS v", "partition"
    )


def build(spec: KafkaSpec) -> Topology:
    """The topology that `spec` describes."""
    topology = Topology("kafka-faults", TopologyConfig(**spec.config))
    spout = KafkaSpout(
        spec.servers, topics=[spec.topic], kind=spec.kind, max_records_per_batch=spec.per_batch
    )
    stream = topology.stream("records", spout).transform(numbers)
    stream.partition_persist(AppendTable(f"{spec.folder}/rows", semantics=spec.kind))
    state = StateTable(f"{spec.folder}/totals", semantics=spec.kind)
    stream.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
    return topology


if __name__ == "__main__":
    given = KafkaSpec.model_validate_json(sys.argv[1])
    sys.exit(main(given, build(given), KafkaSpout.packages))
