"""Watermarks: which rows are late is the same in every attempt and every table, whatever fails."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import CrashedError, Points, crash_at, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.engine.work.derived import require_derivable
from txn.errors import TopologyError, TxnError
from txn.operations.history import history
from txn.operations.recover import read_tables, write
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Spout

SCHEMA = "id int, part string, at timestamp"
BEGIN = datetime(2026, 3, 29, tzinfo=timezone.utc)
DELAY = timedelta(minutes=10)
Row = tuple[int, str, datetime | None]


def minute(number: float) -> datetime:
    return BEGIN + timedelta(minutes=number)


def records(seed: int, batches: int = 8) -> list[list[Row]]:
    """Batches of rows that come up to half an hour late; some batches are empty."""
    chance, number = random.Random(seed), 0
    result: list[list[Row]] = []
    for batch in range(batches):
        rows: list[Row] = []
        for _ in range(chance.choice([0, 3, 6])):
            at = minute(batch * 8 + chance.uniform(-30, 8)) if chance.random() < 0.95 else None
            rows.append((number, chance.choice("ab"), at))
            number += 1
        result.append(rows)
    return result


def watermarks(batches: Mapping[int, Sequence[Row]], distance: int) -> dict[int, datetime | None]:
    """Txid -> watermark, from all rows of the txids that are `distance` or more before it."""
    return {
        txid: max(
            (at - DELAY for t in batches if t <= txid - distance for *_, at in batches[t] if at),
            default=None,
        )
        for txid in batches
    }


def is_late(row: Row, watermark: datetime | None) -> bool:
    return row[2] is None or (watermark is not None and row[2] <= watermark)


def topology(warehouse: Path, spout: Spout[Any], late: Any, **config: Any) -> Topology:
    """The rows that are not late go to a table and are counted; late ones may be set aside."""
    settings = TopologyConfig(**{"retry_backoff_ms": 1, **config})
    kind = spout.kind.value
    aside = AppendTable(warehouse / "bad", kind) if late == "set_aside" else None
    made = Topology("timed", settings, bad_rows=aside)
    rows = made.stream("s", spout).watermark("at", DELAY, late=late)
    rows.partition_persist(AppendTable(warehouse / "rows", kind))
    counts = StateTable(warehouse / "counts", kind, buckets=2)
    rows.group_by("part").persistent_aggregate(counts, n=Count())
    return made


def check_equal(
    warehouse: Path, batches: Mapping[int, Sequence[Row]], distance: int, late: str
) -> None:
    """Compare tables and history with what plain Python makes of the rows."""
    marks = watermarks(batches, distance)
    judged = [(t, row, is_late(row, marks[t])) for t, rows in batches.items() for row in rows]
    on_time = [(t, row) for t, row, is_one in judged if late == "keep" or not is_one]
    assert rows_of(warehouse / "rows", "id", "txid") == sorted((row[0], t) for t, row in on_time)
    parts = [row[1] for _, row in on_time]
    assert rows_of(warehouse / "counts", "part", "n") == [
        (part, parts.count(part)) for part in sorted({*parts})
    ]
    if late == "set_aside":
        found = rows_of(warehouse / "bad", "txid", "rule")
        assert found == sorted((t, "late") for t, _, is_one in judged if is_one)
    entries = {e.txid: e for e in history("timed", [str(warehouse / "rows")])}
    counted = {t: sum(is_one for u, _, is_one in judged if u == t) for t in batches}
    told = {t: entries[t].violations.get("s", {}).get("late", 0) for t in batches}
    assert told == counted
    assert {t: entries[t].watermark for t in batches} == {
        t: None if at is None else round(at.timestamp() * 1e6) for t, at in marks.items()
    }
    assert any(counted.values())


@pytest.mark.parametrize("late", ["keep", "drop", "set_aside"])
@pytest.mark.parametrize("distance", [1, 3])
def test_late_rows_are_those_of_plain_python(
    spark: SparkSession, warehouse: Path, distance: int, late: str
) -> None:
    """A row is late if its event time is not after the watermark of its txid: the newest event time
    of the txids that are max_spout_pending or more before it, minus the delay.

    Txids are staged together, and committed as groups.
    """
    batches = records(distance)
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    run_in_memory(topology(warehouse, spout, late, max_spout_pending=distance), spark)
    check_equal(warehouse, dict(enumerate(batches, 1)), distance, late)


@pytest.mark.parametrize("point", ["after_start", "after_publish", "before_committed"])
@pytest.mark.parametrize("txid", [3, 5])
def test_a_watermark_survives_a_crash(
    spark: SparkSession, warehouse: Path, point: str, txid: int
) -> None:
    """The watermark of a txid is the same in each attempt and each table, after a crash, a roll
    forward and `txn recover`; it never goes back.
    """
    batches, nodes = records(4), MemoryNodes()
    made = topology(
        warehouse, MemoryTransactionalSpout(batches, SCHEMA), "set_aside", max_spout_pending=2
    )
    with observing(crash_at(point, txid)), pytest.raises(CrashedError):
        run_in_memory(made, spark, nodes)
    run_in_memory(made, spark, nodes)
    check_equal(warehouse, dict(enumerate(batches, 1)), 2, "set_aside")


def test_a_replay_with_other_rows_has_the_same_watermark(
    spark: SparkSession, warehouse: Path
) -> None:
    """The rows of a dead opaque attempt move no watermark, whatever their event times are."""
    first, dead, replay, last = (
        [(1, "a", minute(30))],
        [(2, "a", minute(900)), (3, "b", minute(15))],
        [(4, "a", minute(12)), (5, "b", minute(31))],
        [(6, "a", minute(20)), (7, "b", minute(40))],
    )
    script = {(1, 0): first, (2, 0): dead, (2, 1): replay, (3, 0): last, (3, 1): last}

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) == "2:0":
            raise FailedException("published, but not committed")

    made = topology(
        warehouse,
        MemoryOpaqueSpout(script, SCHEMA),
        "drop",
        max_spout_pending=1,
        max_group_commit=1,
    )
    with observing(Points(after_publish=fail)):
        run_in_memory(made, spark)
    check_equal(warehouse, {1: first, 2: replay, 3: last}, 1, "drop")


def test_a_recovered_topology_goes_on_with_its_watermark(
    spark: SparkSession, warehouse: Path
) -> None:
    """What the watermarks of later txids follow from is in the log of every table."""
    batches, nodes = records(9, 10), MemoryNodes()
    short = topology(
        warehouse, MemoryTransactionalSpout(batches[:5], SCHEMA), "drop", max_spout_pending=3
    )
    run_in_memory(short, spark, nodes)
    before = nodes.status("timed").progress.committed
    fresh = MemoryNodes()
    with closing(fresh):
        recovered = read_tables(short)
        assert recovered.progress.committed.event_time == before.event_time
        write(fresh, short, recovered)
    whole = topology(
        warehouse, MemoryTransactionalSpout(batches, SCHEMA), "drop", max_spout_pending=3
    )
    run_in_memory(whole, spark, fresh)
    check_equal(warehouse, dict(enumerate(batches, 1)), 3, "drop")


def test_the_slowest_partition_decides_until_it_is_idle(
    spark: SparkSession, warehouse: Path
) -> None:
    """A partition holds the watermark back until it had no row in idle_after txids."""
    batches = [
        [(1, "a", minute(60)), (2, "b", minute(5))],
        [(3, "a", minute(70)), (4, "a", minute(6))],
        [(5, "a", minute(80)), (6, "a", minute(7))],
        [(7, "a", minute(90)), (8, "a", minute(8))],
        [(9, "b", minute(20)), (10, "a", minute(75))],
    ]
    made = Topology("parts", TopologyConfig(max_spout_pending=1))
    rows = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
    timed = rows.watermark("at", "1 minute", late="drop", by="part", idle_after=3)
    timed.partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    # b was last seen in txid 1: from txid 5 on, which follows from txid 4, only a decides.
    assert rows_of(warehouse / "rows", "id") == [(n,) for n in range(1, 9)]


def test_partitions_are_not_users(spark: SparkSession, warehouse: Path) -> None:
    """More than 10,000 partitions in a batch are refused, and none of it is written."""
    made = Topology("many")
    batch = [(n, str(n), minute(n)) for n in range(10_001)]
    rows = made.stream("s", MemoryTransactionalSpout([batch], SCHEMA))
    timed = rows.watermark("at", "1 minute", by="part")
    timed.partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(TopologyError, match="more than 10,000 values in one batch"):
        run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "id") == []


def test_of_several_streams_the_smallest_counts(spark: SparkSession, warehouse: Path) -> None:
    """There is one watermark, that of the stream which is furthest behind."""
    ahead = [[(1, "a", minute(60))], [(2, "a", minute(30))], [(3, "a", minute(4))]]
    behind = [[(4, "b", minute(20))], [(5, "b", minute(3))], [(6, "b", minute(9))]]
    made = Topology("two", TopologyConfig(max_spout_pending=1))
    for name, batches in {"fast": ahead, "slow": behind}.items():
        rows = made.stream(name, MemoryTransactionalSpout(batches, SCHEMA))
        timed = rows.watermark("at", timedelta(minutes=15), late="drop")
        timed.partition_persist(AppendTable(warehouse / name))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "fast", "id") == [(1,), (2,)]
    assert rows_of(warehouse / "slow", "id") == [(4,), (6,)]


def test_an_event_of_the_far_future_moves_nothing(spark: SparkSession, warehouse: Path) -> None:
    """A row more than max_ahead after the watermark is set aside, and moves no watermark."""
    batches = [
        [(1, "a", minute(10))],
        [(2, "a", minute(5_000_000)), (3, "a", minute(11))],
        [(4, "a", minute(12)), (5, "a", minute(70))],
    ]
    bad_rows = AppendTable(warehouse / "bad")
    made = Topology("ahead", TopologyConfig(max_spout_pending=1), bad_rows=bad_rows)
    rows = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
    timed = rows.watermark("at", "5 minutes", late="drop", max_ahead="1 hour")
    timed.partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "id") == [(1,), (3,), (4,)]
    ((txid, rule, reason), (later, _, _)) = rows_of(warehouse / "bad", "txid", "rule", "reason")
    assert (txid, rule, later) == (2, "ahead", 3)
    assert reason == (
        "not true: at <= watermark + 1 h 00 min; the watermark is 2026-03-29 00:05:00 UTC"
    )


def test_rows_of_the_commit_turn_are_measured(spark: SparkSession, warehouse: Path) -> None:
    """A stream that only a table of the commit turn reads has its watermark, too."""
    batches = [[(1, "a", minute(60))], [(2, "a", minute(3)), (3, "a", minute(61))]]
    made = Topology("turn", TopologyConfig(max_spout_pending=1))
    rows = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
    counts = rows.group_by("part").persistent_aggregate(StateTable(warehouse / "n"), n=Count())
    timed = rows.watermark("at", "1 minute", late="drop")
    asked = timed.state_query(counts, on="part", as_of="txid-1")
    asked.partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "id", "n", key=str) == [(1, None), (3, 1)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"delay": "soon"}, r"delay='soon' is no duration. Write for example delay='10 minutes'"),
        ({"delay": timedelta(-1)}, "is no duration"),
        ({"delay": timedelta.max}, "is longer than 1,000,000 days"),
        ({"delay": "999999999 weeks"}, "is longer than 1,000,000 days"),
        ({"column": ""}, "needs the name of a column"),
        ({"late": "aside"}, "late='aside' is none of 'keep', 'drop' and 'set_aside'"),
        ({"idle_after": 0}, "idle_after=0 is no number of txids"),
        ({"by": 3}, "by=3 is no name of a column"),
        ({"column": "part"}, "needs a timestamp, and column 'part' is string. Make one"),
        ({"column": "when"}, "has no column 'when'"),
        ({"late": "set_aside"}, "has no table for them"),
        ({"max_ahead": "1 hour"}, "has no table for them"),
    ],
)
def test_a_watermark_that_cannot_be_is_refused(
    spark: SparkSession, warehouse: Path, arguments: dict[str, Any], told: str
) -> None:
    """The error names the stream, the value and the way out, before anything is written."""
    made = Topology("wrong")
    rows = made.stream("s", MemoryTransactionalSpout(records(1), SCHEMA))

    def run() -> None:
        timed = rows.watermark(**{"column": "at", "delay": "10 minutes", **arguments})
        timed.partition_persist(AppendTable(warehouse / "rows"))
        run_in_memory(made, spark)

    with pytest.raises(TopologyError, match=told):
        run()
    assert not (warehouse / "rows").exists()


def test_event_time_belongs_to_one_stream(warehouse: Path) -> None:
    """A watermark comes once, and before joins, merges, aggregates and tables."""
    made = Topology("wrong")
    one, other = (
        made.stream(name, MemoryTransactionalSpout(records(1), SCHEMA)) for name in ("s", "o")
    )
    state = one.group_by("part").persistent_aggregate(StateTable(warehouse / "n"), n=Count())
    for rows in (
        one.merge(other),
        one.join(other, "id"),
        one.group_by("part").aggregate(at=Count()),
        state.new_values(),
    ):
        with pytest.raises(TopologyError, match="comes after a join, a merge, an aggregate"):
            rows.watermark("at", "1 minute")
    timed = one.watermark("at", "1 minute")
    with pytest.raises(TopologyError, match="the stream has a watermark already"):
        timed.watermark("at", "2 minutes")
    ruled = other.expect("late", "id > 0")
    with pytest.raises(TopologyError, match=r"watermark\(\) counts rows under that name"):
        ruled.watermark("at", "1 minute")


def test_late_rows_are_those_of_structured_streaming(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """With max_spout_pending=2, Structured Streaming drops the same late rows of the same files: it
    judges them by the watermark of the batch before (since Spark 3.5).
    """
    batches = [rows for rows in ([r for r in rows if r[2]] for rows in records(21, 20)) if rows]
    source, out = str(tmp_path / "source"), str(tmp_path / "out")
    for number, rows in enumerate(batches):
        frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.parquet(f"{source}/file={number:03}")
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    run_in_memory(topology(warehouse, spout, "drop", max_spout_pending=2), spark)
    files = spark.readStream.schema("id int, at timestamp").option("maxFilesPerTrigger", 1)
    timed = files.parquet(source).withWatermark("at", "10 minutes").dropDuplicates(["id", "at"])
    stream = timed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start(out, format="parquet").awaitTermination()
    theirs = [row[0] for row in spark.read.parquet(out).select("id").orderBy("id").collect()]
    assert [row[0] for row in rows_of(warehouse / "rows", "id")] == theirs
    assert len(theirs) < sum(map(len, batches))


def test_a_table_that_is_filled_has_the_same_late_rows(
    spark: SparkSession, warehouse: Path
) -> None:
    """A table that comes later is filled with the watermark that each of its txids had."""
    batches, nodes = records(4), MemoryNodes()

    def program(*tables: str, **config: Any) -> Topology:
        made = Topology("timed", TopologyConfig(max_spout_pending=1, **config))
        rows = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
        timed = rows.watermark("at", DELAY, late="drop")
        for table in tables:
            timed.partition_persist(AppendTable(warehouse / table))
        return made

    run_in_memory(program("rows"), spark, nodes)
    late = str(warehouse / "late")
    run_in_memory(program("rows", "late", backfilled_tables=(late,)), spark, nodes)
    rows = rows_of(warehouse / "rows", "id", "txid")
    assert rows_of(warehouse / "late", "id", "txid") == rows
    assert len(rows) < sum(map(len, batches))


def test_stored_rows_do_not_pass_a_watermark(warehouse: Path) -> None:
    """A state below a watermark is not filled from rows above it, which lost their txids' marks."""
    made = Topology("timed")
    rows = made.stream("s", MemoryTransactionalSpout(records(1), SCHEMA))
    rows.partition_persist(AppendTable(warehouse / "rows"))
    timed = rows.watermark("at", DELAY, late="drop")
    timed.group_by("part").persistent_aggregate(StateTable(warehouse / "n"), n=Count())
    stored, state = made.sinks
    with pytest.raises(TopologyError, match="also depends on the watermark of 's'"):
        require_derivable(state, stored)


def timed_rows(warehouse: Path, batches: Sequence[Sequence[Row]], **watermark: Any) -> Topology:
    """One stream whose rows of the last batch show the watermark: late ones are dropped."""
    made = Topology("timed", TopologyConfig(max_spout_pending=1, max_batch_attempts=1))
    rows = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
    timed = rows.watermark(**{"column": "at", "delay": "1 minute", "late": "drop", **watermark})
    timed.partition_persist(AppendTable(warehouse / "rows"))
    return made


def test_counts_do_not_depend_on_partitions(spark: SparkSession, warehouse: Path) -> None:
    """A rule sees each row, however many partitions have no event time."""
    batch: list[Row] = [(n, str(n), None) for n in range(10_100)]
    made = Topology("timed", TopologyConfig(max_batch_attempts=1))
    rows = made.stream("s", MemoryTransactionalSpout([[*batch, (-1, "x", minute(1))]], SCHEMA))
    checked = rows.expect("positive", "id >= 0", "fail").watermark("at", "1 minute", by="part")
    checked.partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(TxnError, match="1 row of stream 's' in attempt 1:0 breaks the rule"):
        run_in_memory(made, spark)
    run_in_memory(timed_rows(warehouse / "2", [batch], by="part"), spark)
    (entry,) = history("timed", [str(warehouse / "2" / "rows")])
    assert entry.violations == {"s": {"late": 10_100}}


def test_other_partitions_begin_anew(spark: SparkSession, warehouse: Path) -> None:
    """A watermark with another column for its partitions is not held back by the former ones."""
    batches: list[list[Row]] = [[(n, "a", minute(n * 10))] for n in range(5)]
    nodes = MemoryNodes()
    run_in_memory(timed_rows(warehouse, batches[:2]), spark, nodes)
    run_in_memory(timed_rows(warehouse, batches, by="part"), spark, nodes)
    late: list[Row] = [(9, "a", minute(25))]
    run_in_memory(timed_rows(warehouse, [*batches, late], by="part"), spark, nodes)
    assert rows_of(warehouse / "rows", "id") == [(n,) for n in range(5)]
    time = nodes.status("timed").progress.committed.event_time
    assert time is not None
    assert (time.streams["s"].by, [*time.streams["s"].newest]) == ("part", ["a"])


def test_partitions_of_one_text_are_one(spark: SparkSession, warehouse: Path) -> None:
    """NULL is the partition with the empty text: the newest event of both counts, in any order."""
    for number, order in enumerate((1, -1)):
        first: list[Any] = [(1, "", minute(5)), (2, None, minute(60))][::order]
        made = timed_rows(warehouse / str(number), [first, [(3, "", minute(30))]], by="part")
        run_in_memory(made, spark)
        assert rows_of(warehouse / str(number) / "rows", "id") == [(1,), (2,)]


def test_a_stream_is_idle_since_its_watermark(spark: SparkSession, warehouse: Path) -> None:
    """A stream that gets its watermark later is not idle for the txids before."""
    nodes = MemoryNodes()

    def run(txids: int, *, timed: bool) -> None:
        made = Topology("late", TopologyConfig(max_spout_pending=1))
        for name, ahead in {"fast": 100, "slow": 0}.items():
            script: dict[tuple[int, int], list[Row]] = {
                (n, 0): [(n, "a", minute(n * 10 + ahead))]
                for n in range(1, txids + 1)
                if (name, n) != ("slow", 7)
            }
            rows = made.stream(name, MemoryOpaqueSpout(script, SCHEMA))
            if timed:
                rows = rows.watermark("at", "1 minute", late="drop", idle_after=3)
            rows.partition_persist(AppendTable(warehouse / name))
        run_in_memory(made, spark, nodes)

    run(6, timed=False)
    run(9, timed=True)
    assert rows_of(warehouse / "slow", "id") == [(n,) for n in (1, 2, 3, 4, 5, 6, 8, 9)]


@pytest.mark.parametrize("kind", ["timestamp_ntz", "string"])
def test_the_advice_for_another_type_works(spark: SparkSession, warehouse: Path, kind: str) -> None:
    """A column is made a timestamp as the error says, whatever the session takes timestamps for."""
    batch = [(1, "2026-03-01 00:00:00")]

    def run(*, advised: bool) -> None:
        made = Topology("types")
        rows = made.stream("s", MemoryTransactionalSpout([batch], "id int, text string"))
        rows = rows.transform(lambda df: df.withColumn("at", sf.col("text").cast(kind)))
        if advised:
            rows = rows.transform(
                lambda df: df.withColumn("at", sf.col("at").cast("timestamp_ltz"))
            )
        rows.watermark("at", "1 minute").partition_persist(AppendTable(warehouse / "rows"))
        run_in_memory(made, spark)

    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        with pytest.raises(TopologyError, match=r"cast\('timestamp_ltz'\)"):
            run(advised=False)
        run(advised=True)
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert rows_of(warehouse / "rows", "id") == [(1,)]


def test_any_column_names_partitions(spark: SparkSession, warehouse: Path) -> None:
    """The counting has no names of its own that a column could have."""
    for name in ("broken", "newest", "partition", "number", "txn_partition"):
        made = Topology("names")
        schema = f"id int, {name} string, at timestamp"
        rows = made.stream("s", MemoryTransactionalSpout([[(1, "a", minute(1))]], schema))
        timed = rows.watermark("at", "1 minute", by=name)
        timed.partition_persist(AppendTable(warehouse / name))
        run_in_memory(made, spark)
        assert rows_of(warehouse / name, "id") == [(1,)]
