"""A spout that the program feeds, one batch at a time, and that says when a batch is committed.

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
from txn.interfaces import Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FeederSpout", "Feeding"]


class Feeding(BaseModel):
    """Metadata of `FeederSpout`: which of its batches a txid is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    feeder: str
    """Which object was fed: rows are in the memory of that one alone."""
    number: int = Field(ge=1)
    """Number of the batch within that object, from 1."""


class FeederSpout(Spout[Feeding]):
    """What the program feeds: each `feed` is one batch, and comes back when that is committed.

    OPAQUE, not transactional: the rows are in this object's memory only. Within the process every
    batch is in exactly one successful txid, whatever fails. If the process dies while `feed` has
    not come back, a batch that was not yet committed is reverted from the tables and is lost with
    the memory; whether it was, only the tables can say.

    Run it with `until="forever"`, since "caught_up" ends as soon as nothing is queued. A batch
    that the topology quarantines counts as committed: it is, without its rows.

    Args:
        schema: DDL or StructType.
        clock: seconds that never go back; for the timeouts.
        name: identity of this object, different from that of any earlier one.
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
        """See the class."""
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

        Safe from any thread but one that works for the topology. Feeding does not need a run:
        the batch is taken by the next one that has this object.

        Args:
            timeout: seconds to wait; 0 only queues; None waits as long as it takes.

        Returns:
            True: it is committed. False: the time passed, or the run ended before it was known to
            be; the batch stays queued, so it is not to be fed again.
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
        """The schema; nothing else is to be done."""
        return as_struct(self._schema, "FeederSpout")

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Feeding | None
    ) -> Feeding | None:
        """The batch after `previous`; None while nothing more was fed."""
        with self._changed:
            ours = previous is not None and previous.feeder == self._name
            number = previous.number + 1 if previous is not None and ours else 1
            # The newest plan of a txid is the one that can be committed.
            self._planned.pop(attempt.txid, None)
            if number > self._fed:
                return None
            self._planned[attempt.txid] = number
            return Feeding(feeder=self._name, number=number)

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Feeding
    ) -> DataFrame:
        """The rows of the batch.

        Raises:
            FailedException: the rows are not in this object's memory: another one was fed.
        """
        with self._changed:
            rows = self._batches.get(metadata.number)
        if metadata.feeder != self._name or rows is None:
            raise FailedException(
                f"Batch {metadata.number} of {attempt} was fed to another FeederSpout, or was "
                "committed already: its rows are gone. Feed them again if the tables lack them."
            )
        return frame_of(spark, rows, self._schema)

    def planned_rows(self, metadata: Feeding) -> int | None:
        """Exactly as many as were fed; None for what another object was fed."""
        with self._changed:
            rows = self._batches.get(metadata.number)
        return len(rows) if rows is not None and metadata.feeder == self._name else None

    def success(self, txid: int) -> None:
        """The batch of the txid is committed: its `feed` comes back, its rows are forgotten."""
        with self._changed:
            done = [number for t, number in self._planned.items() if t <= txid]
            self._planned = {t: number for t, number in self._planned.items() if t > txid}
            self._committed = max([self._committed, *done])
            for number in [n for n in self._batches if n <= self._committed]:
                del self._batches[number]
            self._changed.notify_all()

    def close(self) -> None:
        """The run ended: every `feed` that waits comes back."""
        with self._changed:
            self._runs_ended += 1
            self._planned.clear()
            self._changed.notify_all()
