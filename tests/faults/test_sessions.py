"""Session windows: every row comes out once with its session, in the txid that ends it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import (
    attempts,
    crashing_at,
    failing_first,
    first_other,
    observing,
    rows_of,
)
from txn import Topology, TopologyConfig
from txn.errors import RecoveryRefusedError, TopologyError, TxnError
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Spout

SCHEMA = "k string, v int, at timestamp"
BEGIN = datetime(2026, 3, 29, tzinfo=timezone.utc)
"""The day on which clocks in Europe go forward at one in the morning, UTC."""
DELAY, GAP = timedelta(minutes=5), timedelta(minutes=8)
Row = tuple[str | None, int, datetime]
Batches = Mapping[int, Sequence[Row]]
"""Txid -> its rows."""


def records(seed: int, first: int = 0, batches: int = 16) -> list[list[Row]]:
    """Batches that go on by four minutes each; some rows come late, some batches are empty.

    Distances are whole minutes, and some are exactly the gap.
    """
    chance = random.Random(seed)
    return [
        [
            (
                chance.choice(["a", "a", "b", "c", None]),
                first + 100 * n + number,
                BEGIN + timedelta(minutes=n * 4 + chance.choice([-12, -4, 0, 1, 3, 4])),
            )
            for number in range(chance.choice([0, 1, 2, 3]))
        ]
        for n in range(batches)
    ]


def topology(warehouse: Path, spout: Spout[Any], **config: Any) -> Topology:
    """The rows of sessions in a table, and one row per session in another."""
    made = Topology("sessions", TopologyConfig(**{"retry_backoff_ms": 1, **config}))
    events = made.stream("events", spout).watermark("at", DELAY, late="drop")
    rows = events.session_windows("k", GAP)
    rows.partition_persist(AppendTable(warehouse / "rows", spout.kind.value))
    whole = rows.group_by("k", "session_window").aggregate(n=Count(), total=Sum("v"))
    whole.partition_persist(AppendTable(warehouse / "whole", spout.kind.value))
    return made


def expected(batches: Batches, distance: int) -> list[tuple[Any, ...]]:
    """What plain Python finds: (txid, key, value, start, end) of each row whose session is over."""
    marks: dict[int, datetime | None] = {}
    passed = None
    on_time: dict[str | None, list[tuple[datetime, int]]] = {}
    for txid, rows in batches.items():
        known = [at for t in batches if t <= txid - distance for *_, at in batches[t]]
        passed = max(known) - DELAY if known else None
        marks[txid] = passed
        for key, value, at in rows:
            if passed is None or at > passed:
                on_time.setdefault(key, []).append((at, value))
    found: list[tuple[Any, ...]] = []
    for key, times in on_time.items():
        sessions: list[list[tuple[datetime, int]]] = []
        for at, value in sorted(times):
            if not sessions or at > sessions[-1][-1][0] + GAP:
                sessions.append([])
            sessions[-1].append((at, value))
        for session in sessions:
            start, end = session[0][0], session[-1][0] + GAP
            txid = next((t for t, m in marks.items() if m is not None and end <= m), None)
            if txid is not None:
                found += [(txid, key, value, start, end) for _, value in session]
    return sorted(found, key=str)


def check_sessions(spark: SparkSession, warehouse: Path, batches: Batches, distance: int) -> None:
    """Compare both tables with plain Python, duplicates included."""
    due = expected(batches, distance)
    window = ("session_window.start", "session_window.end")

    def read(table: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = spark.read.format("delta").load(str(warehouse / table))
        times = (f"unix_micros({name})" for name in window)
        return sorted((tuple(row) for row in rows.selectExpr(*columns, *times).collect()), key=str)

    def micros(at: datetime) -> int:
        return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)

    rows = [(*row[:3], *map(micros, row[3:])) for row in due]
    assert read("rows", "txid", "k", "v") == sorted(rows, key=str)
    sums: dict[tuple[Any, ...], list[int]] = {}
    for txid, key, value, start, end in rows:
        sums.setdefault((txid, key, start, end), []).append(value)
    whole = [
        (txid, key, len(values), sum(values), start, end)
        for (txid, key, start, end), values in sums.items()
    ]
    assert read("whole", "txid", "k", "n", "total") == sorted(whole, key=str)
    assert len(whole) > 3
    assert any(n > 2 for _, _, n, *_ in whole)


@pytest.mark.parametrize(("seed", "distance"), [(4, 1), (29, 3)])
def test_each_session_comes_once_when_it_is_over(
    spark: SparkSession, warehouse: Path, seed: int, distance: int
) -> None:
    """Every row of a session comes out once, with all others of that session, in the txid whose
    watermark reaches its end.
    """
    rows = records(seed)
    spout = MemoryTransactionalSpout(rows, SCHEMA)
    run_in_memory(topology(warehouse, spout, max_spout_pending=distance), spark)
    check_sessions(spark, warehouse, dict(enumerate(rows, 1)), distance)


def test_a_session_has_instants_whatever_a_timestamp_is(
    spark: SparkSession, warehouse: Path
) -> None:
    """A setting by which "timestamp" names a local time changes no column of a session."""
    batches = [[("a", 1, BEGIN)], [("a", 2, BEGIN + timedelta(hours=1))], [("a", 3, BEGIN)]]
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        spout = MemoryTransactionalSpout(batches, SCHEMA.replace("timestamp", "timestamp_ltz"))
        run_in_memory(topology(warehouse, spout, max_spout_pending=1), spark)
    finally:
        spark.conf.unset("spark.sql.timestampType")
    rows = spark.read.format("delta").load(str(warehouse / "rows"))
    kinds = "struct<start:timestamp,end:timestamp>"
    assert rows.schema["session_window"].dataType.simpleString() == kinds
    assert [row[0] for row in rows.select("v").collect()] == [1]


@pytest.mark.parametrize("point", ["after_staging", "between_publications", "before_committed"])
def test_a_crash_loses_and_repeats_no_session(
    spark: SparkSession, warehouse: Path, point: str
) -> None:
    """Whatever the moment, the successor goes on with the open sessions of all txids before."""
    rows, nodes = records(80), MemoryNodes()
    made = topology(warehouse, MemoryTransactionalSpout(rows, SCHEMA), max_spout_pending=3)
    crashing_at(point, (4, 7, 10), lambda: run_in_memory(made, spark, nodes))
    check_sessions(spark, warehouse, dict(enumerate(rows, 1)), 3)


@pytest.mark.parametrize("point", ["after_staging", "after_publish"])
def test_rows_of_a_failed_attempt_are_in_no_session(
    spark: SparkSession, warehouse: Path, point: str
) -> None:
    """An opaque replay with other rows takes the former ones out of their sessions."""
    sides = records(51), records(65, first=5000)

    spout = MemoryOpaqueSpout(first_other(*sides), SCHEMA)
    made = topology(warehouse, spout, max_spout_pending=2, max_batch_attempts=20)
    with observing(failing_first(point)):
        report = run_in_memory(made, spark)
    used = [int(attempt.endswith(":0")) for attempt in attempts(report)]
    assert 0 in used
    due = {txid: sides[first][txid - 1] for txid, first in enumerate(used, 1)}
    check_sessions(spark, warehouse, due, 2)


def test_sessions_are_those_of_structured_streaming(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """`session_window` in append mode gives the same sessions, and a batch query does."""
    chance = random.Random(4)
    rows: list[list[Row]] = [
        [
            (chance.choice(["a", "b", None]), 10 * n + i, BEGIN + timedelta(minutes=minute))
            for i, minute in enumerate(chance.sample(range(n * 7, n * 7 + 10), 3))
        ]
        for n in range(8)
    ]
    rows += [[("z", 0, BEGIN + timedelta(hours=hour))] for hour in (5, 10, 15)]
    for number, batch in enumerate(rows):
        frame = spark.createDataFrame(batch, SCHEMA).coalesce(1)
        frame.write.parquet(f"{tmp_path}/events/file={number:03}")
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    events = files.parquet(f"{tmp_path}/events").withWatermark("at", "5 minutes")
    by_session = sf.session_window("at", "8 minutes")
    stream = events.groupBy("k", by_session).agg(sf.count("*").alias("n"), sf.sum("v").alias("t"))
    written = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    written = written.outputMode("append").trigger(availableNow=True)
    written.format("memory").queryName("sessions").start().awaitTermination()
    run_in_memory(
        topology(warehouse, MemoryTransactionalSpout(rows, SCHEMA), max_spout_pending=1), spark
    )
    columns = ("k", "session_window", "n")
    theirs = spark.table("sessions").select(*columns, "t").where("k IS NULL OR k != 'z'")
    ours = spark.read.format("delta").load(str(warehouse / "whole")).select(*columns, "total")
    ours = ours.where("k IS NULL OR k != 'z'")
    whole = spark.createDataFrame([row for batch in rows for row in batch], SCHEMA)
    batch = whole.groupBy("k", by_session).agg(sf.count("*").alias("n"), sf.sum("v").alias("t"))
    batch = batch.where("k IS NULL OR k != 'z'")
    found = sorted(map(str, ours.collect()))
    assert len(found) > 4
    assert [row.replace("total=", "t=") for row in found] == sorted(map(str, theirs.collect()))
    assert [row.replace("total=", "t=") for row in found] == sorted(map(str, batch.collect()))


def test_a_state_counts_sessions_that_are_over(spark: SparkSession, warehouse: Path) -> None:
    """Running totals below sessions count each session once."""
    rows = records(90)
    made = Topology("counted", TopologyConfig(max_spout_pending=1))
    events = made.stream("events", MemoryTransactionalSpout(rows, SCHEMA))
    sessions = events.watermark("at", DELAY, late="drop")
    whole = sessions.session_windows("k", GAP).group_by("k", "session_window").aggregate(n=Count())
    state = StateTable(warehouse / "counts")
    whole.group_by("k").persistent_aggregate(state, sessions=Count(), rows=Sum("n"))
    run_in_memory(made, spark)
    due: dict[str | None, set[datetime]] = {}
    events_of: dict[str | None, int] = {}
    for _, key, _, start, _ in expected(dict(enumerate(rows, 1)), 1):
        due.setdefault(key, set()).add(start)
        events_of[key] = events_of.get(key, 0) + 1
    found = {row["k"]: (row["sessions"], row["rows"]) for row in state.read(spark).collect()}
    assert found == {key: (len(starts), events_of[key]) for key, starts in due.items()}


def test_rows_of_sessions_that_are_over_leave_the_table(
    spark: SparkSession, warehouse: Path
) -> None:
    """The table of open sessions keeps its size, also below a session that does not end."""
    rows: list[list[Row]] = [
        [
            ("a", n, BEGIN + timedelta(minutes=4 * n)),
            (f"b{n}", n, BEGIN + timedelta(minutes=4 * n)),
        ]
        for n in range(60)
    ]
    spout = MemoryTransactionalSpout(rows, SCHEMA)
    run_in_memory(topology(warehouse, spout, max_spout_pending=1), spark)
    kept = rows_of(warehouse / "sessions_events_sessions_k_480s", "k", "v", key=str)
    assert {value for key, value in kept if key == "a"} == set(range(60))
    assert len([1 for key, _ in kept if key != "a"]) < 30
    assert len(rows_of(warehouse / "whole", "k", "n")) > 50


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda s: s.session_windows("k", "10 minutes"), "counts in event time"),
        (
            lambda s: s.watermark("at", "1 minute").session_windows("k", "10 minutes"),
            "late='drop'",
        ),
        (
            lambda s: s.watermark("at", "1 minute", late="drop").session_windows("k", "soon"),
            "is no duration",
        ),
        (
            lambda s: s.watermark("at", "1 minute", late="drop").session_windows("k", timedelta()),
            "longer than zero",
        ),
        (
            lambda s: s.watermark("at", "1 minute", late="drop").session_windows([], "1 hour"),
            "names no column",
        ),
        (
            lambda s: s.watermark("at", "1 minute", late="drop").session_windows(None, "1 hour"),
            "names no column",
        ),
        (
            lambda s: (
                s.watermark("at", "1 minute", late="drop")
                .session_windows("k", "1 hour")
                .session_windows("v", "1 hour")
            ),
            "cannot stand below session_windows.* a topology of its own",
        ),
    ],
)
def test_what_can_have_no_sessions_is_refused(ask: Any, told: str) -> None:
    """Each mistake is refused where it is made, with the way out."""
    with pytest.raises(TopologyError, match=told):
        ask(Topology("t").stream("s", MemoryTransactionalSpout([], SCHEMA)))


def test_a_column_of_the_name_of_the_session_is_refused(
    spark: SparkSession, warehouse: Path
) -> None:
    """A stream's own `session_window` is not overwritten."""
    spout = MemoryTransactionalSpout([[("a", 1, BEGIN)]], SCHEMA)
    made = Topology("taken")
    events = made.stream("events", spout).watermark("at", DELAY, late="drop")
    named = events.transform(lambda rows: rows.withColumnRenamed("v", "Session_Window"))
    named.session_windows("k", GAP).partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(TopologyError, match="the stream has 'Session_Window'"):
        run_in_memory(made, spark)


def test_another_gap_is_refused_until_the_open_sessions_are_given_up(
    spark: SparkSession, warehouse: Path
) -> None:
    """With another gap, rows that are kept would end too late or not at all."""
    nodes = MemoryNodes()
    rows = [[("a", 1, BEGIN)], [("a", 2, BEGIN + timedelta(minutes=5))]]

    def made(batches: int, gap: str, **config: Any) -> Topology:
        topology = Topology("gaps", TopologyConfig(max_spout_pending=1, **config))
        spout = MemoryTransactionalSpout(rows[:batches], SCHEMA)
        events = topology.stream("events", spout).watermark("at", DELAY, late="drop")
        sessions = events.session_windows("k", gap)
        sessions.partition_persist(AppendTable(warehouse / "rows"))
        return topology

    run_in_memory(made(1, "1 hour"), spark, nodes)
    with pytest.raises(RecoveryRefusedError, match="gaps_events_sessions_k_3600s"):
        run_in_memory(made(2, "10 minutes"), spark, nodes)
    tables = [str(warehouse / f"gaps_events_sessions_k_{gap}s") for gap in (3600, 600)]
    changed = made(2, "10 minutes", dropped_tables=tables[:1], new_tables=tables[1:])
    run_in_memory(changed, spark, nodes)
    assert rows_of(Path(tables[1]), "v") == [(2,)]

    back = {"dropped_tables": tables[1:], "new_tables": tables[:1]}
    with pytest.raises(RecoveryRefusedError, match=r"holds txid 1, but .*\(backfilled_tables"):
        run_in_memory(made(2, "1 hour", **back), spark, nodes)
    filled = {"dropped_tables": tables[1:], "backfilled_tables": tables[:1]}
    with pytest.raises(TopologyError, match="move its folder away first"):
        run_in_memory(made(2, "1 hour", **filled), spark, nodes)
    shutil.move(tables[0], warehouse / "away")
    rows.append([("b", 3, BEGIN + timedelta(minutes=6))])
    run_in_memory(made(3, "1 hour", **back), spark, nodes)
    assert rows_of(Path(tables[0]), "v") == [(3,)]


def test_two_gaps_of_one_stream_have_tables_of_their_own(warehouse: Path) -> None:
    """Short and long sessions of the same rows go together."""
    made = Topology("two")
    spout = MemoryTransactionalSpout([], SCHEMA)
    events = made.stream("events", spout).watermark("at", DELAY, late="drop")
    for gap in ("10 minutes", "1 hour"):
        table = AppendTable(warehouse / gap.replace(" ", "-"))
        events.session_windows("k", gap).partition_persist(table)
    names = [Path(sink.name).name for sink in made.definition.sinks]
    assert {"two_events_sessions_k_600s", "two_events_sessions_k_3600s"} <= set(names)


def test_two_streams_with_sessions_of_one_name_are_refused(warehouse: Path) -> None:
    """The kept rows of two branches would lie in one table; the refusal says what to change."""
    made = Topology("two")
    spout = MemoryTransactionalSpout([], SCHEMA)
    events = made.stream("events", spout).watermark("at", DELAY, late="drop")
    for name in ("small", "large"):
        part = events.transform(lambda rows: rows.where("v > 10"))
        part.session_windows("k", GAP).partition_persist(AppendTable(warehouse / name))
    with pytest.raises(TopologyError, match="session_windows of stream .* rename a key of one"):
        _ = made.definition


@pytest.mark.parametrize(
    ("time", "told"),
    [
        ("IF(v = 2, NULL, at)", "has no event time 'at' behind its watermark"),
        ("CAST(at AS timestamp_ntz)", "after a transform it is timestamp_ntz"),
    ],
)
def test_a_row_without_an_event_time_is_in_no_session_unseen(
    spark: SparkSession, warehouse: Path, time: str, told: str
) -> None:
    """A transform behind the watermark that spoils the event time stops the run by name."""
    made = Topology("spoilt", TopologyConfig(max_batch_attempts=1))
    spout = MemoryTransactionalSpout([[("a", 1, BEGIN), ("a", 2, BEGIN)]], SCHEMA)
    events = made.stream("events", spout).watermark("at", DELAY, late="drop")
    spoilt = events.transform(lambda rows: rows.withColumn("at", sf.expr(time)))
    spoilt.session_windows("k", GAP).partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(TxnError, match=told):
        run_in_memory(made, spark)
