"""State that ends: each reader sees, as of every txid, what plain Python makes of the records."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as sf

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import CrashedError, Points, first_other, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import TopologyError
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.interfaces import Spout

SCHEMA = "k string, v int, at timestamp"
BEGIN = datetime(2026, 3, 29, tzinfo=timezone.utc)
WIDTH, DELAY, AFTER = timedelta(minutes=10), timedelta(minutes=5), timedelta(minutes=12)
DISTANCE = 1
Row = tuple[str, int, datetime]
Key = tuple[Any, ...]
Held = dict[Key, tuple[int, int]]
"""Key -> count and sum."""


def records(seed: int, batches: int = 10) -> list[list[Row]]:
    """Batches that go on by seven minutes each; rows come late, keys are silent for a while."""
    chance = random.Random(seed)
    made: list[list[Row]] = []
    for n in range(batches):
        keys = [k for k in "abcde" if chance.random() < 0.4]
        made.append(
            [
                (k, number, BEGIN + timedelta(minutes=n * 7 + chance.uniform(-30, 7)))
                for number, k in enumerate(keys * chance.choice([1, 2]))
            ]
        )
    return made


def key_of(row: Row, by: str) -> Key:
    """The key of a row in the state that ends by `by`."""
    k, _, at = row
    if by == "last event":
        return (k,)
    return k, BEGIN + ((at - BEGIN) // WIDTH + (by == "window end")) * WIDTH


def oracle(batches: Mapping[int, Sequence[Row]], by: str) -> dict[int, Held]:
    """Txid -> the state as of it, by plain Python over the records in txid order."""
    held: dict[Key, list[Row]] = {}
    states: dict[int, Held] = {}
    for txid, rows in batches.items():
        known = [at for t in batches if t <= txid - DISTANCE for *_, at in batches[t]]
        bound = max(known) - DELAY - AFTER if known else datetime.min.replace(tzinfo=timezone.utc)

        def time(key: Key, by: str = by) -> datetime:
            return max(at for *_, at in held[key]) if by == "last event" else key[1]

        touched = {key_of(row, by) for row in rows}
        for key in touched & held.keys():
            if time(key) <= bound:
                del held[key]
        for row in rows:
            held.setdefault(key_of(row, by), []).append(row)
        states[txid] = {
            key: (len(kept), sum(v for _, v, _ in kept))
            for key, kept in held.items()
            if time(key) > bound
        }
    return states


def changes(
    states: Mapping[int, Held], batches: Mapping[int, Sequence[Row]], by: str
) -> list[tuple[Any, ...]]:
    """Txid, key, values and previous values of each key that a txid touches or ends."""
    before: Held = {}
    found = []
    for txid, after in states.items():
        touched = {key_of(row, by) for row in batches[txid]}
        for key in touched | (before.keys() - after.keys()):
            if key in before or key in after:
                values = (*after.get(key, (None, None)), *before.get(key, (None, None)))
                found.append((txid, *key, *values))
        before = after
    return found


def keyed(rows: DataFrame) -> DataFrame:
    """Rows with their window, and with the time at which it begins."""
    return rows.selectExpr(
        "k", "v", "at", "window(at, '10 minutes') AS window", "window.start AS slot"
    )


COLUMNS = {"window end": ["window.end"], "slot": ["slot"], "last event": []}
KEYS = {"window end": ("k", "window"), "slot": ("k", "slot"), "last event": ("k",)}


def topology(
    warehouse: Path, spout: Spout[Any], layout: str, by: str, **config: Any
) -> tuple[Topology, StateTable]:
    """Counts that end, and a table of what each row finds in them as of the txid before."""
    settings = {"retry_backoff_ms": 1, "max_spout_pending": DISTANCE, **config}
    made = Topology("expiry", TopologyConfig(**settings))
    kind = spout.kind.value
    rows = made.stream("s", spout).watermark("at", DELAY).transform(keyed)
    state = StateTable(
        warehouse / "state", kind, layout, buckets=2, compact_files=2, compact_share=1
    )
    kept = rows.group_by(*KEYS[by]).persistent_aggregate(
        state, n=Count(), total=Sum("v"), expire_after=AFTER, by=by
    )
    asked = rows.state_query(kept, KEYS[by], as_of="txid-1").transform(
        lambda found: found.selectExpr("k", "v", "at", "n", "total")
    )
    asked.partition_persist(AppendTable(warehouse / "asked", kind))
    values = ("n", "total", "prev_n", "prev_total")
    changed = kept.new_values().transform(
        lambda found: found.selectExpr("k", *(f"{c} AS ended" for c in COLUMNS[by]), *values)
    )
    changed.partition_persist(AppendTable(warehouse / "changes", kind))
    return made, state


def in_utc(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows with times in UTC."""
    return [
        tuple(x.astimezone(timezone.utc) if isinstance(x, datetime) else x for x in row)
        for row in rows
    ]


def held_by(rows: DataFrame, by: str) -> Held:
    """The rows of a state as the oracle has them; each key once."""
    found = in_utc(rows.selectExpr("k", *COLUMNS[by], "n", "total").collect())
    held = {row[:-2]: row[-2:] for row in found}
    assert len(held) == len(found)
    return held


def check(spark: SparkSession, warehouse: Path, state: StateTable, by: str, batches: Any) -> None:
    """Compare every reader with the oracle."""
    due = oracle(batches, by)
    for txid, expected in due.items():
        assert held_by(state.read(spark, txid=txid), by) == expected, txid
    last = due[max(due)]
    assert held_by(state.read(spark), by) == last
    assert held_by(state.newest(spark).rows, by) == last
    state.create_view(spark, "ending")
    assert held_by(spark.table("ending"), by) == last
    rows = [row for batch in batches.values() for row in batch]
    keys = {key_of(row, by) for row in rows}
    if by == "slot":
        assert held_by(state.get(spark, sorted(keys)), by) == last
    elif by == "last event":
        assert held_by(state.get(spark, sorted(k for (k,) in keys)), by) == last
    else:
        windows = [(k, (end - WIDTH, end)) for k, end in keys]
        assert held_by(state.get(spark, windows), by) == last
    asked = [
        (txid, k, v, *due.get(txid - 1, {}).get(key_of((k, v, at), by), (None, None)))
        for txid, batch in batches.items()
        for k, v, at in batch
    ]
    found = rows_of(warehouse / "asked", "txid", "k", "v", "n", "total")
    assert sorted(map(repr, found)) == sorted(map(repr, asked))
    ended = ["ended"] if COLUMNS[by] else []
    names = ("txid", "k", *ended, "n", "total", "prev_n", "prev_total")
    told = in_utc(rows_of(warehouse / "changes", *names))
    assert sorted(map(repr, told)) == sorted(map(repr, changes(due, batches, by)))
    assert sum(row[-4] is None for row in told) > 1


def compactions(warehouse: Path) -> int:
    """How often the state was compacted."""
    history = DeltaTable(str(warehouse / "state")).history()
    return sum("txn_compaction" in entry for entry in history)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("by", ["window end", "slot", "last event"])
@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_a_state_that_ends_is_that_of_plain_python(
    spark: SparkSession, warehouse: Path, layout: str, by: str, kind: str
) -> None:
    """As of every txid a state shows the keys that have not ended by its watermark, and what came
    for them since they began.
    """
    batches = records(4)
    if kind == "opaque":
        script = {(txid, 0): rows for txid, rows in enumerate(batches, 1)}
        spout: Any = MemoryOpaqueSpout(script, SCHEMA)
    else:
        spout = MemoryTransactionalSpout(batches, SCHEMA)
    made, state = topology(warehouse, spout, layout, by)
    run_in_memory(made, spark)
    check(spark, warehouse, state, by, dict(enumerate(batches, 1)))
    assert layout == "upsert" or compactions(warehouse) > 2


@pytest.mark.parametrize("by", ["slot", "last event"])
@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_a_replay_with_other_rows_takes_back_what_its_txid_ended(
    spark: SparkSession, warehouse: Path, layout: str, by: str
) -> None:
    """Each txid is published with other rows first, and the process dies twice; all readers see
    what plain Python makes of the rows that were committed.
    """
    batches, others, nodes = records(7), records(4), MemoryNodes()
    script = first_other(batches, others)

    def crash(attempt: TransactionAttempt) -> None:
        if attempt.attempt_id == 0 and attempt.txid in (5, 8):
            raise CrashedError("the state is published, and the process is gone")

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.attempt_id == 0:
            raise FailedException("published, but not committed")

    spout = MemoryOpaqueSpout(script, SCHEMA)
    made, state = topology(warehouse, spout, layout, by)
    with observing(Points(between_publications=crash, after_publish=fail)):
        for _ in range(2):
            with pytest.raises(CrashedError):
                run_in_memory(made, spark, nodes)
        run_in_memory(made, spark, nodes)
    check(spark, warehouse, state, by, dict(enumerate(batches, 1)))


def test_windows_end_as_those_of_structured_streaming(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """With late rows dropped and no time to stay, the windows that end, with their last values, are
    those that append mode emits and forgets.
    """
    minutes = [(0, 4), (9, 3, 12), (15, 11), (27, 21), (33, 29), (60, 58)]
    batches = [[("a", n, BEGIN + timedelta(minutes=n)) for n in batch] for batch in minutes]
    for number, rows in enumerate(batches):
        frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.parquet(f"{tmp_path}/source/file={number:03}")
    made = Topology("expiry", TopologyConfig(max_spout_pending=1))
    stream = made.stream("s", MemoryTransactionalSpout([*batches, batches[-1]], SCHEMA))
    timed = stream.watermark("at", WIDTH, late="drop").transform(keyed)
    state = timed.group_by("k", "window").persistent_aggregate(
        StateTable(warehouse / "state", layout="log"),
        n=Count(),
        total=Sum("v"),
        expire_after=timedelta(0),
        by="window end",
    )
    ends = state.new_values().transform(
        lambda rows: rows.where("n IS NULL").selectExpr(
            "window.end AS ended", "prev_n", "prev_total"
        )
    )
    ends.partition_persist(AppendTable(warehouse / "ends"))
    run_in_memory(made, spark)
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    windows = files.parquet(f"{tmp_path}/source").withWatermark("at", "10 minutes")
    counted = windows.groupBy("k", sf.window("at", "10 minutes"))
    query = counted.agg(sf.count("*").alias("n"), sf.sum("v").alias("total")).writeStream
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.outputMode("append").trigger(availableNow=True)
    query.format("memory").queryName("ended").start().awaitTermination()
    theirs = spark.table("ended").selectExpr("window.end", "n", "total").collect()
    ours = rows_of(warehouse / "ends", "ended", "prev_n", "prev_total")
    assert in_utc(ours) == sorted(in_utc(theirs))
    assert len(ours) > 3


@pytest.mark.parametrize("by", ["window", "last event"])
def test_a_txid_of_other_streams_ends_keys_too(
    spark: SparkSession, warehouse: Path, by: str
) -> None:
    """A watermark may end a key in a txid that has no rows for its table."""
    minutes = [[5], [], [], []], [[30], [31], [50], [51]]
    made = Topology("two", TopologyConfig(max_spout_pending=1))
    streams = []
    for name, batches in zip(("quiet", "busy"), minutes, strict=True):
        rows = [[("a", n, BEGIN + timedelta(minutes=n)) for n in batch] for batch in batches]
        script = {(txid, 0): batch for txid, batch in enumerate(rows, 1) if batch}
        stream = made.stream(name, MemoryOpaqueSpout(script, SCHEMA))
        streams.append(stream.watermark("at", DELAY, idle_after=1))
    state = StateTable(warehouse / "n", layout="log")
    keys = streams[0].transform(keyed).group_by("k", "window")
    counts = keys.persistent_aggregate(state, n=Count(), expire_after=AFTER, by=by)
    ends = counts.new_values().transform(lambda rows: rows.where("n IS NULL").select("prev_n"))
    ends.partition_persist(AppendTable(warehouse / "ends"))
    streams[1].partition_persist(AppendTable(warehouse / "busy"))
    run_in_memory(made, spark)
    assert rows_of(warehouse / "ends", "txid", "prev_n") == [(3, 1)]
    assert [state.read(spark, txid=txid).count() for txid in (1, 2, 3, 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"by": "k"}, "expire_after=None is no duration"),
        ({"expire_after": "soon", "by": "k"}, "expire_after='soon' is no duration. Write for exam"),
        ({"expire_after": "1 day"}, "by=None does not say what the end of a key follows from"),
        ({"expire_after": "1 day", "by": "v"}, r"by='window end', or the key .* \(keys: k\)"),
        ({"expire_after": "1 day", "by": "k"}, "a stream behind the state has none. Give each one"),
    ],
)
def test_a_rule_that_says_too_little_is_refused(
    warehouse: Path, rule: dict[str, Any], message: str
) -> None:
    """By name, when the state is declared."""
    stream = Topology("wrong").stream("s", MemoryTransactionalSpout([], SCHEMA))
    with pytest.raises(TopologyError, match=message):
        stream.group_by("k").persistent_aggregate(StateTable(warehouse / "a"), n=Count(), **rule)


def test_values_may_have_the_names_of_the_rule(spark: SparkSession, warehouse: Path) -> None:
    """An aggregate called `by` or `expire_after` is one, with and without the other."""
    made = Topology("names", TopologyConfig(max_spout_pending=1))
    stream = made.stream("s", MemoryTransactionalSpout(records(4), SCHEMA)).watermark("at", DELAY)
    one, other = StateTable(warehouse / "one"), StateTable(warehouse / "other")
    keys = stream.group_by("k")
    keys.persistent_aggregate(one, by=Count(), expire_after=Sum("v"))
    stream.persistent_aggregate(other, by=Count())
    run_in_memory(made, spark)
    assert one.read(spark).columns == ["k", "expire_after", "by"]
    assert other.read(spark).columns == ["by"]
    with pytest.raises(TopologyError, match="a state without keys has one row, which cannot end"):
        stream.persistent_aggregate(other, n=Count(), expire_after=AFTER, by="last event")


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_a_key_without_an_event_time_ends_with_the_first_watermark(
    spark: SparkSession, warehouse: Path, layout: str
) -> None:
    """It is shown until then, its end is among the new values, and a later one is never shown."""
    batches = [[("early", None), ("x", BEGIN)], [("x", BEGIN), ("late", None)], [("x", BEGIN)]]
    made = Topology("no-times", TopologyConfig(max_spout_pending=1))
    events = made.stream("s", MemoryTransactionalSpout(batches, "k string, at timestamp"))
    table = StateTable(warehouse / "state", layout=layout)
    grouped = events.watermark("at", DELAY).group_by("k")
    state = grouped.persistent_aggregate(table, expire_after=AFTER, by="last event", n=Count())
    state.new_values().partition_persist(AppendTable(warehouse / "changes"))
    run_in_memory(made, spark)
    shown = {txid: {row["k"] for row in table.read(spark, txid).collect()} for txid in (1, 2, 3)}
    assert shown == {1: {"early", "x"}, 2: {"x"}, 3: {"x"}}
    changes = rows_of(warehouse / "changes", "txid", "k", "n", "prev_n", key=str)
    assert [row for row in changes if row[1] != "x"] == [
        (1, "early", 1, None),
        (2, "early", None, 1),
    ]
