"""The rows that spouts emit for attempts, from the processing phase into the commit turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.dataflow.columns import StreamColumns
from txn.dataflow.evaluation import Evaluation, consumers
from txn.dataflow.expectations import rules_by_stream
from txn.dataflow.graph import Dimension, Sink
from txn.engine.base.attempt import Emission, Staging
from txn.engine.base.row_counts import PlannedRows
from txn.engine.base.shared_rows import SharedRows
from txn.engine.work.dimensions import Dimensions
from txn.engine.work.lookups import Lookups
from txn.engine.work.spouts import Spouts
from txn.interfaces import SpoutKind
from txn.interfaces.spout_capabilities import FindsSchema
from txn.protocol.events import Metadata
from txn.spark.origins import noted
from txn.spark.own_session import moved
from txn.spark.rows import no_rows
from txn.text import first_items, placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Emissions"]

_SHOWN_PARTS = 10
"""Most parts of a source that a row set aside names."""


class Emissions:
    """Asks the spouts for the rows of attempts, and keeps them until they are let go.

    Args:
        own: the session in which rows are written (`txn.spark.own_session`).
        verify_rows: count the rows of sources that know how many they planned.
    """

    def __init__(
        self,
        spark: SparkSession,
        own: SparkSession,
        spouts: Spouts,
        sinks: Sequence[Sink],
        lookups: Lookups,
        columns: StreamColumns,
        dimensions: Dimensions,
        *,
        verify_rows: bool,
    ) -> None:
        self._spark = spark
        self._own = own
        self._spouts = spouts
        self._lookups = lookups
        self._columns = columns
        self._dimensions = dimensions
        self._consumers = consumers(sinks)
        self._rules = rules_by_stream(sinks)
        opaque = any(s.promise.kind is not SpoutKind.TRANSACTIONAL for s in sinks)
        self._counts_sources = verify_rows and not opaque
        self._alive: dict[TransactionAttempt, Emission] = {}

    def emit(
        self,
        attempt: TransactionAttempt,
        metadata: Metadata,
        watermark: int | None = None,
        dimensions: Mapping[str, int] = MappingProxyType({}),
        *,
        one_task: bool = False,
    ) -> Emission:
        """Emit the DataFrames of all streams, with the planned parts that each really reads.

        Args:
            watermark: that of the txid.
            dimensions: table that a stream looks rows up in -> the version to read.
            one_task: read each stream with one task, so that nothing needs a shuffle.
        """
        inputs: dict[str, DataFrame] = {}
        parts: dict[str, Sequence[str]] = {}
        counts: dict[str, PlannedRows] = {}
        for source, stored in self._spouts.stored_by_source(metadata):
            planned = self._spouts.parse_copy(source, stored)
            with placed(f"the spout of stream '{source.name}'"), noted():
                frame = source.spout.emit_batch(self._spark, attempt, planned)
            self._columns.learn(source.name, frame.schema)
            parts[source.name] = source.spout.parts_read(frame, planned)
            facts = self._spouts.facts
            rows = facts.planned_rows(source, planned) if self._counts_sources else None
            if rows is not None:
                counts[source.name] = PlannedRows(source.name, rows)
                # Spark reports an observation to the session that runs the job.
                observed = counts[source.name].reading(moved(frame, self._own))
                frame = moved(observed, self._spark)
            inputs[source.name] = frame.coalesce(1) if one_task else frame
        shared = SharedRows(self._spark, self._own, observed=bool(counts))
        evaluation = Evaluation(
            inputs,
            self._consumers,
            shared.keep,
            attempt,
            idle=self._no_rows,
            assumed=self._columns.assumed,
            rules=self._rules,
            positions={
                s: first_items(p, _SHOWN_PARTS) for s, p in parts.items() if list(p) != ["batch"]
            },
            watermark=watermark,
        )
        emission = Emission(evaluation, parts, metadata, shared, counts, one_task=one_task)
        evaluation.lookup = lambda node: self._lookups.find(node, emission)
        evaluation.dimension = lambda node: self._look_up(node, emission, dimensions)
        evaluation.recall = lambda node, side: self._lookups.recall(node, side, emission)
        evaluation.reading = emission.reading
        evaluation.compute_shared = shared.compute
        self._alive[attempt] = emission
        return emission

    def _look_up(
        self, node: Dimension, emission: Emission, versions: Mapping[str, int]
    ) -> DataFrame:
        stored = self._dimensions.rows(node, versions[node.name])
        emission.stored.append(stored)
        return stored.rows

    def check_read(self, jobs: Sequence[tuple[Emission, Collection[Staging]]]) -> None:
        """Compare the rows and records that jobs have read with the plan.

        Raises:
            FailedException: the jobs may have read something else.
        """
        read = []
        for emission, stagings in jobs:
            emission.check_rows(stagings)
            streams = {stream for staging in stagings for stream in staging.read}
            chosen = {s: m for s, m in emission.metadata.items() if s in streams}
            read.append((emission.evaluation.attempt, chosen))
        self._spouts.check_read(read)

    def planned_parts(self, sink: Sink, metadata: Metadata) -> dict[str, dict[str, list[str]]]:
        """Return `Spouts.planned_parts` of one table."""
        return self._spouts.planned_parts([sink], metadata)

    def explain(
        self, attempt: TransactionAttempt, metadata: Metadata, error: BaseException
    ) -> BaseException:
        """Return `Spouts.explain`."""
        return self._spouts.explain(attempt, metadata, error)

    def nothing(self) -> Evaluation:
        """Evaluate no rows, with the columns that are known by now."""
        evaluation = Evaluation(
            {},
            {},
            share=lambda frame, _: frame,
            idle=self._no_rows,
            assumed=self._columns.assumed,
            rules=self._rules,
        )
        evaluation.lookup = lambda node: self._lookups.columns(node, evaluation)
        evaluation.dimension = self._dimensions.columns
        return evaluation

    @property
    def undecided(self) -> list[frozenset[str]]:
        """Each stream that has neither declared nor emitted its columns in this run, by itself."""
        names = (source.name for source in self._spouts.sources)
        return [frozenset({name}) for name in names if not self._columns.decided(name)]

    def _no_rows(self, stream: str) -> DataFrame | None:
        """Make no rows of a stream; None while its columns are unknown."""
        schema = self._columns.get(stream)
        if schema is None:
            spout = next(source.spout for source in self._spouts.sources if source.name == stream)
            schema = spout.find_schema(self._spark) if isinstance(spout, FindsSchema) else None
            if schema is not None:
                self._columns.learn(stream, schema)
        return None if schema is None else no_rows(self._spark, schema)

    def __getitem__(self, attempt: TransactionAttempt) -> Emission:
        return self._alive[attempt]

    def release(self, attempt: TransactionAttempt) -> None:
        """Let go of an attempt's rows: its phase, or its commit turn, is over."""
        emission = self._alive.pop(attempt, None)
        if emission is not None:
            emission.let_go()

    def release_all(self) -> None:
        """Let go of everything."""
        for attempt in list(self._alive):
            self.release(attempt)
