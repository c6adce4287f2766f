"""Decide the watermark of each txid. Pure: no clock, only the event times of committed txids.

The watermark of txid N follows from the rows of the txids up to N - d, where d is
`max_spout_pending`: those are committed when N is planned, so planning never waits, and no replay
can change them any more. It is decided as soon as N - d is committed, and never goes back.

Sources: Structured Streaming's `withWatermark` (newest event time minus a delay, the smallest of
several streams); Flink's idle sources, counted in txids here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from txn.interfaces.event_time import EventTime, NewestEvent, NewestTimes, StreamTime

__all__ = ["WatermarkRule", "advanced"]


@dataclass(frozen=True)
class WatermarkRule:
    """What a program declares of one stream's event time."""

    stream: str
    delay: int
    """The watermark stays this far behind the newest event; microseconds."""
    idle_after: int | None = None
    """A partition without rows in that many txids, and a stream without partitions, does not hold
    the watermark back; None: it does."""
    by: str | None = None
    """The column that names a row's partition."""


def advanced(
    time: EventTime | None,
    txid: int,
    own: int | None,
    newest: NewestTimes,
    rules: Sequence[WatermarkRule],
    distance: int,
) -> EventTime | None:
    """Return event time as of `txid`, from that as of the txid before it.

    Args:
        own: the watermark of the txid.
        newest: the newest event times of the txid's own rows.
        rules: those of the program; without any, the last watermark stays.
        distance: the watermark that follows is that of txid + distance.
    """
    if time is None and not rules:
        return None
    time = time or EventTime()
    streams = {r.stream: _stream(r, time.streams.get(r.stream), txid, newest) for r in rules}
    last = time.watermarks[-1] if time.watermarks else None
    watermarks = time.watermarks[1:]
    if rules and len(watermarks) < distance:
        # With a larger distance than before, the last one bridges the gap.
        bridge = [last] * (distance - 1 - len(watermarks))
        watermarks += [*bridge, _later(last, _watermark_after(streams, txid, rules))]
    elif not watermarks:
        watermarks = [last]
    return EventTime(own=_later(time.own, own), streams=streams, watermarks=watermarks)


def _stream(
    rule: WatermarkRule, time: StreamTime | None, txid: int, newest: NewestTimes
) -> StreamTime:
    """Return how far a stream has come, without partitions that are idle.

    With another column for the partitions it begins anew: nothing more comes of the former ones.
    """
    if time is None or time.by != rule.by:
        time = StreamTime(by=rule.by, since=txid)
    events = dict(time.newest)
    for partition, at in newest.get(rule.stream, {}).items():
        former = events.get(partition)
        at = at if former is None else max(at, former.at)
        events[partition] = NewestEvent(at=at, txid=txid)
    if rule.idle_after is not None:
        events = {p: e for p, e in events.items() if txid - e.txid < rule.idle_after}
    return time.model_copy(update={"newest": events})


def _watermark_after(
    streams: Mapping[str, StreamTime], txid: int, rules: Iterable[WatermarkRule]
) -> int | None:
    """The watermark that follows from the newest events; None if a stream holds it back."""
    least: list[int] = []
    for rule in rules:
        time = streams[rule.stream]
        if time.newest:
            least.append(min(event.at for event in time.newest.values()) - rule.delay)
        elif rule.idle_after is None or txid - time.since + 1 < rule.idle_after:
            return None
    return min(least, default=None)


def _later(one: int | None, other: int | None) -> int | None:
    return max((at for at in (one, other) if at is not None), default=None)
