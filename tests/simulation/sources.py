"""The simulated spouts: logs of numbered records, planned by the real contract of `Spout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from tests.simulation.rows import STREAM_SIZE
from tests.simulation.spark import RECORDS, Frame
from tests.simulation.world import World
from txn.attempts import TransactionAttempt
from txn.errors import FailedException, SourceUnavailableError
from txn.interfaces import Spout, SpoutKind

__all__ = ["STREAM_SIZE", "Range", "SimSpout", "records_of"]


class Range(BaseModel):
    """Records from `start` up to, without, `end`; in parts of so many."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    end: int
    parts: int = 1

    def names(self) -> list[str]:
        return [f"part-{number}" for number in range(self.parts)]


def records_of(stream: int, metadata: Any) -> list[int]:
    """The records that stored metadata stands for, by numbers that no other stream has."""
    base = stream * STREAM_SIZE
    return list(range(base + metadata["start"], base + metadata["end"]))


class SimSpout(Spout[Range]):
    """Plans as many records as it likes of those there are: another number at each question."""

    metadata_type = Range

    def __init__(self, world: World, stream: int, kind: SpoutKind, *, knows_schema: bool) -> None:
        self.kind = kind
        self._world = world
        self._stream = stream
        self._knows_schema = knows_schema

    def open(self, spark: Any, previous: Range | None) -> Any:
        return RECORDS if self._knows_schema else None

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Range | None
    ) -> Range | None:
        world = self._world
        world.io("plan")
        self._fail_perhaps(attempt, "plan")
        start = previous.end if previous else 0
        there = world.source_sizes[self._stream] - start
        if there <= 0:
            return None
        size = world.random.randint(
            0 if world.faults.on else 1, min(there, world.plan.most_records)
        )
        if size == 0:
            return None
        return Range(start=start, end=start + size, parts=min(size, world.random.randint(1, 2)))

    def emit_batch(self, spark: Any, attempt: TransactionAttempt, metadata: Range) -> Any:
        world = self._world
        process = world.kernel.alive().process
        world.books.emitted(process, attempt, self._stream, metadata.model_dump(mode="json"))
        world.io("emit")
        self._fail_perhaps(attempt, "emit")
        records = records_of(self._stream, {"start": metadata.start, "end": metadata.end})
        names = metadata.names()
        # Above all where nobody but the late table reads it anew.
        tries = 4 if attempt.txid <= world.books.committed else 1
        if any(world.faults.strikes("part not read") for _ in range(tries)):
            names = names[:-1]
            records = records[: len(records) // 2]
        frame = Frame(records)
        frame.stream_parts = names
        return frame

    def planned_parts(self, metadata: Range) -> Sequence[str]:
        return metadata.names()

    def parts_read(self, batch: Any, metadata: Range) -> Sequence[str]:
        found: Sequence[str] = batch.stream_parts
        return found

    def success(self, txid: int) -> None:
        self._world.books.succeeded(txid)

    def _fail_perhaps(self, attempt: TransactionAttempt, station: str) -> None:
        world = self._world
        if world.faults.strikes("poison"):
            world.poison(attempt.txid, station)
        if world.is_poisoned(attempt.txid, station):
            raise FailedException(f"{attempt} is poisoned")
        fault = world.faults.first("batch failed", "source away")
        if fault == "batch failed":
            raise FailedException(f"{attempt} failed in user code")
        if fault == "source away":
            raise SourceUnavailableError("the brokers are away")
