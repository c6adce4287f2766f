"""A user's program with plugins of its own: checked by mypy and pyright, and never run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from committers.aggregates import Avg, Count, FirstN, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt, TxnError, history
from txn.interfaces import (
    Aggregate,
    Committer,
    CommitterContext,
    Lag,
    PartitionedSpout,
    Prepared,
    Publication,
    Published,
    Semantics,
    Spout,
    SpoutKind,
    Staged,
    StagedFile,
    TablePublication,
)
from txn.interfaces.spout_capabilities import ReportsLag
from txn.metrics import PrometheusMetrics
from txn.observers import AttemptFailed, BatchCommitted, Observer, RunEvent, StationEnded
from txn.session import delta_session
from txn.testing import MemoryNodes, SpoutContract, run_in_memory
from txn.tracing import Traces


class Page(BaseModel):
    """The metadata of a batch: one page of a web API."""

    number: int
    rows: int = 0


class PageSpout(Spout[Page]):
    """A spout with two capabilities beyond the contract."""

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Page

    def open(self, spark: SparkSession, previous: Page | None) -> StructType | None:
        return StructType([StructField("id", LongType())])

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Page | None
    ) -> Page | None:
        if attempt.txid > 100:
            raise FailedException("later")
        return Page(number=previous.number + 1 if previous else 0)

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Page
    ) -> DataFrame:
        return spark.range(metadata.number, metadata.number + 10)

    def planned_rows(self, metadata: Page) -> int | None:
        return metadata.rows

    def lag(self, newest: Page | None) -> Lag | None:
        return Lag(records=100 - newest.number if newest else None)


class ShardSpout(PartitionedSpout):
    """A spout over partitions."""

    kind = SpoutKind.OPAQUE

    def get_partitions(self) -> list[str]:
        return ["a", "b"]

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> Any | None:
        return (previous or 0) + 1

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        return spark.createDataFrame([(name,) for name in positions], "shard string")


class Product(Aggregate):
    """An aggregate of the user's own."""

    def __init__(self, column: str) -> None:
        self.column = column

    def partial(self) -> Column:
        return sf.product(self.column)

    def combine(self, stored: Column, partial: Column) -> Column:
        return stored * partial

    def zero(self) -> Column:
        return sf.lit(1.0)


class ListTable(Committer):
    """A committer into memory."""

    semantics = Semantics.OPAQUE
    name = "list"

    def __init__(self) -> None:
        self._published: list[Publication] = []

    def required_columns(self) -> Sequence[str]:
        return ("id",)

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        return batch if count_as is None else batch.withColumn(count_as, sf.lit(1))

    def open(
        self, spark: SparkSession, context: CommitterContext, schema: StructType | None
    ) -> None:
        self._epoch: int = context.epoch

    def fence(self) -> None:
        self._published.clear()

    def last_publication(self) -> tuple[int, Publication] | None:
        return (len(self._published), self._published[-1]) if self._published else None

    def stage(self, partials: DataFrame, attempt: TransactionAttempt) -> Staged:
        rows = partials.count()
        return Staged(attempt, (StagedFile(f"{attempt}", size=rows, rows=rows),))

    def prepare(self, staged: Staged, publication: Publication) -> Prepared:
        return Prepared(staged, adds=staged.files)

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        self._published.append(publication)
        return Published(len(self._published), prepared.adds)

    def discard(self, attempt: TransactionAttempt) -> None:
        return None

    def publications(self) -> Iterator[TablePublication]:
        return iter([TablePublication(n, p, 0) for n, p in enumerate(self._published)])


class Slow:
    """An observer."""

    def observe(self, event: RunEvent) -> None:
        if isinstance(event, StationEnded) and event.seconds > 10:
            print(event.station, *event.attempts, event.table or "", event.seconds)
        elif isinstance(event, BatchCommitted):
            print(event.attempt.txid, event.at)
        elif isinstance(event, AttemptFailed):
            print(event.attempt, event.cause, event.to_json()["error"])


def only_new(rows: DataFrame) -> DataFrame:
    return rows.where("value > 0")


def stamped(rows: DataFrame, attempt: TransactionAttempt) -> DataFrame:
    return rows.withColumn("txid", sf.lit(attempt.txid))


def program(folder: str | os.PathLike[str]) -> Topology:
    topology = Topology("shop", bad_rows=AppendTable("bad"), config=TopologyConfig())
    files = FileSpout(f"{folder}/*.csv", format="csv", schema="key string, value int", header=True)
    views = KafkaSpout("host:9092", topics=["views"], start_timestamp=datetime(2026, 1, 1))
    orders = topology.stream("orders", files)
    clicks = topology.stream("clicks", views, after=[orders])
    pages = topology.stream("pages", PageSpout())
    shards = topology.stream("shards", ShardSpout())
    topology.stream("copies", DeltaSpout("table")).partition_persist(AppendTable("copy"))
    rows = orders.transform(only_new).expect("key", "key IS NOT NULL", on_violation="drop")
    totals = rows.group_by("key").persistent_aggregate(
        StateTable("totals", layout="upsert"),
        n=Count(),
        total=Sum("value"),
        mean=Avg("value"),
        first=FirstN(3, "value", "value"),
        product=Product("value"),
    )
    totals.new_values().transform(stamped).partition_persist(AppendTable("history"))
    clicks.join(rows, on="key").aggregate(most=Max("value")).partition_persist(AppendTable("most"))
    pages.partition_persist(ListTable())
    shards.partition_persist(AppendTable("shards"))
    return topology


def run() -> int:
    spark = delta_session("shop", conf={"spark.sql.shuffle.partitions": "4"})
    observers: list[Observer] = [Slow(), PrometheusMetrics("127.0.0.1:9464"), Traces()]
    try:
        report = program("data").run(spark, until="caught_up", observers=observers)
    except TxnError as error:
        print(error)
        return 1
    print(report.committed_txid, len(history("shop", limit=10)))
    StateTable("totals").read(spark).show()
    return 0


def check(spark: SparkSession) -> None:
    spout: Spout[Page] = PageSpout()
    assert isinstance(spout, ReportsLag)
    nodes = MemoryNodes()
    assert run_in_memory(program("data"), spark, nodes).committed_txid > 0


class TestPageSpout(SpoutContract):
    """The contract kit over the spout."""

    def make_spout(self, folder: Path) -> PageSpout:
        return PageSpout()
