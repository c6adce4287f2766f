"""Two streams in time: matches across txids, and rows without one when their time is over."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from committers.aggregates import Count
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
from txn.errors import TopologyError
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Spout

LEFT, RIGHT = "k string, v int, at timestamp", "k string, w int, paid timestamp"
BEGIN = datetime(2026, 3, 29, tzinfo=timezone.utc)
DELAY, WITHIN = timedelta(minutes=5), timedelta(minutes=10)
KINDS = ("inner", "left", "right", "full", "left_semi", "left_anti", "as_of")
Row = tuple[str | None, int, datetime]
Batches = Mapping[int, tuple[Sequence[Row], Sequence[Row]]]
"""Txid -> its rows of both streams."""


def records(seed: int, first: int, batches: int = 11) -> list[list[Row]]:
    """Batches that go on by six minutes each; some rows come late, some batches are empty."""
    chance = random.Random(seed)
    return [
        [
            (
                chance.choice(["a", "b", "c", None]),
                first + 100 * n + number,
                BEGIN + timedelta(minutes=n * 6 + chance.choice([-12, -6, 0, 1, 3, 6])),
            )
            for number in range(chance.choice([0, 1, 3]))
        ]
        for n in range(batches)
    ]


def topology(
    warehouse: Path, left: Spout[Any], right: Spout[Any], how: str, **config: Any
) -> Topology:
    """The join of two streams in a table."""
    made = Topology("joined", TopologyConfig(**{"retry_backoff_ms": 1, **config}))
    one = made.stream("l", left).watermark("at", DELAY, late="drop")
    other = made.stream("r", right).watermark("paid", DELAY, late="drop")
    if how == "as_of":
        joined = one.join_as_of(other, "k", within=WITHIN)
    else:
        joined = one.join(other, "k", how, within=WITHIN)
    joined.partition_persist(AppendTable(warehouse / "rows", left.kind.value))
    return made


def expected(batches: Batches, distance: int, how: str) -> list[tuple[Any, ...]]:
    """What plain Python joins: all pairs first, then the txid of each."""
    lefts, rights, marks = [], [], {}
    for txid, sides in batches.items():
        known = [
            [at for t in batches if t <= txid - distance for *_, at in batches[t][side]]
            for side in (0, 1)
        ]
        marks[txid] = mark = min(map(max, known)) - DELAY if all(known) else None
        passed = max((m for t, m in marks.items() if m is not None), default=None)
        marks[txid] = mark = passed
        for rows, all_rows in zip(sides, (lefts, rights), strict=True):
            all_rows += [(txid, *row) for row in rows if mark is None or row[2] > mark]

    def over(at: datetime, after: timedelta) -> list[int]:
        return [t for t, mark in marks.items() if mark is not None and at + after <= mark][:1]

    pairs = [
        (one, other)
        for one in lefts
        for other in rights
        if one[1] is not None and one[1] == other[1] and abs(one[3] - other[3]) <= WITHIN
    ]
    found: list[tuple[Any, ...]] = []
    if how in ("inner", "left", "right", "full"):
        found += [(max(a[0], b[0]), a[1], a[2], b[2]) for a, b in pairs]
    if how == "left_semi":
        first = {a: min(max(a[0], b[0]) for x, b in pairs if x is a) for a, _ in pairs}
        found += [(txid, a[1], a[2]) for a, txid in first.items()]
    if how in ("left", "full", "left_anti"):
        alone = [a for a in lefts if not any(x is a for x, _ in pairs)]
        rest = () if how == "left_anti" else (None,)
        found += [(t, a[1], a[2], *rest) for a in alone for t in over(a[3], WITHIN)]
    if how in ("right", "full"):
        alone = [b for b in rights if not any(y is b for _, y in pairs)]
        found += [(t, b[1], None, b[2]) for b in alone for t in over(b[3], WITHIN)]
    if how == "as_of":
        for a in lefts:
            before = [b for x, b in pairs if x is a and b[3] <= a[3]]
            best = max(before, key=lambda b: (b[3], b[2]))[2] if before else None
            found += [(t, a[1], a[2], best) for t in over(a[3], timedelta())]
    return sorted(found, key=str)


def check_joined(warehouse: Path, batches: Batches, distance: int, how: str) -> None:
    """Compare the table with plain Python, duplicates included."""
    columns = ("txid", "k", "v") if how in ("left_semi", "left_anti") else ("txid", "k", "v", "w")
    due = expected(batches, distance, how)
    assert rows_of(warehouse / "rows", *columns, key=str) == due
    assert len(due) > 3


def both(left: Sequence[Sequence[Row]], right: Sequence[Sequence[Row]]) -> Batches:
    """The rows of both streams by txid."""
    return dict(enumerate(zip(left, right, strict=True), 1))


@pytest.fixture(params=["whole", "narrowed"])
def _reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept rows are read whole, as small ones are, or only those with keys of the batch."""
    if request.param == "narrowed":
        monkeypatch.setattr("committers.state.keys.NARROWED_FROM_BYTES", 0)


@pytest.mark.usefixtures("_reading")
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("distance", [1, 3])
def test_rows_match_across_txids(
    spark: SparkSession, warehouse: Path, how: str, distance: int
) -> None:
    """Rows of two streams that match in event time come once, in the txid with the later one, and
    a row without a match comes once, when none can come any more.
    """
    left, right = records(33, 0), records(83, 5000)
    spouts = MemoryTransactionalSpout(left, LEFT), MemoryTransactionalSpout(right, RIGHT)
    run_in_memory(topology(warehouse, *spouts, how, max_spout_pending=distance), spark)
    check_joined(warehouse, both(left, right), distance, how)


def test_a_late_row_is_no_second_first_match(spark: SparkSession, warehouse: Path) -> None:
    """A left row of a semi join comes once, also if a late row matches it that comes when the row
    of its first match is forgotten.
    """

    def row(key: str, number: int, minute: int) -> Row:
        return key, number, BEGIN + timedelta(minutes=minute)

    left = [[row("a", 1, 100)], [row("y", 2, 111)], [row("z", 3, 112)], []]
    right = [[row("a", 10, 90)], [row("y", 20, 111)], [], [row("a", 30, 95)]]
    made = Topology("semi", TopologyConfig(max_spout_pending=1))
    one = made.stream("l", MemoryTransactionalSpout(left, LEFT)).watermark("at", "0 seconds")
    other = made.stream("r", MemoryTransactionalSpout(right, RIGHT)).watermark("paid", "0 seconds")
    joined = one.join(other, "k", "left_semi", within=WITHIN)
    joined.partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "txid", "k", "v") == [(1, "a", 1), (2, "y", 2)]


@pytest.mark.parametrize("point", ["after_staging", "between_publications", "before_committed"])
def test_a_crash_loses_and_repeats_no_match(
    spark: SparkSession, warehouse: Path, point: str
) -> None:
    """Whatever the moment, the successor joins with the rows of all txids before, and no others."""
    left, right, nodes = records(34, 0), records(84, 5000), MemoryNodes()
    spouts = MemoryTransactionalSpout(left, LEFT), MemoryTransactionalSpout(right, RIGHT)
    made = topology(warehouse, *spouts, "full", max_spout_pending=3)
    crashing_at(point, (3, 5, 8), lambda: run_in_memory(made, spark, nodes))
    check_joined(warehouse, both(left, right), 3, "full")


@pytest.mark.parametrize("how", ["full", "left_semi", "as_of"])
@pytest.mark.parametrize("point", ["after_staging", "after_publish"])
def test_rows_of_a_failed_attempt_match_nothing(
    spark: SparkSession, warehouse: Path, how: str, point: str
) -> None:
    """An opaque replay with other rows takes back the matches of the former ones."""
    sides = [(records(35, 0), records(36, 1000)), (records(85, 5000), records(86, 6000))]
    scripts = [first_other(*side) for side in sides]

    spouts = MemoryOpaqueSpout(scripts[0], LEFT), MemoryOpaqueSpout(scripts[1], RIGHT)
    made = topology(warehouse, *spouts, how, max_spout_pending=2, max_batch_attempts=20)
    with observing(failing_first(point)):
        report = run_in_memory(made, spark)
    used = [int(attempt.endswith(":0")) for attempt in attempts(report)]
    due = {
        txid: (sides[0][first][txid - 1], sides[1][first][txid - 1])
        for txid, first in enumerate(used, 1)
    }
    assert 0 in used
    check_joined(warehouse, due, 2, how)


def on_time(*keys: str | None) -> tuple[list[list[Row]], list[list[Row]]]:
    """Rows of both streams of which none is late; the last ones, of key z, end all others."""
    chance = random.Random(1)
    sides = []
    for first in (0, 5000):
        rows = [
            [
                (chance.choice(keys), first + 10 * n + i, BEGIN + timedelta(minutes=at))
                for i, at in enumerate(chance.sample(range(n * 7, n * 7 + 10), 3))
            ]
            for n in range(5)
        ]
        sides.append([*rows, *([[("z", 0, BEGIN + timedelta(hours=h))] for h in (5, 10, 15)])])
    return sides[0], sides[1]


def test_matches_are_those_of_structured_streaming(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """A full outer join of two watermarked streams gives the same rows, matched or not.

    Without NULL as a key: there two NULLs match in an outer join, unlike in SQL and here.
    """
    left, right = on_time("a", "b", "c", "d")
    queries = []
    for name, rows, schema in (("l", left, LEFT), ("r", right, RIGHT)):
        for number, batch in enumerate(rows):
            frame = spark.createDataFrame(batch, schema).coalesce(1)
            frame.write.parquet(f"{tmp_path}/{name}/file={number:03}")
        files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        queries.append(files.parquet(f"{tmp_path}/{name}"))
    one = queries[0].withWatermark("at", "5 minutes").alias("l")
    other = queries[1].withWatermark("paid", "5 minutes").alias("r")
    near = "paid BETWEEN at - INTERVAL 10 MINUTES AND at + INTERVAL 10 MINUTES"
    joined = one.join(other, sf.expr(f"l.k = r.k AND {near}"), "full")
    stream = joined.selectExpr("coalesce(l.k, r.k) AS k", "v", "w").writeStream
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream = stream.outputMode("append").trigger(availableNow=True)
    stream.format("memory").queryName("joined").start().awaitTermination()
    spouts = MemoryTransactionalSpout(left, LEFT), MemoryTransactionalSpout(right, RIGHT)
    run_in_memory(topology(warehouse, *spouts, "full", max_spout_pending=1), spark)
    theirs = [tuple(row) for row in spark.table("joined").collect() if row["k"] != "z"]
    ours = [row for row in rows_of(warehouse / "rows", "k", "v", "w", key=str) if row[0] != "z"]
    assert ours == sorted(theirs, key=str)
    assert len({(v is None, w is None) for _, v, w in ours}) == 3


def test_the_newest_row_before_is_that_of_a_query_over_everything(
    spark: SparkSession, warehouse: Path
) -> None:
    """join_as_of gives what one batch query over all rows of both streams gives."""
    left, right = on_time("a", "b", "c", None)
    spouts = MemoryTransactionalSpout(left, LEFT), MemoryTransactionalSpout(right, RIGHT)
    run_in_memory(topology(warehouse, *spouts, "as_of", max_spout_pending=1), spark)
    for name, rows, schema in (("l", left, LEFT), ("r", right, RIGHT)):
        whole = spark.createDataFrame([row for batch in rows for row in batch], schema)
        whole.createOrReplaceTempView(f"as_of_{name}")
    query = """
        SELECT k, v, (SELECT max_by(w, struct(paid, w)) FROM as_of_r r WHERE r.k = l.k
                      AND r.paid BETWEEN l.at - INTERVAL 10 MINUTES AND l.at) AS w
        FROM as_of_l l WHERE k IS NULL OR k != 'z'
    """
    theirs = sorted(map(tuple, spark.sql(query).collect()), key=str)
    ours = [row for row in rows_of(warehouse / "rows", "k", "v", "w", key=str) if row[0] != "z"]
    assert ours == theirs
    assert len({w is None for *_, w in ours}) == 2


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda a, b: a.join(b, "k", within="1 hour"), "counts in event time"),
        (lambda a, b: a.watermark("at", "1 hour").join(b, "k", within="soon"), "is no duration"),
        (
            lambda a, b: a.watermark("at", "1 second").join(
                b.watermark("paid", "1 second"), "k", "left", within="1 hour"
            ),
            "late='drop'",
        ),
        (
            lambda a, b: a.watermark("at", "1 second").join(
                b.transform(lambda df: df.withColumnRenamed("paid", "at")).watermark(
                    "at", "1 second"
                ),
                "k",
                within="1 hour",
            ),
            "Rename one of them",
        ),
        (lambda a, b: a.join_as_of(b, [], within="1 hour"), "names no column"),
        (lambda a, b: a.join(b, "k", "cross", within="1 hour"), "Use how='inner'"),
    ],
)
def test_what_cannot_be_joined_in_time_is_refused(ask: Any, told: str) -> None:
    """Each mistake is refused where it is made, with the way out."""
    made = Topology("t")
    one = made.stream("l", MemoryTransactionalSpout([], LEFT))
    other = made.stream("r", MemoryTransactionalSpout([], RIGHT))
    with pytest.raises(TopologyError, match=told):
        ask(one, other)


@pytest.mark.parametrize("what", ["final values", "keys that end"])
def test_rows_that_are_over_are_not_joined_with_those_that_wait(warehouse: Path, what: str) -> None:
    """A row whose time is over when it comes would never come out without a match."""
    made = Topology("t")
    one = made.stream("l", MemoryTransactionalSpout([], LEFT)).watermark("at", DELAY, late="drop")
    other = made.stream("r", MemoryTransactionalSpout([], RIGHT))
    other = other.watermark("paid", DELAY, late="drop")
    ends = {"expire_after": WITHIN, "by": "at"} if what == "keys that end" else {}
    state = one.group_by("k", "at").persistent_aggregate(
        StateTable(warehouse / "n"), n=Count(), **ends
    )
    values = state.new_values() if ends else state.final_values(by="at")
    for how in ("inner", "left"):
        with pytest.raises(TopologyError, match="may be older than the watermark"):
            values.join(other, "k", how, within=WITHIN)


def test_a_column_of_both_sides_is_refused_by_name(spark: SparkSession, warehouse: Path) -> None:
    """Two columns of one name are told before anything is read."""
    rows = [[("a", 1, BEGIN)]]
    right = MemoryTransactionalSpout(rows, "k string, v int, paid timestamp")
    made = topology(warehouse, MemoryTransactionalSpout(rows, LEFT), right, "inner")
    with pytest.raises(TopologyError, match="would have two columns 'v'"):
        run_in_memory(made, spark)


def test_the_tables_of_a_join_keep_their_names_when_a_side_gets_a_transform(
    warehouse: Path,
) -> None:
    """Their names follow from the streams, not from what is around them."""
    names = []
    for deep in (False, True):
        made = Topology("named")
        one = made.stream("z", MemoryTransactionalSpout([], LEFT))
        one = (one.transform(lambda rows: rows) if deep else one).watermark("at", DELAY)
        other = made.stream("b", MemoryTransactionalSpout([], RIGHT)).watermark("paid", DELAY)
        joined = one.join(other, "k", within=WITHIN)
        joined.partition_persist(AppendTable(warehouse / "rows"))
        names.append({sink.name for sink in made.definition.sinks})
    assert names[0] == names[1]
    assert str(warehouse / "named_b-z_left_inner_k_600s") in names[0]


def test_keys_of_two_types_are_refused_before_anything_is_read(
    spark: SparkSession, warehouse: Path
) -> None:
    """The first row without a match would not fit into the table."""
    left = MemoryTransactionalSpout([[(1, 1, BEGIN)]], "k int, v int, at timestamp")
    right = MemoryTransactionalSpout([[(1, 1, BEGIN)]], "k bigint, w int, paid timestamp")
    with pytest.raises(TopologyError, match="is int on one side and bigint on the other"):
        run_in_memory(topology(warehouse, left, right, "full"), spark)


def test_below_a_join_in_time_nothing_counts_in_event_time(warehouse: Path) -> None:
    """The refusal names the two columns."""
    made = Topology("below")
    one = made.stream("l", MemoryTransactionalSpout([], LEFT)).watermark("at", DELAY)
    other = made.stream("r", MemoryTransactionalSpout([], RIGHT)).watermark("paid", DELAY)
    joined = one.join(other, "k", within=WITHIN)
    with pytest.raises(TopologyError, match="call theirs at, paid"):
        joined.drop_duplicates("k", within="1 hour")


def test_what_a_join_keeps_is_not_filled_with_its_history(
    spark: SparkSession, warehouse: Path
) -> None:
    """With a longer `within`, rows that have come out would come out again: it is refused."""
    nodes = MemoryNodes()
    rows = [[("a", 1, BEGIN)], [("a", 2, BEGIN)]]

    def made(batches: int, within: timedelta, **config: Any) -> Topology:
        topology = Topology("again", TopologyConfig(max_spout_pending=1, **config))
        left = topology.stream("l", MemoryTransactionalSpout(rows[:batches], LEFT))
        right = topology.stream("r", MemoryTransactionalSpout(rows[:batches], RIGHT))
        joined = left.watermark("at", DELAY, late="drop").join(
            right.watermark("paid", DELAY, late="drop"), "k", "left", within=within
        )
        joined.partition_persist(AppendTable(warehouse / "rows"))
        return topology

    former = made(1, timedelta(hours=1))
    run_in_memory(former, spark, nodes)
    old, new = (tuple(sink.name for sink in made(1, timedelta(hours=n)).sinks[1:]) for n in (1, 2))
    filled = made(2, timedelta(hours=2), dropped_tables=old, backfilled_tables=new)
    with pytest.raises(TopologyError, match="rows that have come out would come out again"):
        run_in_memory(filled, spark, nodes)
    run_in_memory(made(2, timedelta(hours=2), dropped_tables=old, new_tables=new), spark, nodes)
    assert len(rows_of(warehouse / "rows", "v")) == 2
