"""What the pipeline tells of its own steps, as events for `txn.engine.broadcast`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from txn.attempts import TransactionAttempt
from txn.engine.attempt import LiveAttempt
from txn.engine.broadcast import Broadcast
from txn.interfaces import Lag
from txn.interfaces.publication import merged_violations
from txn.logs import fields_of
from txn.observers import (
    AttemptBegan,
    AttemptCancelled,
    BadRows,
    BatchCommitted,
    LagChanged,
    NoticesChanged,
    Quarantined,
    ReplayScheduled,
)
from txn.protocol.events import (
    Batch,
    PersistCommitted,
    PersistStart,
    ScheduleRetry,
)

__all__ = ["News"]

log = logging.getLogger("txn")


class News:
    """One method for each thing that the pipeline tells.

    Args:
        set_aside: (stream, rule) of the rules whose rows go to the table of bad rows.
    """

    def __init__(self, broadcast: Broadcast, set_aside: Collection[tuple[str, str]]) -> None:
        self._broadcast = broadcast
        self.set_aside = set_aside
        self._lags: Mapping[str, Lag] = {}
        self._notices: Mapping[str, tuple[str, ...]] = {}

    def of_spouts(self, lags: Mapping[str, Lag], notices: Mapping[str, tuple[str, ...]]) -> None:
        """Tell what is new in their answers. From the planner's thread only."""
        stamp = self._broadcast.stamp()
        for stream in {**self._lags, **lags}:
            if (lag := lags.get(stream)) != self._lags.get(stream):
                self._broadcast.send(LagChanged(*stamp, stream, lag))
        for stream in {**self._notices, **notices}:
            if (said := notices.get(stream, ())) != self._notices.get(stream, ()):
                self._broadcast.send(NoticesChanged(*stamp, stream, said))
        self._lags, self._notices = lags, notices

    def started(self, order: PersistStart, batch: Batch, planned_at: float) -> None:
        """START is durable."""
        stamp = self._broadcast.stamp()
        attempt = order.attempt
        log.info("[%s %s] started", stamp[1], attempt, extra=fields_of(attempt))
        self._broadcast.send(
            AttemptBegan(
                *stamp,
                attempt,
                planned_at,
                order.metadata,
                batch.failures,
                order.replay_of,
                order.quarantined,
            )
        )

    def replayed(self, order: ScheduleRetry, after: float) -> None:
        """A txid is replayed, or looks again, after so many seconds."""
        stamp = self._broadcast.stamp()
        self._broadcast.send(
            ReplayScheduled(*stamp, order.attempt, order.failures, after, order.blocked)
        )

    def cancelled(self, attempt: TransactionAttempt) -> None:
        """An attempt is dead."""
        self._broadcast.send(AttemptCancelled(*self._broadcast.stamp(), attempt))

    def committed(self, order: PersistCommitted, live: LiveAttempt) -> None:
        """COMMITTED is durable: one of the attempts of the turn."""
        attempt, stamp = live.attempt, self._broadcast.stamp()
        violations = merged_violations(part.violations for part in live.staged.values())
        self._broadcast.send(
            BatchCommitted(
                *stamp,
                attempt,
                order.attempts,
                rows={table: part.rows for table, part in live.staged.items()},
                tables=dict(order.tables),
                input_records=live.input.records,
                input_bytes=live.input.bytes,
                rows_written=dict(live.written),
                violations=violations,
                metadata=live.reads,
                quarantined=order.quarantined is not None,
                replay_of=order.replay_of,
            )
        )
        for stream, rules in violations.items():
            for rule, rows in rules.items():
                if rows:
                    aside = (stream, rule) in self.set_aside
                    self._broadcast.send(BadRows(*stamp, attempt, stream, rule, rows, aside))
        if order.quarantined is not None:
            self._broadcast.send(Quarantined(*stamp, attempt, order.quarantined))
