"""Final values: each window is handed on once, whole, when no row can change it any more."""

from __future__ import annotations

import random
from collections import Counter
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
from tests.faults.support import Points, crashing_at, first_other, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import TopologyError
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.interfaces import Spout

SCHEMA = "k string, v int, at timestamp"
BEGIN = datetime(2026, 3, 29, tzinfo=timezone.utc)
WIDTH, DELAY = timedelta(minutes=10), timedelta(minutes=5)
Row = tuple[str, int, datetime]
Final = tuple[int, str, datetime, int, int]
"""txid, key, end of the window, count and sum."""


def records(seed: int, batches: int = 9) -> list[list[Row]]:
    """Batches that go on by seven minutes each; some rows come late, some batches are empty."""
    chance = random.Random(seed)
    return [
        [
            (chance.choice("ab"), number, BEGIN + timedelta(minutes=n * 7 + chance.uniform(-14, 7)))
            for number in range(chance.choice([0, 3, 5]))
        ]
        for n in range(batches)
    ]


def windowed(rows: DataFrame) -> DataFrame:
    """Rows with their window of ten minutes."""
    return rows.selectExpr("k", "v", "window(at, '10 minutes') AS window")


def topology(warehouse: Path, spout: Spout[Any], layout: str = "upsert", **config: Any) -> Topology:
    """Counts by key and window, and a table of those that are final."""
    made = Topology("final", TopologyConfig(**{"retry_backoff_ms": 1, **config}))
    kind = spout.kind.value
    rows = made.stream("s", spout).watermark("at", DELAY, late="drop").transform(windowed)
    counts = rows.group_by("k", "window").persistent_aggregate(
        StateTable(warehouse / "counts", kind, layout, buckets=2), n=Count(), total=Sum("v")
    )
    final = counts.final_values().transform(
        lambda df: df.selectExpr("k", "window.end AS ended", "n", "total")
    )
    final.partition_persist(AppendTable(warehouse / "final", kind))
    return made


def expected(batches: Mapping[int, Sequence[Row]], distance: int) -> list[Final]:
    """What plain Python makes of the rows, txid by txid."""
    held: dict[tuple[str, datetime], list[int]] = {}
    final: list[Final] = []
    passed = None
    for txid, rows in batches.items():
        known = [at for t in batches if t <= txid - distance for *_, at in batches[t]]
        mark = max(known) - DELAY if known else None
        if mark is not None:
            over = [key for key in held if key[1] <= mark and not (passed and key[1] <= passed)]
            final += [(txid, *key, len(held[key]), sum(held[key])) for key in over]
        for k, v, at in rows:
            if mark is None or at > mark:
                end = BEGIN + ((at - BEGIN) // WIDTH + 1) * WIDTH
                held.setdefault((k, end), []).append(v)
        passed = mark
    return sorted(final)


def check_final(warehouse: Path, batches: Mapping[int, Sequence[Row]], distance: int) -> None:
    """Compare the table of final values, duplicates included."""
    found = rows_of(warehouse / "final", "txid", "k", "ended", "n", "total")
    found = [(t, k, end.astimezone(timezone.utc), n, total) for t, k, end, n, total in found]
    due = expected(batches, distance)
    assert found == due
    assert len(due) > 4
    assert set(Counter((k, end) for _, k, end, *_ in due).values()) == {1}


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("distance", [1, 3])
def test_each_window_is_final_once(
    spark: SparkSession, warehouse: Path, layout: str, distance: int
) -> None:
    """A value whose time is over is handed on in exactly one txid, with all rows that counted."""
    batches = records(distance)
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    run_in_memory(topology(warehouse, spout, layout, max_spout_pending=distance), spark)
    check_final(warehouse, dict(enumerate(batches, 1)), distance)


@pytest.mark.parametrize("point", ["after_start", "after_publish", "before_committed"])
def test_a_crash_loses_and_repeats_no_final_value(
    spark: SparkSession, warehouse: Path, point: str
) -> None:
    """Whatever the moment, the successor hands on what its predecessor did not commit."""
    batches, nodes = records(6), MemoryNodes()
    made = topology(warehouse, MemoryTransactionalSpout(batches, SCHEMA), max_spout_pending=2)
    crashing_at(point, (4, 6, 7), lambda: run_in_memory(made, spark, nodes))
    check_final(warehouse, dict(enumerate(batches, 1)), 2)


def test_a_replay_with_other_rows_takes_back_no_final_value(
    spark: SparkSession, warehouse: Path
) -> None:
    """An opaque replay hands on the same final values: they follow from committed txids alone."""
    batches, others = records(6), records(7)
    script = first_other(batches, others)

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.attempt_id == 0:
            raise FailedException("published, but not committed")

    spout = MemoryOpaqueSpout(script, SCHEMA)
    with observing(Points(after_publish=fail)):
        run_in_memory(topology(warehouse, spout, max_spout_pending=1), spark)
    check_final(warehouse, dict(enumerate(batches, 1)), 1)


def test_an_emptied_txid_hands_on_what_its_watermark_passes(
    spark: SparkSession, warehouse: Path
) -> None:
    """A txid whose rows are quarantined has final values all the same."""
    batches = records(6)
    due = dict(enumerate(batches, 1))
    passing = [txid for txid, *_ in expected(due, 1)]

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.txid == passing[2] and attempt.attempt_id == 0:
            raise FailedException("poison")

    settings = {"max_spout_pending": 1, "max_batch_attempts": 1, "on_exhausted": "quarantine"}
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    with observing(Points(mid_processing=fail)):
        report = run_in_memory(topology(warehouse, spout, **settings), spark)
    assert report.quarantined == 1
    due[passing[2]] = []
    check_final(warehouse, due, 1)
    assert passing[2] in [row[0] for row in rows_of(warehouse / "final", "txid")]


def test_a_txid_of_other_streams_ends_windows_too(spark: SparkSession, warehouse: Path) -> None:
    """A watermark may pass a window in a txid that has no rows for its table."""
    minutes = [[5], [], [], []], [[30], [31], [50], [51]]
    made = Topology("two", TopologyConfig(max_spout_pending=1))
    streams = []
    for name, batches in zip(("quiet", "busy"), minutes, strict=True):
        rows = [[("a", n, BEGIN + timedelta(minutes=n)) for n in batch] for batch in batches]
        script = {(txid, 0): batch for txid, batch in enumerate(rows, 1) if batch}
        stream = made.stream(name, MemoryOpaqueSpout(script, SCHEMA))
        streams.append(stream.watermark("at", DELAY, late="drop", idle_after=1))
    counts = streams[0].transform(windowed).group_by("window")
    state = counts.persistent_aggregate(StateTable(warehouse / "n"), n=Count())
    final = state.final_values().transform(lambda df: df.selectExpr("window.end AS ended", "n"))
    final.partition_persist(AppendTable(warehouse / "final"))
    streams[1].partition_persist(AppendTable(warehouse / "busy"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "final", "txid", "n") == [(3, 1)]


def test_final_windows_are_those_of_structured_streaming(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """Append mode gives the same windows and values, if no row is late: it judges rows by the end
    of their window.
    """
    minutes = [(0, 4), (9, 3, 12), (15, 11), (27, 21), (33, 29), (60, 58)]
    batches = [[("a", n, BEGIN + timedelta(minutes=n)) for n in batch] for batch in minutes]
    source = str(tmp_path / "source")
    for number, rows in enumerate(batches):
        frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.parquet(f"{source}/file={number:03}")
    made = Topology("final", TopologyConfig(max_spout_pending=1))
    rows = made.stream("s", MemoryTransactionalSpout([*batches, batches[-1]], SCHEMA))
    timed = rows.watermark("at", timedelta(minutes=10), late="drop").transform(windowed)
    state = timed.group_by("k", "window").persistent_aggregate(
        StateTable(warehouse / "counts"), n=Count(), total=Sum("v")
    )
    state.final_values().partition_persist(AppendTable(warehouse / "final"))
    run_in_memory(made, spark)
    files = spark.readStream.schema("k string, v int, at timestamp").option("maxFilesPerTrigger", 1)
    timed_files = files.parquet(source).withWatermark("at", "10 minutes")
    windows = timed_files.groupBy("k", sf.window("at", "10 minutes"))
    counted = windows.agg(sf.count("*").alias("n"), sf.sum("v").alias("total"))
    stream = counted.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream = stream.outputMode("append").trigger(availableNow=True)
    stream.format("memory").queryName("theirs").start().awaitTermination()
    theirs = spark.table("theirs").selectExpr("window.end", "n", "total").collect()
    found = spark.read.format("delta").load(str(warehouse / "final"))
    ours = found.selectExpr("window.end", "n", "total").collect()
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))
    assert len(ours) > 3


def test_what_cannot_become_final_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """Late rows that are kept, a key that is no time, and one that does not exist are named."""
    made = Topology("wrong")
    rows = made.stream("s", MemoryTransactionalSpout(records(1), SCHEMA))
    state = rows.group_by("k").persistent_aggregate(StateTable(warehouse / "a"), n=Count())
    with pytest.raises(TopologyError, match=r"by='window' is none of its keys \(k\)"):
        state.final_values()
    with pytest.raises(TopologyError, match="late rows would change values that were final"):
        state.final_values(by="k")
    kept = rows.watermark("at", DELAY)
    state = kept.group_by("k").persistent_aggregate(StateTable(warehouse / "b"), n=Count())
    with pytest.raises(TopologyError, match="late='drop' or late='set_aside'"):
        state.final_values(by="k")
    other = Topology("wrong")
    rows = other.stream("s", MemoryTransactionalSpout(records(1), SCHEMA))
    timed = rows.watermark("at", DELAY, late="drop")
    state = timed.group_by("k").persistent_aggregate(StateTable(warehouse / "c"), n=Count())
    final = state.final_values(by="k")
    again = final.group_by("k").persistent_aggregate(StateTable(warehouse / "e"), n=Count())
    with pytest.raises(
        TopologyError, match=r"below .*final_values\(\).* may be older than the watermark"
    ):
        again.final_values(by="k")
    final.partition_persist(AppendTable(warehouse / "d"))
    with pytest.raises(TopologyError, match="needs a key that is a window of timestamps or a"):
        run_in_memory(other, spark)
