"""A spout over any reader of Spark, without a guarantee.

Source: Trident's `IBatchSpout`, and its `RichSpoutBatchExecutor` around spouts without
transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from spouts._schemas import as_struct
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError
from txn.interfaces import Lag, Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ReaderSpout", "Reading"]


class Reading(BaseModel):
    """Metadata of `ReaderSpout`: the reading of a txid, and when it was planned."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: int = Field(ge=1)
    """Number of the reading, from 1."""
    planned_at: float
    """Seconds since the epoch."""


class ReaderSpout(Spout[Reading]):
    """Everything that `read` returns, as one batch: a full snapshot of the source now.

    NON_TRANSACTIONAL: a replay reads again and may get other rows, and two readings may hold the
    same row. So it goes with non-transactional tables only; any other is refused when the
    topology is built.

    It reads once in the life of the topology: a later run of the same topology does not read again.
    With `every`, it reads again when that many seconds have passed since the last reading was
    planned, restarts included. A run `until="caught_up"` ends when no reading is due: after one
    reading, if `every` is longer than a batch takes.

    Args:
        read: called on the driver, once per attempt; returns a DataFrame that is not streaming. A
            FailedException fails the batch; any other exception stops the topology.
        schema: the columns that `read` returns, as DDL or StructType; nullability is ignored.
        every: seconds between two readings; None: read only once.
        clock: seconds since the epoch.

    Raises:
        TopologyError: `every` is not above 0.
    """

    kind = SpoutKind.NON_TRANSACTIONAL
    metadata_type = Reading

    def __init__(
        self,
        read: Callable[[SparkSession], DataFrame],
        schema: str | StructType,
        *,
        every: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if every is not None and not every > 0:
            raise TopologyError(
                f"ReaderSpout has every={every}: give more than 0 seconds, or leave it out to "
                "read once.",
                number="TXN-415",
            )
        self._read = read
        self._schema = schema
        self._every = every
        self._clock = clock

    def open(self, spark: SparkSession, previous: Reading | None) -> StructType:
        """Return the schema; nothing is read yet."""
        return as_struct(self._schema, "ReaderSpout")

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Reading | None
    ) -> Reading | None:
        """Return the next reading, if it is due."""
        now = self._clock()
        if previous is None:
            return Reading(number=1, planned_at=now)
        if self._every is None or now < previous.planned_at + self._every:
            return None
        return Reading(number=previous.number + 1, planned_at=now)

    def lag(self, newest: Reading | None) -> Lag | None:
        """Return the seconds since the next reading was due; 0 after the only one."""
        if newest is None:
            return None
        if self._every is None:
            return Lag(seconds=0.0)
        return Lag(seconds=max(0.0, self._clock() - newest.planned_at - self._every))

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Reading
    ) -> DataFrame:
        """Return the DataFrame that `read` returns now.

        Raises:
            TopologyError: it is not a DataFrame, is streaming, or has another schema.
        """
        from pyspark.sql import DataFrame

        frame: object = self._read(spark)
        if not isinstance(frame, DataFrame) or frame.isStreaming:
            kind = "a streaming one" if isinstance(frame, DataFrame) else type(frame).__name__
            raise TopologyError(
                f"The reader of ReaderSpout must return a DataFrame that is not streaming, but "
                f"returned {kind}. Use spark.read.",
                number="TXN-415",
            )
        declared = _columns(as_struct(self._schema, "ReaderSpout"))
        columns = _columns(frame.schema)
        if declared != columns:
            raise TopologyError(
                f"The reader of ReaderSpout returned the columns {', '.join(columns)}, but its "
                f"schema has {', '.join(declared)}. Correct one of them.",
                number="TXN-411",
            )
        return frame


def _columns(schema: StructType) -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in schema]
