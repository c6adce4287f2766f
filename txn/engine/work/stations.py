"""The stations of a batch that touch Spark, spouts and tables, in the order it passes them.

They run on the threads of `txn.engine.loop.pipeline`, know nothing of the protocol, and raise their
errors. Between them stand the two writes to ZooKeeper: START before `process`, COMMITTED after
`commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from txn.attempts import TransactionAttempt
from txn.engine.base.attempt import CommitResult, LiveAttempt
from txn.engine.base.killpoints import reached
from txn.engine.base.shell import Shell
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.commit import Committing, CommitTurn
from txn.engine.work.dimensions import Dimensions
from txn.engine.work.emission import Emissions
from txn.engine.work.jobs import Jobs
from txn.engine.work.processing import Outcomes, Processing
from txn.engine.work.spout_facts import SpoutFacts
from txn.engine.work.spouts import Spouts
from txn.engine.work.tables import Tables
from txn.interfaces import Publication
from txn.protocol.events import Metadata, Plan

__all__ = ["Stations"]


@dataclass(eq=False, repr=False)
class Stations:
    """The work on a batch: one method per station, then questions and the ends of attempts."""

    _jobs: Jobs
    _spouts: Spouts
    _tables: Tables
    _emissions: Emissions
    _processing: Processing
    _committing: Committing
    _dimensions: Dimensions
    _broadcast: Broadcast

    # --- the stations ------------------------------------------------------------------------

    def plan(self, order: Plan, *, window_full: bool) -> dict[str, Any]:
        """Ask the named spouts what the attempt shall read: stream -> metadata as JSON, or None."""
        self._jobs.enter_thread()
        span = self._broadcast.span("plan", [order.attempt])
        with span:
            planned = self._spouts.plan(order, window_full=window_full)
            span.is_sent = any(read is not None for read in planned.values())
        return planned

    def dimensions(self) -> dict[str, int]:
        """Return the newest versions of the tables that streams look rows up in."""
        return self._dimensions.versions()

    def readable(self, attempt: TransactionAttempt, metadata: Metadata) -> dict[str, Any]:
        """Ask what the replay of a quarantined txid can still read; an error refuses it."""
        self._jobs.enter_thread()
        return self._spouts.readable(attempt, metadata)

    def process(self, group: Sequence[LiveAttempt], outcomes: Outcomes, *, one_task: bool) -> None:
        """Emit, transform, aggregate and stage some attempts; report every outcome."""
        self._processing.run(group, outcomes, one_task=one_task)

    def commit(self, turn: CommitTurn, publication: Publication, shell: Shell) -> CommitResult:
        """Prepare every table side by side, then publish them side by side."""
        self._committing.announce(turn)
        # Not on the protocol's thread, because plugins count here and may take long.
        inputs = {
            live.attempt: self._spouts.facts.planned_input(
                self._spouts.parsed_by_source(live.reads)
            )
            for live in turn.lives
        }
        prepared, late = self._committing.prepare(turn, publication)
        reached("before-publish", turn.attempts[0])
        turn.begin_publishing()
        published = self._committing.publish(turn, publication, prepared, shell)
        reached("after-publish", turn.attempts[0])
        return CommitResult(prepared, published, late, inputs)

    def succeed(self, attempt: TransactionAttempt) -> None:
        """Tell the spouts that the txid is durable everywhere."""
        with self._broadcast.span("success", [attempt]):
            self._spouts.succeed(attempt)

    def clean_up(self, attempt: TransactionAttempt) -> None:
        """Delete the scratch files of a committed attempt."""
        reached("during-clean-up", attempt)
        with self._broadcast.span("clean_up", [attempt]):
            self._tables.clean_up(attempt)

    # --- questions, and the ends of attempts ------------------------------------------------------

    def planned_parts(self, metadata: Metadata, *, late: bool) -> dict[str, dict[str, list[str]]]:
        """Return table -> stream -> names of the parts that START hands to its staging job.

        Args:
            late: take the tables staged in the commit turn; False: take the others.
        """
        sinks = self._tables.late if late else self._tables.early
        return self._spouts.planned_parts(sinks, metadata)

    @property
    def undecided(self) -> list[frozenset[str]]:
        """For each stream and table without columns so far, the streams that will decide them."""
        return [*self._emissions.undecided, *self._tables.undecided]

    @property
    def in_order(self) -> bool:
        """Whether an attempt is processed only when those of all smaller txids are staged."""
        return self._tables.in_order

    @property
    def facts(self) -> SpoutFacts:
        """The spouts' answers that users see. Safe from any thread."""
        return self._spouts.facts

    def learn_plan(self, txid: int, metadata: Metadata) -> None:
        """Learn the amounts of a txid that was planned by an earlier run or without the spouts."""
        self._jobs.enter_thread()
        self.facts.plan(txid, self._spouts.parsed_by_source(metadata))

    @property
    def are_caught_up(self) -> bool:
        """True if all sources certainly have nothing beyond the newest plan."""
        ahead = self.facts.ahead
        return all(
            source.name in ahead and ahead[source.name].is_nothing
            for source in self._spouts.sources
        )

    def cancel(self, tag: str) -> None:
        """Cancel the Spark jobs of an attempt or of a commit turn."""
        self._jobs.cancel(tag)

    def discard(self, attempt: TransactionAttempt) -> None:
        """Let go of a dead attempt's rows, and delete its staged files."""
        self._processing.discard(attempt)

    def release(self, attempt: TransactionAttempt) -> None:
        """Let go of an attempt's rows: its commit turn is over."""
        self._emissions.release(attempt)
