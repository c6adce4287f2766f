"""Spouts that have what a declaration says, by txid."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from tests.differential.declaration import Source, Variant
from tests.differential.values import decode, element_of, fields_of
from txn.attempts import TransactionAttempt
from txn.interfaces import PartitionedSpout, PartitionPositions, Spout, SpoutKind
from txn.spark.differences import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["schema_of", "spout_of"]

EPOCH = dt.datetime(1970, 1, 1)


def spout_of(source: Source) -> Spout[Any]:
    """The spout that the declaration describes."""
    return _PartitionedScript(source) if source.partitions else _Script(source)


class _Position(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    txid: int
    attempt: int


class _Script(Spout[_Position]):
    """Rows by txid and, if it is opaque, by attempt."""

    metadata_type = _Position

    def __init__(self, source: Source) -> None:
        self.kind = SpoutKind(source.kind)
        self._source = source

    def open(self, spark: SparkSession, previous: _Position | None) -> StructType | None:
        return schema_of(self._source.columns) if self._source.known else None

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: _Position | None
    ) -> _Position | None:
        number = _variant(self._source, attempt)
        return None if number is None else _Position(txid=attempt.txid, attempt=number)

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: _Position
    ) -> DataFrame:
        variant = _read(self._source, metadata.txid, metadata.attempt)
        return _frame(spark, self._source, [row for part in variant for row in part])

    def planned_rows(self, metadata: _Position) -> int:
        return sum(map(len, _read(self._source, metadata.txid, metadata.attempt)))


class _PartitionedScript(PartitionedSpout):
    """The same, each part in a partition of its own; one that is empty is idle."""

    def __init__(self, source: Source) -> None:
        self.kind = SpoutKind(source.kind)
        self._source = source

    def open(self, spark: SparkSession, previous: PartitionPositions | None) -> StructType | None:
        return schema_of(self._source.columns) if self._source.known else None

    def get_partitions(self) -> list[str]:
        return [f"p{number}" for number in range(self._source.partitions)]

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> dict[str, int] | None:
        number = _variant(self._source, attempt)
        if number is None:
            return None
        part = _read(self._source, attempt.txid, number)[int(partition[1:])]
        return {"txid": attempt.txid, "attempt": number} if part else None

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        rows = [
            row
            for name, at in sorted(positions.items())
            for row in _read(self._source, at["txid"], at["attempt"])[int(name[1:])]
        ]
        return _frame(spark, self._source, rows)

    def planned_rows(self, metadata: PartitionPositions) -> int:
        return sum(
            len(_read(self._source, at["txid"], at["attempt"])[int(name[1:])])
            for name, at in metadata.read.items()
        )


def _variant(source: Source, attempt: TransactionAttempt) -> int | None:
    batch = source.batches[attempt.txid - 1] if attempt.txid <= len(source.batches) else None
    if batch is None:
        return None
    replays_differ = source.kind != "transactional"
    return min(attempt.attempt_id, len(batch) - 1) if replays_differ else 0


def _read(source: Source, txid: int, attempt: int) -> Variant:
    batch = source.batches[txid - 1]
    assert batch is not None
    return batch[attempt]


def schema_of(columns: tuple[tuple[str, str], ...]) -> StructType:
    """Spark's schema of these columns, whatever the session says."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for name, kind in columns:
        # As written, whatever `spark.sql.timestampType` says.
        ltz = re.sub(r"\btimestamp\b", "timestamp_ltz", kind)
        schema.add(name, parse_ddl(ltz))
    return schema


def _frame(spark: SparkSession, source: Source, rows: list[tuple[Any, ...]]) -> DataFrame:
    made = [
        tuple(
            _python(decode(value, kind), kind)
            for (_, kind), value in zip(source.columns, row, strict=True)
        )
        for row in rows
    ]
    return spark.createDataFrame(made, schema_of(source.columns))


def _python(value: Any, kind: str) -> Any:
    """A value as `createDataFrame` takes it, whatever the time zone."""
    if value is None:
        return None
    if (element := element_of(kind)) is not None:
        return [_python(one, element) for one in value]
    if (fields := fields_of(kind)) is not None:
        pairs = zip(value, fields.values(), strict=True)
        return tuple(_python(one, field) for one, field in pairs)
    if kind == "date":
        return (EPOCH + dt.timedelta(days=value)).date()
    if kind == "timestamp_ntz":
        return EPOCH + dt.timedelta(microseconds=value)
    if kind == "timestamp":
        return (EPOCH + dt.timedelta(microseconds=value)).replace(tzinfo=dt.timezone.utc)
    return value
