"""Find the bottleneck of a run and its waits, from the coordinator's state and times. Pure.

A batch passes planning, processing and commit; between two of them it may have to wait. `bound`
names the one thing that holds the run up at this moment; `waits` describes each wait in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from txn.observers import Bound
from txn.protocol.events import Batch, CoordinatorState, Phase

__all__ = ["BOUND_NAMES", "bound", "in_words", "is_queued", "waits"]

BOUND_NAMES = {
    "source": "the source",
    "processing": "processing",
    "commit": "commits",
    "away": "a source or storage that is away",
    "replay": "replays",
    "idle": "nothing to read",
}
"""Bound -> its name for users, after "held up by"."""

_STATIONS = (("published", "ZooKeeper"), ("prepared", "publish"), ("turn", "prepare"))
"""The newest station that a commit turn has reached -> its work since then."""

Times = Mapping[str, float]


def bound(state: CoordinatorState) -> Bound:
    """Return the bottleneck: the run would be faster now if that were faster."""
    phases = [batch.phase for _, batch in sorted(state.batches.items())]
    planning = Phase.PLANNING in phases
    if Phase.COMMITTING in phases and Phase.PROCESSED in phases:
        return "commit"
    # Also while its batch checks whether it is back, which is neither planning nor processing.
    if any(_is_away(batch) for batch in state.batches.values()):
        return "away"
    if Phase.WAITING in phases[:1]:
        return "replay"
    if Phase.PROCESSING in phases:
        # The window has room, so Spark could do more at once if more were planned.
        return "source" if planning and not state.plan_idle else "processing"
    if Phase.COMMITTING in phases:
        return "commit"
    if Phase.WAITING in phases:
        return "replay"
    return "source" if planning and not state.plan_idle else "idle"


def in_words(held_up_by: str) -> str:
    """Describe the state of a run for users; one that has read everything is not held up."""
    if held_up_by == "idle":
        return "waiting for new records"
    return f"held up by {BOUND_NAMES[held_up_by]}"


def is_queued(batch: Batch, times: Times) -> bool:
    """True if a batch is started and waits for Spark."""
    return batch.phase is Phase.PROCESSING and "processing" not in times


def waits(state: CoordinatorState, times: Callable[[Batch], Times], now: float) -> tuple[str, ...]:
    """One sentence for each wait, planning first; empty if nothing waits.

    Args:
        times: station (`report.STATIONS`) -> when the current attempt of a batch came to it.
        now: seconds since the epoch, as `times`.
    """
    if state.ended:
        return ()
    return tuple(
        sentence
        for sentences in (_planning(state, times, now), _replays(state), _turn(state, times, now))
        for sentence in sentences
    )


def _planning(
    state: CoordinatorState, times: Callable[[Batch], Times], now: float
) -> Iterator[str]:
    held = [b for b in state.batches.values() if b.phase is Phase.PLANNING]
    newest = max(state.batches, default=state.committed)
    if state.stopping:
        yield "planning is over: the run is being stopped"
    elif state.until is not None and newest >= state.until and not held:
        yield f"planning is over: txid {state.until} is the last one"
    elif len(state.batches) >= state.max_spout_pending and not held:
        window = f"{len(state.batches)} of {state.max_spout_pending} txids in flight"
        yield f"waiting for the current batches before reading more: {window}"
    elif state.plan_idle:
        # Ignore the last answer of a source that has gone away since.
        if not any(map(_is_away, state.batches.values())):
            yield "source: nothing to read"
    elif held:
        asked = held[0].attempt.txid
        yield f"planning waits for the source: txid {asked}{_since(times(held[0]), now)}"
    elif state.plan_scheduled:
        # At lag zero the next txid takes all records that arrive while these are processed.
        what = "current batches" if _is_processing(state) else "emit interval"
        yield f"waiting for the {what} before reading more"


def _replays(state: CoordinatorState) -> Iterator[str]:
    away = [b for b in state.batches.values() if _is_away(b)]
    lacking = [b for b in state.batches.values() if b.blocked is not None and b.lacks]
    failed = [b for b in state.batches.values() if b.held and b.blocked is None]
    if away:
        yield f"{_txids(away)} for a source or storage that is away"
    if lacking:
        yield f"{_txids(lacking)} for the columns of a stream"
    if failed:
        yield f"{_txids(failed)} for a replay"


def _turn(state: CoordinatorState, times: Callable[[Batch], Times], now: float) -> Iterator[str]:
    batches = [batch for _, batch in sorted(state.batches.items())]
    processed = [b for b in batches if b.phase is Phase.PROCESSED]
    committing = [b for b in batches if b.phase is Phase.COMMITTING]
    if committing and processed:
        reached = times(committing[0])
        doing = next((word for name, word in _STATIONS if name in reached), "prepare")
        since = reached.get("turn")
        progress = doing if since is None else f"{doing}, {_seconds(now - since)}"
        yield f"{_txids(processed, 1)} for the commit turn of {_range(committing)} ({progress})"
    elif batches and not committing and batches[0].phase is Phase.PROCESSING:
        first = batches[0]
        reached = times(first)
        since = reached.get("processing", reached.get("started"))
        doing = "queued" if is_queued(first, reached) else "processing"
        progress = doing if since is None else f"{doing}, {_seconds(now - since)}"
        waiting = f"commit and {_named(processed)} wait" if processed else "commit waits"
        yield f"{waiting} for txid {first.attempt.txid} ({progress})"


def _is_processing(state: CoordinatorState) -> bool:
    return any(batch.phase is Phase.PROCESSING for batch in state.batches.values())


def _is_away(batch: Batch) -> bool:
    """Return whether a batch waits for a source or storage, and not for columns."""
    return batch.blocked is not None and not batch.lacks


def _since(reached: Times, now: float) -> str:
    return f" ({_seconds(now - max(reached.values()))})" if reached else ""


def _seconds(duration: float) -> str:
    return f"{max(0.0, duration):.1f} s"


def _txids(batches: Sequence[Batch], most: int = 2) -> str:
    return f"{_named(batches, most)} {'waits' if len(batches) == 1 else 'wait'}"


def _named(batches: Sequence[Batch], most: int = 1) -> str:
    return f"{'txid' if len(batches) == 1 else 'txids'} {_range(batches, most)}"


def _range(batches: Sequence[Batch], most: int = 1) -> str:
    """Txids as ranges: at most `most` of them, then how many are left out."""
    runs: list[list[int]] = []
    for txid in sorted(batch.attempt.txid for batch in batches):
        if runs and runs[-1][-1] == txid - 1:
            runs[-1].append(txid)
        else:
            runs.append([txid])
    more = sum(map(len, runs[most:]))
    named = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs[:most])
    return f"{named} and {more} more" if more else named
