"""Mutants: the product with one of its rules broken, by patches applied in this process.

Each is the product as it would be if somebody had not thought of one thing. That the simulation
catches it says that the invariants, and the faults, are strong enough to show that thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import committers.log_layout.compacted_rows
import committers.log_layout.compactor
import committers.publishing.followed
import committers.publishing.log
import committers.table_committer
import txn.delta.topology_table
import txn.engine.late_tables
import txn.engine.loop.pipeline
import txn.engine.start
import txn.protocol.coordinator
import txn.protocol.event_time
import txn.protocol.late_tables
import txn.protocol.recovery
import txn.protocol.rules
import txn.zookeeper.foundation
import txn.zookeeper.image
import txn.zookeeper.leadership
from committers.appending import AppendingCommitter
from committers.log_layout.committer import LogCommitter
from committers.log_layout.compacted_rows import CompactedRows
from committers.open_table import OpenTable
from committers.publishing.append import file_actions
from committers.publishing.followed import FollowedTable
from committers.publishing.log import MAX_TRIES, DeltaLog
from committers.state.reading import StateReader
from committers.state_committer import StateCommitter
from committers.table_committer import TableCommitter
from committers.upsert_layout.committer import UpsertCommitter
from committers.upsert_layout.rewriting import BucketRewrite
from tests.simulation.primitives import CLOCK
from tests.simulation.seams import Patch
from txn.attempts import TransactionAttempt
from txn.delta.commits import Commit, epoch_app, txid_app
from txn.engine.loop.attempt_failures import AttemptFailures
from txn.engine.loop.in_flight import LiveAttempts
from txn.engine.work.backfill import Backfill
from txn.engine.work.commit import CommitTurn
from txn.engine.work.history import History
from txn.errors import ProgressUnreadableError
from txn.interfaces import PUBLICATION_KEY, Prepared, Publication, Published, Semantics, Staged
from txn.protocol.events import BatchFailed, BatchPublished, Event, PersistStart, Process, Succeed
from txn.protocol.ledgers import ProcessingLedger
from txn.protocol.records import CommittedRecord, EpochRecord
from txn.protocol.rules import AT_WORK
from txn.zookeeper import ZooKeeperProgress
from txn.zookeeper.client.connection import OutcomeUnknownError
from txn.zookeeper.leadership import Leadership
from txn.zookeeper.writing import RecordWriter

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One broken rule.

    Args:
        what: the rule, as it is broken.
        patches: what stands in its place.
    """

    what: str
    patches: tuple[Patch, ...]


# --- the coordinator -------------------------------------------------------------------------


def _with_handler(kind: type[Event], handler: Callable[..., Any]) -> Patch:
    handlers: Mapping[Any, Any] = txn.protocol.coordinator._HANDLERS
    return (txn.protocol.coordinator, "_HANDLERS", {**handlers, kind: handler})


def _knocked_out(state: Any, event: BatchFailed) -> Any:
    batch = state.batches.get(event.attempt.txid)
    if batch is not None and batch.attempt != event.attempt and batch.phase in AT_WORK:
        kept = {t: b for t, b in state.batches.items() if t != event.attempt.txid}
        return replace(state, batches=kept), ()
    return _on_failed(state, event)


_on_failed = txn.protocol.coordinator._on_failed
_on_published = txn.protocol.coordinator._on_published
_launch = txn.protocol.coordinator._launch
_recovered = txn.protocol.coordinator._recovered


def _failed_unguarded(
    self: Any,
    attempt: TransactionAttempt,
    error: str,
    cause: Any,
    *,
    blocked: bool = False,
    **named: Any,
) -> None:
    batch = self._shell.state.batches.get(attempt.txid)
    if batch is not None and batch.attempt != attempt:
        self._shell.post(BatchFailed(attempt, error, blocked))
        return
    _failed(self, attempt, error, cause, blocked=blocked, **named)


_failed = AttemptFailures.failed


def _counter_lost(record: Any, *args: Any, **named: Any) -> Any:
    batch = _recovered(record, *args, **named)
    return replace(batch, attempt=TransactionAttempt(record.txid, 0))


def _process_first(state: Any, batch: Any, cause: Any) -> Any:
    state, actions = _launch(state, batch, cause)
    return state, tuple(sorted(actions, key=lambda one: isinstance(one, PersistStart)))


def _success_first(state: Any, event: BatchPublished) -> Any:
    state, actions = _on_published(state, event)
    return state, tuple(sorted(actions, key=lambda one: not isinstance(one, Succeed)))


def _keep_later(state: Any, txid: int) -> Any:
    return state, ()


def _watermark_of_the_clock(state: Any, txid: int) -> int | None:
    return None if state.event_time is None else int(CLOCK.time() * 20)


def _newest_watermark(state: Any, txid: int) -> int | None:
    return None if state.event_time is None else state.event_time.watermarks[-1]


def _decided_again(state: Any, batch: Any, cause: Any) -> Any:
    at = txn.protocol.rules.watermark_of(state, batch.attempt.txid + 1)
    state, orders = _launch(state, replace(batch, watermark=at), cause)
    return state, tuple(
        replace(one, watermark=at) if isinstance(one, PersistStart | Process) else one
        for one in orders
    )


def _watermark_lost(record: Any, *args: Any, **named: Any) -> Any:
    return replace(_recovered(record, *args, **named), watermark=None)


def _without_event_time(order: Any, *args: Any, **named: Any) -> Any:
    publication = _publication_of(order, *args, **named)
    return publication.model_copy(update={"event_time": None})


_publication_of = txn.engine.loop.pipeline.publication_of


def _span_too_early(state: Any, txid: int) -> int | None:
    return _watermark_before(state, txid - 1)


_watermark_before = txn.protocol.coordinator.watermark_before


# --- ZooKeeper -------------------------------------------------------------------------------


def _write_unchecked(self: Any, operations: Any, deadline: float) -> Any:
    self.hold(deadline)
    return self._connection.multi(operations, deadline, self._held) if operations else []


def _start_unchecked(self: Any, record: Any) -> None:
    writer = self._writer
    checked = writer.write

    def write(node: Any, operations: Any, deadline: float) -> None:
        kept = [op for op in operations if getattr(op, "path", "") != self._paths.committed]
        checked(node, kept, deadline)

    writer.write = write
    try:
        _persist_start(self, record)
    finally:
        del writer.write


_persist_start = ZooKeeperProgress.persist_start


def _unknown_is_done(self: Any, node: Any, operations: Any, deadline: float) -> None:
    try:
        _write(self, node, operations, _OneTry(deadline))
    except _GivenUp:
        return


class _GivenUp(Exception):  # noqa: N818 - never seen by anybody
    pass


class _OneTry(float):
    """A deadline, and a mark: `_leadership_write` below stops after an unknown outcome."""


_write = RecordWriter.write
_leadership_write = Leadership.write


def _write_once(self: Any, operations: Any, deadline: float) -> Any:
    try:
        return _leadership_write(self, operations, deadline)
    except OutcomeUnknownError:
        if isinstance(deadline, _OneTry):
            raise _GivenUp from None
        raise


def _decode_or_empty(model: Any, *args: Any) -> Any:
    try:
        return _decode(model, *args)
    except ProgressUnreadableError:
        if model is CommittedRecord:
            return CommittedRecord()
        if model is EpochRecord:
            return EpochRecord(epoch=0)
        raise


def _index_or_none(*args: Any) -> Any:
    try:
        return _decode_index(*args)
    except ProgressUnreadableError:
        return None


_decode = txn.zookeeper.image.decode
_decode_index = txn.zookeeper.image.decode_index


# --- the tables ------------------------------------------------------------------------------


def _prepare_touched(self: Any, staged: Staged, publication: Publication) -> Prepared:
    reverts = self.semantics is Semantics.OPAQUE and self._unfinished(publication)
    buckets = {int(file.partition["txn_bucket"] or 0) for file in staged.files}
    old = tuple(file for file in self._log.files.values() if file.bucket in buckets)
    if not old and not staged.files:
        return Prepared(staged, (), (), self._log.version)
    read_url = self._storage.read_url
    rows = self._rewrite.rows(old, staged.files, publication, reverts, read_url, True, None)
    adds = self._area.write(rows, staged.attempt, partition_by="txn_bucket")
    return Prepared(staged, adds, old, self._log.version)


def _prepare_added(self: Any, staged: Staged, publication: Publication) -> Prepared:
    return Prepared(staged, staged.files, (), self._log.version)


def _hold_nothing(*_: object) -> tuple[int, int]:
    return -1, 0


def _publish_anyway(
    self: Any,
    adds: Any,
    removes: Any,
    publication: Publication,
    read_version: int,
    sent: Any = (),
) -> Published:
    self.check(publication, adds)
    app = {
        txid_app(self._topology): publication.last_txid,
        epoch_app(self._topology): publication.epoch,
    }
    metadata = {PUBLICATION_KEY: publication.model_dump(mode="json")}
    for _ in range(MAX_TRIES):
        actions = file_actions(adds, removes, self._now_ms(), data_change=True)
        landed = self._append(actions, metadata, app)
        if landed is not None:
            return Published(landed.version, landed.adds)
        self.refresh()
    raise self._exhausted("publish")


def _newer_any_epoch(publication: Publication, last: Any, epoch: int, table: str) -> None:
    _require_newer(publication, last, 0, table)


def _judge_any_epoch(
    commit: Commit | None, version: int, publication: Publication, table: str
) -> None:
    if commit is not None and commit.mark is not None:
        return
    _judge(commit, version, publication, table)


_require_newer = committers.publishing.log.require_newer
_judge = committers.publishing.log.judge


def _judge_any_publication(
    commit: Commit | None, version: int, publication: Publication, table: str
) -> None:
    if commit is not None and commit.publication is not None:
        return
    _judge(commit, version, publication, table)


def _sweep_first(self: Any) -> None:
    self._fenced = True
    if self._log.version < 0:
        return
    self._sweep(self._area.folders())
    self._log.fence(self._opened.epoch)


def _look_late(self: Any) -> None:
    self._fenced = True
    if self._log.version < 0:
        return
    self._log.fence(self._opened.epoch)
    self._sweep(self._area.folders())


def _publish_withdrawing(self: Any, prepared: Prepared, publication: Publication) -> Published:
    self._area.publishing(prepared.adds)
    try:
        return self._log.publish(
            prepared.adds, prepared.removes, publication, prepared.read_version
        )
    except Exception:
        self._withdraw(prepared)
        raise


def _discard_always(self: Any, live: Any) -> None:
    self._threads.clean(lambda: self._stations.discard(live.attempt))


def _close_anyway(self: Any, tracking: Any, done: Any) -> None:
    _close(self, tracking, done)


_close = CommitTurn.close


def _compact_anything(files: Any, committed: int, *more: Any, **named: Any) -> Any:
    return _files_to_compact(files, committed + 100, *more, **named)


_files_to_compact = committers.log_layout.compactor.files_to_compact


def _ending_again(self: Any, txid: int, *others: Any) -> Any:
    self._layout_as_of = lambda former: StateReader._layout_as_of(self, former - 1)
    try:
        return _ending_rows(self, txid, *others)
    finally:
        del self._layout_as_of


_ending_rows = StateReader.ending


def _newest_watermark_of_table(self: Any, txid: int, *, needed: bool = False) -> int | None:
    return None if self._last is None else self._last[1].watermark


def _ending_once(self: Any, prepared: Prepared, publication: Publication) -> Any:
    return None if prepared.skipped else _ending(self, prepared, publication)


_ending = StateCommitter._ending


def _compacted_too_soon(self: Any, files: Any, active: Any, committed: int) -> Any:
    watermark = self._log.last_publication()[1].watermark
    return self._compacted.rows(files, active, committed, self._table_schema(), watermark)


def _without_watermark(rows: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: rows(self, *args[:-1], None)


def _merged_anyway(rows: Any, layout: Any, *_: Any) -> Any:
    return layout.unended(layout.merged(rows, with_txid=True))


def _staged_all(self: Any, sink: str, read: Any) -> int:
    return _staged(self, sink, self.parts.get(sink, {}))


_staged = ProcessingLedger.staged


def _keep_opaque(record: Any, streams: Any, opaque: Any, *, is_first: bool) -> Any:
    batch = _recovered(record, streams, frozenset(), is_first=is_first)
    return replace(batch, quarantined=record.quarantined)


def _floors_dropped(batches: Any, ahead: Any, first: int) -> Any:
    known = {batch.txid: batch for batch in batches}
    return tuple(known.get(b.txid, b) for b in _with_attempts(batches, ahead, first))


_with_attempts = txn.protocol.recovery._with_attempts


def _none_published(*args: Any, **named: Any) -> Any:
    return replace(_reconcile(*args, **named), published=frozenset())


_reconcile = txn.protocol.recovery.reconcile


def _fill_up_to_the_last(self: Any, history: Any, after: int, committed: int, most: int) -> None:
    _fill(self, replace(history, publications=history.publications[:-1]), after, committed, most)


_fill = Backfill.run


def _allowed_only(*args: Any, **named: Any) -> Any:
    return tuple(change for change in _shape_changes(*args, **named) if change.allowed)


_shape_changes = txn.delta.topology_table.shape_changes


def _any_generation(self: Any, spec: Any, policy: Any) -> Any:
    return () if "/generation-" in self._name else _changes(self, spec, policy)


_changes = FollowedTable.changes


MUTANTS: dict[str, Mutant] = {
    "newer-unchecked": Mutant(
        "A publication need not be newer than what the table holds.",
        ((committers.publishing.log, "require_newer", lambda *_: None),),
    ),
    "floors-dropped": Mutant(
        "Recovery does not look at the attempts that the tables have seen.",
        ((txn.protocol.recovery, "_with_attempts", _floors_dropped),),
    ),
    "published-dropped": Mutant(
        "Recovery forgets which open txids some table holds.",
        ((txn.engine.start, "reconcile", _none_published),),
    ),
    "discard-after-turn": Mutant(
        "What an attempt staged is deleted also when it came to its commit turn.",
        ((LiveAttempts, "_discard", _discard_always),),
    ),
    "commit-ledger-ignored": Mutant(
        "Nobody looks whether the ledger of a commit turn closes.",
        ((CommitTurn, "close", _close_anyway),),
    ),
    "opaque-kept": Mutant(
        "What opaque streams answered before a restart is taken for what they would answer now.",
        ((txn.protocol.coordinator, "_recovered", _keep_opaque),),
    ),
    "stale-failure": Mutant(
        "The failure of a dead attempt removes the live one (Storm).",
        (_with_handler(BatchFailed, _knocked_out), (AttemptFailures, "failed", _failed_unguarded)),
    ),
    "attempt-counter-lost": Mutant(
        "After a restart attempts are counted from 0.",
        ((txn.protocol.coordinator, "_recovered", _counter_lost),),
    ),
    "emit-before-persist": Mutant(
        "A batch is processed while its START is being written.",
        ((txn.protocol.coordinator, "_launch", _process_first),),
    ),
    "success-before-durable": Mutant(
        "Spouts are told success while COMMITTED is being written.",
        (_with_handler(BatchPublished, _success_first),),
    ),
    "revert-touched-keys": Mutant(
        "An opaque upsert table reverts only the buckets that the replay mentions (Storm).",
        ((UpsertCommitter, "_prepare", _prepare_touched),),
    ),
    "revert-no-files": Mutant(
        "An opaque append or log table keeps the files of unfinished txids.",
        ((AppendingCommitter, "_prepare", _prepare_added),),
    ),
    "transactional-again": Mutant(
        "A transactional table applies a replay of what it holds.",
        ((committers.table_committer, "held", _hold_nothing),),
    ),
    "publish-retried": Mutant(
        "A lost append is tried at the next version without judging what stands there.",
        ((DeltaLog, "publish", _publish_anyway),),
    ),
    "judge-publications": Mutant(
        "Publications of others that came between are passed over.",
        ((committers.publishing.log, "judge", _judge_any_publication),),
    ),
    "zookeeper-epoch": Mutant(
        "Writes to ZooKeeper do not check the epoch.",
        ((Leadership, "write", _write_unchecked),),
    ),
    "table-epoch": Mutant(
        "Publications do not look at the epochs in the log.",
        (
            (committers.publishing.log, "require_newer", _newer_any_epoch),
            (committers.publishing.log, "judge", _judge_any_epoch),
        ),
    ),
    "unreadable-is-empty": Mutant(
        "An unreadable COMMITTED, or epoch, is read as none.",
        (
            (txn.zookeeper.image, "decode", _decode_or_empty),
            (txn.zookeeper.image, "decode_index", _index_or_none),
            (txn.zookeeper.foundation, "decode", _decode_or_empty),
            (txn.zookeeper.leadership, "decode", _decode_or_empty),
        ),
    ),
    "compact-uncommitted": Mutant(
        "Compaction takes files of txids that are not committed.",
        ((committers.log_layout.compactor, "files_to_compact", _compact_anything),),
    ),
    "start-unchecked": Mutant(
        "START does not check COMMITTED.",
        ((ZooKeeperProgress, "persist_start", _start_unchecked),),
    ),
    "roll-forward-mixed": Mutant(
        "ZooKeeper is rolled forward over tables that hold different attempts.",
        ((txn.protocol.recovery, "_same_attempts", lambda ahead: True),),
    ),
    "unknown-is-done": Mutant(
        "A write to ZooKeeper of unknown outcome is taken for done.",
        ((RecordWriter, "write", _unknown_is_done), (Leadership, "write", _write_once)),
    ),
    "later-plans-kept": Mutant(
        "Later txids stand when an opaque one before them fails.",
        ((txn.protocol.coordinator, "drop_later", _keep_later),),
    ),
    "group-unpublished": Mutant(
        "A group that failed while publishing is taken for unpublished.",
        ((CommitTurn, "give_up", lambda self: bool(_give_up(self)) and False),),
    ),
    "parts-unread": Mutant(
        "Planned parts are acknowledged whether or not they were read.",
        ((ProcessingLedger, "staged", _staged_all),),
    ),
    "staged-unchecked": Mutant(
        "Staged files are published without a look whether they are there.",
        ((committers.publishing.log, "require_staged", lambda *_: None),),
    ),
    "stale-removes": Mutant(
        "Files are removed without a look whether OPTIMIZE has rewritten them.",
        ((DeltaLog, "_require_active", lambda self, removes: None),),
    ),
    "sweep-first": Mutant(
        "A new leader deletes the files of dead ones before it has fenced them.",
        ((TableCommitter, "fence", _sweep_first),),
    ),
    "sweep-looks-late": Mutant(
        "A new leader looks for the files of dead ones after it has fenced them.",
        ((TableCommitter, "fence", _look_late),),
    ),
    "unknown-withdrawn": Mutant(
        "Files of an append whose outcome is unknown are deleted.",
        (
            (TableCommitter, "_publish", _publish_withdrawing),
            (LiveAttempts, "_discard", _discard_always),
        ),
    ),
    "watermark-of-the-clock": Mutant(
        "The watermark of a txid is decided by the clock.",
        ((txn.protocol.coordinator, "watermark_of", _watermark_of_the_clock),),
    ),
    "newest-watermark": Mutant(
        "The watermark of a txid follows from whatever is committed when it starts.",
        ((txn.protocol.coordinator, "watermark_of", _newest_watermark),),
    ),
    "watermark-goes-back": Mutant(
        "A watermark follows from the newest events alone, not from the one before it.",
        ((txn.protocol.event_time, "_later", lambda one, other: other),),
    ),
    "watermark-decided-again": Mutant(
        "Each attempt decides the watermark anew.",
        ((txn.protocol.coordinator, "_launch", _decided_again),),
    ),
    "watermark-lost": Mutant(
        "A recovered txid has no watermark.",
        ((txn.protocol.coordinator, "_recovered", _watermark_lost),),
    ),
    "event-time-not-published": Mutant(
        "The tables' logs do not have what later watermarks follow from.",
        ((txn.engine.loop.pipeline, "publication_of", _without_event_time),),
    ),
    "ended-twice": Mutant(
        "The span in which keys end starts a txid too early.",
        ((StateReader, "ending", _ending_again),),
    ),
    "end-skipped": Mutant(
        "A replay of what a table holds ends no key.",
        ((StateCommitter, "_ending", _ending_once),),
    ),
    "newest-end": Mutant(
        "Which keys have ended follows from the newest publication, whatever the txid.",
        ((FollowedTable, "watermark_as_of", _newest_watermark_of_table),),
    ),
    "final-twice": Mutant(
        "The span of a txid's watermark starts a txid too early.",
        ((txn.protocol.coordinator, "watermark_before", _span_too_early),),
    ),
    "compacted-too-soon": Mutant(
        "Compaction drops keys that end in a txid that is not committed.",
        ((LogCommitter, "_compacted_rows", _compacted_too_soon),),
    ),
    "begun-anew-merged": Mutant(
        "Compaction decides which partials begin a key anew without the earlier ones.",
        ((committers.log_layout.compacted_rows, "_merged", _merged_anyway),),
    ),
    "gap-compacted": Mutant(
        "Compaction leaves out partials between those that it merges, though keys begin anew.",
        ((LogCommitter, "_to_compact", lambda self, files, active: files),),
    ),
    "ended-kept": Mutant(
        "Compactions and rewrites of buckets keep what has ended.",
        (
            (CompactedRows, "rows", _without_watermark(CompactedRows.rows)),
            (BucketRewrite, "rows", _without_watermark(BucketRewrite.rows)),
        ),
    ),
    "change-left-out": Mutant(
        "Tables keep their shape when the program has another one.",
        ((OpenTable, "change_shape", lambda self, committed: None),),
    ),
    "half-changed": Mutant(
        "A table is changed that holds rows of a txid which others may lack.",
        ((OpenTable, "_refuse_unfinished", lambda self, *_, **__: None),),
    ),
    "late-skips": Mutant(
        "A late table does not get the newest committed txid.",
        ((Backfill, "run", _fill_up_to_the_last),),
    ),
    "parts-unread-late": Mutant(
        "A late table takes what was read, whether or not that is all that was planned.",
        ((Backfill, "_require_read", lambda *_: None),),
    ),
    "dead-attempt-kept": Mutant(
        "A late table keeps a txid of an attempt that was not committed.",
        (
            (txn.engine.late_tables, "agrees", lambda *_, **__: True),
            (txn.protocol.late_tables, "agrees", lambda *_, **__: True),
        ),
    ),
    "empty-history": Mutant(
        "A late table is taken to have no history.",
        (
            (txn.engine.late_tables, "read_history", lambda *_, **__: History(())),
            (txn.engine.late_tables, "require_history", lambda *_, **__: None),
        ),
    ),
    "stale-generation": Mutant(
        "A next generation that another program has filled takes its table's place.",
        ((FollowedTable, "changes", _any_generation),),
    ),
    "former-program-not-refused": Mutant(
        "What the program lacks of a table does not matter.",
        ((committers.publishing.followed, "shape_changes", _allowed_only),),
    ),
    "no-quarantine-record": Mutant(
        "A txid is committed empty without a record of what was quarantined.",
        ((txn.engine.loop.pipeline, "quarantine_record", lambda order, read: None),),
    ),
}

_give_up = CommitTurn.give_up
