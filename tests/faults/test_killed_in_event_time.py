"""Processes that count in event time and are killed: on a local disk and on S3."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import DEADLINE_SECS, Driver, Spec, drivers
from tests.faults.time_driver import (
    AFTER,
    BEGIN,
    DELAY,
    GAP,
    WITHIN,
    append_table,
    published_table,
    state_table,
)
from tests.stores.s3 import S3Server, storage_options
from txn.embedded import EmbeddedZooKeeper
from txn.machine.jars import S3A_PACKAGES

DISTANCE = 2
Rows = Mapping[int, Sequence[tuple[str, int]]]
"""Txid -> key and seconds of its rows."""
LIVES = (
    "after-staging",
    "between-publications",
    "maintenance-staged",
    "before-committed",
    "after-maintenance",
    None,
)
"""The points at which one process after the other is killed; the last one lives."""


class TimeDriver(Driver):
    """A process that counts in event time."""

    module = "tests.faults.time_driver"

    def wait(self, seconds: float = 3 * DEADLINE_SECS) -> int:
        """As any driver; it has nine tables and takes its time on a busy machine."""
        return super().wait(seconds)


@pytest.fixture
def start() -> Iterator[Callable[..., Driver]]:
    """Starts such processes; kills those that are left in the end."""
    with drivers(TimeDriver) as start_driver:
        yield start_driver


@pytest.mark.parametrize(("place", "kind"), [("disk", "opaque"), ("s3", "transactional")])
def test_killed_processes_count_in_event_time_as_plain_python(
    start: Callable[..., Driver], s3: S3Server, tmp_path: Path, place: str, kind: str
) -> None:
    """Each key passes once, each session comes once, and what has ended is hidden, whatever point
    of a batch's life a process was killed at; a replay may have brought other rows. Each
    version of a published table shows exactly the keys and values that its state had as of the
    committed txid that its log names.
    """
    chance = random.Random(45)
    records = [
        (
            chance.choice("abcdefgh"[n // 9 :][:4]),
            max(0, 50 * n + chance.choice([-600, -90, 0, 0, 10, 30])),
        )
        for n in range(40)
    ]
    (tmp_path / "records.json").write_text(json.dumps(records))
    given: dict[str, Any] = {}
    if place == "s3":
        given["warehouse"] = f"s3://{s3.bucket('time')}/warehouse"
        given |= {"storage_options": storage_options(s3.url), "packages": S3A_PACKAGES}
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        spec = Spec(
            folder=str(tmp_path),
            kind=kind,
            zookeeper=server.hosts,
            config={"max_spout_pending": DISTANCE, "retry_backoff_ms": 1},
            **given,
        )
        for point in LIVES:
            driver = start(spec.model_copy(update={"at": point}), warm=True)
            if point is not None:
                driver.wait_for_point("SIGKILL")
                driver.wait()
        report = driver.report()
    assert report["ended"] == "caught_up"
    rows: dict[int, list[tuple[str, int]]] = {}
    for row in append_table(spec, "rows").to_arrow().to_pylist():
        rows.setdefault(row["txid"], []).append((row["k"], row["v"]))
    assert sorted(row for batch in rows.values() for row in batch) == sorted(records)
    compare(spec, dict(sorted(rows.items())))


def compare(spec: Spec, rows: Rows) -> None:
    """Compare all tables with plain Python over the rows in txid order, duplicates included."""
    marks = {txid: watermark(rows, txid) for txid in rows}
    on_time = {
        txid: [row for row in batch if marks[txid] is None or row[1] > marks[txid]]
        for txid, batch in rows.items()
    }
    assert sum(map(len, on_time.values())) < sum(map(len, rows.values()))
    once = append_table(spec, "once").to_arrow(columns=["txid", "k", "v"]).to_pylist()
    assert sorted(tuple(row.values()) for row in once) == sorted(passing(on_time, marks))
    visits = append_table(spec, "visits").to_arrow().to_pylist()
    found = [
        (
            row["txid"],
            row["k"],
            row["v"],
            *(int(row["session_window"][end].timestamp()) - BEGIN for end in ("start", "end")),
        )
        for row in visits
    ]
    due = over(on_time, marks)
    assert sorted(found) == sorted(due)
    assert len({(k, start) for _, k, _, start, _ in due}) > 5
    left = living(on_time, marks)
    assert 0 < len(left) < len({key for batch in on_time.values() for key, _ in batch})
    for layout in ("upsert", "log"):
        shown = state_table(spec, layout).to_arrow().to_pylist()
        assert {row["k"]: (row["n"], row["total"]) for row in shown} == left
        published = published_table(spec, layout)
        txids = published.txids()
        assert txids[0] == max(rows)
        assert len(txids) > 3
        for txid in txids:
            then = {t: batch for t, batch in on_time.items() if t <= txid}
            seen = published.to_arrow(txid).to_pylist()
            assert len(seen) == len({row["k"] for row in seen})
            assert {row["k"]: (row["n"], row["total"]) for row in seen} == living(then, marks)


def watermark(rows: Rows, txid: int) -> int | None:
    """The watermark of a txid: it follows from the rows of those before its distance."""
    known = [at for t, batch in rows.items() if t <= txid - DISTANCE for _, at in batch]
    return max(known) - DELAY if known else None


def passing(on_time: Rows, marks: Mapping[int, int | None]) -> list[tuple[int, str, int]]:
    """The first rows of keys that are not known."""
    first: dict[str, int] = {}
    found = []
    for txid, batch in on_time.items():
        mark, new = marks[txid], {}
        for key, at in sorted(batch, key=lambda row: row[1]):
            is_known = key in first and (mark is None or first[key] > mark - WITHIN)
            if key not in new and not is_known:
                new[key] = at
        first |= new
        found += [(txid, key, at) for key, at in new.items()]
    return found


def over(on_time: Rows, marks: Mapping[int, int | None]) -> list[tuple[int, str, int, int, int]]:
    """The rows of sessions that are over, with the txid that ends them."""
    found = []
    rows = sorted(row for batch in on_time.values() for row in batch)
    sessions: list[list[tuple[str, int]]] = []
    for key, at in rows:
        if not sessions or sessions[-1][-1][0] != key or at > sessions[-1][-1][1] + GAP:
            sessions.append([])
        sessions[-1].append((key, at))
    for session in sessions:
        start, end = session[0][1], session[-1][1] + GAP
        txid = next((t for t, mark in marks.items() if mark is not None and end <= mark), None)
        if txid is not None:
            found += [(txid, key, at, start, end) for key, at in session]
    return found


def living(on_time: Rows, marks: Mapping[int, int | None]) -> dict[str, tuple[int, int]]:
    """Count and sum of each key that has not ended."""
    held: dict[str, list[int]] = {}

    def has_ended(times: Sequence[int], mark: int | None) -> bool:
        return mark is not None and max(times) + AFTER <= mark

    for txid, batch in on_time.items():
        held = {key: times for key, times in held.items() if not has_ended(times, marks[txid])}
        for key, at in batch:
            held.setdefault(key, []).append(at)
    mark = marks[max(on_time)]
    return {k: (len(times), sum(times)) for k, times in held.items() if not has_ended(times, mark)}
