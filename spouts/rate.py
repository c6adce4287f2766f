"""A generator of rows, for load tests and demonstrations.

Source: Spark's own "rate" sources of Structured Streaming, which have the same two columns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from spouts._sizes import BatchSize, Size
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError
from txn.interfaces import Lag, Spout, SpoutKind
from txn.spark.lazy import sf, st
from txn.spark.origins import unnoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RateSpan", "RateSpout"]


class RateSpan(BaseModel):
    """Metadata of `RateSpout`: the values [start, end), and the interval of their timestamps."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    start: int = Field(ge=0)
    end: int = Field(ge=0)
    interval_us: int = Field(ge=0)


class RateSpout(Spout[RateSpan]):
    """The integers from 0 up as rows (value bigint, timestamp timestamp), made by Spark itself.

    Transactional: a row is a function of its value, `timestamp` is `value * interval_us` after
    1970-01-01 00:00 UTC. So replays are identical, and you can compute a result beforehand.

    Without `total` it never ends: run it `until` a txid. With `rows_per_second` a batch is due when
    the pace allows it, counted from the start of the run. A run `until="caught_up"` ends when no
    batch is due, so here too a txid is better.

    Args:
        rows_per_batch: values in a batch; the last one of `total` may have fewer. (least, most):
            `least` while the topology is caught up, up to `most` while it is behind.
        total: number of values; None: they never end.
        rows_per_second: the pace; None: as fast as batches are asked for.
        interval_us: microseconds between the timestamps of two values.
        partitions: Spark partitions of a batch; None: Spark's default parallelism.
        clock: seconds that never go back; for the pace.

    Raises:
        TopologyError: a number that is too small.
    """

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = RateSpan

    def __init__(
        self,
        rows_per_batch: Size,
        *,
        total: int | None = None,
        rows_per_second: float | None = None,
        interval_us: int = 1000,
        partitions: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _require("total", total, total is None or total >= 0, "0 or more")
        pace_is_positive = rows_per_second is None or 0 < rows_per_second < math.inf
        _require("rows_per_second", rows_per_second, pace_is_positive, "more than 0")
        _require("interval_us", interval_us, interval_us >= 0, "0 or more")
        _require("partitions", partitions, partitions is None or partitions >= 1, "1 or more")
        self._size = BatchSize(rows_per_batch, "RateSpout", "rows_per_batch")
        self._total = total
        self._rows_per_second = rows_per_second
        self._interval_us = interval_us
        self._partitions = partitions
        self._clock = clock
        self._began = clock()
        self._first = 0

    def open(self, spark: SparkSession, previous: RateSpan | None) -> st.StructType:
        """Return the schema; the pace counts from now, and from the last run's end."""
        self._began = self._clock()
        self._first = previous.end if previous is not None else 0
        return (
            st.StructType().add("value", st.LongType(), False).add("timestamp", st.TimestampType())
        )

    def set_batch_target(self, share: float) -> None:
        """Move within the range of `rows_per_batch`."""
        self._size.set_target(share)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: RateSpan | None
    ) -> RateSpan | None:
        """Return the next values; None if all were taken, or if the next batch is not due yet."""
        start = previous.end if previous is not None else 0
        end = self._end_after(start)
        if end <= start or end > self._due():
            return None
        return RateSpan(start=start, end=end, interval_us=self._interval_us)

    @unnoted()
    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: RateSpan
    ) -> DataFrame:
        """Return the values of the batch."""
        numbers = spark.range(metadata.start, metadata.end, numPartitions=self._partitions)
        value = sf.col("id")
        micros = value * sf.lit(metadata.interval_us).cast("bigint")
        return numbers.select(value.alias("value"), sf.timestamp_micros(micros).alias("timestamp"))

    def planned_rows(self, metadata: RateSpan) -> int:
        """Return the number of rows to be emitted."""
        return metadata.end - metadata.start

    def lag(self, newest: RateSpan | None) -> Lag | None:
        """Return the values due, or left of `total`; with a pace, also the delay in seconds.

        None: they never end and have no pace.
        """
        taken, pace = newest.end if newest is not None else 0, self._rows_per_second
        due = self._due() if self._total is None else min(self._due(), self._total)
        if math.isinf(due):
            return None
        left = max(0, math.floor(due) - taken)
        if pace is None:
            return Lag(records=left)
        end = self._end_after(taken)
        since = (self._due() - end) / pace if end > taken else 0.0
        return Lag(records=left, seconds=max(0.0, since))

    def _end_after(self, start: int) -> int:
        """Return the end of the batch that begins at `start`."""
        end = start + self._size.now
        return end if self._total is None else min(end, self._total)

    def _due(self) -> float:
        """Return the value up to which the pace allows batches by now."""
        if self._rows_per_second is None:
            return math.inf
        return self._first + (self._clock() - self._began) * self._rows_per_second


def _require(name: str, value: float | None, is_right: bool, allowed: str) -> None:
    if not is_right:
        raise TopologyError(
            f"RateSpout was given {name}={value}: it must be {allowed}.", number="TXN-415"
        )
