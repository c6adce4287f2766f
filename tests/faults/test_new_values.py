"""What hangs below a table's commit: new values, within the same txid, into further tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import Points, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.interfaces import Spout
from txn.topology import TxnState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

SCHEMA = "word string"
BATCHES = [["a", "b", "a"], ["a", "c"], ["b", "b", "a", None], ["d"]]
"""The words of each txid; None is a key like any other."""
TABLES = ("words", "buckets", "moves")

Build = Callable[[Spout[Any]], Topology]


def moves(changes: DataFrame) -> DataFrame:
    """One row per bucket that a word leaves (-1) or enters (+1); a bucket is two counts wide."""
    entered = changes.selectExpr("n div 2 AS bucket", "1 AS words")
    left = changes.where("prev_n IS NOT NULL").selectExpr("prev_n div 2 AS bucket", "-1 AS words")
    return entered.union(left)


@pytest.fixture
def build(warehouse: Path) -> Build:
    """Words counted; buckets of counts fed by the changes; the changes themselves kept."""

    def make(spout: Spout[Any]) -> Topology:
        kind = spout.kind.value
        topology = Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))
        words = topology.stream("words", spout).group_by("word")
        counts = words.persistent_aggregate(
            StateTable(warehouse / "words", kind, buckets=2), n=Count()
        )
        moved = counts.new_values().transform(moves)
        moved.group_by("bucket").persistent_aggregate(
            StateTable(warehouse / "buckets", kind, buckets=2), words=Sum("words")
        )
        counts.new_values().partition_persist(AppendTable(warehouse / "moves", kind))
        return topology

    return make


def expected(batches: list[list[Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """The three tables, from the words of each committed txid."""
    counts: Counter[Any] = Counter()
    changes = []
    for txid, batch in enumerate(batches, 1):
        before = counts.copy()
        counts.update(batch)
        changes += [(w, counts[w], before[w] or None, txid) for w in set(batch)]
    buckets = Counter(n // 2 for n in counts.values())
    touched = {n // 2 for _, n, _, _ in changes}
    return {
        "words": sorted(counts.items(), key=str),
        "buckets": sorted((bucket, buckets[bucket]) for bucket in touched),
        "moves": sorted(changes, key=str),
    }


def found(warehouse: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The three tables, read without Spark."""
    return {
        "words": rows_of(warehouse / "words", "word", "n", key=str),
        "buckets": rows_of(warehouse / "buckets", "bucket", "words"),
        "moves": rows_of(warehouse / "moves", "word", "n", "prev_n", "txid", key=str),
    }


def rows(words: list[Any]) -> list[tuple[Any]]:
    """Words as rows."""
    return [(word,) for word in words]


def fail(point: str, *which: str) -> Points:
    """An observer that fails the given attempts at a point."""

    def raise_once(attempt: TransactionAttempt) -> None:
        if str(attempt) in which:
            raise FailedException("once")

    return Points(**{point: raise_once})


@pytest.mark.parametrize("point", ["before_publish", "between_publications", "after_publish"])
def test_tables_below_new_values_hold_every_change_once(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    build: Build,
    warehouse: Path,
    point: str,
) -> None:
    """The new values of a table are committed once, in the txid that changed the table, even after
    replays.

    Trident row 39.
    """
    spout = MemoryTransactionalSpout([rows(batch) for batch in BATCHES], SCHEMA)
    with observing(fail(point, "1:0", "3:0", "3:1")):
        report = build(spout).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert (report.committed_txid, report.replays) == (4, 3)
    assert found(warehouse) == expected(BATCHES)


@pytest.mark.parametrize("point", ["before_publish", "between_publications", "after_publish"])
def test_tables_below_new_values_follow_an_opaque_replay_that_differs(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    build: Build,
    warehouse: Path,
    point: str,
) -> None:
    """The changes of a failed opaque attempt are reverted in every table that received them."""
    script = {
        (1, 0): rows(["a", "b", "a"]),
        (2, 0): rows(["a", "x", "x", "b"]),
        (2, 1): rows(["a", "c"]),
        (3, 0): rows(["y"]),
        (3, 1): [],
    }
    with observing(fail(point, "2:0", "3:0")):
        build(MemoryOpaqueSpout(script, SCHEMA)).run(spark, zookeeper=zookeeper.hosts, until=3)
    committed = expected([["a", "b", "a"], ["a", "c"], []])
    # A bucket that only dead attempts entered may be gone or hold nothing.
    result = found(warehouse)
    assert [row for row in result["buckets"] if row[1]] == [
        row for row in committed["buckets"] if row[1]
    ]
    assert (result["words"], result["moves"]) == (committed["words"], committed["moves"])


def test_a_run_that_crashed_between_the_tables_goes_on_where_it_stopped(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, warehouse: Path
) -> None:
    """A successor hands on the same changes for a txid that the first table already holds."""
    batches = [rows(batch) for batch in BATCHES]

    def die(attempt: TransactionAttempt) -> None:
        if attempt.txid == 3:
            raise SystemError("killed")

    with observing(Points(between_publications=die)), pytest.raises(Exception, match="killed"):
        build(MemoryTransactionalSpout(batches, SCHEMA)).run(spark, zookeeper=zookeeper.hosts)
    assert rows_of(warehouse / "words", "txid")[-1] == (3,)
    report = build(MemoryTransactionalSpout(batches, SCHEMA)).run(
        spark, zookeeper=zookeeper.hosts, until="caught_up"
    )
    assert report.committed_txid == 4
    assert found(warehouse) == expected(BATCHES)


def test_a_cascade_of_three_tables_commits_with_one_txid(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """Row 5: a table below a table below a table does not wait for a commit of its own.

    Trident row 5.
    """
    topology = Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))
    state: TxnState = (
        topology.stream("words", MemoryTransactionalSpout([rows(b) for b in BATCHES], SCHEMA))
        .group_by("word")
        .persistent_aggregate(StateTable(warehouse / "first"), n=Count())
    )
    second = (
        state.new_values()
        .group_by("n")
        .persistent_aggregate(StateTable(warehouse / "second"), times=Count())
    )
    third = second.new_values().persistent_aggregate(
        StateTable(warehouse / "third"), seen=Sum("times")
    )
    third.new_values().partition_persist(AppendTable(warehouse / "fourth"))
    with observing(fail("between_publications", "2:0")):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    counts: Counter[Any] = Counter()
    times: Counter[int] = Counter()
    seen, history = 0, []
    for txid, batch in enumerate(BATCHES, 1):
        counts.update(batch)
        changed = Counter(counts[word] for word in set(batch))
        times.update(changed)
        before, seen = seen or None, seen + sum(times[n] for n in changed)
        history.append((seen, before, txid))
    assert report.committed_txid == 4
    assert rows_of(warehouse / "second", "n", "times") == sorted(times.items())
    assert rows_of(warehouse / "fourth", "seen", "prev_seen", "txid") == history


def test_new_values_meet_a_stream_of_the_same_batch(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A stream that only the commit turn reads is read there, and all its parts are looked for."""
    topology = Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))
    words = MemoryTransactionalSpout([rows(batch) for batch in BATCHES], SCHEMA)
    names = MemoryTransactionalSpout(
        [[("a", "alpha")], [("c", "gamma")]], "word string, name string"
    )
    counts = (
        topology.stream("words", words)
        .group_by("word")
        .persistent_aggregate(StateTable(warehouse / "words"), n=Count())
    )
    counts.new_values().join(topology.stream("names", names), on="word").partition_persist(
        AppendTable(warehouse / "named")
    )
    with observing(fail("after_publish", "1:0")):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert rows_of(warehouse / "named", "name", "n", "txid") == [("alpha", 2, 1), ("gamma", 1, 2)]
