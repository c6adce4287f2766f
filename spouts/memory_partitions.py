"""A spout over named partitions whose rows are in the program.

Source: `MemoryTransactionalSpout` and `OpaqueMemoryTransactionalSpout` of Storm's transactional
topologies (`takePerPartition`, `setDisabled`). Users import it from `spouts.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

from spouts._rows import Row, Rows, frame_of
from spouts._schemas import as_struct
from spouts._sizes import BatchSize, Size
from txn.attempts import TransactionAttempt
from txn.errors import SourceChangedError, SourceUnavailableError, TopologyError
from txn.interfaces import Lag, PartitionedSpout, PartitionPositions, SpoutKind
from txn.spark.origins import unnoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["MemoryPartitionedSpout"]


class MemoryPartitionedSpout(PartitionedSpout):
    """Partitions of rows, each read in order, at most `take_per_partition` rows in a batch.

    You can disable (`set_disabled`), add (`add_partition`) and remove (`remove_partition`)
    partitions at any time, from any thread. A disabled or removed one is away. A name is durable:
    a partition that comes back under the same name goes on where it was, and must hold the same
    rows up to there.

    TRANSACTIONAL: the first plan of a txid fixes its rows. If a partition of that plan is away at a
    replay, the batch waits for it. OPAQUE: each attempt is planned again, over the partitions that
    are there then; a later txid reads the others.

    This object raises an exception among the rows once, at the first emission that reaches it. The
    exception belongs to the row after it (at the end of a partition: to the row before it).

    Args:
        partitions: name -> rows.
        schema: DDL or StructType.
        take_per_partition: most rows that a batch has of one partition (Storm:
            `takePerPartition`); (least, most): at most `least` while the topology is caught up,
            and up to `most` while it is behind.
        kind: TRANSACTIONAL or OPAQUE.

    Raises:
        TopologyError: another kind, or an invalid `take_per_partition`.
    """

    def __init__(
        self,
        partitions: Mapping[str, Rows],
        schema: str | StructType,
        *,
        take_per_partition: Size,
        kind: SpoutKind | str = SpoutKind.TRANSACTIONAL,
    ) -> None:
        self.kind = SpoutKind(kind)
        if self.kind is SpoutKind.NON_TRANSACTIONAL:
            raise TopologyError(
                "A MemoryPartitionedSpout is transactional or opaque; for a source that promises "
                "nothing use MemoryOpaqueSpout(kind=SpoutKind.NON_TRANSACTIONAL) or ReaderSpout.",
                number="TXN-415",
            )
        self._schema = schema
        self._take = BatchSize(take_per_partition, "MemoryPartitionedSpout", "take_per_partition")
        self._rows: dict[str, list[Row]] = {}
        self._failures: dict[str, list[tuple[int, Exception]]] = {}
        self._disabled: set[str] = set()
        self._lock = RLock()  # planning, emitting and the program's own calls meet here
        for name, rows in partitions.items():
            self.add_partition(name, rows)

    # --- changes of the source by the program ----------------------------------------------------

    def set_disabled(self, partition: str, disabled: bool) -> None:
        """Take a partition away, or bring it back (Storm: `setDisabled`).

        Raises:
            TopologyError: there is no such partition.
        """
        with self._lock:
            self._require(partition)
            if disabled:
                self._disabled.add(partition)
            else:
                self._disabled.discard(partition)

    def add_partition(self, name: str, rows: Rows) -> None:
        """Add a partition; it is read from its start, or from its last position under this name.

        Raises:
            TopologyError: the partition exists already.
        """
        with self._lock:
            if name in self._rows:
                raise TopologyError(
                    f"MemoryPartitionedSpout has a partition '{name}' already. Remove it first, or "
                    "choose another name.",
                    number="TXN-415",
                )
            content: list[Row] = []
            failures: list[tuple[int, Exception]] = []
            for row in rows:
                if isinstance(row, Exception):
                    failures.append((len(content), row))
                else:
                    content.append(row)
            last = max(len(content) - 1, 0)
            self._rows[name] = content
            self._failures[name] = [(min(index, last), error) for index, error in failures]

    def remove_partition(self, name: str) -> None:
        """Remove a partition; its rows that are in no batch yet are never read.

        Raises:
            TopologyError: there is no such partition.
        """
        with self._lock:
            self._require(name)
            del self._rows[name], self._failures[name]
            self._disabled.discard(name)

    def _require(self, name: str) -> None:
        if name not in self._rows:
            raise TopologyError(
                f"MemoryPartitionedSpout has no partition '{name}'; it has: "
                f"{', '.join(sorted(self._rows)) or 'none'}.",
                number="TXN-415",
            )

    # --- the spout -------------------------------------------------------------------------------

    def open(self, spark: SparkSession, previous: PartitionPositions | None) -> StructType:
        """Return the schema; there is nothing else to do."""
        return as_struct(self._schema, "MemoryPartitionedSpout")

    def set_batch_target(self, share: float) -> None:
        """Move within the range of `take_per_partition`."""
        self._take.set_target(share)

    def get_partitions(self) -> list[str]:
        """Return the names of all partitions, also of disabled ones."""
        with self._lock:
            return sorted(self._rows)

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> dict[str, int] | None:
        """Return a partition's next rows: {"start", "end"}; None at its end, or while it is away.

        Raises:
            SourceChangedError: it holds fewer rows than were already read.
        """
        with self._lock:
            if self._is_away(partition):
                return None
            start = 0 if previous is None else previous["end"]
            self._require_rows(attempt, partition, start)
            end = min(start + self._take.now, len(self._rows[partition]))
            return {"start": start, "end": end} if end > start else None

    @unnoted()
    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """Return the rows at these positions.

        Raises:
            Exception: the next exception among the rows that was not raised yet.
            SourceUnavailableError: a partition is away.
            SourceChangedError: a partition holds fewer rows than were planned.
        """
        return frame_of(spark, self.rows_at(attempt, positions), self._schema)

    def readable(
        self, attempt: TransactionAttempt, metadata: PartitionPositions
    ) -> PartitionPositions:
        """Return the positions that can be read now; for a transactional spout all, or none.

        Raises:
            SourceChangedError: a partition of a transactional batch cannot be read, or no
                partition of an opaque one.
        """
        with self._lock:
            problems = {
                partition: self._describe_problem(attempt, partition, position["end"])
                for partition, position in metadata.read.items()
            }
        reasons = [problem for problem in problems.values() if problem is not None]
        if not reasons:
            return metadata
        if len(reasons) == len(problems) or self.kind is SpoutKind.TRANSACTIONAL:
            raise SourceChangedError(reasons[-1], number="TXN-417")
        remaining = {name: at for name, at in metadata.read.items() if problems[name] is None}
        return PartitionPositions(read=remaining, latest=dict(metadata.latest))

    def rows_at(self, attempt: TransactionAttempt, positions: Mapping[str, Any]) -> list[Row]:
        """Return the rows at these positions without Spark; raises as `emit_partitions`."""
        with self._lock:
            for partition in sorted(positions):
                self._require_rows(attempt, partition, positions[partition]["end"])
            self._raise_next(positions)
            return [
                row
                for partition in sorted(positions)
                for row in self._rows[partition][
                    positions[partition]["start"] : positions[partition]["end"]
                ]
            ]

    def planned_rows(self, metadata: PartitionPositions) -> int:
        """Return the number of rows to be emitted."""
        return sum(position["end"] - position["start"] for position in metadata.read.values())

    def lag(self, newest: PartitionPositions | None) -> Lag:
        """Return the rows after `newest` of all partitions that are there."""
        with self._lock:
            left = {name: len(self._rows[name]) for name in {*self._rows} - self._disabled}
        latest = {} if newest is None else newest.latest
        behind = {
            name: max(0, rows - (latest[name]["end"] if name in latest else 0))
            for name, rows in left.items()
        }
        return Lag(records=sum(behind.values()), partitions=behind)

    def planned_lag(self, metadata: PartitionPositions) -> Lag:
        """Return the rows of the batch."""
        spans = {name: at["end"] - at["start"] for name, at in metadata.read.items()}
        return Lag(records=sum(spans.values()), partitions=spans)

    def _is_away(self, partition: str) -> bool:
        return partition in self._disabled or partition not in self._rows

    def _require_rows(self, attempt: TransactionAttempt, partition: str, end: int) -> None:
        problem = self._describe_problem(attempt, partition, end)
        if problem is None:
            return
        if not self._is_away(partition):
            raise SourceChangedError(problem, number="TXN-417")
        consequence = (
            "The batch waits until it is back."
            if self.kind is SpoutKind.TRANSACTIONAL
            else "The batch is planned again, without it."
        )
        raise SourceUnavailableError(f"{problem} {consequence}")

    def _describe_problem(
        self, attempt: TransactionAttempt, partition: str, end: int
    ) -> str | None:
        """Describe why a partition cannot be read up to `end`; None if it can."""
        if self._is_away(partition):
            state = "disabled" if partition in self._rows else "removed"
            return (
                f"Partition '{partition}' of MemoryPartitionedSpout, which {attempt} was planned "
                f"to read, is {state}."
            )
        size = len(self._rows[partition])
        if size < end:
            return (
                f"Partition '{partition}' of MemoryPartitionedSpout holds {size} rows, but {end} "
                f"of them were planned up to {attempt}. Give it the same rows again."
            )
        return None

    def _raise_next(self, positions: Mapping[str, Any]) -> None:
        for partition in sorted(positions):
            span = range(positions[partition]["start"], positions[partition]["end"])
            for index, error in self._failures[partition]:
                if index in span:
                    self._failures[partition].remove((index, error))
                    raise error
