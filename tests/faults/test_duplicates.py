"""The same event twice: the first one goes on, across txids, restarts and replays."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import (
    Points,
    attempts,
    crashing_at,
    failing_first,
    first_other,
    observing,
    rows_of,
)
from tests.faults.test_unknown_columns import TwoMethods
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import TopologyError
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Spout

SCHEMA = "k string, v int, at timestamp"
BEGIN = datetime(2026, 3, 29, tzinfo=timezone.utc)
DELAY, WITHIN = timedelta(minutes=5), timedelta(minutes=20)
Row = tuple[str | None, int, datetime]
Kept = tuple[int, str | None, int]
"""txid, key and value of a row that goes on."""


def records(seed: int, batches: int = 10) -> list[list[Row]]:
    """Batches that go on by seven minutes each, over few keys; some rows come late."""
    chance = random.Random(seed)
    return [
        [
            (
                chance.choice(["a", "b", "c", "d", None]),
                100 * n + number,
                BEGIN + timedelta(minutes=n * 7 + chance.choice([-14, -7, 0, 1, 2, 7])),
            )
            for number in range(chance.choice([0, 3, 4, 6]))
        ]
        for n in range(batches)
    ]


def _at(minute: int) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def topology(
    warehouse: Path, spout: Spout[Any], within: timedelta | None = WITHIN, **config: Any
) -> Topology:
    """Rows without their repeats, and totals over them."""
    made = Topology("once", TopologyConfig(**{"retry_backoff_ms": 1, **config}))
    kind = spout.kind.value
    rows = made.stream("s", spout).watermark("at", DELAY, late="drop").drop_duplicates("k", within)
    rows.partition_persist(AppendTable(warehouse / "rows", kind))
    rows.persistent_aggregate(StateTable(warehouse / "total", kind), n=Count(), total=Sum("v"))
    return made


def expected(
    batches: Mapping[int, Sequence[Row]], distance: int, within: timedelta | None = WITHIN
) -> list[Kept]:
    """What plain Python lets pass, txid by txid."""
    known: dict[str | None, datetime] = {}
    passed: list[Kept] = []
    for txid, rows in batches.items():
        times = [at for t in batches if t <= txid - distance for *_, at in batches[t]]
        mark = max(times) - DELAY if times else None
        # Without `within` no column is a time: the order of the columns decides.
        for k, v, at in sorted(rows, key=lambda row: (row[2], row[1]) if within else row[1:]):
            first = known.get(k)
            ended = first is None or (within and mark is not None and first + within <= mark)
            if (mark is None or at > mark) and ended:
                known[k] = at
                passed.append((txid, k, v))
    return sorted(passed, key=str)


def check_rows(
    warehouse: Path,
    batches: Mapping[int, Sequence[Row]],
    distance: int,
    within: timedelta | None = WITHIN,
) -> None:
    """Compare both tables with plain Python, duplicates included."""
    due = expected(batches, distance, within)
    assert rows_of(warehouse / "rows", "txid", "k", "v", key=str) == due
    assert rows_of(warehouse / "total", "n", "total") == [(len(due), sum(v for *_, v in due))]
    assert 3 < len(due) < sum(map(len, batches.values())) - 4


@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("within", [WITHIN, None])
@pytest.mark.parametrize("distance", [1, 3])
def test_an_event_counts_once(
    spark: SparkSession,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    within: timedelta | None,
    distance: int,
    *,
    narrowed: bool,
) -> None:
    """Of rows with the same keys only the first goes on, across txids, crashes and replays; with
    `within`, until the watermark is that much after its event time.
    """
    if narrowed:  # as in a large table, of which a txid reads only its own keys
        monkeypatch.setattr("committers.state.keys.NARROWED_FROM_BYTES", 0)
    batches = records(distance)
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    made = topology(warehouse, spout, within, max_spout_pending=distance)
    run_in_memory(made, spark)
    check_rows(warehouse, dict(enumerate(batches, 1)), distance, within)


@pytest.mark.parametrize(
    "point", ["after_start", "after_staging", "between_publications", "before_committed"]
)
def test_a_crash_forgets_no_key(spark: SparkSession, warehouse: Path, point: str) -> None:
    """Whatever the moment, the successor knows the keys of all txids before, and no others."""
    batches, nodes = records(6), MemoryNodes()
    made = topology(warehouse, MemoryTransactionalSpout(batches, SCHEMA), max_spout_pending=3)
    crashing_at(point, (3, 4, 7), lambda: run_in_memory(made, spark, nodes))
    check_rows(warehouse, dict(enumerate(batches, 1)), 3)


@pytest.mark.parametrize("distance", [1, 3])
@pytest.mark.parametrize("point", ["after_staging", "after_publish"])
def test_keys_of_a_failed_attempt_are_forgotten(
    spark: SparkSession, warehouse: Path, distance: int, point: str
) -> None:
    """An opaque replay reverts the keys that vanish, also for txids that were staged on them."""
    batches, others = records(6), records(7)
    script = first_other(batches, others)

    spout = MemoryOpaqueSpout(script, SCHEMA)
    with observing(failing_first(point)):
        report = run_in_memory(
            topology(warehouse, spout, max_spout_pending=distance, max_batch_attempts=20), spark
        )
    due = {
        txid: others[txid - 1] if attempt.endswith(":0") else batches[txid - 1]
        for txid, attempt in enumerate(attempts(report), 1)
    }
    assert any(rows is batches[txid - 1] for txid, rows in due.items())
    check_rows(warehouse, due, distance)


def test_a_txid_staged_on_an_attempt_that_failed_is_replayed(
    spark: SparkSession, warehouse: Path
) -> None:
    """The keys that a txid was compared with are those of the attempt that is committed."""
    batches = [[("a", 1, BEGIN)], [("b", 2, BEGIN)], [("b", 3, BEGIN), ("c", 4, BEGIN)]]
    script = {(txid, n): rows for txid, rows in enumerate(batches, 1) for n in range(9)}
    script[2, 1] = [("d", 5, BEGIN)]
    staged: list[str] = []

    def wait(attempt: TransactionAttempt) -> None:
        staged.append(str(attempt))
        if attempt == TransactionAttempt(2, 0):
            raise FailedException("after txid 3 was staged on it")

    made = topology(warehouse, MemoryOpaqueSpout(script, SCHEMA), max_spout_pending=3)
    with observing(Points(before_publish=wait)):
        run_in_memory(made, spark)
    assert "2:1" in staged
    rows = rows_of(warehouse / "rows", "txid", "k", "v")
    assert rows == [(1, "a", 1), (2, "d", 5), (3, "b", 3), (3, "c", 4)]


def test_keys_of_a_quarantined_txid_are_not_known(spark: SparkSession, warehouse: Path) -> None:
    """A txid that is emptied has seen nothing, so the same keys go on in a later one."""
    batches = [[("a", 1, BEGIN)], [("b", 2, BEGIN)], [("b", 3, BEGIN), ("a", 4, BEGIN)]]

    def refuse(attempt: TransactionAttempt) -> None:
        if attempt.txid == 2 and attempt.attempt_id < 2:
            raise FailedException("this batch cannot be processed")

    made = topology(
        warehouse,
        MemoryTransactionalSpout(batches, SCHEMA),
        max_spout_pending=3,
        max_batch_attempts=2,
        on_exhausted="quarantine",
    )
    with observing(Points(after_staging=refuse)):
        run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "txid", "k", "v") == [(1, "a", 1), (3, "b", 3)]


def test_a_longer_duration_counts_from_the_newest_first_row(
    spark: SparkSession, warehouse: Path
) -> None:
    """A key that ended and came again is known from then on, also after a compaction, if a later
    program keeps keys for longer.
    """
    batches = [[row] for row in [("a", 1, _at(0)), ("b", 2, _at(30)), ("a", 3, _at(26))]]
    nodes, hour = MemoryNodes(), timedelta(hours=1)

    def run(more: Sequence[Row], within: timedelta) -> None:
        batches.extend([row] for row in more)
        spout = MemoryTransactionalSpout(batches, SCHEMA)
        run_in_memory(topology(warehouse, spout, within, max_spout_pending=1), spark, nodes)

    run([], WITHIN)
    run([(f"k{n}", n, _at(31)) for n in range(16)], hour)
    assert len(DeltaTable(str(warehouse / "once_s_keys_k")).file_uris()) < 10
    run([("c", 4, _at(72)), ("a", 5, _at(70))], hour)
    assert [v for k, v in rows_of(warehouse / "rows", "k", "v") if k == "a"] == [1, 3]


def test_dropped_rows_are_counted(spark: SparkSession, warehouse: Path) -> None:
    """Rows that repeat one are counted by txid as a rule that names the keys."""
    batches = [[("a", 1, BEGIN), ("a", 2, BEGIN)], [("a", 3, BEGIN), ("b", 4, BEGIN)], []]
    report = run_in_memory(topology(warehouse, MemoryTransactionalSpout(batches, SCHEMA)), spark)
    assert [b.violations for b in report.batches][:2] == [{"s": {"duplicate k": 1, "late": 0}}] * 2


def test_the_first_of_one_txid_does_not_depend_on_spark(
    spark: SparkSession, warehouse: Path
) -> None:
    """Of rows with one event time that with the smallest values wins, maps and structs included."""
    schema = "k int, m map<string,int>, a array<struct<x:double>>, at timestamp"
    rows = [(1, {"x": n % 7}, [(float(n),)], BEGIN) for n in range(40, 0, -1)]
    made = Topology("order")
    stream = made.stream("s", MemoryTransactionalSpout([rows], schema))
    stream = stream.transform(lambda df: df.repartition(3)).watermark("at", DELAY)
    stream.drop_duplicates("k", "1 hour").partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "k", "m", "a") == [(1, [("x", 0)], [{"x": 7.0}])]


def test_repeats_below_new_values_are_dropped(spark: SparkSession, warehouse: Path) -> None:
    """In a stream of the commit turn, too: each customer's first order over ten, once."""
    batches = [[("a", 4, BEGIN)], [("a", 7, BEGIN), ("b", 20, BEGIN)], [("a", 1, BEGIN)]]
    made = Topology("turn", TopologyConfig(max_spout_pending=3))
    stream = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
    totals = stream.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals", "transactional"), total=Sum("v")
    )
    large = totals.new_values().transform(lambda df: df.where("total > 10"))
    large.drop_duplicates("k").partition_persist(AppendTable(warehouse / "rows", "transactional"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "txid", "k", "total") == [(2, "a", 11), (2, "b", 20)]


def test_keys_wait_for_a_txid_that_waits_for_columns(spark: SparkSession, warehouse: Path) -> None:
    """Later txids bring the columns that an earlier one lacks, and are compared with its rows all
    the same; none of them fails for it.
    """
    batches = [[("a", 1, BEGIN), ("b", 2, BEGIN)], [("a", 3, BEGIN), ("c", 4, BEGIN)], []]
    names = TwoMethods({3: [("a", "one")]}, "k string, name string")
    made = Topology("late", TopologyConfig(max_spout_pending=10, max_batch_attempts=1))
    rows = made.stream("s", MemoryTransactionalSpout(batches, SCHEMA)).drop_duplicates("k")
    rows.partition_persist(AppendTable(warehouse / "rows"))
    joined = rows.join(made.stream("names", names), "k", "left")
    joined = joined.transform(lambda df: df.selectExpr("k", "upper(name) AS name"))
    joined.partition_persist(AppendTable(warehouse / "joined"))
    report = run_in_memory(made, spark)
    assert (report.committed_txid, list(report.failures)) == (3, [])
    assert rows_of(warehouse / "rows", "txid", "k") == [(1, "a"), (1, "b"), (2, "c")]


@pytest.mark.parametrize("name", ["txn_known", "txn_key_k", "rows", "first_at"])
def test_a_name_is_the_users_own(spark: SparkSession, warehouse: Path, name: str) -> None:
    """Columns with names that the comparison might have for itself are handed on."""
    batches = [[("a", 1, BEGIN)], [("a", 1, BEGIN), ("b", 2, BEGIN)]]
    made = Topology("names")
    spout = MemoryTransactionalSpout(batches, f"k string, {name} int, at timestamp")
    stream = made.stream("s", spout).watermark("at", DELAY)
    once = stream.drop_duplicates("k").drop_duplicates(["k", name], "1 hour").drop_duplicates(name)
    once.partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "k", name) == [("a", 1), ("b", 2)]


def test_the_same_rows_pass_as_in_structured_streaming(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """With `within` as long as the delay, and max_spout_pending=2, the rows pass that
    `dropDuplicatesWithinWatermark` lets pass: it ends keys by the watermark of the batch before.

    Each key is once in a batch, because there any of several may be the first.
    """
    chance = random.Random(5)
    batches = [
        [
            (k, 100 * n, BEGIN + timedelta(minutes=n * 7 + chance.choice([-14, -7, 0, 1, 2, 7])))
            for k in chance.sample("abcdef", chance.choice([1, 2, 3, 4]))
        ]
        for n in range(20)
    ]
    source, out = str(tmp_path / "source"), str(tmp_path / "out")
    for number, rows in enumerate(batches):
        frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.parquet(f"{source}/file={number:03}")
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    report = run_in_memory(topology(warehouse, spout, DELAY, max_spout_pending=2), spark)
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)
    timed = files.withWatermark("at", "5 minutes").dropDuplicatesWithinWatermark(["k"])
    stream = timed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start(out, format="parquet").awaitTermination()
    theirs = [tuple(row) for row in spark.read.parquet(out).select("k", "v").collect()]
    assert rows_of(warehouse / "rows", "k", "v") == sorted(theirs)
    assert len({k for k, _ in theirs}) < len(theirs)
    dropped = [batch.violations["s"] for batch in report.batches]
    assert min(sum(one[rule] for one in dropped) for rule in ("duplicate k", "late")) > 3


def test_merged_streams_share_their_keys(spark: SparkSession, warehouse: Path) -> None:
    """Two streams with the same event are compared with each other, by several columns."""
    one = [[("a", 1, BEGIN)], [("b", 2, BEGIN)], []]
    two = [[("a", 1, BEGIN)], [("a", 2, BEGIN)], [("b", 2, BEGIN)]]
    made = Topology("merged", TopologyConfig(max_spout_pending=2))
    streams = [
        made.stream(name, MemoryTransactionalSpout(rows, SCHEMA)).watermark("at", DELAY)
        for name, rows in (("one", one), ("two", two))
    ]
    merged = streams[0].merge(streams[1]).drop_duplicates(["k", "v"], "1 hour")
    merged.partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "rows", "k", "v") == [("a", 1), ("a", 2), ("b", 2)]
    assert rows_of(warehouse / "merged_one-two_keys_k_v", "k", "v") == [
        ("a", 1),
        ("a", 2),
        ("b", 2),
    ]


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda s: s.drop_duplicates([]), "names no column"),
        (lambda s: s.drop_duplicates("k", within="soon"), "is no duration"),
        (lambda s: s.drop_duplicates("k", within="7 days"), "watermark over one column before"),
        (lambda s: s.drop_duplicates(["k", "k"]), "named twice"),
        (lambda s: s.drop_duplicates("k").drop_duplicates("k"), "a rule 'duplicate k' already"),
    ],
)
def test_what_cannot_be_compared_is_refused(warehouse: Path, ask: Any, told: str) -> None:
    """Each mistake is refused where it is made, with the way out."""
    stream = Topology("t").stream("s", MemoryTransactionalSpout([], SCHEMA))
    with pytest.raises(TopologyError, match=told):
        ask(stream)


def test_a_missing_key_is_refused_by_name(spark: SparkSession, warehouse: Path) -> None:
    """A column that the stream lacks is named before anything is read."""
    made = Topology("t")
    stream = made.stream("s", MemoryTransactionalSpout([[("a", 1, BEGIN)]], SCHEMA))
    stream.drop_duplicates("id").partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(TopologyError, match="has no column 'id'"):
        run_in_memory(made, spark)


def test_the_name_of_the_mark_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """A column with the name that marks repeats would be lost: it is refused."""
    made = Topology("t")
    stream = made.stream("s", MemoryTransactionalSpout([[("a", 1)]], "k string, Txn_Repeat int"))
    stream.drop_duplicates("k").partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(TopologyError, match="has a column 'Txn_Repeat'. Rename it"):
        run_in_memory(made, spark)


def test_a_table_of_ones_own_is_not_taken_for_keys(warehouse: Path) -> None:
    """A table where the keys would lie is refused, whichever is declared first."""
    made = Topology("t")
    stream = made.stream("s", MemoryTransactionalSpout([], SCHEMA)).drop_duplicates("k")
    stream.partition_persist(AppendTable(warehouse / "t_s_keys_k"))
    with pytest.raises(TopologyError, match="TXN-110|already"):
        assert made.sinks


def test_the_end_of_keys_may_be_given_up(spark: SparkSession, warehouse: Path) -> None:
    """Without `within`, after a rebuild, all keys that the table has stay known."""
    rows = [
        [(name, n, BEGIN + timedelta(minutes=m))]
        for n, (name, m) in enumerate(
            [("a", 0), ("b", 5), ("c", 9), ("d", 300), ("d", 301), ("c", 302), ("e", 303)]
        )
    ]
    nodes = MemoryNodes()
    keys = str(warehouse / "given_up_s_keys_k")

    def made(until: int, within: str | None, **config: Any) -> Topology:
        topology = Topology("given_up", TopologyConfig(max_spout_pending=1, **config))
        stream = topology.stream(
            "s", MemoryTransactionalSpout(rows[:until], "k string, v int, at timestamp")
        )
        once = stream.watermark("at", "1 minute").drop_duplicates("k", within=within)
        once.partition_persist(AppendTable(warehouse / "rows"))
        return topology

    run_in_memory(made(4, "30 minutes"), spark, nodes)
    config = {"dropped_columns": (f"{keys}:txn_first_at",), "rebuilt_tables": (keys,)}
    run_in_memory(made(7, None, **config), spark, nodes)
    assert rows_of(warehouse / "rows", "k", "v") == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
        ("d", 3),
        ("e", 6),
    ]
