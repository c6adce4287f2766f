"""A spout that the program feeds, one batch at a time, and that confirms each commit.

Source: `org.apache.storm.trident.testing.FeederBatchSpout`. Users import it from `spouts.memory`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from threading import Condition
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from spouts._rows import Row, frame_of
from spouts._schemas import as_struct
from txn.attempts import TransactionAttempt
from txn.errors import FailedException
from txn.interfaces import Lag, Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FeederSpout", "Feeding"]


class Feeding(BaseModel):
    """Metadata of `FeederSpout`: the number of a txid's batch."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    feeder: str
    """The object that was fed; only its memory has the rows."""
    number: int = Field(ge=1)
    """Number of the batch within that object, from 1."""


class FeederSpout(Spout[Feeding]):
    """A spout that the program feeds: each `feed` is one batch, and returns when it is committed.

    OPAQUE, not transactional: only this object's memory has the rows. Within the process every
    batch is in exactly one successful txid, whatever fails. If the process dies before `feed`
    returns, an uncommitted batch is reverted from the tables and lost with the memory; only the
    tables show whether it was committed.

    Run it with `until="forever"`, because "caught_up" ends as soon as nothing is queued. A batch
    that the topology quarantines counts as committed, but its rows are not in the tables.

    Args:
        schema: DDL or StructType.
        clock: seconds that never go back; for the timeouts.
        name: id of this object; no earlier one may have had it.
    """

    kind = SpoutKind.OPAQUE
    metadata_type = Feeding

    def __init__(
        self,
        schema: str | StructType,
        *,
        clock: Callable[[], float] = time.monotonic,
        name: str | None = None,
    ) -> None:
        self._schema = schema
        self._clock = clock
        self._name = name if name is not None else uuid.uuid4().hex
        self._batches: dict[int, list[Row]] = {}
        self._fed = 0
        self._committed = 0
        self._runs_ended = 0
        self._planned: dict[int, int] = {}
        self._changed = Condition()

    def feed(self, rows: Sequence[Row], timeout: float | None = None) -> bool:
        """Queue one batch and wait until it is committed, in every table.

        Call it from any thread but one that works for the topology. It needs no run: the next run
        that has this object takes the batch.

        Args:
            timeout: seconds to wait; 0 only queues; None waits as long as it takes.

        Returns:
            True: it is committed. False: the timeout passed, or the run ended, before the commit
            was confirmed. The batch stays queued: do not feed it again.
        """
        with self._changed:
            self._fed += 1
            number, ended = self._fed, self._runs_ended
            self._batches[number] = list(rows)
            until = None if timeout is None else self._clock() + timeout
            while self._committed < number and self._runs_ended == ended:
                left = None if until is None else until - self._clock()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return self._committed >= number

    def open(self, spark: SparkSession, previous: Feeding | None) -> StructType:
        """Return the schema; there is nothing else to do."""
        return as_struct(self._schema, "FeederSpout")

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Feeding | None
    ) -> Feeding | None:
        """Return the batch after `previous`; None while nothing more was fed."""
        with self._changed:
            is_own = previous is not None and previous.feeder == self._name
            number = previous.number + 1 if previous is not None and is_own else 1
            # The newest plan of a txid is the one that can be committed.
            self._planned.pop(attempt.txid, None)
            if number > self._fed:
                return None
            self._planned[attempt.txid] = number
            return Feeding(feeder=self._name, number=number)

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Feeding
    ) -> DataFrame:
        """Return the rows of the batch.

        Raises:
            FailedException: the rows are not in this object's memory: another object was fed.
        """
        return frame_of(spark, self._fed_rows(attempt, metadata), self._schema)

    def readable(self, attempt: TransactionAttempt, metadata: Feeding) -> Feeding:
        """Return the batch, if its rows are still in memory; raises as `emit_batch`."""
        self._fed_rows(attempt, metadata)
        return metadata

    def _fed_rows(self, attempt: TransactionAttempt, metadata: Feeding) -> list[Row]:
        with self._changed:
            rows = self._batches.get(metadata.number)
        if metadata.feeder != self._name or rows is None:
            raise FailedException(
                f"Batch {metadata.number} of {attempt} was fed to another FeederSpout, or was "
                "committed already: its rows are gone. Feed them again if the tables lack them.",
                number="TXN-417",
            )
        return rows

    def planned_rows(self, metadata: Feeding) -> int | None:
        """Return the number of rows that were fed; None if another object was fed."""
        with self._changed:
            rows = self._batches.get(metadata.number)
        return len(rows) if rows is not None and metadata.feeder == self._name else None

    def lag(self, newest: Feeding | None) -> Lag:
        """Return the rows that were fed after `newest`."""
        is_own = newest is not None and newest.feeder == self._name
        taken = newest.number if newest is not None and is_own else 0
        with self._changed:
            return Lag(records=sum(len(self._batches[n]) for n in self._batches if n > taken))

    def success(self, txid: int) -> None:
        """Let `feed` return for the batch of a committed txid, and forget its rows."""
        with self._changed:
            done = [number for t, number in self._planned.items() if t <= txid]
            self._planned = {t: number for t, number in self._planned.items() if t > txid}
            self._committed = max([self._committed, *done])
            for number in [n for n in self._batches if n <= self._committed]:
                del self._batches[number]
            self._changed.notify_all()

    def close(self) -> None:
        """Let every waiting `feed` return: the run has ended."""
        with self._changed:
            self._runs_ended += 1
            self._planned.clear()
            self._changed.notify_all()
