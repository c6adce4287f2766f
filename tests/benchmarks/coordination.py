"""(f): what exactly-once adds to a batch that is staged anyway, by partitions of the source.

Of each batch: START in ZooKeeper, the acker's verdict, the publication (leadership, files checked,
log append, read back) and COMMITTED in ZooKeeper; `stations_p50_ms` has each. One txid at a time:
with more of them in flight these times would contain waiting for the others' work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from committers.append_table import AppendTable
from tests.benchmarks.meter import Meter
from tests.benchmarks.ours import stations_ms, stations_p50_ms, together_ms
from tests.benchmarks.results import percentile
from tests.benchmarks.task import Answer, Task, answer, session
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.embedded import EmbeddedZooKeeper
from txn.interfaces import PartitionedSpout, SpoutKind
from txn.machine.heap import settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["COORDINATION", "ManyPartitions", "run"]

COORDINATION = ("started", "processed", "published", "committed")
"""Stations at whose end nothing was done but coordination."""
WARM = 20
ROWS = 10


class ManyPartitions(PartitionedSpout):
    """Every partition has an offset to read in every batch; the rows themselves are few.

    Args:
        partitions: how many.
        batches: after so many there is nothing more to read.
    """

    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, partitions: int, batches: int) -> None:
        self._names = [f"topic-{number:05d}" for number in range(partitions)]
        self._batches = batches

    def open(self, spark: SparkSession, previous: Any) -> StructType:
        """The columns are known."""
        return spark.range(0).schema

    def get_partitions(self) -> list[str]:
        """All of them, always."""
        return self._names

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> Any | None:
        """The next hundred offsets."""
        if attempt.txid > self._batches:
            return None
        start = 0 if previous is None else previous["end"]
        return {"start": start, "end": start + 100}

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """A few rows, however many partitions there are."""
        return spark.range(0, ROWS, 1, 1)


def run(task: Task) -> Iterator[Answer]:
    """`x` is the number of partitions."""
    assert task.x is not None
    batches = WARM + task.size.coordinated
    with EmbeddedZooKeeper(task.folder / "zookeeper", protect=True) as server:
        spark = session("coordination")
        topology = Topology("coordination", TopologyConfig(max_spout_pending=1))
        table = AppendTable(task.folder / "table", "transactional")
        topology.stream("rows", ManyPartitions(task.x, batches)).partition_persist(table)
        with Meter() as meter, settled():  # as `txn run` does
            report = topology.run(spark, zookeeper=server.hosts, until="caught_up")
        rows = table.read(spark).count()
        spark.stop()
    measured = list(report.batches)[-task.size.coordinated :]
    stations = stations_ms(measured)
    each = together_ms(stations, COORDINATION)
    yield answer(
        percentile(each, 0.5) or 0.0,
        meter,
        correct=rows == ROWS * batches == ROWS * report.batches_committed,
        p95_ms=round(percentile(each, 0.95) or 0.0, 2),
        stations_p50_ms=stations_p50_ms(stations),
        batches=len(each),
    )
