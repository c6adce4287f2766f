"""Sales of some shops, out of a service: the program of the recorded run (recorded.py beside it).

SALES_URL=http://127.0.0.1:8000 txn run sales.py:topology
"""

from __future__ import annotations

import json
import os
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from pydantic import BaseModel

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.errors import SourceUnavailableError
from txn.interfaces import Lag, Spout, SpoutKind
from txn.spark.rows import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SCHEMA = "shop string, amount string"
URL = os.environ["SALES_URL"]


class Span(BaseModel):
    """The sales [start, end) of the service."""

    start: int
    end: int


class ServiceSpout(Spout[Span]):
    """All sales that the service has and that no txid has read, as the next batch."""

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Span
    _size = 0

    def open(self, spark: SparkSession, previous: Span | None) -> StructType:
        from txn.spark.differences import parse_ddl

        return parse_ddl(SCHEMA)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Span | None
    ) -> Span | None:
        start = 0 if previous is None else previous.end
        self._size = ask("size")
        return Span(start=start, end=self._size) if self._size > start else None

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Span
    ) -> DataFrame:
        sales = ask(f"sales/{metadata.start}/{metadata.end}")
        return local_frame(spark, [tuple(sale) for sale in sales], self.open(spark, None))

    def planned_rows(self, metadata: Span) -> int:
        return metadata.end - metadata.start

    def lag(self, newest: Span | None) -> Lag:
        return Lag(records=self._size - (0 if newest is None else newest.end))


def ask(what: str) -> Any:
    """The service's answer."""
    try:
        with urlopen(f"{URL}/{what}", timeout=1) as answer:
            return json.load(answer)
    except (OSError, HTTPException) as error:
        raise SourceUnavailableError(f"the service of sales at {URL}: {error}") from error


def corrected(sales: DataFrame) -> DataFrame:
    """Amounts as numbers; corrections.json has those that the shops wrote otherwise."""
    from pyspark.sql import functions as sf

    amount = sf.col("amount")
    for wrong, right in json.loads(Path("corrections.json").read_text("utf-8")).items():
        amount = sf.when(sf.col("amount") == wrong, sf.lit(right)).otherwise(amount)
    return sales.withColumn("amount", amount.cast("decimal(12,2)"))


topology = Topology(
    "sales",
    TopologyConfig(
        batch_emit_interval_ms=200,
        max_batch_attempts=2,
        on_exhausted="quarantine",
        zookeeper_timeout_secs=4,
    ),
)
sales = topology.stream("sales", ServiceSpout()).transform(corrected)
sales.partition_persist(AppendTable("warehouse/sales"))
sales.group_by("shop").persistent_aggregate(
    StateTable("warehouse/totals", buckets=2), sales=Count(), amount=Sum("amount")
)
