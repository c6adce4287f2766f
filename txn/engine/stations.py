"""The stations of a batch that touch Spark, spouts and tables: plan, process, publish.

One method per station, in the order of DESIGN's line. They run on the threads of
`txn.engine.pipeline`, know nothing of the protocol, and raise what went wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txn.attempts import TransactionAttempt
from txn.dataflow.columns import StreamColumns
from txn.dataflow.graph import Sink, Source
from txn.engine.batch_target import BatchTargets
from txn.engine.emission import Emissions
from txn.engine.keeping import TableKeeper
from txn.engine.killpoints import reached
from txn.engine.processing import Processing, Told
from txn.engine.report import Timeline
from txn.engine.tables import Committed, Staging, Tables
from txn.engine.threads import Pool
from txn.interfaces import Committer, CommitterContext, Prepared, Publication, Published, Staged
from txn.protocol.events import Metadata, Plan
from txn.protocol.ledgers import ProcessingLedger
from txn.spark.own_session import Watch, make_active, own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.engine.commit_turns import CommitTurn

__all__ = ["AttemptWork", "BatchWork", "Turn"]

PROCESSING_POOL = "txn-processing"
COMMIT_POOL = "txn-commit"
MAINTENANCE_POOL = "txn-maintenance"
_LOOK_SECS = 60.0


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
    had_turn: bool = False
    """Its commit turn has begun: a table may refer to its files."""
    staged: dict[str, Staged] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """What a commit turn did to every table."""

    prepared: Mapping[str, Prepared]
    published: Mapping[str, Published]
    late: Mapping[str, Staging]
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
        remember: makes the columns of a stream durable.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        *,
        verify_rows: bool = False,
        remember: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._spark = spark
        self._name = name
        self._sources = tuple(sources)
        self._sinks = tuple(sinks)
        self._keeper = TableKeeper(name, [sink.committer for sink in sinks])
        self._targets = BatchTargets({source.name: source.spout for source in sources})
        self._own = own_session(spark)
        self._watch = Watch(spark)
        self._tables = Tables(spark, self._own, sinks, verify_rows=verify_rows)
        self._preparing = Pool(len(self._tables.early), "txn-prepare")
        self._entered = threading.local()
        self._columns = StreamColumns(remember)
        self._emissions = Emissions(
            spark,
            self._own,
            name,
            sources,
            sinks,
            self._tables,
            self._columns,
            lambda publication, prepared: _publication(publication, prepared.staged),
            verify_rows=verify_rows,
        )
        self._processing = Processing(
            self._tables,
            self._emissions,
            lambda group: self._job(
                [work.tag for work in group], [work.attempt for work in group], PROCESSING_POOL
            ),
            lambda work: self.discard(work.attempt),
            self._watch.check,
        )

    @property
    def slots(self) -> int:
        """Tasks that Spark runs at once."""
        return int(self._spark.sparkContext.defaultParallelism)

    def committed(self, txid: int, versions: Mapping[str, int]) -> None:
        """From now on state queries read these table versions, which hold `txid`."""
        self._tables.committed = Committed(txid, dict(versions))

    # --- before the first batch --------------------------------------------------------------

    def open_spouts(self, newest: Metadata, columns: Mapping[str, Mapping[str, Any]]) -> None:
        """Open every spout with its newest durable metadata, and learn the columns they know.

        Args:
            columns: what earlier runs have learned.
        """
        self._enter_thread()
        declared = {source.name for source in self._sources}
        self._columns.recall({name: kept for name, kept in columns.items() if name in declared})
        for source in self._sources:
            previous = newest.get(source.name)
            parsed = None if previous is None else self._emissions.parse(source, previous)
            source.spout.keep_with(self._keeper)
            schema = source.spout.open(self._spark, parsed)
            if schema is not None:
                self._columns.learn(source.name, schema)

    def attach_tables(self, context: CommitterContext) -> dict[str, tuple[int, Publication] | None]:
        """The newest publication of every table that is there; creates nothing."""
        self._enter_thread()
        found: dict[str, tuple[int, Publication] | None] = {}
        for sink in self._sinks:
            sink.committer.open(self._own, context, None)
            found[sink.name] = sink.committer.last_publication()
        self._tables.require_apart()
        return found

    def rehearse(self) -> None:
        """Take no rows through everything up to the tables, which are not touched: for a standby.

        What would be refused is refused now, and Spark has the code ready when it counts.

        Raises:
            TopologyError: wrong columns.
        """
        self._enter_thread()
        self._tables.rehearse(self._emissions.nothing())

    def check_and_open_tables(self, context: CommitterContext) -> None:
        """Refuse wrong columns, shapes and tables; create what is missing. Reads no data.

        A table whose stream has a schema still unknown is attached now and checked with the
        first batch, before any job. What the spouts' positions name is given to tables that lack
        it.
        """
        self._enter_thread()
        self._tables.check_and_open(context, self._emissions.nothing())
        self._keeper.mend()

    def fence_tables(self) -> dict[str, tuple[int, Publication] | None]:
        """Shut older leaders out of every table, then read the newest publication of each."""
        found: dict[str, tuple[int, Publication] | None] = {}
        for sink in self._sinks:
            sink.committer.fence()
        for sink in self._sinks:
            found[sink.name] = sink.committer.last_publication()
        return found

    # --- the stations ------------------------------------------------------------------------

    def plan(self, order: Plan, *, window_full: bool) -> dict[str, Any]:
        """Ask the named spouts what the attempt shall read: stream -> metadata as JSON, or None.

        Args:
            window_full: with this txid, as many are in flight as may be.
        """
        self._enter_thread()
        answers: dict[str, Any] = {}
        if order.is_new:
            self._targets.tell()
        for source in self._sources:
            if source.name not in order.streams:
                continue
            previous = order.previous.get(source.name)
            parsed = None if previous is None else self._emissions.parse(source, previous)
            answer = source.spout.initialize_transaction(order.attempt, parsed)
            answers[source.name] = None if answer is None else answer.model_dump(mode="json")
        if order.is_new:
            self._targets.learn(answers, window_full=window_full)
        return answers

    def planned_parts(
        self, metadata: Metadata, *, late: bool, empty: bool
    ) -> dict[str, dict[str, list[str]]]:
        """Table -> stream -> names of the parts that START hands to its staging job.

        Args:
            late: of the tables that are staged in the commit turn; else of the others.
            empty: nothing is read, so every table has no parts.
        """
        sinks = self._tables.late if late else self._tables.early
        read = {sink.name: () if empty else tuple(sink.parent.sources_read()) for sink in sinks}
        parts = {
            source.name: list(source.spout.planned_parts(self._emissions.parse(source, planned)))
            for source in {source for sources in read.values() for source in sources}
            if (planned := metadata.get(source.name)) is not None
        }
        return {
            table: {source.name: parts[source.name] for source in sources if source.name in parts}
            for table, sources in read.items()
        }

    def process(self, group: Sequence[AttemptWork], told: Told, *, one_task: bool) -> None:
        """The processing phase of some attempts; every outcome is told.

        Args:
            one_task: read each stream of a batch with one task.
        """
        self._processing.run(group, told, one_task=one_task)

    def publish(
        self,
        turn: CommitTurn,
        publication: Publication,
        mark: Callable[[str], None],
        assert_leading: Callable[[], None],
    ) -> Turn:
        """The commit turn: prepare every table side by side, then publish one after the other."""
        attempt = turn.attempts[0]
        for work in turn.works:
            self._commit_spouts(work)
        prepared = self._prepare_early(turn, publication)
        late = self._prepare_late(turn, publication, prepared)
        mark("prepared")
        reached("before-publish", attempt)
        turn.begin_publishing()
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
        self._emissions.release(attempt)

    def settle(self, txid: int) -> None:
        """Nothing follows `txid` for now: the tables may say that it is final."""
        for sink in self._sinks:
            sink.committer.settle(txid)

    @property
    def maintained(self) -> tuple[str, ...]:
        """The tables on which there may ever be work that no commit turn waits for."""
        sinks = (s for s in self._sinks if type(s.committer).maintain is not Committer.maintain)
        return tuple(sink.name for sink in sinks)

    def maintain(
        self, table: str, newest: TransactionAttempt, tag: str
    ) -> Callable[[], None] | None:
        """Ask a committer for such work; what makes it visible.

        Args:
            newest: the newest txid that is durable everywhere.
            tag: of the Spark jobs.
        """
        committer = next(sink.committer for sink in self._sinks if sink.name == table)
        with self._job([tag], [newest], MAINTENANCE_POOL):
            return committer.maintain(newest.txid)

    def cancel(self, tag: str) -> None:
        """Cancel the Spark jobs of an attempt, a commit turn or of maintenance."""
        self._spark.sparkContext.cancelJobsWithTag(tag)

    def close(self) -> None:
        """Close committers and spouts, each whatever the others do."""
        self._preparing.close(cancel=True)
        with suppress(Exception):
            self._emissions.release_all()
        for sink in self._sinks:
            with suppress(Exception):
                sink.committer.close()
        for source in self._sources:
            with suppress(Exception):
                source.spout.close()

    # --- parts of stations -------------------------------------------------------------------

    def _commit_spouts(self, work: AttemptWork) -> None:
        """Tell the spouts that the turn of this attempt begins; any of them may fail it."""
        for source in self._sources:
            planned = work.metadata.get(source.name)
            if planned is not None and not work.empty:
                source.spout.commit(work.attempt, self._emissions.parse(source, planned))

    def _prepare_early(self, turn: CommitTurn, publication: Publication) -> dict[str, Prepared]:
        """Prepare the tables that are staged already, side by side."""

        def prepare(sink: Sink) -> Prepared:
            staged = turn.staged[sink.name]
            with self._job([turn.tag], turn.attempts, COMMIT_POOL):
                return sink.committer.prepare(staged, _publication(publication, staged))

        sinks, pool = self._tables.early, self._preparing
        if len(sinks) <= 1:
            return {sink.name: prepare(sink) for sink in sinks}
        results = [pool.submit(prepare, sink, about=f"prepares {sink.name}") for sink in sinks]
        while pool.join(_LOOK_SECS):
            pass  # all of them end before any error of one is raised
        return {sink.name: future.result() for sink, future in zip(sinks, results, strict=True)}

    def _prepare_late(
        self, turn: CommitTurn, publication: Publication, prepared: dict[str, Prepared]
    ) -> dict[str, Staging]:
        """Stage and prepare what follows from other tables' new values, in declared order.

        A table's stream is declared after the table whose values it takes, so those are known.
        No group comes here: the values of a txid are needed, and a group has those of its last.
        """
        late: dict[str, Staging] = {}
        if not self._tables.late:
            return late
        (attempt,) = turn.attempts
        emission = self._emissions[attempt]
        emission.prepared, emission.publication = prepared, publication
        with self._job([turn.tag], turn.attempts, COMMIT_POOL):
            for sink in self._tables.late:
                with emission.reading():
                    (staging,) = self._tables.stage(sink, [emission])
                own = _publication(publication, staging.staged)
                prepared[sink.name] = sink.committer.prepare(staging.staged, own)
                late[sink.name] = staging
            emission.check_rows(late.values())
        self._watch.check()
        return late

    def _enter_thread(self) -> None:
        """What a thread needs before the user's code, once: the user's session is its own."""
        if not hasattr(self._entered, "done"):
            make_active(self._spark)
            self._entered.done = True

    @contextmanager
    def _job(
        self, tags: Sequence[str], attempts: Sequence[TransactionAttempt], pool: str
    ) -> Iterator[None]:
        """Tags and pool of every Spark job that this thread starts inside."""
        self._enter_thread()
        context = self._spark.sparkContext
        # The context's tags: those of a session can be cancelled by the tagging thread alone, and
        # do not cover the committers' own sessions.
        for tag in tags:
            context.addJobTag(tag)
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.setJobDescription(f"{self._name} {', '.join(map(str, attempts))}")
        try:
            yield
        finally:
            for tag in tags:
                context.removeJobTag(tag)
            for name in ("spark.scheduler.pool", "spark.job.description"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None clears it


def _publication(publication: Publication, staged: Staged) -> Publication:
    """The publication of one table: that of the turn, with what was staged for the table."""
    members = tuple(
        member.model_copy(update={"rows": part.rows, "digest": part.digest})
        for member, part in zip(publication.members, staged.members, strict=True)
    )
    own = {"rows": staged.rows, "digest": staged.digest, "members": members}
    return publication.model_copy(update=own)
