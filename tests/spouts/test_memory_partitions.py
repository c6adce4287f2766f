"""The spout over partitions that the program holds: kinds, what is away, failures in the data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spouts.memory import MemoryPartitionedSpout
from txn.attempts import TransactionAttempt
from txn.errors import (
    FailedException,
    SourceChangedError,
    SourceUnavailableError,
    TopologyError,
)
from txn.interfaces import Lag, PartitionPositions, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, v int"
PARTITIONS = {"p1": [("a", 1), ("b", 2), ("c", 3)], "p0": [("x", 10)]}
BOTH = pytest.mark.parametrize("kind", [SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE])


def spout(kind: SpoutKind = SpoutKind.TRANSACTIONAL, take: int = 2) -> MemoryPartitionedSpout:
    return MemoryPartitionedSpout(PARTITIONS, SCHEMA, take_per_partition=take, kind=kind)


def plan(
    of: MemoryPartitionedSpout, txid: int, previous: PartitionPositions | None = None, n: int = 0
) -> PartitionPositions | None:
    """One planning; the answer goes through JSON, as it does in ZooKeeper."""
    answer = of.initialize_transaction(TransactionAttempt(txid, n), previous)
    if answer is None:
        return None
    return PartitionPositions.model_validate(json.loads(answer.model_dump_json()))


def planned(*args: Any, **more: Any) -> PartitionPositions:
    answer = plan(*args, **more)
    assert answer is not None
    return answer


def spans(answer: PartitionPositions) -> dict[str, tuple[int, int]]:
    return {p: (at["start"], at["end"]) for p, at in answer.read.items()}


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


@BOTH
def test_each_partition_is_read_in_order_and_then_there_is_nothing(
    spark: SparkSession, kind: SpoutKind
) -> None:
    """A batch has at most `take_per_partition` rows of each partition, a next one the next rows."""
    source = spout(kind)
    first = planned(source, 1)
    second = planned(source, 2, first)
    assert [spans(first), spans(second)] == [{"p0": (0, 1), "p1": (0, 2)}, {"p1": (2, 3)}]
    assert plan(source, 3, second) is None
    emitted = [
        rows(source.emit_batch(spark, TransactionAttempt(n), at))
        for n, at in [(1, first), (2, second)]
    ]
    assert emitted == [[("x", 10), ("a", 1), ("b", 2)], [("c", 3)]]


def test_another_object_replays_the_same_rows(spark: SparkSession) -> None:
    """What was planned is enough to emit the batch again, by an object that never planned it."""
    first = planned(spout(), 1)
    emitted = [rows(spout().emit_batch(spark, TransactionAttempt(1, n), first)) for n in range(2)]
    assert emitted == [[("x", 10), ("a", 1), ("b", 2)]] * 2


def test_the_acker_has_an_edge_per_partition_and_the_rows_are_known() -> None:
    """The parts of a batch are the partitions that it reads, and the row count is exact."""
    source = spout()
    first = planned(source, 1)
    second = planned(source, 2, first)
    assert [source.planned_parts(first), source.planned_parts(second)] == [["p0", "p1"], ["p1"]]
    assert [source.planned_rows(first), source.planned_rows(second)] == [3, 1]


def test_lag_is_the_rows_of_the_partitions_that_are_there() -> None:
    """After the newest batch; what is disabled cannot be read, so it does not count."""
    source = spout()
    assert source.lag(None) == Lag(records=4, partitions={"p0": 1, "p1": 3})
    first = planned(source, 1)
    assert source.lag(first) == Lag(records=1, partitions={"p0": 0, "p1": 1})
    source.set_disabled("p1", True)
    assert source.lag(first) == Lag(records=0, partitions={"p0": 0})


@BOTH
def test_a_disabled_partition_is_not_planned_and_comes_back_where_it_stood(kind: SpoutKind) -> None:
    """While a partition is away new batches go on without it; later it continues, no row missed."""
    source = spout(kind, take=1)
    first = planned(source, 1)
    source.set_disabled("p1", True)
    assert plan(source, 2, first) is None
    source.add_partition("p2", [("n", 0)])
    second = planned(source, 2, first)
    source.set_disabled("p1", False)
    third = planned(source, 3, second)
    assert [spans(second), spans(third)] == [{"p2": (0, 1)}, {"p1": (1, 2)}]


@BOTH
@pytest.mark.parametrize("how", ["disabled", "removed"])
def test_a_planned_partition_that_is_away_at_the_emission_is_named(
    kind: SpoutKind, how: str
) -> None:
    """A batch of which a partition cannot be read now fails with what is away and what then."""
    source = spout(kind)
    first = planned(source, 1)
    if how == "disabled":
        source.set_disabled("p1", True)
    else:
        source.remove_partition("p1")
    then = "waits until it is back" if kind is SpoutKind.TRANSACTIONAL else "planned again, without"
    with pytest.raises(SourceUnavailableError, match=rf"'p1'.* 1:1 .* is {how}\. .*{then}"):
        source.rows_at(TransactionAttempt(1, 1), first.read)


def test_a_partition_that_is_back_is_replayed_with_the_same_rows(spark: SparkSession) -> None:
    """Once the partition is back, removed and added as well, the replay has the rows planned."""
    source = spout()
    first = planned(source, 1)
    source.remove_partition("p1")
    source.add_partition("p1", PARTITIONS["p1"])
    replay = rows(source.emit_batch(spark, TransactionAttempt(1, 1), first))
    assert replay == [("x", 10), ("a", 1), ("b", 2)]


def test_a_partition_that_came_back_with_fewer_rows_is_refused() -> None:
    """Rows that were planned and are gone are never read as "nothing more", nor cut short."""
    source = spout()
    first = planned(source, 1)
    source.remove_partition("p1")
    source.add_partition("p1", [("a", 1)])
    message = r"'p1' .* holds 1 rows, but 2 of them were planned up to"
    with pytest.raises(SourceChangedError, match=message):
        source.rows_at(TransactionAttempt(1, 1), first.read)
    with pytest.raises(SourceChangedError, match=message):
        plan(source, 2, first)


@BOTH
def test_an_exception_among_the_rows_fails_the_first_batch_that_reaches_it(kind: SpoutKind) -> None:
    """A failure belongs to the row after it, is raised once, and counts as no row."""
    content = [
        ("a", 1),
        FailedException("at b"),
        ("b", 2),
        FailedException("at c"),
        ("c", 3),
        ("d", 4),
        FailedException("at the end"),
    ]
    source = MemoryPartitionedSpout({"p": content}, SCHEMA, take_per_partition=1, kind=kind)
    seen: list[Any] = []
    previous: PartitionPositions | None = None
    for txid in (1, 2, 3, 4):
        metadata = planned(source, txid, previous)
        for n in range(2):
            try:
                seen.append(source.rows_at(TransactionAttempt(txid, n), metadata.read))
            except FailedException as error:
                seen.append(str(error))
        previous = metadata
    a, b, c, d = [("a", 1)], [("b", 2)], [("c", 3)], [("d", 4)]
    assert seen == [a, a, "at b", b, "at c", c, "at the end", d]
    assert plan(source, 5, previous) is None


def test_what_cannot_be_meant_is_refused() -> None:
    """A kind without a promise, nothing to take, and partitions that are not there are named."""
    with pytest.raises(TopologyError, match="transactional or opaque"):
        spout(SpoutKind.NON_TRANSACTIONAL)
    with pytest.raises(TopologyError, match="take_per_partition of 1 or more, not 0"):
        spout(take=0)
    source = spout()
    for act in (source.remove_partition, lambda name: source.set_disabled(name, True)):
        with pytest.raises(TopologyError, match="no partition 'p9'; it has: p0, p1"):
            act("p9")
    with pytest.raises(TopologyError, match="has a partition 'p1' already"):
        source.add_partition("p1", [])


def test_the_schema_is_told_before_anything_runs(spark: SparkSession) -> None:
    """`open` says the schema of what will be emitted."""
    assert spout().open(spark, None).simpleString() == "struct<k:string,v:int>"
