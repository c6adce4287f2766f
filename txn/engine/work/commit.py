"""One commit turn: notify the spouts, prepare every table, publish them side by side."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from txn.attempts import TransactionAttempt
from txn.dataflow.graph import Sink
from txn.engine.base.attempt import CommitResult, LiveAttempt, Staging, table_publication
from txn.engine.base.killpoints import reached
from txn.engine.base.shell import Shell
from txn.engine.base.threads import Pool
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.emission import Emissions
from txn.engine.work.jobs import COMMIT_POOL, Jobs
from txn.engine.work.spouts import Spouts
from txn.engine.work.staging import Stager
from txn.engine.work.tables import Tables
from txn.errors import FailedException, TxnError
from txn.interfaces import Prepared, Publication, Published, Staged
from txn.observers import TablePublished
from txn.protocol.ledgers import CommitLedger, Tracking
from txn.text import placed

__all__ = ["CommitTurn", "Committing", "TurnGivenUpError"]

T = TypeVar("T")

_JOIN_SECS = 60.0
_WAITS_SECS = 0.005
"""A table waits for its storage if its last two publications took longer; a quick disk takes one
millisecond."""
_REMEMBERED = 10_000
"""Txids whose last turn is remembered: more than may be in flight."""
_AT_ONCE = 3
"""Tables that do not wait for storage and are published at once: each needs Python most of the
time, and twenty threads lose as much time again by handing it to each other."""


class TurnGivenUpError(TxnError):
    """The turn was abandoned before it began to publish; nothing waits for its end."""

    number = "TXN-503"


class CommitTurn:
    """A commit turn of one attempt, or of a group that becomes one version of every table.

    Args:
        lives: its attempts, in txid order.
        late: the parts of tables that are staged in the turn itself; empty for a group.
    """

    def __init__(
        self,
        lives: Sequence[LiveAttempt],
        ids: Callable[[], int],
        late: Mapping[str, Mapping[str, Iterable[str]]],
        broadcast: Broadcast,
    ) -> None:
        self.lives = tuple(lives)
        self.attempts: tuple[TransactionAttempt, ...] = tuple(live.attempt for live in lives)
        self.is_group = len(self.lives) > 1
        # Not the attempts' own tags: a group's jobs are cancelled, and its attempts live on.
        self.tag = f"{lives[0].tag}-to-{lives[-1].attempt.txid}" if self.is_group else lives[0].tag
        self.staged = {
            table: Staged.together([live.staged[table] for live in lives])
            for table in lives[0].staged
        }
        self.ledger = CommitLedger(ids, self.staged, late)
        self.ended = False
        """Its thread has finished."""
        self.span = broadcast.span("turn", self.attempts, spark_tags=[self.tag])
        self._lock = threading.Lock()
        self._publishing = False
        self._given_up = False
        for live in lives:
            live.had_turn = True

    @property
    def last(self) -> LiveAttempt:
        """The attempt that names the turn in BatchPublished."""
        return self.lives[-1]

    @property
    def is_cancelled(self) -> bool:
        """True if nothing waits for its end any more."""
        return self._given_up or any(live.cancelled.is_set() for live in self.lives)

    def begin_publishing(self) -> None:
        """Note that tables may hold it from now on. Called by its thread before it publishes.

        Raises:
            TurnGivenUpError: it was given up.
        """
        with self._lock:
            if self._given_up:
                raise TurnGivenUpError(f"The commit turn of {self.attempts[0]} was given up.")
            self._publishing = True

    def give_up(self) -> bool:
        """Forbid publishing unless it has begun. Returns whether it had."""
        with self._lock:
            self._given_up = True
            for live in self.lives:
                live.had_turn = self._publishing
            return self._publishing

    def close(self, tracking: Tracking, done: CommitResult) -> str | None:
        """Compare the tables' logs with the staged files; return the error if they differ."""
        ledger = self.ledger
        for table, late in done.late.items():
            self.last.staged[table] = late.staged
            tracking.ack(ledger, ledger.staged_late(table, late.staged, late.read))
        for table, prepared in done.prepared.items():
            published = done.published[table]
            value = ledger.prepared(table, published.prepared or prepared)
            tracking.ack(ledger, value ^ ledger.published(table, published))
        tracking.ack(ledger, ledger.committed(done.published))
        if not tracking.is_open(ledger):
            return None
        tracking.drop(self.attempts[0])
        return f"the ledger did not close: staged and not found published: {ledger.missing()}"


class Committing:
    """Run the commit turn, on the commit thread."""

    def __init__(
        self,
        jobs: Jobs,
        spouts: Spouts,
        emissions: Emissions,
        stager: Stager,
        tables: Tables,
        broadcast: Broadcast,
        monotonic: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._broadcast = broadcast
        self._spouts = spouts
        self._emissions = emissions
        self._stager = stager
        self._tables = tables
        self._monotonic = monotonic
        self._beside = Pool(max(1, len(tables.all) - 1), "txn-tables")
        self._closed = threading.Event()
        self._turns: dict[int, TransactionAttempt] = {}
        """Txid -> the last attempt that had its turn: of a committed one, the committed attempt."""
        self._took: dict[str, tuple[float, float]] = {}
        """Table -> seconds of its last two publications."""

    def announce(self, turn: CommitTurn) -> None:
        """Tell the spouts that the turn of these attempts begins; any of them may fail it.

        Raises:
            FailedException: rows of an attempt depend on those of one that was not committed.
        """
        for live in turn.lives:
            self._turns[live.attempt.txid] = live.attempt
            self._turns.pop(live.attempt.txid - _REMEMBERED, None)
            for before in live.built_on.values():
                if self._turns.get(before.txid) != before:
                    raise FailedException(
                        f"Attempt {live.attempt} has compared its rows with those of attempt "
                        f"{before}, which failed since. The batch is replayed."
                    )
            self._spouts.commit(live.attempt, live.reads)

    def prepare(
        self, turn: CommitTurn, publication: Publication
    ) -> tuple[dict[str, Prepared], dict[str, Staging]]:
        """Prepare every table; return what each will publish, and the files staged only now."""
        with self._broadcast.span("prepare", turn.attempts, spark_tags=[turn.tag]):
            prepared = self._prepare_early(turn, publication)
            return prepared, self._prepare_late(turn, publication, prepared)

    def publish(
        self,
        turn: CommitTurn,
        publication: Publication,
        prepared: Mapping[str, Prepared],
        shell: Shell,
    ) -> dict[str, Published]:
        """Publish every table side by side, as long as this process leads.

        Recovery continues from the tables that hold the txid (`txn.protocol.recovery`).
        """
        attempt, (first, *others) = turn.attempts[0], self._tables.all

        def publish(sink: Sink) -> Published:
            if sink is not first:
                reached("publishing-beside", attempt)
            ready = prepared[sink.name]
            table_own = table_publication(publication, ready.staged)
            began = self._monotonic()
            try:
                with self._broadcast.span("publish", turn.attempts, sink.name):
                    published = sink.committer.publish(ready, table_own)
            finally:
                last = self._took.get(sink.name, (math.inf, math.inf))[1]
                self._took[sink.name] = last, self._monotonic() - began
            self._report(turn, sink.name, published)
            if sink is first and others:
                reached("between-publications", attempt)
            return published

        with self._broadcast.span("publish", turn.attempts):
            # One check for all of them, because they begin now. A leader that is replaced after it
            # meets the successor's fence in each log.
            shell.assert_leading()
            return self._run_side_by_side(turn, self._publication_lines(), publish, "publishes")

    def _publication_lines(self) -> list[list[Sink]]:
        """The tables in lists, each published one after the other on a thread of its own.

        The first table begins the first list.
        """
        first, *_ = self._tables.all
        waits = [sink for sink in self._tables.all if self._waits_for_storage(sink)]
        quick = [sink for sink in self._tables.all if sink not in waits]
        lines = [quick[at::_AT_ONCE] for at in range(min(_AT_ONCE, len(quick)))]
        lines += ([sink] for sink in waits)
        return sorted(lines, key=lambda line: line[0] is not first)

    def _waits_for_storage(self, sink: Sink) -> bool:
        took = min(self._took.get(sink.name, (0.0,)))
        return sink.committer.publish_waits or took > _WAITS_SECS

    def _report(self, turn: CommitTurn, table: str, done: Published) -> None:
        unknown = any(file.rows < 0 for file in done.files)
        self._broadcast.report(
            TablePublished,
            turn.attempts,
            table,
            done.version,
            rows=None if unknown else sum(file.rows for file in done.files),
            bytes=sum(file.size for file in done.files),
            files=len(done.files),
            skipped=done.skipped,
            table_files=done.table_files,
            table_bytes=done.table_bytes,
        )

    def close(self) -> None:
        """Let go of the threads; tables whose publication has not begun are not published."""
        self._closed.set()
        self._beside.close(cancel=True)

    def _prepare_early(self, turn: CommitTurn, publication: Publication) -> dict[str, Prepared]:
        """Prepare the tables that are staged already; those that read, side by side.

        Naming a job to Spark takes several calls to Java, which last longer than preparing a table
        that reads nothing.
        """

        def prepare(sink: Sink) -> Prepared:
            staged = turn.staged[sink.name]
            span = self._broadcast.span("prepare", turn.attempts, sink.name, [turn.tag])
            with span, placed(f"table '{sink.name}'"):
                return sink.committer.prepare(staged, table_publication(publication, staged))

        def in_job(sink: Sink) -> Prepared:
            tags, attempts = [turn.tag], turn.attempts
            with self._jobs.tagged(tags, attempts, COMMIT_POOL, "prepare", sink.name):
                return prepare(sink)

        early = self._tables.early
        prepared = {sink.name: prepare(sink) for sink in early if not sink.committer.prepare_reads}
        reading = [sink for sink in early if sink.committer.prepare_reads]
        lines = [[sink] for sink in reading]
        return prepared | self._run_side_by_side(turn, lines, in_job, "prepares")

    def _run_side_by_side(
        self,
        turn: CommitTurn,
        lines: Sequence[Sequence[Sink]],
        job: Callable[[Sink], T],
        does: str,
    ) -> dict[str, T]:
        """Run a job for each table, the first line's on this thread.

        All jobs end before an error is raised, so none runs on beside a replay; of several errors,
        that of the first declared table is raised. No job begins once nothing waits for the turn.
        """
        done: dict[str, Future[T]] = {sink.name: Future() for line in lines for sink in line}

        def one_by_one(line: Sequence[Sink]) -> None:
            for sink in line:
                if sink is not line[0] and (self._closed.is_set() or turn.is_cancelled):
                    return
                try:
                    done[sink.name].set_result(job(sink))
                except BaseException as error:  # noqa: BLE001 - raised by the future
                    done[sink.name].set_exception(error)

        for line in lines[1:]:
            about = f"{does} {', '.join(sink.name for sink in line)}"
            self._beside.submit(one_by_one, line, about=about)
        for line in lines[:1]:
            one_by_one(line)
        while len(lines) > 1 and self._beside.join(_JOIN_SECS):
            pass
        for name, future in done.items():
            if not future.done():
                future.set_exception(TurnGivenUpError(f"Table '{name}' had not begun."))
        return {s.name: done[s.name].result() for s in self._tables.all if s.name in done}

    def _prepare_late(
        self, turn: CommitTurn, publication: Publication, prepared: dict[str, Prepared]
    ) -> dict[str, Staging]:
        """Stage and prepare the tables that take other tables' new values, in declared order.

        A table's stream is declared after the table whose values it takes, so those are known.
        Groups have no such tables: these need the values of each txid, and a group has only those
        of its last.
        """
        late: dict[str, Staging] = {}
        if not self._tables.late:
            return late
        (attempt,) = turn.attempts
        emission = self._emissions[attempt]
        emission.prepared, emission.publication = prepared, publication
        tags = [turn.tag]
        with self._jobs.tagged(tags, turn.attempts, COMMIT_POOL, "prepare"):
            for sink in self._tables.late:
                with (
                    self._broadcast.span("stage", turn.attempts, sink.name, tags),
                    emission.reading(),
                ):
                    (staging,) = self._stager.stage(sink, [emission])
                table_own = table_publication(publication, staging.staged)
                with self._broadcast.span("prepare", turn.attempts, sink.name, tags):
                    prepared[sink.name] = sink.committer.prepare(staging.staged, table_own)
                late[sink.name] = staging
            self._emissions.check_read([(emission, [*late.values()])])
        self._jobs.check_settings()
        return late
