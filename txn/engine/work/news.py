"""Report the steps of the pipeline as events, through `txn.engine.reporting.broadcast`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from txn.attempts import TransactionAttempt
from txn.dataflow.expectations import Treatment
from txn.engine.base.attempt import LiveAttempt
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.spout_facts import SpoutFacts
from txn.interfaces import Lag
from txn.interfaces.publication import merged_violations
from txn.logs import fields_of
from txn.observers import (
    AttemptBegan,
    BadRows,
    BatchCommitted,
    LagChanged,
    NoticesChanged,
    Quarantined,
)
from txn.protocol.events import (
    Batch,
    PersistCommitted,
    PersistStart,
)
from txn.protocol.recovery import Newest, Recovered

__all__ = ["News"]

log = logging.getLogger("txn")


class News:
    """One method for each kind of step that the pipeline reports.

    Args:
        treatments: `txn.dataflow.expectations.treatments`.
    """

    def __init__(
        self, broadcast: Broadcast, treatments: Mapping[tuple[str, str], Treatment]
    ) -> None:
        self._broadcast = broadcast
        self.treatments = treatments
        self._sending = threading.Lock()
        self._lags: Mapping[str, tuple[Lag | None, Lag | None]] = {}
        self._notices: Mapping[str, tuple[str, ...]] = {}

    def of_spouts(self, facts: SpoutFacts) -> None:
        """Report new lags and notices of the spouts. From any thread."""
        with self._sending:
            lags, planned, notices = facts.lags, facts.planned, facts.notices
            streams = {stream: (lag, planned.get(stream)) for stream, lag in lags.items()}
            for stream in {**self._lags, **streams}:
                if (lag := streams.get(stream, (None, None))) != self._lags.get(
                    stream, (None, None)
                ):
                    self._broadcast.report(LagChanged, stream, *lag)
            for stream in {**self._notices, **notices}:
                if (lines := notices.get(stream, ())) != self._notices.get(stream, ()):
                    self._broadcast.report(NoticesChanged, stream, lines)
            self._lags, self._notices = streams, notices

    def started(self, order: PersistStart, batch: Batch, planned_at: float) -> None:
        """Report that START is durable."""
        _, topology, _ = self._broadcast.stamp()
        attempt = order.attempt
        log.info("[%s %s] started", topology, attempt, extra=fields_of(attempt))
        self._broadcast.report(
            AttemptBegan,
            attempt,
            planned_at,
            order.metadata,
            batch.failures,
            order.replay_of,
            order.quarantined,
        )

    def committed(self, order: PersistCommitted, live: LiveAttempt) -> None:
        """Report that COMMITTED is durable, for one of the attempts of the turn."""
        violations = merged_violations(part.violations for part in live.staged.values())
        time = order.event_time
        self._send_committed(
            BatchCommitted(
                *self._broadcast.stamp(),
                live.attempt,
                order.attempts,
                rows={table: part.rows for table, part in live.staged.items()},
                tables=dict(order.tables),
                input_records=live.input.records,
                input_bytes=live.input.bytes,
                rows_written=dict(live.written),
                violations=violations,
                metadata=live.reads,
                watermark=live.watermark,
                newest_event=None if time is None else time.newest_at,
                quarantined=order.quarantined is not None,
                replay_of=order.replay_of,
            ),
            order.quarantined,
        )

    def rolled_forward(self, before: int, recovered: Recovered, publications: Newest) -> None:
        """Report that COMMITTED is durable for txids that an earlier run has published.

        Args:
            before: the committed txid at the start of the run.
        """
        if not recovered.roll_forward:
            return
        held = {table: entry for table, entry in publications.items() if entry is not None}
        first = min((entry for _, entry in held.values()), key=lambda entry: entry.last_txid)
        members = [member for member in first.txids if member.txid > before]
        group = tuple(TransactionAttempt(m.txid, m.attempt_id) for m in members)
        error = recovered.quarantine.error if recovered.quarantine is not None else None
        for attempt, member in zip(group, members, strict=True):
            parts = {
                table: part
                for table, (_, entry) in held.items()
                for part in entry.txids
                if part.txid == attempt.txid
            }
            self._send_committed(
                BatchCommitted(
                    *self._broadcast.stamp(),
                    attempt,
                    group,
                    rows={table: part.rows for table, part in parts.items()},
                    tables={table: version for table, (version, _) in held.items()},
                    input_records={
                        stream: None for stream, read in member.read.items() if read is not None
                    },
                    violations=merged_violations(part.violations for part in parts.values()),
                    metadata=member.read,
                    watermark=member.watermark,
                    quarantined=error is not None,
                    replay_of=recovered.replay_of,
                    rolled_forward=True,
                ),
                error,
            )

    def _send_committed(self, event: BatchCommitted, quarantined: str | None) -> None:
        """Send a commit, its rows that broke rules, and its quarantine."""
        self._broadcast.send(event)
        about = (event.at, event.topology, event.epoch, event.attempt)
        for stream, rules in event.violations.items():
            for rule, rows in rules.items():
                if rows:
                    treatment = self.treatments.get((stream, rule), "drop")
                    aside, kept = treatment == "set_aside", treatment == "keep"
                    self._broadcast.send(BadRows(*about, stream, rule, rows, aside, kept))
        if quarantined is not None:
            self._broadcast.send(Quarantined(*about, quarantined))
