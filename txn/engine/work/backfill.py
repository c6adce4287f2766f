"""Fill a new table with its history: the committed txids, read anew for this table alone.

The logs of the other tables record what each txid read. The table gets every one of them, through
its own committer and with the same guards as in a run, so what its log holds is as if it had always
been there. After a crash it goes on behind its newest txid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from txn.attempts import TransactionAttempt
from txn.dataflow.graph import Sink, StateQuery, TableValues
from txn.dataflow.kept import Kept
from txn.dataflow.repeats import Repeats
from txn.dataflow.sessions import Sessions
from txn.dataflow.stages import code_above
from txn.dataflow.time_joins import JoinInTime
from txn.engine.base.attempt import Emission, Staging, table_publication
from txn.engine.base.killpoints import reached
from txn.engine.work.emission import Emissions
from txn.engine.work.history import History, Step
from txn.engine.work.jobs import PROCESSING_POOL, Jobs
from txn.engine.work.staging import Stager
from txn.errors import (
    CommitConflictError,
    FailedException,
    RecoveryRefusedError,
    TopologyError,
)
from txn.interfaces import NOTICES, Committer, Member, Prepared, Publication, Staged
from txn.interfaces.committer_capabilities import CleansUp
from txn.protocol.ledgers import ProcessingLedger

__all__ = ["Backfill", "Leader", "publish_exactly", "require_history", "require_refillable"]

notices = logging.getLogger(NOTICES)

_NOTICE_SECS = 10.0


def require_refillable(sink: Sink) -> None:
    """Refuse a table whose rows depend on more than what its sources read.

    Raises:
        TopologyError: naming the part of its stream that reads a state.
    """
    if isinstance(sink.parent, Kept):
        owner = sink.parent.owner
        raise TopologyError(
            f"Table '{sink.name}' cannot be filled with its history: it has what {owner.operation} "
            f"of stream '{owner.label()}' keeps for later txids, and rows that have come out would "
            "come out again. Leave it out of backfilled_tables, and name it in new_tables: it then "
            "begins with the next txid. If there is a table from an earlier time, move its folder "
            "away first.",
            number="TXN-809",
        )
    for node in sink.parent.ancestors():
        if isinstance(node, TableValues | StateQuery | Repeats | JoinInTime | Sessions):
            what = "a state" if isinstance(node, TableValues | StateQuery) else "earlier txids"
            raise TopologyError(
                f"Table '{sink.name}' cannot be filled with its history: its stream "
                f"'{sink.parent.label()}' reads {what}, which is no more what it was at each "
                "txid. Leave it out of backfilled_tables, and name it in new_tables: it then "
                "begins with the next txid.",
                number="TXN-809",
            )


def require_history(
    table: str, history: History, held: int, committed: int, *, may_lack: bool
) -> None:
    """Refuse a history that begins late, unless the settings accept it.

    Args:
        held: the newest txid that the table holds; 0: none.
        may_lack: whether `new_tables` names the table.

    Raises:
        RecoveryRefusedError: naming the first txid that can be had.
    """
    if history.first == 1 or (may_lack and history.first and not held):
        return
    why = "what earlier txids read was cleaned out of the logs of all tables"
    if history.unread is not None:
        why = f"earlier txids read stream '{history.unread}', which the program does not declare"
    if held:
        settings, first = "new_tables", history.first or committed + 1
        if history.first:
            settings = "backfilled_tables and in new_tables"
        raise RecoveryRefusedError(
            f"Table '{table}' holds txids up to {held} and would lack txids {held + 1} to "
            f"{first - 1}: {why}. Nothing was changed. Give the table a new path in the program, "
            f"and name that one in {settings}: it then begins with txid {first}. The rows at "
            f"'{table}' stay as they are.",
            number="TXN-809",
        )
    if not history.first and history.unread is not None:
        raise RecoveryRefusedError(
            f"Table '{table}' cannot be filled with its history: {why}. Nothing was changed. Take "
            f"it out of backfilled_tables and set TopologyConfig(new_tables=({table!r},)): it then "
            f"begins with txid {committed + 1}.",
            number="TXN-809",
        )
    if not history.first:
        raise RecoveryRefusedError(
            f"Table '{table}' cannot be filled with its history: no other table's log records what "
            f"txids 1 to {committed} read. Nothing was changed. Take it out of backfilled_tables "
            f"and set TopologyConfig(new_tables=({table!r},)): it then begins with the next txid.",
            number="TXN-809",
        )
    raise RecoveryRefusedError(
        f"Table '{table}' can be filled from txid {history.first} on: {why}. Nothing was changed. "
        f"To accept that, set TopologyConfig(new_tables=({table!r},)) as well.",
        number="TXN-809",
    )


def publish_exactly(committer: Committer, prepared: Prepared, publication: Publication) -> None:
    """Publish, and compare the new version with what was prepared, as a run's acker does.

    Raises:
        FailedException: the version lacks a file, or has another one.
    """
    published = committer.publish(prepared, publication)
    added, found = (
        {(f.path, f.size, f.rows) for f in files} for files in (prepared.adds, published.files)
    )
    if added != found and not published.skipped:
        files = ", ".join(sorted(path for path, *_ in added ^ found))
        raise FailedException(
            f"Version {published.version} of table {committer.name}, with txid "
            f"{publication.last_txid} of its history, has other files than were staged for it: "
            f"{files}. Give the table a new path, and fill that; delete the folder if the table is "
            "a next generation."
        )


def _beside_another(table: str) -> CommitConflictError:
    """Return the error for a table that got rows from elsewhere while it was filled."""
    return CommitConflictError(
        f"Table {table} got rows from another process while it was filled, such as a second `txn "
        "backfill`. What it has got stays, each txid once. When the other process has ended, start "
        "again: the filling goes on behind the newest txid."
    )


@dataclass(frozen=True)
class Leader:
    """The process in whose epoch a table is filled."""

    epoch: int
    assert_leading: Callable[[], None]
    """Returns once it is certain that no newer leader exists. Beside a leader: the table's own log
    decides, which a leader that knows the table fences."""
    monotonic: Callable[[], float]
    """Seconds."""


class Backfill:
    """Fills one table.

    Args:
        emissions: of this table alone.
        dimensions: the newest versions of the tables that streams look rows up in, for txids that
            did not.
    """

    def __init__(
        self,
        sink: Sink,
        emissions: Emissions,
        stager: Stager,
        jobs: Jobs,
        topology: str,
        leader: Leader,
        dimensions: Mapping[str, int],
    ) -> None:
        self._sink = sink
        self._code = code_above(sink)
        self._emissions = emissions
        self._stager = stager
        self._jobs = jobs
        self._topology = topology
        self._leader = leader
        self._dimensions = dimensions

    def run(self, history: History, after: int, committed: int, most: int) -> None:
        """Give the table every txid that it lacks.

        Args:
            after: the newest txid that it holds as the others do.
            most: the most txids that are read and published together.
        """
        first = max(after + 1, history.first)
        if first > committed:
            return
        notices.warning(
            "Table %s gets its history: txids %s to %s.", self._sink.name, first, committed
        )
        groups = most if self._sink.committer.groups else 1
        begun = told = self._leader.monotonic()
        for step in history.steps(after, groups):
            self._publish(step)
            now, at = self._leader.monotonic(), step.members[-1].txid
            if now - told > _NOTICE_SECS and at < committed:
                told = now
                rate = (at - first + 1) / (now - begun)
                notices.warning(
                    "Table %s has txid %s of %s: %.2g txids a second, about %s left.",
                    self._sink.name,
                    at,
                    committed,
                    rate,
                    timedelta(seconds=round((committed - at) / rate)),
                )

    def _publish(self, step: Step) -> None:
        committer = self._sink.committer
        attempts = [TransactionAttempt(m.txid, m.attempt_id) for m in step.members]
        with self._jobs.tagged([], attempts, PROCESSING_POOL, "backfill", self._sink.name):
            staged = self._stage(step, attempts)
            publication = table_publication(self._publication(step), staged)
            prepared = committer.prepare(staged, publication)
            self._leader.assert_leading()
            try:
                publish_exactly(committer, prepared, publication)
            except CommitConflictError as error:
                raise _beside_another(committer.name) from error
        reached("backfilled", attempts[-1])
        if isinstance(committer, CleansUp):
            for attempt in attempts:
                committer.committed(attempt)

    def _stage(self, step: Step, attempts: list[TransactionAttempt]) -> Staged:
        """Stage the rows of the step, in one job if there are several txids."""
        if step.quarantined is not None:
            return Staged(attempts[0], ())
        together = len(attempts) > 1
        with ExitStack() as cleaning:
            emissions: list[Emission] = []
            for member, attempt in zip(step.members, attempts, strict=True):
                cleaning.callback(self._emissions.release, attempt)
                versions = {**self._dimensions, **member.dimensions}
                emission = self._emissions.emit(
                    attempt, member.read, member.watermark, versions, one_task=together
                )
                emissions.append(emission)
            stagings = self._stager.stage(self._sink, emissions)
            for emission, staging in zip(emissions, stagings, strict=True):
                self._require_read(emission, staging)
                self._emissions.check_read([(emission, [staging])])
        return Staged.together([staging.staged for staging in stagings])

    def _require_read(self, emission: Emission, staging: Staging) -> None:
        """Refuse rows that lack a planned part of their source, or have another one."""
        sink = self._sink
        parts = self._emissions.planned_parts(sink, emission.metadata)
        ledger = ProcessingLedger(lambda: 1, parts)
        ledger.emitted()
        ledger.staged(sink.name, staging.read)
        if ledger.edges:
            raise FailedException(
                f"{emission.evaluation.attempt} of table '{sink.name}': planned and never read: "
                f"{ledger.missing()}"
            )

    def _publication(self, step: Step) -> Publication:
        last = step.members[-1]
        members = [
            Member(
                txid=m.txid,
                attempt_id=m.attempt_id,
                read=m.read,
                watermark=m.watermark,
                dimensions={**self._dimensions, **m.dimensions},
            )
            for m in step.members
        ]
        return Publication(
            topology=self._topology,
            epoch=self._leader.epoch,
            first_txid=step.members[0].txid,
            last_txid=last.txid,
            attempt_id=last.attempt_id,
            spouts=step.positions,
            read=last.read,
            quarantined=step.quarantined,
            replay_of=step.replay_of,
            watermark=last.watermark,
            dimensions=members[-1].dimensions,
            filled_by=self._code,
            members=tuple(members) if len(members) > 1 else (),
        )
