"""The series of the page's charts: input, throughput, times and lag over time.

A line has a gap where nothing ran.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from txn.dashboard.watching.topologies import Sample, Watched
from txn.dashboard.watching.trouble import milliseconds

__all__ = ["series", "spark"]

_SPARK_MINUTES = 30
_SPARK_POINTS = 60
_POINTS = 150
_LEAST_SPAN_MS = 120_000
_PAUSE_MS = 30_000
"""Time without a sample after which a line has a gap; old samples are 10 s apart."""


def series(watched: Watched, minutes: int) -> dict[str, Any]:
    """Return input, throughput, times and lag, in evenly spaced buckets.

    Args:
        minutes: the span; 0: all of the index.
    """
    now = _now_ms()
    first, last = watched.index.times_ms()
    first, last = first or now, last or now  # nothing yet: an empty span
    until = now if minutes else max(last, first + 1)
    since = max(first, now - minutes * 60_000) if minutes else first
    since = min(since, until - _LEAST_SPAN_MS)
    bucket = max(1000, (until - since) // _POINTS)
    found = watched.index.series(since, until, bucket)
    buckets = {row[0]: row for row in found}
    starts = range(since // bucket * bucket, until + 1, bucket)
    # Only a part of the newest bucket has passed: too little for a rate.
    starts = starts[:-1] if minutes else starts
    # A run whose first batch hangs has lag, and no txid.
    from_ms = now - minutes * 60_000 if minutes else since
    rows_ = [buckets.get(at) for at in starts]
    has_run = _ran(watched, found, starts)
    # A file's records are counted when it is read, and no log has them.
    unit = 7 if any(row[6] is None for row in found) else 6
    return {
        "range": [from_ms / 1000, until / 1000],
        "t": [at / 1000 for at in starts],
        "ran": has_run,
        "rows_per_s": _rates(starts, {row[0]: row[2] for row in found}, has_run),
        "read_unit": "bytes" if unit == 7 else "records",
        "read_per_s": _rates(starts, {row[0]: row[unit] for row in found}, has_run),
        "max_ms": [row[3] if row else None for row in rows_],
        "processing_ms": [row[4] if row else None for row in rows_],
        "waiting_ms": [row[5] if row else None for row in rows_],
        "lag": _lags(watched, from_ms),
    }


def _lags(watched: Watched, since: int) -> dict[str, Any]:
    """Return lag over time, from samples taken while the page ran."""
    samples = _with_pauses([sample for sample in watched.samples if sample.at_ms >= since])
    # By time, because older samples are sparse.
    step = max(1, (samples[-1].at_ms - samples[0].at_ms) // _POINTS) if samples else 1
    samples = list({sample.at_ms // step: sample for sample in samples}.values())
    names = list(dict.fromkeys(name for sample in samples for name in sample.lag))
    units = ("records", "files", "versions", "bytes", "seconds")
    chosen: dict[str, str] = {}
    for name in names:
        lags = [sample.lag.get(name, {}) for sample in samples]
        chosen[name] = next((u for u in units if any(u in lag for lag in lags)), "")
    return {
        "t": [sample.at_ms / 1000 for sample in samples],
        "streams": [
            {
                "name": name,
                "unit": unit,
                "values": [sample.lag.get(name, {}).get(unit) for sample in samples],
            }
            for name, unit in chosen.items()
            if unit
        ],
    }


def _with_pauses(samples: list[Sample]) -> list[Sample]:
    """Add an empty sample where none was taken for a while: nothing ran, or the page did not."""
    return [
        one
        for sample, after in pairwise([*samples, *samples[-1:]])
        for one in (sample, Sample((sample.at_ms + after.at_ms) // 2, {}))
        if one is sample or after.at_ms - sample.at_ms > _PAUSE_MS
    ]


def spark(watched: Watched, now: int) -> list[float | None]:
    """Return the rows per second of the last half hour, evenly spaced; None: nothing ran."""
    bucket = _SPARK_MINUTES * 60_000 // _SPARK_POINTS
    first = (now // bucket - _SPARK_POINTS + 1) * bucket
    buckets = watched.index.series(first, now, bucket)
    starts = range(first, first + _SPARK_POINTS * bucket, bucket)
    return _rates(starts, {row[0]: row[2] for row in buckets}, _ran(watched, buckets, starts))


def _rates(
    starts: range, amounts: Mapping[int, float | None], has_run: Sequence[bool]
) -> list[float | None]:
    """Return amounts per second; 0 where a run had nothing to do, None where nothing ran."""
    return [
        None if amount is None else amount / (starts.step / 1000)
        for amount in (
            amounts.get(at, 0 if here else None) for at, here in zip(starts, has_run, strict=True)
        )
    ]


def _ran(watched: Watched, buckets: Sequence[tuple[Any, ...]], starts: range) -> list[bool]:
    """Return for each piece of time whether a run went on, as far as is known.

    The newest leader's life is known from ZooKeeper. Between two txids of one epoch, a run went on.

    Args:
        buckets: what `LogIndex.series` has found at these starts.
    """
    step = starts.step
    spans = [(row[0] - step, row[0] + step) for row in buckets]
    spans += [
        (before[0], after[0]) for before, after in pairwise(buckets) if before[-1] == after[-2]
    ]
    status, note = watched.status, watched.note
    leader = status and (status.found.leader or status.found.last_leader)
    if status is not None and leader:
        is_on = status.found.leader is not None and status.leader_alive
        end = _now_ms() if is_on else int(note.at * 1000) if note else 0
        spans.append((milliseconds(leader.started) or end, end))
    return [any(since - step < at <= until for since, until in spans) for at in starts]


def _now_ms() -> int:
    return int(time.time() * 1000)
