"""Commit turns: of one txid, or of a group that becomes one version of every table.

A group fails as a whole, and nobody can say whose fault it was. Its txids then have turns of their
own; with what they have staged already, if it is certain that no table holds the group nor will.
That is settled here, under a lock: publishing begins, or the turn is given up, never both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from txn.attempts import TransactionAttempt
from txn.engine.failures import first_line, is_lost_work
from txn.engine.in_flight import LiveAttempts
from txn.engine.recorder import Recorder
from txn.engine.stations import AttemptWork, BatchWork, Turn
from txn.engine.threads import Threads
from txn.errors import TxnError
from txn.interfaces import Publication, Staged
from txn.protocol.events import BatchPublished, Event, GroupFailed, Publish
from txn.protocol.ledgers import CommitLedger, Tracking

__all__ = ["CommitTurn", "CommitTurns", "TurnGivenUpError", "dissolves"]

log = logging.getLogger("txn")


class TurnGivenUpError(TxnError):
    """The turn was given up before it began to publish; nobody waits for its end."""


class CommitTurn:
    """What the protocol's thread knows of a commit turn.

    Args:
        works: its attempts, in txid order.
        ids: source of random non-zero 64-bit ids.
        late: the parts of tables that are staged in the turn itself; of a group there are none.
    """

    def __init__(
        self,
        works: Sequence[AttemptWork],
        ids: Callable[[], int],
        late: Mapping[str, Mapping[str, Iterable[str]]],
    ) -> None:
        self.works = tuple(works)
        self.attempts: tuple[TransactionAttempt, ...] = tuple(work.attempt for work in works)
        self.is_group = len(self.works) > 1
        # Not the attempts' own tags: a group's jobs are cancelled, and its attempts live on.
        self.tag = f"{works[0].tag}-to-{works[-1].attempt.txid}" if self.is_group else works[0].tag
        self.staged = {
            table: Staged.together([work.staged[table] for work in works])
            for table in works[0].staged
        }
        self.ledger = CommitLedger(ids, self.staged, late)
        self.ended = False
        """Its thread is through with it."""
        self._lock = threading.Lock()
        self._publishing = False
        self._given_up = False
        for work in works:
            work.had_turn = True

    @property
    def last(self) -> AttemptWork:
        """The attempt that names the turn in BatchPublished."""
        return self.works[-1]

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._given_up or any(work.cancelled.is_set() for work in self.works)

    def mark(self, station: str, now: float) -> None:
        """Every attempt of the turn has come to a station."""
        for work in self.works:
            work.timeline.mark(station, now)

    def begin_publishing(self) -> None:
        """From now on tables may hold it. Called by its thread before the first publication.

        Raises:
            TurnGivenUpError: it was given up.
        """
        with self._lock:
            if self._given_up:
                raise TurnGivenUpError(f"The commit turn of {self.attempts[0]} was given up.")
            self._publishing = True

    def give_up(self) -> bool:
        """Let it publish nothing if it has not begun to; whether it has."""
        with self._lock:
            self._given_up = True
            for work in self.works:
                work.had_turn = self._publishing
            return self._publishing

    def close(self, tracking: Tracking, done: Turn) -> str | None:
        """Hold what the tables' logs say against what was staged; the error, if they differ."""
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


class CommitTurns:
    """The shell's part of commit turns. Owned by the protocol's thread.

    Args:
        clock: seconds since the epoch.
        ids: source of random non-zero 64-bit ids.
        assert_leading: raises unless this process still leads.
        post: hands a fact to the protocol's thread.
        failed: an attempt failed, for this reason.
        raised: the turn of an attempt raised; called on any thread.
    """

    def __init__(
        self,
        work: BatchWork,
        live: LiveAttempts,
        tracking: Tracking,
        recorder: Recorder,
        threads: Threads,
        *,
        clock: Callable[[], float],
        ids: Callable[[], int],
        assert_leading: Callable[[], None],
        post: Callable[[Event | Callable[[], None]], None],
        failed: Callable[[TransactionAttempt, str], None],
        raised: Callable[[TransactionAttempt, BaseException], None],
    ) -> None:
        self._work = work
        self._live = live
        self._tracking = tracking
        self._recorder = recorder
        self._threads = threads
        self._clock = clock
        self._ids = ids
        self._assert_leading = assert_leading
        self._post = post
        self._failed = failed
        self._raised = raised
        self._turn: CommitTurn | None = None

    def begin(
        self, order: Publish, publication: Callable[[Mapping[str, float]], Publication]
    ) -> None:
        """Begin the turn that is ordered.

        Args:
            publication: what the tables' logs are to say, given the milliseconds per station.
        """
        works = [self._live[attempt] for attempt, _ in order.members]
        late = self._work.planned_parts(order.metadata, late=True, empty=works[-1].empty)
        self._turn = turn = CommitTurn(works, self._ids, late)
        turn.mark("turn", self._clock())
        for live in works:
            live.threads += 1
        self._tracking.open(works[0].attempt, turn.ledger)
        words = publication(turn.last.timeline.durations_ms())
        self._threads.spawn(
            self._threads.commit,
            lambda: self._publish(turn, words),
            lambda error: self._turn_raised(turn, error),
            f"the commit turn of {', '.join(map(str, turn.attempts))}",
        )

    def group_failed(self, attempt: TransactionAttempt, error: str) -> bool:
        """Whether `attempt` fails because the group whose turn runs does, which ends its turn."""
        turn = self._turn
        if turn is None or not turn.is_group or attempt not in turn.attempts:
            return False
        self._dissolve(turn, error)
        return True

    def stop(self) -> None:
        """Cancel the jobs of a group whose turn still runs: the run ends with an error."""
        turn = self._turn
        if turn is not None and turn.is_group:
            self._threads.quietly(lambda: self._work.cancel(turn.tag))

    def _publish(self, turn: CommitTurn, publication: Publication) -> None:
        try:
            if not turn.is_cancelled:
                done = self._work.publish(
                    turn,
                    publication,
                    lambda station: turn.mark(station, self._clock()),
                    self._assert_leading,
                )
                self._post(lambda: self._published(turn, done))
        except TurnGivenUpError as error:
            log.info("%s", error)
        finally:
            for attempt in turn.attempts:
                self._work.release(attempt)
            self._post(lambda: self._ended(turn))

    def _ended(self, turn: CommitTurn) -> None:
        turn.ended = True
        for live in turn.works:
            self._live.thread_ended(live)

    def _published(self, turn: CommitTurn, done: Turn) -> None:
        """A commit turn ended: hold what the tables' logs say against what was staged."""
        if turn.is_cancelled:
            return
        error = turn.close(self._tracking, done)
        if error is not None:
            self._failed(turn.last.attempt, error)
            return
        self._turn = None
        self._post(BatchPublished(turn.last.attempt, done.tables, turn.attempts[:-1]))

    def _turn_raised(self, turn: CommitTurn, error: BaseException) -> None:
        if turn.is_group and dissolves(error):
            self._post(lambda: self._dissolve(turn, first_line(error)))
        else:
            self._raised(turn.last.attempt, error)

    def _dissolve(self, turn: CommitTurn, error: str) -> None:
        """The turn of a group failed: it is over, also if its thread is not through with it."""
        if turn is not self._turn or turn.is_cancelled:
            return
        self._turn = None
        published = turn.give_up()
        self._tracking.drop(turn.attempts[0])
        if not turn.ended:
            self._threads.clean(lambda: self._work.cancel(turn.tag))
        self._recorder.dissolved(turn.attempts, error)
        self._post(GroupFailed(turn.attempts, error, published))


def dissolves(error: BaseException) -> bool:
    """Whether a group may go on one by one after `error`: the one to blame then fails alone.

    Not after an error of the product's own that no replay mends: it says whom it is about.
    """
    return is_lost_work(error) or (isinstance(error, Exception) and not isinstance(error, TxnError))
