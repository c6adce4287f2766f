"""The coordinator: which batch is planned, processed, committed and replayed, and when.

A pure function, `step(state, event) -> (state, actions)`. Rules for this file:

- Everything that moves a batch from one phase to another stands here, and not in the shell
  (`txn.engine.loop.pipeline`), which carries out the actions.
- Nothing here knows Spark, ZooKeeper, a clock or a thread. Time is an event (`PlanDue`,
  `RetryDue`); failures are events.
- Actions are carried out in the order in which they are returned, up to the first that raises:
  `PersistStart` stands before its `Process`, `PersistCommitted` before its `Succeed`.
- Every event of an attempt that is no longer current, or not in the phase that the event belongs
  to, returns the very same state and no actions. Late is normal; late must be harmless.

The life of a txid (`txn.protocol.transitions` has every transition and refuses all others;
docs/coordinator.md has them too, and the invariants with their tests):

    WAITING -> PLANNING -> PROCESSING -> PROCESSED -> COMMITTING -> (committed: forgotten here)
       ^          |             |            |            |
       +----------+-------------+------------+------------+   failed or dropped: next attempt id

Why it is right, in six steps:

1. *A record is in the batch of one txid.* What txid N reads starts where a smaller txid ended, and
   N is planned only when all smaller txids have valid metadata. So planned ranges neither overlap
   nor leave gaps. Storm starts N+1 without N when N is not ready, and reads records twice.
2. *What was promised is kept.* START(N, attempt, metadata) is durable before a record is read. The
   metadata of a transactional stream is fixed by the first START; that of an opaque stream is
   asked again for each attempt. Then the plans of all later txids no longer hold, since they
   followed from the old answer: those batches are dropped, their opaque metadata forgotten.
   Recovery forgets it too: a START in ZooKeeper may have been written before a smaller txid was
   planned anew, and nothing in it shows that.
3. *Commits are in txid order, one turn at a time.* Only committed + 1 gets the commit turn, and
   with it, as one version of every table, the txids behind it that are processed by then. Such a
   group is committed as a whole or not at all. If its turn fails, the txid at fault is unknown: the
   group is dissolved, nothing is counted, and its txids have turns of their own. Where a table
   may hold the group, they come as new attempts, so that an attempt id still means one try.
4. *What was quarantined is read once.* The batch that replays a quarantined txid takes its metadata
   from the record of the quarantine and moves no position, so no other batch depends on it, nor it
   on others. At most one is in flight per quarantined txid; its COMMITTED deletes the record.
5. *An attempt id means one try.* It rises with each attempt and is durable with START; a restart
   goes on above it. A question that finds nothing to read, or whose source is away, is not a try:
   the next question for that new txid has the same id, never a smaller one.
6. *Success follows durability.* `Succeed` comes after `PersistCommitted`; spouts may forget then.

Sources: `MasterBatchCoordinator` and `TridentSpoutCoordinator` of Storm's Trident; where they skip
or repeat records (holes H2, H3, H4 and H6 of docs/coordinator.md), this file differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from txn.attempts import TransactionAttempt
from txn.config import TopologyConfig
from txn.errors import StateError
from txn.protocol.event_time import WatermarkRule
from txn.protocol.events import (
    Action,
    Batch,
    BatchFailed,
    BatchProcessed,
    BatchPublished,
    Cancel,
    CoordinatorState,
    Event,
    Finish,
    GroupFailed,
    Halt,
    Halted,
    PersistCommitted,
    PersistStart,
    Phase,
    PlanDue,
    PlanFailed,
    PlanMade,
    PlanRefused,
    Process,
    Publish,
    RetryDue,
    SchedulePlan,
    ScheduleRetry,
    StopRequested,
    Succeed,
)
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.protocol.rules import (
    AT_WORK,
    answered,
    can_be_emptied,
    cancels,
    commit_group,
    committing,
    current,
    drop_later,
    event_time_after,
    forget_opaque,
    in_order,
    may_overtake,
    must_be_asked,
    new_batch,
    plan_for,
    positions_before,
    refused,
    waited_for,
    watermark_before,
    watermark_of,
    with_batch,
    without_batches,
)
from txn.protocol.transitions import Cause

__all__ = ["recovered_state", "start", "step"]

Actions = tuple[Action, ...]
Step = tuple[CoordinatorState, Actions]


# --- the beginning of a run ------------------------------------------------------------------


def recovered_state(
    committed: CommittedRecord,
    batches: Iterable[BatchRecord],
    *,
    streams: Sequence[str],
    opaque_streams: Collection[str],
    config: TopologyConfig,
    until: int | Literal["forever", "caught_up"],
    published: Collection[int],
    grouped: bool = True,
    watermark_rules: Sequence[WatermarkRule] = (),
    dimensions: Mapping[str, int] = MappingProxyType({}),
) -> CoordinatorState:
    """Return the state in which a run begins, from the durable records.

    Args:
        committed: the newest txid that is in every table, and the positions as of it.
        batches: the newest START of every open txid.
        streams: names of the topology's streams; the open batches name no others.
        opaque_streams: those of them whose metadata is planned anew for every attempt.
        config: limits of the run.
        until: a txid to end with, or a word as in `Topology.run`.
        published: open txids that some table, not all, holds already.
        grouped: whether several txids may be committed together (`config.max_group_commit`).
        watermark_rules: those of the program.
        dimensions: the newest versions of the tables that streams look rows up in.

    Raises:
        StateError: the open txids are not contiguous from the committed one.
    """
    opaque = frozenset(opaque_streams)
    records = sorted(batches, key=lambda record: record.txid)
    first = committed.txid + 1
    txids = [record.txid for record in records]
    if txids != list(range(first, first + len(records))):
        raise StateError(
            f"ZooKeeper says that txid {committed.txid} is committed and that {txids} are open, "
            f"but open txids must follow each other from {first}: a node was lost or added by "
            "hand. Nothing was changed; `txn recover` rebuilds the state from the tables.",
            number="TXN-803",
        )
    state = CoordinatorState(
        committed=committed.txid,
        positions=dict(committed.spouts),
        opaque_streams=opaque,
        streams=tuple(streams),
        event_time=committed.event_time,
        watermark_rules=tuple(watermark_rules),
        max_spout_pending=config.max_spout_pending,
        max_batch_attempts=config.max_batch_attempts,
        max_group_commit=config.max_group_commit if grouped else 1,
        quarantine=config.on_exhausted == "quarantine",
        until=until if isinstance(until, int) else None,
        until_caught_up=until == "caught_up",
    )
    for record in records:
        batch = _recovered(record, streams, opaque, is_first=record.txid == first)
        versions = {**dimensions, **record.dimensions}
        batch = replace(batch, had_turn=record.txid in published, dimensions=versions)
        state = with_batch(state, batch, Cause.RECOVERED)
    return state


def _recovered(
    record: BatchRecord, streams: Sequence[str], opaque: frozenset[str], *, is_first: bool
) -> Batch:
    """Return the batch of a START; its next attempt is above the durable one."""
    batch = Batch(
        TransactionAttempt(record.txid, record.attempt).next(),
        Phase.WAITING,
        # Streams that are missing in the START are new: this txid reads nothing of them.
        metadata={**dict.fromkeys(streams), **record.spouts},
        started=True,
        quarantined=record.quarantined,
        replay_of=record.replay_of,
        watermark=record.watermark,
    )
    # With opaque streams, an emptied START is written only once all earlier txids are committed
    # (`_replay`), so the first open txid keeps its metadata and its quarantine. Any other one loses
    # its quarantine here, and is tried again.
    keeps_quarantine = is_first and record.quarantined is not None
    return batch if keeps_quarantine else forget_opaque(batch, opaque)


def start(state: CoordinatorState) -> Step:
    """Return the first actions of a run: replay open txids, ask for a new one."""
    return (state, ()) if state.ended else _advance(state)


def step(state: CoordinatorState, event: Event) -> Step:
    """Return the next state after `event`, and the actions to perform, in this order.

    Raises:
        TypeError: not an event.
        ValueError: a `PlanMade` has other streams than its question.
    """
    handler = _HANDLERS.get(type(event))
    if handler is None:
        raise TypeError(f"not an event of txn.protocol.events: {event!r}")
    return (state, ()) if state.ended else handler(state, event)


# --- what every transition ends with ---------------------------------------------------------


def _advance(state: CoordinatorState, actions: Actions = ()) -> Step:
    """Do all that has become possible: end, or else commit, then replay, then ask for new txids.

    The commit comes first because everything else waits for it.
    """
    done = state.until is not None and state.committed >= state.until
    if state.stopping or done:
        return (state, actions) if committing(state) else _end(state, None, actions)
    first = state.batches.get(state.committed + 1)
    if first is not None and first.refused is not None:
        return _end(state, None, actions)
    state, publish = _give_commit_turn(state)
    state, replays = _replay_waiting(state)
    state, question = _ask_for_new(state)
    return state, (*actions, *publish, *replays, *question)


def _give_commit_turn(state: CoordinatorState) -> Step:
    """Give the commit turn to committed + 1 and the txids that can be committed with it."""
    group = commit_group(state)
    if not group:
        return state, ()
    for batch in group:
        # From now on a table may hold a single txid. For a group, the failure of the turn reports
        # whether one may (`_dissolve`).
        had_turn = batch.had_turn or len(group) == 1
        turn = replace(batch, phase=Phase.COMMITTING, had_turn=had_turn)
        state = with_batch(state, turn, Cause.PUBLISH)
    *earlier, (attempt, metadata) = [(b.attempt, b.metadata or {}) for b in group]
    positions = positions_before(state, attempt.txid + 1)
    order = Publish(
        attempt,
        metadata,
        positions,
        tuple(earlier),
        watermarks={b.attempt.txid: b.watermark for b in group if b.watermark is not None},
        dimensions={b.attempt.txid: b.dimensions for b in group if b.dimensions},
        event_time=event_time_after(state, group),
    )
    return state, (order,)


def _replay_waiting(state: CoordinatorState) -> Step:
    """Start or plan waiting batches in txid order, up to the first that later ones depend on."""
    actions: Actions = ()
    for batch in in_order(state):
        if _is_beyond_end(state, batch.attempt.txid):
            break
        if batch.phase is Phase.WAITING and not batch.held:
            state, orders = _replay(state, batch)
            actions += orders
        phase = state.batches[batch.attempt.txid].phase  # as `_replay` left it
        if phase in (Phase.WAITING, Phase.PLANNING) and not may_overtake(state, batch):
            break
    return state, actions


def _replay(state: CoordinatorState, batch: Batch) -> Step:
    """Plan the batch again, or launch it; an emptied one may have to wait for its turn."""
    if must_be_asked(state, batch):
        return _ask(state, batch)
    can_change = bool(state.opaque_streams) and batch.replay_of is None
    if can_change and batch.attempt.txid != state.committed + 1:
        # Emptied. Its metadata names the quarantined records, and would be wrong if an earlier
        # opaque batch were planned anew. So its START is written only when none is left before it.
        return state, ()
    return _launch(state, batch, Cause.PROCESS)


def _ask_for_new(state: CoordinatorState) -> Step:
    """Ask for the next txid if there is room, it is due, and all before it has metadata.

    Batches that wait for the columns of idle streams may fill the window. Only those streams are
    then asked for a txid beyond it, since nothing else can bring the columns. Each stream gets one
    such txid, so the window is exceeded by at most the number of streams.
    """
    batch = new_batch(state)
    is_ready = all(
        b.phase in AT_WORK or (b.phase is Phase.WAITING and may_overtake(state, b))
        for b in state.batches.values()
    )
    has_room = len(state.batches) < state.max_spout_pending
    if not has_room:
        batch = replace(batch, asks=waited_for(state))
    if state.plan_scheduled or not is_ready or not (has_room or batch.asks):
        return state, ()
    if _is_beyond_end(state, batch.attempt.txid):
        return state, ()
    return _ask(state, batch)


def _is_beyond_end(state: CoordinatorState, txid: int) -> bool:
    return state.until is not None and txid > state.until


def _ask(state: CoordinatorState, batch: Batch) -> Step:
    question = plan_for(state, batch)
    return with_batch(state, replace(batch, phase=Phase.PLANNING), Cause.PLAN), (question,)


def _launch(state: CoordinatorState, batch: Batch, cause: Cause) -> Step:
    """Persist START, then process. `batch` carries the metadata of this attempt."""
    metadata, emptied = batch.metadata or {}, batch.quarantined
    if not batch.started:
        batch = replace(batch, watermark=watermark_of(state, batch.attempt.txid))
    watermark, dimensions = batch.watermark, batch.dimensions
    before = watermark_before(state, batch.attempt.txid)
    state = with_batch(state, replace(batch, phase=Phase.PROCESSING, started=True), cause)
    return state, (
        PersistStart(batch.attempt, metadata, emptied, batch.replay_of, watermark, dimensions),
        Process(batch.attempt, metadata, emptied is not None, watermark, dimensions, before),
    )


def _end(state: CoordinatorState, last: Finish | Halt | None, actions: Actions = ()) -> Step:
    """End the run with `last`; None: with Halt if a batch could not be planned, else Finish."""
    if last is None:
        batch = refused(state)
        last = Finish() if batch is None else Halt(batch.refused or "", batch.attempt)
    return replace(state, ended=True), (*actions, *cancels(state), last)


# --- planning --------------------------------------------------------------------------------


def _on_plan_made(state: CoordinatorState, event: PlanMade) -> Step:
    batch = current(state, event.attempt, Phase.PLANNING)
    if batch is None or state.stopping:
        return state, ()
    metadata = answered(state, batch, event)
    is_new = not batch.started
    nothing = event.replay_of is None and all(value is None for value in metadata.values())
    if is_new and nothing:
        return _nothing_to_read(state, batch)
    batch = replace(batch, dimensions={**event.dimensions, **batch.dimensions})
    if is_new:
        batch = replace(batch, replay_of=event.replay_of, blocked=None, waits=0)
    state, actions = _launch(state, replace(batch, metadata=metadata), Cause.PLAN_MADE)
    if is_new:
        state = replace(state, next_attempts={}, plan_idle=False, plan_scheduled=True)
        actions += (SchedulePlan(idle=False),)
    return _advance(state, actions)


def _nothing_to_read(state: CoordinatorState, batch: Batch) -> Step:
    """Drop the new txid. It was the newest, so no gap arises.

    The question is not a try: the next question has the same attempt id. It must not have a smaller
    one, because a question that timed out may still be answered.
    """
    txid, attempt_id = batch.attempt.txid, batch.attempt.attempt_id
    state = replace(
        without_batches(state, {txid}, Cause.PLAN_MADE),
        next_attempts={txid: attempt_id},
        plan_idle=batch.asks is None,
        plan_scheduled=True,
    )
    # All streams were asked with nothing in flight: they saw the effects of every commit, and no
    # replay of a quarantined txid was requested.
    if state.until_caught_up and not state.batches and batch.asks is None:
        return _end(state, None)
    return state, (SchedulePlan(idle=True),)


def _on_plan_failed(state: CoordinatorState, event: PlanFailed) -> Step:
    batch = current(state, event.attempt, Phase.PLANNING)
    if batch is None or state.stopping:
        return state, ()
    return _fail(state, batch, event, Cause.PLAN_FAILED)


def _on_plan_refused(state: CoordinatorState, event: PlanRefused) -> Step:
    """Plan nothing from this txid on, commit what is before it, and end with the error.

    The refusal stays when an earlier batch is planned anew, although the answer might now differ:
    the error was already reported as the one that ends the run. The next run asks again.
    """
    batch = current(state, event.attempt, Phase.PLANNING)
    if batch is None or state.stopping:
        return state, ()
    refused_batch = replace(batch, phase=Phase.WAITING, held=True, refused=event.error)
    return _advance(with_batch(state, refused_batch, Cause.PLAN_REFUSED))


def _on_plan_due(state: CoordinatorState, _: PlanDue) -> Step:
    if not state.plan_scheduled or state.stopping:
        return state, ()
    return _advance(replace(state, plan_scheduled=False))


# --- processed and published -----------------------------------------------------------------


def _on_processed(state: CoordinatorState, event: BatchProcessed) -> Step:
    batch = current(state, event.attempt, Phase.PROCESSING)
    if batch is None:
        return state, ()
    processed = replace(
        batch,
        phase=Phase.PROCESSED,
        blocked=None,
        waits=0,
        lacks=frozenset(),
        newest_times=event.newest_times,
    )
    return _advance(with_batch(state, processed, Cause.BATCH_PROCESSED))


def _on_published(state: CoordinatorState, event: BatchPublished) -> Step:
    attempts = (*event.earlier, event.attempt)
    group = committing(state)
    if tuple(batch.attempt for batch in group) != attempts:
        return state, ()
    batch, positions = group[-1], positions_before(state, event.attempt.txid + 1)
    time = event_time_after(state, group)
    txids = {attempt.txid for attempt in attempts}
    state = without_batches(state, txids, Cause.BATCH_PUBLISHED)
    state = replace(state, committed=event.attempt.txid, positions=positions, event_time=time)
    durable = PersistCommitted(
        event.attempt,
        positions,
        event.tables,
        batch.quarantined,
        batch.replay_of,
        event.earlier,
        time,
    )
    actions: Actions = (durable, *(Succeed(attempt) for attempt in attempts))
    if state.until_caught_up and state.plan_idle and not state.batches:
        # Ask at once if that was all, instead of after the wait of an idle source.
        actions += (SchedulePlan(idle=False),)
    return _advance(state, actions)


# --- failing ---------------------------------------------------------------------------------


def _on_failed(state: CoordinatorState, event: BatchFailed) -> Step:
    batch = current(state, event.attempt, *AT_WORK)
    if batch is None:
        return state, ()
    if batch.phase is Phase.COMMITTING and len(committing(state)) > 1:
        return _dissolve(state, Cause.BATCH_FAILED, published=True)
    actions: Actions = (Cancel(batch.attempt),)
    # No batch follows from the replay of a quarantined txid: later batches stay.
    if state.opaque_streams and batch.replay_of is None:
        state, dropped = drop_later(state, batch.attempt.txid)
        actions += dropped
    return _fail(state, batch, event, Cause.BATCH_FAILED, actions)


def _on_group_failed(state: CoordinatorState, event: GroupFailed) -> Step:
    group = committing(state)
    if len(group) < 2 or tuple(batch.attempt for batch in group) != event.attempts:
        return state, ()
    return _dissolve(state, Cause.GROUP_FAILED, published=event.published)


def _dissolve(state: CoordinatorState, cause: Cause, *, published: bool) -> Step:
    """Give each txid of the group a turn of its own; count no failure.

    If no table holds the group, its staged work is used. Otherwise every txid is tried again, and
    opaque streams plan it anew, as after the failure of one txid.
    """
    group = committing(state)
    state = replace(state, ungrouped_until=group[-1].attempt.txid)
    if not published:
        for batch in group:
            state = with_batch(state, replace(batch, phase=Phase.PROCESSED), cause)
        return _advance(state)
    for batch in group:
        remaining = forget_opaque(batch, state.opaque_streams)
        again = replace(remaining, attempt=batch.attempt.next(), phase=Phase.WAITING, had_turn=True)
        state = with_batch(state, again, cause)
    actions: Actions = tuple(Cancel(batch.attempt) for batch in group)
    if state.opaque_streams:
        state, dropped = drop_later(state, group[-1].attempt.txid)
        actions += dropped
    return _advance(state, actions)


def _fail(
    state: CoordinatorState,
    batch: Batch,
    event: BatchFailed | PlanFailed,
    cause: Cause,
    actions: Actions = (),
) -> Step:
    """Count the failure; hold the batch for a replay, empty it, or give up.

    A failure because of an unavailable source is not counted; the batch is always held.
    """
    error = event.error
    # A new txid whose source was away when it was asked keeps its attempt id: it was not tried.
    was_tried = not event.blocked or batch.started
    failed = replace(
        batch,
        attempt=batch.attempt.next() if was_tried else batch.attempt,
        phase=Phase.WAITING,
        failures=batch.failures + (0 if event.blocked else 1),
        blocked=error if event.blocked else None,
        waits=batch.waits + 1 if event.blocked else 0,
        lacks=event.lacks if isinstance(event, BatchFailed) else frozenset(),
        held=True,
    )
    if state.stopping:
        return _advance(with_batch(state, failed, cause), actions)
    if event.blocked and refused(state) is not None and failed.waits >= state.max_batch_attempts:
        # The error that ends this run must not wait for an unavailable source for ever.
        return _end(with_batch(state, failed, cause), None, actions)
    if event.blocked:
        poll = ScheduleRetry(failed.attempt, failed.waits, blocked=True)
        return _advance(with_batch(state, failed, cause), (*actions, poll))
    if failed.failures < state.max_batch_attempts:
        retry = ScheduleRetry(failed.attempt, failed.failures)
        return _advance(with_batch(state, failed, cause), (*actions, retry))
    if can_be_emptied(state, batch):
        # Count from zero again: a lost executor must not end a run that should go on.
        emptied = replace(failed, failures=0, held=False, quarantined=error)
        return _advance(with_batch(state, emptied, cause), actions)
    halt = Halt(
        f"attempt {batch.attempt} failed, the last of {failed.failures} in this run: {error}",
        batch.attempt,
    )
    return _end(with_batch(state, failed, cause), halt, actions)


def _on_retry_due(state: CoordinatorState, event: RetryDue) -> Step:
    batch = current(state, event.attempt, Phase.WAITING)
    if batch is None or not batch.held or batch.refused is not None or state.stopping:
        return state, ()
    return _advance(with_batch(state, replace(batch, held=False), Cause.RETRY_DUE))


# --- the end of a run ------------------------------------------------------------------------


def _on_stop_requested(state: CoordinatorState, _: StopRequested) -> Step:
    return (state, ()) if state.stopping else _advance(replace(state, stopping=True))


def _on_halted(state: CoordinatorState, event: Halted) -> Step:
    # No Cancel: a fenced leader must not touch files that its successor may be reading.
    return replace(state, ended=True), (Halt(event.error),)


_HANDLERS: dict[type, Callable[[CoordinatorState, Any], Step]] = {
    PlanMade: _on_plan_made,
    PlanFailed: _on_plan_failed,
    PlanRefused: _on_plan_refused,
    PlanDue: _on_plan_due,
    BatchProcessed: _on_processed,
    BatchFailed: _on_failed,
    BatchPublished: _on_published,
    GroupFailed: _on_group_failed,
    RetryDue: _on_retry_due,
    StopRequested: _on_stop_requested,
    Halted: _on_halted,
}
