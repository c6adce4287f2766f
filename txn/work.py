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
from txn.conservation import PlannedRows
from txn.errors import ProgressUnreadableError, TopologyError
from txn.evaluation import Evaluation, consumers, empty_frame
from txn.events import Metadata, Plan
from txn.graph import NewValues, Sink, Source, StateQuery
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
from txn.tables import Committed, Tables
from txn.tracker import CommitLedger, ProcessingLedger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["AttemptWork", "BatchWork", "Emission", "LateStaging", "Turn"]

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
    empty: bool = False
    """A quarantined batch: nothing is read, every table gets an empty version."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    threads: int = 0
    """Threads that are, or will be, in its processing phase or commit turn: the first may still be
    ending when the second begins."""
    commit_ledger: CommitLedger | None = None
    staged: dict[str, Staged] = field(default_factory=dict)


@dataclass(frozen=True)
class LateStaging:
    """What the commit turn staged for a table below new values, and the parts it read for it."""

    staged: Staged
    read: Mapping[str, Sequence[str]]


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

    def read(self, sink: Sink) -> dict[str, Sequence[str]]:
        """Stream -> the parts that the rows of `sink` were computed from."""
        streams = self.evaluation.streams_read(sink.parent)
        return {stream: self.parts[stream] for stream in streams if stream in self.parts}

    def check_rows(self, sinks: Sequence[Sink]) -> None:
        """Hold the rows of the streams that these sinks have read against what was planned."""
        for stream in {stream for sink in sinks for stream in self.read(sink)}:
            if counted := self.planned.pop(stream, None):
                counted.check(self.evaluation.attempt)


@dataclass(frozen=True)
class Turn:
    """What a commit turn did to every table."""

    prepared: Mapping[str, Prepared]
    published: Mapping[str, Published]
    late: Mapping[str, LateStaging]
    """Table -> what was staged in the turn itself."""

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
        self._tables = Tables(spark, sinks, verify_rows=verify_rows)
        self._consumers = consumers(sinks)
        self._schemas: dict[str, StructType] = {}
        self._emissions: dict[TransactionAttempt, Emission] = {}
        self._opaque = any(s.promise.kind is not SpoutKind.TRANSACTIONAL for s in self._sinks)
        # Not with local checkpoints, which hide an observation for ever.
        self._counts_sources = verify_rows and not self._opaque

    def committed(self, txid: int, versions: Mapping[str, int]) -> None:
        """From now on state queries read these table versions, which hold `txid`."""
        self._tables.committed = Committed(txid, dict(versions))

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
        empty = {name: empty_frame(self._spark, schema) for name, schema in self._schemas.items()}
        evaluation = Evaluation(empty, {}, share=lambda frame: frame)
        evaluation.lookup = lambda node: self._tables.columns(node, evaluation)
        self._tables.check_and_open(context, evaluation)

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

    def planned_parts(
        self, metadata: Metadata, *, late: bool, empty: bool
    ) -> dict[str, dict[str, list[str]]]:
        """Table -> stream -> names of the parts that START hands to its staging job.

        Args:
            late: of the tables that are staged in the commit turn; else of the others.
            empty: nothing is read, so every table has no parts.
        """
        parts = {
            source.name: list(source.spout.planned_parts(self._parse(source, planned)))
            for source in ([] if empty else self._sources)
            if (planned := metadata.get(source.name)) is not None
        }
        return {
            sink.name: {
                s.name: parts[s.name] for s in sink.parent.sources_read() if s.name in parts
            }
            for sink in (self._tables.late if late else self._tables.early)
        }

    def process(
        self,
        work: AttemptWork,
        staged: Callable[[str, Staged, Mapping[str, Sequence[str]]], None],
    ) -> None:
        """The processing phase: emit, transform, aggregate, stage; `staged` is told per table."""
        attempt = work.attempt
        done = False
        with self._job(work.tag, PROCESSING_POOL, attempt):
            try:
                emission = self._emit(attempt, {} if work.empty else work.metadata)
                for sink in self._tables.early:
                    if work.cancelled.is_set():
                        return
                    reached("mid-processing", attempt)
                    evaluation = emission.evaluation
                    result = self._tables.stage(sink, evaluation, attempt, emission.parts)
                    staged(sink.name, result, emission.read(sink))
                emission.check_rows(self._tables.early)
                done = True
            finally:
                if not done or not self._tables.late:
                    self.release(attempt)
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
        self._commit_spouts(work)
        prepared = self._prepare_early(work, publication)
        late = self._prepare_late(work, publication, prepared)
        mark("prepared")
        reached("before-publish", attempt)
        published: dict[str, Published] = {}
        for sink in self._sinks:
            assert_leading()
            own = _publication(publication, prepared[sink.name].staged)
            published[sink.name] = sink.committer.publish(prepared[sink.name], own)
            if 0 < len(published) < len(self._sinks):
                reached("between-publications", attempt)
        mark("published")
        reached("after-publish", attempt)
        return Turn(prepared, published, late)

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
        self.release(attempt)
        for sink in self._sinks:
            sink.committer.discard(attempt)

    def release(self, attempt: TransactionAttempt) -> None:
        """Let go of an attempt's rows: its phase, or its commit turn, is over."""
        emission = self._emissions.pop(attempt, None)
        for frame in emission.shared if emission else ():
            frame.unpersist()

    def settle(self, txid: int) -> None:
        """Nothing follows `txid` for now: the tables may say that it is final."""
        for sink in self._sinks:
            sink.committer.settle(txid)

    def cancel(self, tag: str) -> None:
        """Cancel the Spark jobs of an attempt."""
        self._spark.sparkContext.cancelJobsWithTag(tag)

    def close(self) -> None:
        """Close committers and spouts, each whatever the others do."""
        for attempt in list(self._emissions):
            with suppress(Exception):
                self.release(attempt)
        for sink in self._sinks:
            with suppress(Exception):
                sink.committer.close()
        for source in self._sources:
            with suppress(Exception):
                source.spout.close()

    # --- parts of stations -------------------------------------------------------------------

    def _emit(self, attempt: TransactionAttempt, metadata: Metadata) -> Emission:
        """The DataFrames of all streams, and which planned parts each of them really reads."""
        inputs: dict[str, DataFrame] = {}
        parts: dict[str, Sequence[str]] = {}
        counts: dict[str, PlannedRows] = {}
        for source in self._sources:
            planned = metadata.get(source.name)
            if planned is not None:
                parsed = self._parse(source, planned)
                frame = source.spout.emit_batch(self._spark, attempt, parsed)
                known = self._schemas.setdefault(source.name, frame.schema)
                refuse_changed_schema(source.name, known, frame.schema)
                parts[source.name] = source.spout.parts_read(frame, parsed)
                rows = source.spout.planned_rows(parsed) if self._counts_sources else None
                if rows is not None:
                    counts[source.name] = PlannedRows(source.name, rows)
                    frame = counts[source.name].reading(frame)
                inputs[source.name] = frame
        for name, schema in self._schemas.items():
            if name not in inputs:
                inputs[name] = empty_frame(self._spark, schema)
        shared: list[DataFrame] = []
        evaluation = Evaluation(
            inputs, self._consumers, lambda frame: self._share(frame, shared), attempt
        )
        emission = Emission(evaluation, parts, shared, counts)
        evaluation.lookup = lambda node: self._look_up(node, emission)
        self._emissions[attempt] = emission
        return emission

    def _look_up(self, node: NewValues | StateQuery, emission: Emission) -> DataFrame | None:
        """The rows that a stream takes from a table."""
        if isinstance(node, StateQuery):
            evaluation = emission.evaluation
            return self._tables.queried(node, evaluation, evaluation.attempt)
        name, publication = node.sink.name, emission.publication
        if publication is None:
            raise TopologyError(
                f"The new values of table '{name}' are known in the commit turn only."
            )
        prepared = emission.prepared[name]
        if prepared.read_version < 0 and not prepared.adds:
            return self._tables.columns(node, emission.evaluation)
        return node.sink.committer.changes(prepared, _publication(publication, prepared.staged))

    def _share(self, frame: DataFrame, shared: list[DataFrame]) -> DataFrame:
        """Compute a result that several tables need once.

        A lost block of a persisted result is computed again: harmless where replays are
        identical. Where they are not, two tables of one txid could then disagree; a local
        checkpoint has no lineage, so that the loss fails the batch instead.
        """
        result = frame.localCheckpoint(eager=False) if self._opaque else frame.persist()
        shared.append(result)
        return result

    def _commit_spouts(self, work: AttemptWork) -> None:
        """Tell the spouts that the turn of this attempt begins; any of them may fail it."""
        for source in self._sources:
            planned = work.metadata.get(source.name)
            if planned is not None and not work.empty:
                source.spout.commit(work.attempt, self._parse(source, planned))

    def _prepare_early(self, work: AttemptWork, publication: Publication) -> dict[str, Prepared]:
        """Prepare the tables that are staged already, side by side."""

        def prepare(sink: Sink) -> Prepared:
            staged = work.staged[sink.name]
            with self._job(work.tag, COMMIT_POOL, work.attempt):
                return sink.committer.prepare(staged, _publication(publication, staged))

        sinks = self._tables.early
        if len(sinks) <= 1:
            return {sink.name: prepare(sink) for sink in sinks}
        with ThreadPoolExecutor(len(sinks), "txn-prepare") as pool:
            results = list(pool.map(prepare, sinks))
        return {sink.name: result for sink, result in zip(sinks, results, strict=True)}

    def _prepare_late(
        self, work: AttemptWork, publication: Publication, prepared: dict[str, Prepared]
    ) -> dict[str, LateStaging]:
        """Stage and prepare what follows from other tables' new values, in declared order.

        A table's stream is declared after the table whose values it takes, so those are known.
        """
        late: dict[str, LateStaging] = {}
        if not self._tables.late:
            return late
        emission = self._emissions[work.attempt]
        emission.prepared, emission.publication = prepared, publication
        with self._job(work.tag, COMMIT_POOL, work.attempt):
            for sink in self._tables.late:
                staged = self._tables.stage(sink, emission.evaluation, work.attempt, emission.parts)
                own = _publication(publication, staged)
                prepared[sink.name] = sink.committer.prepare(staged, own)
                late[sink.name] = LateStaging(staged, emission.read(sink))
            emission.check_rows(self._tables.late)
        return late

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


def _publication(publication: Publication, staged: Staged) -> Publication:
    """The publication of one table: that of the txid, with what was staged for the table."""
    return publication.model_copy(update={"rows": staged.rows, "digest": staged.digest})


def refuse_changed_schema(stream: str, known: StructType, found: StructType) -> None:
    """Refuse a stream whose columns changed while the topology runs."""
    if [(f.name, f.dataType) for f in known] != [(f.name, f.dataType) for f in found]:
        raise TopologyError(
            f"Stream '{stream}' changed its columns from {known.simpleString()} to "
            f"{found.simpleString()}. Give the spout a fixed schema."
        )
