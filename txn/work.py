"""The stations of a batch that touch Spark, spouts and tables: plan, process, publish.

One method per station, in the order of DESIGN's line. They run on the threads of
`txn.pipeline`, know nothing of the protocol, and raise what went wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from txn.attempts import TransactionAttempt
from txn.conservation import COUNT_COLUMN, Conservation
from txn.errors import ProgressUnreadableError, TopologyError
from txn.events import Metadata, Plan
from txn.graph import Evaluation, Sink, Source, consumers, explain, require_columns
from txn.interfaces import (
    CommitterContext,
    Prepared,
    Publication,
    Published,
    SpoutKind,
    Staged,
)
from txn.points import reached
from txn.report import Timeline
from txn.tracker import CommitLedger, ProcessingLedger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["AttemptWork", "BatchWork", "Turn"]

PROCESSING_POOL = "txn-processing"
COMMIT_POOL = "txn-commit"


@dataclass
class AttemptWork:
    """What one live attempt has done so far. Owned by the coordinator's thread."""

    attempt: TransactionAttempt
    metadata: Metadata
    timeline: Timeline
    tag: str
    ledger: ProcessingLedger
    cancelled: threading.Event = field(default_factory=threading.Event)
    threads: int = 0
    """Threads that are, or will be, in its processing phase or commit turn: the first may still be
    ending when the second begins."""
    commit_ledger: CommitLedger | None = None
    staged: dict[str, Staged] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """What a commit turn did to every table."""

    prepared: Mapping[str, Prepared]
    published: Mapping[str, Published]

    @property
    def tables(self) -> dict[str, int]:
        """Table -> version that holds the txid; a table that does not exist yet is left out.

        It has had nothing but empty batches of a stream whose columns are still unknown.
        """
        held = {name: published.version for name, published in self.published.items()}
        return {name: version for name, version in held.items() if version >= 0}


class BatchWork:
    """Everything that a run does on Spark, with the spouts and with the committers.

    Args:
        sources: the topology's streams.
        sinks: its committers, in the order in which they publish.
        verify_rows: count rows into and out of every staging job (`verify="rows"`).
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        *,
        verify_rows: bool = False,
    ) -> None:
        self._spark = spark
        self._name = name
        self._sources = tuple(sources)
        self._sinks = tuple(sinks)
        self._verify_rows = verify_rows
        self._consumers = consumers(sinks)
        self._schemas: dict[str, StructType] = {}
        self._opened: set[str] = set()
        self._opening = threading.Lock()
        self._context = CommitterContext(name, 0)
        self._opaque = any(s.spout.kind is not SpoutKind.TRANSACTIONAL for s in self._sources)

    @property
    def sink_names(self) -> tuple[str, ...]:
        """The tables, in the order in which they publish."""
        return tuple(sink.name for sink in self._sinks)

    # --- before the first batch --------------------------------------------------------------

    def open_spouts(self, newest: Metadata) -> None:
        """Open every spout with its newest durable metadata, and learn the schemas they know."""
        for source in self._sources:
            previous = newest.get(source.name)
            parsed = None if previous is None else self._parse(source, previous)
            schema = source.spout.open(self._spark, parsed)
            if schema is not None:
                self._schemas[source.name] = schema

    def check_and_open_tables(self, context: CommitterContext) -> None:
        """Refuse wrong columns, shapes and tables; create what is missing. Reads no data.

        A table whose stream has a schema still unknown is attached now and checked with the
        first batch, before any job.
        """
        self._context = context
        empty = {
            name: self._spark.createDataFrame([], schema) for name, schema in self._schemas.items()
        }
        evaluation = self._evaluation(empty, share=lambda frame: frame)
        for sink in self._sinks:
            known = all(source.name in empty for source in sink.parent.sources())
            rows = evaluation.rows(sink.parent) if known else None
            if rows is None:
                sink.committer.open(self._spark, context, None)
            else:
                self._open_table(sink, self._partials(sink, rows))

    def fence_tables(self) -> dict[str, tuple[int, Publication] | None]:
        """Shut older leaders out of every table, then read the newest publication of each."""
        found: dict[str, tuple[int, Publication] | None] = {}
        for sink in self._sinks:
            sink.committer.fence()
        for sink in self._sinks:
            found[sink.name] = sink.committer.last_publication()
        return found

    # --- the stations ------------------------------------------------------------------------

    def plan(self, order: Plan) -> dict[str, Any]:
        """Ask the named spouts what the attempt shall read: stream -> metadata as JSON, or None."""
        answers: dict[str, Any] = {}
        for source in self._sources:
            if source.name not in order.streams:
                continue
            previous = order.previous.get(source.name)
            parsed = None if previous is None else self._parse(source, previous)
            answer = source.spout.initialize_transaction(order.attempt, parsed)
            answers[source.name] = None if answer is None else answer.model_dump(mode="json")
        return answers

    def planned_parts(self, metadata: Metadata) -> dict[str, dict[str, list[str]]]:
        """Sink -> stream -> names of the parts that START hands to its staging job."""
        parts = {
            source.name: list(source.spout.planned_parts(self._parse(source, planned)))
            for source in self._sources
            if (planned := metadata.get(source.name)) is not None
        }
        return {
            sink.name: {s.name: parts[s.name] for s in sink.parent.sources() if s.name in parts}
            for sink in self._sinks
        }

    def process(
        self,
        work: AttemptWork,
        empty: bool,
        staged: Callable[[str, Staged, Mapping[str, Sequence[str]]], None],
    ) -> None:
        """The processing phase: emit, transform, aggregate, stage; `staged` is told per table."""
        attempt = work.attempt
        with self._job(work.tag, PROCESSING_POOL, attempt):
            inputs, parts = ({}, {}) if empty else self._emit(attempt, work.metadata)
            shared: list[DataFrame] = []
            evaluation = self._evaluation(inputs, lambda frame: self._share(frame, shared))
            try:
                for sink in self._sinks:
                    if work.cancelled.is_set():
                        return
                    result = self._stage(sink, evaluation, attempt, set(parts))
                    read = evaluation.streams_read(sink.parent)
                    staged(sink.name, result, {s: parts[s] for s in read if s in parts})
            finally:
                for frame in shared:
                    frame.unpersist()
        reached("after-staging", attempt)

    def publish(
        self,
        work: AttemptWork,
        publication: Publication,
        mark: Callable[[str], None],
        assert_leading: Callable[[], None],
    ) -> Turn:
        """The commit turn: prepare every table side by side, then publish one after the other."""
        attempt = work.attempt
        prepared = self._prepare_all(work, publication)
        mark("prepared")
        reached("before-publish", attempt)
        published: dict[str, Published] = {}
        for sink in self._sinks:
            assert_leading()
            own = publication.model_copy(update={"rows": work.staged[sink.name].rows})
            published[sink.name] = sink.committer.publish(prepared[sink.name], own)
            if 0 < len(published) < len(self._sinks):
                reached("between-publications", attempt)
        mark("published")
        reached("after-publish", attempt)
        return Turn(prepared, published)

    def succeed(self, attempt: TransactionAttempt) -> None:
        """Tell the spouts that the txid is durable everywhere."""
        for source in self._sources:
            source.spout.success(attempt.txid)

    def clean_up(self, attempt: TransactionAttempt) -> None:
        """Delete the scratch files of a committed attempt."""
        reached("during-clean-up", attempt)
        for sink in self._sinks:
            sink.committer.committed(attempt)

    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete what a dead attempt staged."""
        for sink in self._sinks:
            sink.committer.discard(attempt)

    def cancel(self, tag: str) -> None:
        """Cancel the Spark jobs of an attempt."""
        self._spark.sparkContext.cancelJobsWithTag(tag)

    def close(self) -> None:
        """Close committers and spouts, each whatever the others do."""
        for sink in self._sinks:
            with suppress(Exception):
                sink.committer.close()
        for source in self._sources:
            with suppress(Exception):
                source.spout.close()

    # --- parts of stations -------------------------------------------------------------------

    def _emit(
        self, attempt: TransactionAttempt, metadata: Metadata
    ) -> tuple[dict[str, DataFrame], dict[str, Sequence[str]]]:
        """The DataFrames of all streams, and which planned parts each of them really reads."""
        inputs: dict[str, DataFrame] = {}
        parts: dict[str, Sequence[str]] = {}
        for source in self._sources:
            planned = metadata.get(source.name)
            if planned is not None:
                parsed = self._parse(source, planned)
                frame = source.spout.emit_batch(self._spark, attempt, parsed)
                known = self._schemas.setdefault(source.name, frame.schema)
                refuse_changed_schema(source.name, known, frame.schema)
                inputs[source.name] = frame
                parts[source.name] = source.spout.parts_read(frame, parsed)
        for name, schema in self._schemas.items():
            if name not in inputs:
                inputs[name] = self._spark.createDataFrame([], schema)
        return inputs, parts

    def _stage(
        self, sink: Sink, evaluation: Evaluation, attempt: TransactionAttempt, busy: set[str]
    ) -> Staged:
        """Stage one table's share; a sink whose streams are all idle needs no Spark job."""
        if not any(source.name in busy for source in sink.parent.sources()):
            return Staged(attempt, ())
        rows = evaluation.rows(sink.parent)
        if rows is None:
            return Staged(attempt, ())
        counts = Conservation() if self._verify_rows else None
        partials = self._partials(sink, rows, counts)
        self._open_table(sink, partials)
        reached("mid-processing", attempt)
        staged = sink.committer.stage(partials, attempt)
        if counts is not None:
            counts.check(staged, sink.name)
        return staged

    def _partials(
        self, sink: Sink, rows: DataFrame, counts: Conservation | None = None
    ) -> DataFrame:
        require_columns(rows, sink.committer.required_columns(), sink.parent.label())
        if counts is None:
            return explain(sink.parent, lambda: sink.committer.partials(rows))
        entering = counts.entering(rows)
        return counts.leaving(
            explain(sink.parent, lambda: sink.committer.partials(entering, COUNT_COLUMN))
        )

    def _open_table(self, sink: Sink, partials: DataFrame) -> None:
        with self._opening:
            if sink.name not in self._opened:
                sink.committer.open(self._spark, self._context, partials.schema)
                self._opened.add(sink.name)

    def _evaluation(
        self, inputs: Mapping[str, DataFrame], share: Callable[[DataFrame], DataFrame]
    ) -> Evaluation:
        return Evaluation(inputs, self._consumers, share)

    def _share(self, frame: DataFrame, shared: list[DataFrame]) -> DataFrame:
        """Compute a result that several tables need once.

        A lost block of a persisted result is computed again: harmless where replays are
        identical. Where they are not, two tables of one txid could then disagree; a local
        checkpoint has no lineage, so that the loss fails the batch instead.
        """
        result = frame.localCheckpoint(eager=False) if self._opaque else frame.persist()
        shared.append(result)
        return result

    def _prepare_all(self, work: AttemptWork, publication: Publication) -> dict[str, Prepared]:
        def prepare(sink: Sink) -> Prepared:
            staged = work.staged[sink.name]
            own = publication.model_copy(update={"rows": staged.rows})
            with self._job(work.tag, COMMIT_POOL, work.attempt):
                return sink.committer.prepare(staged, own)

        if len(self._sinks) == 1:
            return {self._sinks[0].name: prepare(self._sinks[0])}
        with ThreadPoolExecutor(len(self._sinks), "txn-prepare") as pool:
            results = list(pool.map(prepare, self._sinks))
        return {sink.name: result for sink, result in zip(self._sinks, results, strict=True)}

    def _parse(self, source: Source, stored: Any) -> Any:
        try:
            return source.spout.metadata_type.model_validate(stored)
        except ValidationError as error:
            raise ProgressUnreadableError(
                f"The stored metadata of stream '{source.name}' of topology '{self._name}' is not "
                f"what its spout ({type(source.spout).__name__}) writes: "
                f"{error.errors()[0]['msg']} at {error.errors()[0]['loc']}. Run the spout that "
                "wrote it, or give the stream a new name."
            ) from error

    @contextmanager
    def _job(self, tag: str, pool: str, attempt: TransactionAttempt) -> Iterator[None]:
        """Tag and pool of every Spark job that this thread starts inside."""
        context = self._spark.sparkContext
        # The context's tags: those of a session can be cancelled by the tagging thread alone, and
        # do not cover the committers' own sessions.
        context.addJobTag(tag)
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.setJobDescription(f"{self._name} {attempt}")
        try:
            yield
        finally:
            context.removeJobTag(tag)
            for name in ("spark.scheduler.pool", "spark.job.description"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None clears it


def refuse_changed_schema(stream: str, known: StructType, found: StructType) -> None:
    """Refuse a stream whose columns changed while the topology runs."""
    if [(f.name, f.dataType) for f in known] != [(f.name, f.dataType) for f in found]:
        raise TopologyError(
            f"Stream '{stream}' changed its columns from {known.simpleString()} to "
            f"{found.simpleString()}. Give the spout a fixed schema."
        )
