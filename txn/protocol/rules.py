"""Pure questions about a `CoordinatorState`, and the small changes that the transitions share.

`txn.protocol.coordinator` decides when something happens; this module derives facts from the
state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from txn.attempts import TransactionAttempt
from txn.interfaces.event_time import EventTime
from txn.protocol.event_time import advanced
from txn.protocol.events import Batch, Cancel, CoordinatorState, Phase, Plan, PlanMade
from txn.protocol.transitions import Cause, require_transition

__all__ = [
    "AT_WORK",
    "answered",
    "can_be_emptied",
    "cancels",
    "commit_group",
    "committing",
    "current",
    "drop_later",
    "event_time_after",
    "forget_opaque",
    "in_order",
    "may_overtake",
    "must_be_asked",
    "new_batch",
    "plan_for",
    "positions_before",
    "refused",
    "waited_for",
    "watermark_before",
    "watermark_of",
    "with_batch",
    "without_batches",
]

AT_WORK = (Phase.PROCESSING, Phase.PROCESSED, Phase.COMMITTING)
"""Phases in which an attempt runs or has staged files: it can fail, and can be cancelled."""


def in_order(state: CoordinatorState) -> list[Batch]:
    """Return the open batches by ascending txid."""
    return [state.batches[txid] for txid in sorted(state.batches)]


def current(state: CoordinatorState, attempt: TransactionAttempt, *phases: Phase) -> Batch | None:
    """Return the batch of `attempt`, if that is its current attempt and in one of `phases`.

    The whole attempt is compared before anything is touched. Storm removes the live attempt
    first and compares then, so a stale failure knocks it out and records are skipped.
    """
    batch = state.batches.get(attempt.txid)
    if batch is None or batch.attempt != attempt or batch.phase not in phases:
        return None
    return batch


def with_batch(state: CoordinatorState, batch: Batch, cause: Cause) -> CoordinatorState:
    """Return `state` with this batch as the batch of its txid; checks the transition."""
    txid, present = batch.attempt.txid, state.batches.get(batch.attempt.txid)
    require_transition(txid, present.phase if present else None, cause, batch.phase)
    return replace(state, batches={**state.batches, txid: batch})


def without_batches(
    state: CoordinatorState, txids: Collection[int], cause: Cause
) -> CoordinatorState:
    """Return `state` without these txids, which are in it; checks the transitions."""
    for txid in txids:
        require_transition(txid, state.batches[txid].phase, cause, None)
    return replace(state, batches={t: b for t, b in state.batches.items() if t not in txids})


def committing(state: CoordinatorState) -> tuple[Batch, ...]:
    """Return the batches whose commit turn runs, in txid order: none, one, or a group."""
    return tuple(batch for batch in in_order(state) if batch.phase is Phase.COMMITTING)


def commit_group(state: CoordinatorState) -> tuple[Batch, ...]:
    """Return the batches that get the next commit turn, in txid order; empty if none is ready.

    Only ordinary batches are grouped: an emptied batch and the replay of a quarantined one write
    more with their COMMITTED than positions, so each has its own turn. So has every txid of a
    failed group: the one that caused the failure then fails by itself.
    """
    group: list[Batch] = []
    for txid in range(state.committed + 1, state.committed + 1 + state.max_group_commit):
        batch = state.batches.get(txid)
        # Only committed + 1 and its group can be committing, so the first of them shows if the
        # turn is taken.
        if batch is None or batch.phase is not Phase.PROCESSED:
            break
        is_single = (
            batch.quarantined is not None
            or batch.replay_of is not None
            or txid <= state.ungrouped_until
        )
        if is_single and group:
            break
        group.append(batch)
        if is_single:
            break
    return tuple(group)


def positions_before(state: CoordinatorState, txid: int) -> dict[str, Any]:
    """Return each stream's newest metadata below `txid`, in flight or committed."""
    positions = dict(state.positions)
    for batch in in_order(state):
        # A replay reads records behind the positions of its streams.
        if batch.attempt.txid < txid and batch.replay_of is None:
            positions.update({s: m for s, m in (batch.metadata or {}).items() if m is not None})
    return positions


def watermark_of(state: CoordinatorState, txid: int) -> int | None:
    """Return the watermark of a txid that is about to start.

    It follows from committed txids alone: at most `max_spout_pending` are open.
    """
    time = state.event_time
    if time is None or not state.watermark_rules:
        return None
    return time.watermark(txid - state.committed)


def event_time_after(state: CoordinatorState, group: Sequence[Batch]) -> EventTime | None:
    """Return event time as of the last txid of a commit turn."""
    time, rules = state.event_time, state.watermark_rules
    for batch in group:
        txid, own, newest = batch.attempt.txid, batch.watermark, batch.newest_times
        time = advanced(time, txid, own, newest, rules, state.max_spout_pending)
    return time


def watermark_before(state: CoordinatorState, txid: int) -> int | None:
    """Return the watermark of the txid before this one, whose START is durable."""
    batch = state.batches.get(txid - 1)
    if batch is not None:
        return batch.watermark
    return None if state.event_time is None else state.event_time.own


def refused(state: CoordinatorState) -> Batch | None:
    """Return the batch that could not be planned and ends the run, or None.

    Nothing overtakes a batch that has to be planned, so there is never a second one.
    """
    return next((batch for batch in in_order(state) if batch.refused is not None), None)


# --- planning ----------------------------------------------------------------------------------


def must_be_asked(state: CoordinatorState, batch: Batch) -> bool:
    """True if the spouts have to be asked before an attempt of `batch` can start.

    A further attempt asks opaque streams only. No spout is asked about an emptied batch, which
    reads nothing, or about the replay of a quarantined one, whose records are fixed.
    """
    if batch.quarantined is not None or batch.replay_of is not None:
        return False
    return not batch.started or bool(state.opaque_streams)


def may_overtake(state: CoordinatorState, batch: Batch) -> bool:
    """True if later txids may be started or planned while `batch` waits.

    They may if its metadata is fixed, because theirs follows from it. An opaque stream fixes
    nothing, unless the batch replays a quarantined txid.
    """
    return batch.started and (not state.opaque_streams or batch.replay_of is not None)


def _asked_streams(state: CoordinatorState, batch: Batch) -> tuple[str, ...]:
    if not batch.started:
        return tuple(s for s in state.streams if batch.asks is None or s in batch.asks)
    return tuple(stream for stream in state.streams if stream in state.opaque_streams)


def plan_for(state: CoordinatorState, batch: Batch) -> Plan:
    """Return the question for `batch`. All smaller txids must have valid metadata."""
    streams = _asked_streams(state, batch)
    positions = positions_before(state, batch.attempt.txid)
    return Plan(
        batch.attempt,
        streams,
        {s: positions[s] for s in streams if s in positions},
        is_new=not batch.started and batch.asks is None,
        replaying=_replaying(state),
    )


def answered(state: CoordinatorState, batch: Batch, event: PlanMade) -> dict[str, Any]:
    """Return the metadata of every stream: from the START, and from this answer.

    Raises:
        ValueError: the answer has other streams than the question, or it is the replay of a
            quarantined txid although none may begin.
    """
    is_new = not batch.started and batch.asks is None
    if event.replay_of is not None and (not is_new or event.replay_of in _replaying(state)):
        raise ValueError(
            f"PlanMade for {event.attempt} replays the quarantined txid {event.replay_of}, but "
            "its question was not about a new txid, or that replay is in flight already"
        )
    asked = _asked_streams(state, batch)
    if set(event.metadata) != set(asked):
        raise ValueError(
            f"PlanMade for {event.attempt} answers for the streams {sorted(event.metadata)}, but "
            f"{sorted(asked)} were asked; the shell must answer each, with None for nothing"
        )
    unasked = {} if batch.asks is None or batch.started else dict.fromkeys(state.streams)
    return {**unasked, **(batch.metadata or {}), **event.metadata}


def _replaying(state: CoordinatorState) -> frozenset[int]:
    return frozenset(b.replay_of for b in state.batches.values() if b.replay_of is not None)


def waited_for(state: CoordinatorState) -> frozenset[str]:
    """Return streams whose columns an open batch waits for, while no open batch reads them.

    Empty with opaque streams: nothing is planned behind a waiting batch, and every attempt asks the
    opaque streams again.
    """
    if state.opaque_streams:
        return frozenset()
    batches = state.batches.values()
    read = {s for b in batches for s, m in (b.metadata or {}).items() if m is not None}
    return frozenset(s for b in batches for s in b.lacks if s in state.streams) - read


def new_batch(state: CoordinatorState) -> Batch:
    """Return the batch of the next new txid, about to be planned."""
    txid = max(state.batches, default=state.committed) + 1
    return Batch(TransactionAttempt(txid, state.next_attempts.get(txid, 0)), Phase.WAITING)


# --- failing -----------------------------------------------------------------------------------


def cancels(state: CoordinatorState) -> tuple[Cancel, ...]:
    """Cancel all work except a running commit turn, whose files may just become visible."""
    idle = (Phase.PROCESSING, Phase.PROCESSED)
    return tuple(Cancel(b.attempt) for b in in_order(state) if b.phase in idle)


def forget_opaque(batch: Batch, opaque_streams: frozenset[str]) -> Batch:
    """Return `batch` without the answers of its opaque streams, which are out of date.

    Its quarantine is dropped too. A quarantine sets aside exactly the records of that metadata; if
    it stayed while an earlier batch is planned anew, the records between the two would be skipped.
    The replay of a quarantined txid stays as it is: it follows from no other batch.
    """
    if batch.replay_of is not None:
        return batch
    metadata: Mapping[str, Any] = batch.metadata or {}
    remaining = {
        stream: value for stream, value in metadata.items() if stream not in opaque_streams
    }
    return replace(batch, metadata=remaining if batch.started else None, quarantined=None)


def drop_later(state: CoordinatorState, txid: int) -> tuple[CoordinatorState, tuple[Cancel, ...]]:
    """Drop every txid above `txid`, because the opaque batch `txid` will read other records.

    Replays of quarantined txids stay: they do not follow from it. Nothing follows from a replay
    either, so nothing is dropped when one fails.

    Each dropped txid waits for a new plan under a higher attempt id; a waiting one keeps its id,
    which no one has seen. It is not their failure: none is counted, and none is held.
    """
    orders: list[Cancel] = []
    for batch in in_order(state):
        if batch.attempt.txid <= txid or batch.replay_of is not None:
            continue
        dropped = forget_opaque(batch, state.opaque_streams)
        if batch.phase is not Phase.WAITING:
            dropped = replace(dropped, attempt=batch.attempt.next(), phase=Phase.WAITING)
        if batch.phase in AT_WORK:
            orders.append(Cancel(batch.attempt))
        state = with_batch(state, dropped, Cause.DROPPED)
    return state, tuple(orders)


def can_be_emptied(state: CoordinatorState, batch: Batch) -> bool:
    """True if `batch`, which has used up its attempts, may be committed empty.

    A replay of a quarantined txid may be quarantined again, whatever `on_exhausted` is.

    Not twice: if an empty batch fails, its records are not the cause. Not without valid metadata of
    all streams, which names the quarantined records. And not after a commit turn: a table may hold
    the txid, and a transactional table would keep its rows while the others have none.
    """
    has_metadata = set(batch.metadata or {}) >= set(state.streams)
    is_allowed = state.quarantine or batch.replay_of is not None
    return is_allowed and batch.quarantined is None and has_metadata and not batch.had_turn
