"""Keys of a log table that have ended and begin anew, whatever was compacted before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count, Sum
from committers.log_layout.compaction import with_files_between
from committers.publishing.files import ActiveFile
from committers.state.expiring import BOUND, NEWEST, merged_where_certain
from committers.state.layouts import LogLayout
from txn.interfaces import Expiry
from txn.spark.differences import parse_ddl
from txn.spark.rows import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYOUT = LogLayout(
    ("k",), {"n": Count(), "s": Sum("v")}, expiry=Expiry("last event", 3_600_000_000, "at")
)
SCHEMA = f"k string, n bigint, s bigint, {NEWEST} timestamp, {BOUND} timestamp, txid bigint"
TXIDS = 12
Partial = tuple[str, int, int, "datetime | None", "datetime | None", int]


def at(hour: int | None) -> datetime | None:
    """A time."""
    begin = datetime(2026, 3, 1, tzinfo=timezone.utc)
    return None if hour is None else begin + timedelta(hours=hour)


def partials(seed: int, keys: int = 400) -> list[Partial]:
    """Partials of many keys, with events in any order, some without a time; bounds that rise."""
    chance = random.Random(seed)
    bounds = sorted(
        chance.choices([None, *range(TXIDS)], k=TXIDS), key=lambda b: -1 if b is None else b
    )
    return [
        (
            f"k{key}",
            1,
            1 << txid,
            at(bounds[txid] if chance.random() < 0.05 else chance.randrange(TXIDS + 2)),
            at(bounds[txid]),
            txid + 1,
        )
        for key in range(keys)
        for txid in range(TXIDS)
        if chance.random() < 0.4
    ]


def oracle(rows: Sequence[Partial]) -> dict[str, tuple[int, int]]:
    """Key -> count and sum of the partials since the key has begun anew."""
    held: dict[str, list[Partial]] = {}
    for row in sorted(rows, key=lambda one: one[-1]):
        kept = held.setdefault(row[0], [])
        times = [time for *_, time, _, _ in kept if time is not None]
        if times and row[-2] is not None and max(times) <= row[-2]:
            kept.clear()
        kept.append(row)
    return {k: (len(kept), sum(s for _, _, s, *_ in kept)) for k, kept in held.items()}


def merged(frame: DataFrame) -> dict[str, tuple[int, int]]:
    """Key -> count and sum, as readers merge them."""
    return {row["k"]: (row["n"], row["s"]) for row in LAYOUT.merged(frame).collect()}


@pytest.mark.parametrize("seed", range(4))
def test_a_compaction_decides_only_what_is_certain(spark: SparkSession, seed: int) -> None:
    """However consecutive txids are merged, without the first ones or with them, every key has the
    same values as before; most rows are merged.
    """
    rows, chance = partials(seed), random.Random(seed)
    frame = local_frame(spark, rows, parse_ddl(SCHEMA)).cache()
    due = oracle(rows)
    assert sum(n for n, _ in due.values()) < len(rows) - 100
    assert merged(frame) == due
    first, last = sorted(chance.sample(range(2, TXIDS + 1), 2))
    inside = frame.where(f"txid BETWEEN {first} AND {last}")
    middle = merged_where_certain(inside, LAYOUT.keys, LAYOUT.stored).select(*frame.columns).cache()
    assert middle.count() < inside.count() or inside.count() < 400
    once = frame.where(f"txid NOT BETWEEN {first} AND {last}").unionByName(middle)
    assert merged(once) == due
    again = once.where(f"txid > {first - 1}")
    wider = merged_where_certain(again, LAYOUT.keys, LAYOUT.stored).select(*frame.columns)
    twice = once.where(f"txid <= {first - 1}").unionByName(wider)
    assert merged(twice) == due


def test_a_compaction_leaves_no_txid_out() -> None:
    """Files with txids between those of the chosen ones are compacted with them."""
    files = [ActiveFile(f"{n}", 1, {}, n, n) for n in range(1, 6)]
    wide = ActiveFile("wide", 1, {}, 6, 9)
    chosen: Any = (files[1], files[3])
    assert with_files_between(chosen, [*files, wide]) == tuple(files[1:4])
    assert with_files_between((), files) == ()
    joined = ActiveFile("joined", 1, {}, 2, 5)
    assert {f.path for f in with_files_between(chosen, [*files, joined])} == {*"2345", "joined"}
