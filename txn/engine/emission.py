"""The rows of an attempt: what its spouts emit, from the processing phase into its commit turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from txn.attempts import TransactionAttempt
from txn.dataflow.columns import StreamColumns
from txn.dataflow.evaluation import Evaluation, Unknown, consumers, empty_frame
from txn.dataflow.graph import NewValues, Sink, Source, StateQuery
from txn.engine.row_counts import PlannedRows
from txn.engine.tables import Staging, Tables
from txn.errors import FailedException, ProgressUnreadableError, TopologyError, TxnError
from txn.interfaces import Prepared, Publication, SpoutKind, StoredRows
from txn.protocol.events import Metadata
from txn.spark.own_session import moved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Emission", "Emissions"]

KEPT = 64
"""Metadata kept as parsed. It is asked for at planning, processing and in the commit turn; with
5,000 partitions, parsing takes milliseconds."""


@dataclass
class Emission:
    """The rows of one attempt, from the processing phase into its commit turn."""

    evaluation: Evaluation
    parts: Mapping[str, Sequence[str]]
    """stream -> planned parts that its DataFrame reads; a stream that is idle is left out."""
    shared: list[DataFrame]
    planned: dict[str, PlannedRows] = field(default_factory=dict)
    """stream -> its rows, as long as they have not been counted."""
    prepared: dict[str, Prepared] = field(default_factory=dict)
    publication: Publication | None = None
    one_task: bool = False
    """Whether one task takes each stream: other batches keep the other slots busy."""
    stored: list[StoredRows] = field(default_factory=list)
    """What was taken from tables."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """For jobs over its rows: one that fails because a table's file is gone has lost work.

        Raises:
            FailedException: such a file; the replay looks the rows up anew.
        """
        try:
            yield
        except TxnError:
            raise
        except Exception as error:
            gone = next(filter(None, (stored.missing() for stored in self.stored)), None)
            if gone is None:
                raise
            raise FailedException(
                f"File {gone} of a table that attempt {self.evaluation.attempt} reads was deleted "
                "before it was read: somebody's OPTIMIZE has put its rows into other files, and "
                "VACUUM has deleted the former ones. The batch is replayed."
            ) from error

    def check_rows(self, stagings: Iterable[Staging]) -> None:
        """Hold the rows of the streams that these jobs have read against what was planned."""
        for stream in {stream for staging in stagings for stream in staging.read}:
            if counted := self.planned.pop(stream, None):
                counted.check(self.evaluation.attempt)


class Emissions:
    """Asks the spouts for the rows of attempts, and keeps them until they are let go.

    Args:
        own: the session in which rows are written (`txn.spark.own_session`).
        sources: the topology's streams.
        sinks: its committers.
        columns: of the streams.
        publication_of: the publication of one table, given that of the txid and what is prepared.
        verify_rows: count the rows of sources that know how many they planned.
    """

    def __init__(
        self,
        spark: SparkSession,
        own: SparkSession,
        name: str,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        tables: Tables,
        columns: StreamColumns,
        publication_of: Callable[[Publication, Prepared], Publication],
        *,
        verify_rows: bool,
    ) -> None:
        self._spark = spark
        self._own = own
        self._name = name
        self._sources = tuple(sources)
        self._tables = tables
        self._columns = columns
        self._publication_of = publication_of
        self._consumers = consumers(sinks)
        self._opaque = any(s.promise.kind is not SpoutKind.TRANSACTIONAL for s in sinks)
        # Not with local checkpoints, which hide an observation for ever.
        self._counts_sources = verify_rows and not self._opaque
        self._alive: dict[TransactionAttempt, Emission] = {}
        self._parsed: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._parsing = threading.Lock()

    def parse(self, source: Source, stored: Any) -> Any:
        """Metadata as the spout's own type; the same object is parsed once while it is in use.

        Raises:
            ProgressUnreadableError: it is not what this spout writes.
        """
        key = (source.name, id(stored))
        known = self._parsed.get(key)
        if known is None:
            # With what was parsed, whose id is nobody else's as long as it is kept.
            known = stored, self._validated(source, stored)
            with self._parsing:
                self._parsed[key] = known
                while len(self._parsed) > KEPT:
                    del self._parsed[next(iter(self._parsed))]
        return known[1]

    def _validated(self, source: Source, stored: Any) -> Any:
        try:
            return source.spout.metadata_type.model_validate(stored)
        except ValidationError as error:
            raise ProgressUnreadableError(
                f"The stored metadata of stream '{source.name}' of topology '{self._name}' is not "
                f"what its spout ({type(source.spout).__name__}) writes: "
                f"{error.errors()[0]['msg']} at {error.errors()[0]['loc']}. Run the spout that "
                "wrote it, or give the stream a new name."
            ) from error

    def emit(
        self, attempt: TransactionAttempt, metadata: Metadata, *, one_task: bool = False
    ) -> Emission:
        """The DataFrames of all streams, and which planned parts each of them really reads.

        Args:
            one_task: read each stream with one task, so that nothing needs a shuffle.
        """
        inputs: dict[str, DataFrame] = {}
        parts: dict[str, Sequence[str]] = {}
        counts: dict[str, PlannedRows] = {}
        for source in self._sources:
            planned = metadata.get(source.name)
            if planned is not None:
                parsed = self.parse(source, planned)
                frame = source.spout.emit_batch(self._spark, attempt, parsed)
                self._columns.learn(source.name, frame.schema)
                parts[source.name] = source.spout.parts_read(frame, parsed)
                rows = source.spout.planned_rows(parsed) if self._counts_sources else None
                if rows is not None:
                    counts[source.name] = PlannedRows(source.name, rows)
                    # Spark reports an observation to the session that runs the job.
                    observed = counts[source.name].reading(moved(frame, self._own))
                    frame = moved(observed, self._spark)
                inputs[source.name] = frame.coalesce(1) if one_task else frame
        shared: list[DataFrame] = []
        evaluation = Evaluation(
            inputs,
            self._consumers,
            lambda frame: self._share(frame, shared),
            attempt,
            idle=self._idle,
            assumed=self._columns.assumed,
        )
        emission = Emission(evaluation, parts, shared, counts, one_task=one_task)
        evaluation.lookup = lambda node: self._look_up(node, emission)
        self._alive[attempt] = emission
        return emission

    def nothing(self) -> Evaluation:
        """Evaluate no rows, in the columns that are known by now."""
        evaluation = Evaluation(
            {}, {}, share=lambda frame: frame, idle=self._idle, assumed=self._columns.assumed
        )
        evaluation.lookup = lambda node: self._tables.columns(node, evaluation)
        return evaluation

    def _idle(self, stream: str) -> DataFrame | None:
        """No rows of a stream; None while its columns are not known."""
        known = self._columns.get(stream)
        if known is None:
            spout = next(source.spout for source in self._sources if source.name == stream)
            known = spout.find_schema(self._spark)
            if known is not None:
                self._columns.learn(stream, known)
        return None if known is None else empty_frame(self._spark, known)

    def __getitem__(self, attempt: TransactionAttempt) -> Emission:
        return self._alive[attempt]

    def release(self, attempt: TransactionAttempt) -> None:
        """Let go of an attempt's rows: its phase, or its commit turn, is over."""
        emission = self._alive.pop(attempt, None)
        for frame in emission.shared if emission else ():
            frame.unpersist()

    def release_all(self) -> None:
        """Let go of everything."""
        for attempt in list(self._alive):
            self.release(attempt)

    def _look_up(self, node: NewValues | StateQuery, emission: Emission) -> DataFrame | Unknown:
        """The rows that a stream takes from a table."""
        found = self._stored(node, emission)
        if isinstance(found, Unknown):
            return found
        emission.stored.append(found)
        return moved(found.rows, self._spark)

    def _stored(self, node: NewValues | StateQuery, emission: Emission) -> StoredRows | Unknown:
        evaluation = emission.evaluation
        if isinstance(node, StateQuery):
            return self._tables.queried(node, evaluation, evaluation.attempt)
        name, publication = node.sink.name, emission.publication
        if publication is None:
            raise TopologyError(
                f"The new values of table '{name}' are known in the commit turn only."
            )
        prepared = emission.prepared[name]
        if prepared.read_version < 0 and not prepared.adds:
            nothing = self._tables.columns(node, evaluation)
            return nothing if isinstance(nothing, Unknown) else StoredRows(nothing)
        return node.sink.committer.changes(prepared, self._publication_of(publication, prepared))

    def _share(self, frame: DataFrame, shared: list[DataFrame]) -> DataFrame:
        """Compute a result that several tables need once.

        A lost block of a persisted result is computed again: harmless where replays are
        identical. Where they are not, two tables of one txid could then disagree; a local
        checkpoint has no lineage, so that the loss fails the batch instead.
        """
        result = frame.localCheckpoint(eager=False) if self._opaque else frame.persist()
        shared.append(result)
        return result
