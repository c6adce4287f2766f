"""Failed attempts: replay one, let it wait, or end the run."""

from __future__ import annotations

import logging

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.engine.base.failures import cause_of, is_away, is_lost_work, is_of_batch
from txn.engine.base.shell import Shell
from txn.engine.loop.commit_turns import CommitTurns
from txn.engine.loop.ending_errors import stopped
from txn.engine.reporting.broadcast import Broadcast
from txn.errors import (
    BatchError,
    ColumnsUnknownError,
    FencedError,
    ProgressUnavailableError,
    TransformError,
    TxnError,
    UserError,
)
from txn.logs import fields_of
from txn.observers import AttemptBlocked, AttemptFailed, FailureCause
from txn.protocol.events import Batch, BatchFailed, Phase, PlanFailed, PlanRefused
from txn.spark.causes import cause_line
from txn.text import place_of

__all__ = ["AttemptFailures"]

log = logging.getLogger("txn")

_ENDS_AT_ONCE = (FencedError, ProgressUnavailableError)
"""Nothing more can be made durable, so the batches in flight are not committed first."""
LEADING_SECS = 5.0
"""Most seconds to ask ZooKeeper for a successor, which may have caused the failure."""


class AttemptFailures:
    """Turns failures of live attempts into events; failures of dead ones change nothing."""

    def __init__(
        self,
        topology: str,
        config: TopologyConfig,
        turns: CommitTurns,
        broadcast: Broadcast,
        shell: Shell,
    ) -> None:
        self._topology = topology
        self._config = config
        self._turns = turns
        self._broadcast = broadcast
        self._shell = shell
        self._lacking: dict[int, ColumnsUnknownError] = {}
        self._refused: dict[TransactionAttempt, BaseException] = {}
        self._quarantines = config.on_exhausted == "quarantine"

    def raised(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Fail the attempt if a replay may help, else end the run. From any thread.

        With a quarantine, errors of the user's code and of records fail the attempt as well; the
        last error is recorded with the quarantined batch.
        """
        post = self._shell.post
        if is_lost_work(error):
            # Find out on this thread, not on the protocol's: it takes calls to the JVM.
            blocked = is_away(error)
            places = self._quarantines and not blocked
            text = _line_with_place(error) if places else cause_line(error)
            lacks = error.streams if isinstance(error, ColumnsUnknownError) else frozenset()
            why = cause_of(error)
            post(lambda: self.failed(attempt, text, why, blocked=blocked, lacks=lacks))
            if isinstance(error, ColumnsUnknownError):
                post(lambda: self._lacks_columns(attempt.txid, error))
        else:
            cause = self._unless_replaced(error)
            of_batch, line = is_of_batch(cause), _line_with_place(cause)
            post(lambda: self._set_aside_or_end(attempt, cause, line, of_batch=of_batch))

    def failed(
        self,
        attempt: TransactionAttempt,
        error: str,
        cause: FailureCause,
        *,
        blocked: bool = False,
        lacks: frozenset[str] = frozenset(),
    ) -> None:
        """Report a failure. From the protocol's thread."""
        batch = self._live_batch(attempt)
        if batch is None or self._turns.group_failed(attempt, error):
            return
        if blocked:
            self._broadcast.report(AttemptBlocked, attempt, error, batch.waits)
        else:
            self._broadcast.report(AttemptFailed, attempt, cause, error, batch.phase.value)
        if batch.phase is Phase.PLANNING:
            self._shell.post(PlanFailed(attempt, error, blocked))
        else:
            self._shell.post(BatchFailed(attempt, error, blocked, lacks))

    def _set_aside_or_end(
        self, attempt: TransactionAttempt, error: BaseException, line: str, *, of_batch: bool
    ) -> None:
        """Quarantine the batch if the error is its own, else end the run: no replay helps.

        A batch that is emptied already has no records left to quarantine, and one that is being
        planned has none yet. A replayed batch may go back to the quarantine, in any run.
        """
        batch = self._live_batch(attempt)
        taken = False
        if batch is not None and batch.phase is not Phase.PLANNING and batch.quarantined is None:
            was_there = batch.replay_of is not None
            taken = (of_batch and (self._quarantines or was_there)) or (
                was_there and isinstance(error, UserError)
            )
        if taken:
            self.failed(attempt, line, "error")
        else:
            self._fatal(attempt, error)

    def _fatal(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """End the run for an error that no replay mends, unless its attempt is dead.

        The run ends at once, except for an error of planning: earlier txids are committed first.
        """
        batch = self._live_batch(attempt)
        if batch is None:
            log.info(
                "[%s %s] dead attempt ended: %s",
                self._topology,
                attempt,
                cause_line(error),
                extra=fields_of(attempt),
            )
            return
        line, phase = cause_line(error), batch.phase.value
        self._broadcast.report(AttemptFailed, attempt, "error", line, phase, ends_run=True)
        if not isinstance(error, TxnError) or isinstance(error, TransformError):
            error = stopped(self._topology, batch, error)
        if batch.phase is not Phase.PLANNING or isinstance(error, _ENDS_AT_ONCE):
            self._shell.end(error)
            return
        before = attempt.txid - 1 - self._shell.state.committed
        if before:
            log.error(
                "[%s %s] cannot be planned: %s The run plans nothing more, commits the %d txid%s "
                "before it, and ends with this error.",
                self._topology,
                attempt,
                error,
                before,
                "s" * (before > 1),
                extra=fields_of(attempt),
            )
        self._refused[attempt] = error
        self._shell.post(PlanRefused(attempt, cause_line(error)))

    def refusal(self, attempt: TransactionAttempt | None) -> BaseException | None:
        """The error that refused the planning of an attempt; None if it was not refused."""
        return None if attempt is None else self._refused.get(attempt)

    def _live_batch(self, attempt: TransactionAttempt) -> Batch | None:
        """The batch of this attempt; None if the attempt is dead."""
        batch = self._shell.state.batches.get(attempt.txid)
        return batch if batch is not None and batch.attempt == attempt else None

    def _unless_replaced(self, error: BaseException) -> BaseException:
        """`error`, or FencedError if a successor leads: it deletes the files of this process."""
        if isinstance(error, FencedError):
            return error
        try:
            self._shell.assert_leading(LEADING_SECS)
        except FencedError as fenced:
            log.info("[%s] after a successor took over: %s", self._topology, cause_line(error))
            return fenced
        except TxnError:
            pass  # ZooKeeper is away: the station's error stands
        return error

    # --- unknown columns ---------------------------------------------------------------------

    def _lacks_columns(self, txid: int, error: ColumnsUnknownError) -> None:
        """End a run that has an end if columns stay unknown for the message timeout."""
        state = self._shell.state
        if state.until is None and not state.until_caught_up:
            return
        if txid not in self._lacking:
            timeout = self._config.message_timeout_secs
            self._shell.after(timeout, lambda: self._lacked_columns(txid, timeout))
        self._lacking[txid] = error

    def _lacked_columns(self, txid: int, timeout: float) -> None:
        error, batch = self._lacking.pop(txid), self._shell.state.batches.get(txid)
        waits = batch is not None and (batch.blocked or "").startswith(type(error).__name__)
        if batch is None or not waits or self._shell.state.stopping:
            return
        self._shell.end(
            BatchError(
                f"Batch {batch.attempt} of topology '{self._topology}' waited for {timeout:g} s, "
                f"but this run has an end (until): {error} Nothing was lost: the next run goes "
                "on from here; with until='forever' it would keep waiting.",
                number="TXN-414",
            )
        )


def _line_with_place(error: BaseException) -> str:
    """An error in a line, with the place that it came from: a transform, a spout, a table."""
    if isinstance(error, TransformError) and error.__cause__ is not None:
        error = error.__cause__
    place = place_of(error)
    return cause_line(error) + (f" (in {place})" if place else "")
