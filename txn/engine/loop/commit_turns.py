"""Run the commit turns: of one txid, or of a group that becomes one version of every table.

A group fails as a whole, and the failure does not show which txid caused it. Its txids then get
turns of their own. They keep their staged files if no table holds the group or ever will. A lock of
the turn decides that: publishing begins, or the turn is given up, never both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from txn.attempts import TransactionAttempt
from txn.engine.base.attempt import CommitResult
from txn.engine.base.failures import is_lost_work
from txn.engine.base.input import NOTHING_READ
from txn.engine.base.shell import Shell
from txn.engine.base.threads import Threads
from txn.engine.loop.in_flight import LiveAttempts
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.commit import CommitTurn, TurnGivenUpError
from txn.engine.work.stations import Stations
from txn.errors import TxnError
from txn.interfaces import Publication
from txn.observers import GroupDissolved
from txn.protocol.events import BatchPublished, GroupFailed, Publish
from txn.protocol.ledgers import Tracking
from txn.spark.causes import cause_line

__all__ = ["CommitTurns"]

log = logging.getLogger("txn")


@dataclass(eq=False, repr=False)
class CommitTurns:
    """The shell's part of commit turns. Owned by the protocol's thread."""

    _stations: Stations
    _live: LiveAttempts
    _tracking: Tracking
    _broadcast: Broadcast
    _threads: Threads
    _shell: Shell
    _ids: Callable[[], int]
    _turn: CommitTurn | None = None

    def make(self, order: Publish) -> CommitTurn:
        """Make the turn that is ordered; it begins next."""
        lives = [self._live[attempt] for attempt, _ in order.members]
        metadata = {} if lives[-1].empty else order.metadata
        late = self._stations.planned_parts(metadata, late=True)
        return CommitTurn(lives, self._ids, late, self._broadcast)

    def begin(self, turn: CommitTurn, publication: Publication) -> None:
        """Begin a turn."""
        self._turn = turn
        for live in turn.lives:
            live.threads += 1
        self._tracking.open(turn.attempts[0], turn.ledger)
        self._threads.spawn(
            self._threads.commit,
            lambda: self._commit(turn, publication),
            lambda error: self._take_error(turn, error),
            f"the commit turn of {', '.join(map(str, turn.attempts))}",
        )

    def group_failed(self, attempt: TransactionAttempt, error: str) -> bool:
        """Return whether `attempt` fails because its group's turn fails; that ends the turn."""
        turn = self._turn
        if turn is None or not turn.is_group or attempt not in turn.attempts:
            return False
        self._dissolve(turn, error)
        return True

    def stop(self) -> None:
        """Cancel the jobs of a group's turn that still runs, because the run ends with an error."""
        turn = self._turn
        if turn is not None and turn.is_group:
            self._threads.quietly(lambda: self._stations.cancel(turn.tag))

    def _commit(self, turn: CommitTurn, publication: Publication) -> None:
        try:
            if not turn.is_cancelled:
                with turn.span:
                    done = self._stations.commit(turn, publication, self._shell)
                self._shell.post(lambda: self._take_result(turn, done))
        except TurnGivenUpError as error:
            log.info("%s", error)
        finally:
            for attempt in turn.attempts:
                self._stations.release(attempt)
            self._shell.post(lambda: self._end_turn(turn))

    def _end_turn(self, turn: CommitTurn) -> None:
        turn.ended = True
        for live in turn.lives:
            self._live.thread_ended(live)

    def _take_result(self, turn: CommitTurn, done: CommitResult) -> None:
        """End a commit turn: compare the tables' logs with the staged files."""
        if turn.is_cancelled:
            return
        error = turn.close(self._tracking, done)
        if error is not None:
            self._shell.failed(turn.last.attempt, error, "ledger")
            return
        self._turn = None
        turn.last.written = done.written
        for live in turn.lives:
            live.input = done.inputs.get(live.attempt, NOTHING_READ)
        self._shell.post(BatchPublished(turn.last.attempt, done.tables, turn.attempts[:-1]))

    def _take_error(self, turn: CommitTurn, error: BaseException) -> None:
        if turn.is_group and _dissolves(error):
            self._shell.post(lambda: self._dissolve(turn, cause_line(error)))
        else:
            self._shell.raised(turn.last.attempt, error)

    def _dissolve(self, turn: CommitTurn, error: str) -> None:
        """End the failed turn of a group, even if its thread still runs."""
        if turn is not self._turn or turn.is_cancelled:
            return
        self._turn = None
        published = turn.give_up()
        self._tracking.drop(turn.attempts[0])
        if not turn.ended:
            self._threads.clean(lambda: self._stations.cancel(turn.tag))
        self._broadcast.report(GroupDissolved, turn.attempts, error)
        self._shell.post(GroupFailed(turn.attempts, error, published))


def _dissolves(error: BaseException) -> bool:
    """Return whether a group may continue txid by txid after `error`, so that only the cause fails.

    Not after an error of txn's own that no replay mends: it names its cause.
    """
    return is_lost_work(error) or (isinstance(error, Exception) and not isinstance(error, TxnError))
