"""Spouts whose rows are written in the program: for tests, and to show a guarantee.

Source: Storm's and Trident's own doubles, `MemoryTransactionalSpout`,
`OpaqueMemoryTransactionalSpout`, `FixedBatchSpout` and `FeederBatchSpout`. Failures are placed in
the data: an exception among the rows is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from spouts._rows import Rows, frame_of
from spouts._schemas import as_struct
from spouts.feeder import FeederSpout
from spouts.memory_partitions import MemoryPartitionedSpout
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError
from txn.interfaces import Lag, Spout, SpoutKind
from txn.spark.origins import unnoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "FeederSpout",
    "MemoryOpaqueSpout",
    "MemoryPartitionedSpout",
    "MemoryPosition",
    "MemoryTransactionalSpout",
    "ScriptedAttempt",
]

Script = Mapping[tuple[int, int], Rows | None] | Callable[[int, int], Rows | None]
"""(txid, attempt id) -> rows; None: nothing to read."""


class MemoryPosition(BaseModel):
    """Metadata of `MemoryTransactionalSpout`: the index of a txid's batch."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    index: int = Field(ge=0)


class MemoryTransactionalSpout(Spout[MemoryPosition]):
    """The given batches, one per txid, the same on every replay; then nothing more.

    This object raises an exception among the rows of a batch once, and the next attempt emits the
    batch without it. Several exceptions are raised one per attempt, in their order.

    Args:
        batches: rows by batch.
        schema: DDL or StructType.
        cycle: True to begin again after the last batch (Trident: `FixedBatchSpout.setCycle`).
    """

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = MemoryPosition

    def __init__(
        self, batches: Sequence[Rows], schema: str | StructType, *, cycle: bool = False
    ) -> None:
        self._batches = batches
        self._schema = schema
        self._cycle = cycle and bool(batches)
        self._before = [0]
        """Rows before each of the batches that `lag` has counted, and after the last of them."""
        self._raised: set[tuple[int, int]] = set()
        self._lock = Lock()  # attempts of several txids are emitted at once

    def open(self, spark: SparkSession, previous: MemoryPosition | None) -> StructType:
        """Return the schema; there is nothing else to do."""
        return as_struct(self._schema, "MemoryTransactionalSpout")

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: MemoryPosition | None
    ) -> MemoryPosition | None:
        """Return the batch after `previous`; None if all were taken."""
        index = 0 if previous is None else previous.index + 1
        return None if self._rows(index) is None else MemoryPosition(index=index)

    @unnoted()
    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """Return the rows of the batch.

        Raises:
            Exception: the next exception among the rows that was not raised yet.
            TopologyError: this run was given fewer batches than an earlier one planned.
        """
        rows = self._require_rows(attempt, metadata)
        self._raise_next(metadata.index, rows)
        content = [row for row in rows if not isinstance(row, Exception)]
        return frame_of(spark, content, self._schema)

    def readable(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> MemoryPosition:
        """Return the batch; raises TopologyError as `emit_batch`."""
        self._require_rows(attempt, metadata)
        return metadata

    def _require_rows(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> Rows:
        rows = self._rows(metadata.index)
        if rows is None:
            raise TopologyError(
                f"MemoryTransactionalSpout has {len(self._batches)} batches, but {attempt} was "
                f"planned as number {metadata.index + 1}. Give it the same batches again.",
                number="TXN-417",
            )
        return rows

    def planned_rows(self, metadata: MemoryPosition) -> int | None:
        """Return the number of rows to emit; None for a batch that this object does not have."""
        rows = self._rows(metadata.index)
        return None if rows is None else _count(rows)

    def lag(self, newest: MemoryPosition | None) -> Lag | None:
        """Return the rows of the batches after `newest`; None with `cycle`, which never ends."""
        if self._cycle:
            return None
        for rows in self._batches[len(self._before) - 1 :]:
            self._before.append(self._before[-1] + _count(rows))
        taken = 0 if newest is None else min(newest.index + 1, len(self._before) - 1)
        return Lag(records=self._before[-1] - self._before[taken])

    def _rows(self, index: int) -> Rows | None:
        if self._cycle:
            index %= len(self._batches)
        return self._batches[index] if index < len(self._batches) else None

    def _raise_next(self, index: int, rows: Rows) -> None:
        with self._lock:
            for place, row in enumerate(rows):
                if isinstance(row, Exception) and (index, place) not in self._raised:
                    self._raised.add((index, place))
                    raise row


def _count(rows: Rows) -> int:
    return sum(not isinstance(row, Exception) for row in rows)


class ScriptedAttempt(BaseModel):
    """Metadata of `MemoryOpaqueSpout`: the attempt whose rows to emit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    txid: int = Field(ge=1)
    attempt_id: int = Field(ge=0)


class MemoryOpaqueSpout(Spout[ScriptedAttempt]):
    """Rows scripted by txid and attempt, so that a replay can differ from the failed attempt.

    An attempt that is not in the script has the rows of the next lower one that is; a txid that is
    not in the script has nothing to read. Every emission of an attempt raises an exception among
    its rows.

    Args:
        script: (txid, attempt id) -> rows or None, or a function of both.
        schema: DDL or StructType.
        kind: OPAQUE, or NON_TRANSACTIONAL to play a source that promises nothing.
    """

    metadata_type = ScriptedAttempt

    def __init__(
        self, script: Script, schema: str | StructType, *, kind: SpoutKind = SpoutKind.OPAQUE
    ) -> None:
        self._script = script
        self._schema = schema
        self.kind = kind

    def open(self, spark: SparkSession, previous: ScriptedAttempt | None) -> StructType:
        """Return the schema; there is nothing else to do."""
        return as_struct(self._schema, "MemoryOpaqueSpout")

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: ScriptedAttempt | None
    ) -> ScriptedAttempt | None:
        """Return this attempt, if the script has rows for it; else None."""
        if self._rows(attempt.txid, attempt.attempt_id) is None:
            return None
        return ScriptedAttempt(txid=attempt.txid, attempt_id=attempt.attempt_id)

    @unnoted()
    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: ScriptedAttempt
    ) -> DataFrame:
        """Return the scripted rows.

        Raises:
            Exception: the first exception among the rows.
        """
        rows = self._rows(metadata.txid, metadata.attempt_id) or ()
        for row in rows:
            if isinstance(row, Exception):
                raise row
        return frame_of(spark, rows, self._schema)

    def _rows(self, txid: int, attempt_id: int) -> Rows | None:
        if callable(self._script):
            return self._script(txid, attempt_id)
        for lower in range(attempt_id, -1, -1):
            if (txid, lower) in self._script:
                return self._script[txid, lower]
        return None
