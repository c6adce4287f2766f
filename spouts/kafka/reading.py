"""Read planned offsets of Kafka with Spark's own source."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spouts.kafka.cluster import Partition
from spouts.kafka.plan import Position
from txn.errors import SetupError
from txn.spark.differences import condition_of
from txn.spark.jvm import if_known, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KafkaReader", "allow_own_group"]

_SPARKS_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp_ltz, timestampType int"
)
_HEADERS = ", headers array<struct<key: string, value: binary>>"


class KafkaReader:
    """Reads records as Spark's source has them, with its options that reach the brokers."""

    def __init__(self, spout: str, options: Mapping[str, str], *, include_headers: bool) -> None:
        self._spout, self._options = spout, options
        self._include_headers = include_headers
        self._group = ""
        self.renew_group()

    @property
    def schema(self) -> str:
        """The columns of a record, as DDL."""
        return _COLUMNS + (_HEADERS if self._include_headers else "")

    @property
    def columns(self) -> list[str]:
        """The names of these columns."""
        columns = [column.split()[0] for column in _COLUMNS.split(", ")]
        return columns + ["headers"] * self._include_headers

    def renew_group(self) -> None:
        """Take another group id, named as Spark names its own.

        Consumers keep records fetched ahead by group, also of a topic that is now another one.
        """
        self._group = f"spark-kafka-relation-{uuid.uuid4()}-executor"

    def rows(self, spark: SparkSession, planned: Mapping[Partition, Position]) -> DataFrame:
        """Return the records of these offsets, lazily.

        Raises:
            SetupError: the Spark session has no Kafka source.
        """
        from pyspark.errors import AnalysisException

        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for (topic, number), position in planned.items():
            assigned.setdefault(topic, []).append(number)
            starts.setdefault(topic, {})[str(number)] = position.start
            ends.setdefault(topic, {})[str(number)] = position.end
        positions = {
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            # Always: `on_data_loss` is applied when a batch is planned.
            "failOnDataLoss": "true",
            "includeHeaders": str(self._include_headers).lower(),
            # Executors keep consumers, and their connections, by group: a new one for each
            # partition of each batch costs more than reading a small batch. No group is joined.
            "kafka.group.id": self._group,
        }
        reader = spark.read.format("kafka").options(**{**self._options, **positions})
        try:
            return reader.load()
        except AnalysisException as error:
            if condition_of(error) != "DATA_SOURCE_NOT_FOUND" and "find data source" not in str(
                error
            ):
                raise
            raise SetupError(
                f"{self._spout} needs Spark's Kafka source, which this Spark session does not "
                "have. Start it with delta_session(..., packages=KafkaSpout.packages); `txn run` "
                "does.",
                number="TXN-211",
            ) from error


def allow_own_group(spark: SparkSession) -> None:
    """Silence Spark's warning at each batch, as if the group were joined."""
    jvm = jvm_of(spark)
    if jvm is not None:
        configurator = jvm.org.apache.logging.log4j.core.config.Configurator
        level = jvm.org.apache.logging.log4j.Level
        if_known(lambda: configurator.setLevel(_SPARKS_PROVIDER, level.ERROR))
