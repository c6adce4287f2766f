"""Any reader as a spout that promises nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.reader import ReaderSpout, Reading
from tests.faults.support import Points, attempts, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import TopologyError
from txn.interfaces import Lag, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

SCHEMA = "k string, v bigint"


def values(text: str) -> Callable[[SparkSession], DataFrame]:
    return lambda spark: spark.sql(f"SELECT * FROM VALUES {text} AS t(k, v)")


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_it_reads_once_in_the_life_of_the_topology() -> None:
    """Without `every` the first txid reads and no later one does."""
    spout = ReaderSpout(values("('a', 1L)"), SCHEMA, clock=lambda: 5.0)
    first = spout.initialize_transaction(TransactionAttempt(1), None)
    assert first == Reading(number=1, planned_at=5.0)
    assert spout.initialize_transaction(TransactionAttempt(2), first) is None


def test_with_every_it_reads_again_when_the_time_has_passed() -> None:
    """The time counts from the last reading's plan, which is durable, and not from the start."""
    clock = Clock()
    spout = ReaderSpout(values("('a', 1L)"), SCHEMA, every=10, clock=clock)
    last = Reading(number=7, planned_at=995.0)
    assert spout.initialize_transaction(TransactionAttempt(9), last) is None
    clock.now = 1005.0
    again = spout.initialize_transaction(TransactionAttempt(9), last)
    assert again == Reading(number=8, planned_at=1005.0)


def test_lag_is_for_how_long_a_reading_is_due() -> None:
    """A spout that reads once, and has read, lags by nothing."""
    last = Reading(number=7, planned_at=995.0)
    again = ReaderSpout(values("('a', 1L)"), SCHEMA, every=2, clock=Clock())
    assert (again.lag(last), again.lag(None)) == (Lag(seconds=3.0), None)
    once = ReaderSpout(values("('a', 1L)"), SCHEMA, clock=Clock())
    assert once.lag(last) == Lag(seconds=0.0)


def test_it_promises_nothing_and_stronger_tables_are_refused() -> None:
    """The kind is non_transactional, so that only a non-transactional table may follow."""
    spout = ReaderSpout(values("('a', 1L)"), SCHEMA)
    assert spout.kind is SpoutKind.NON_TRANSACTIONAL
    for semantics in ("opaque", "transactional"):
        with pytest.raises(TopologyError, match="non_transactional"):
            Topology("t").stream("s", spout).partition_persist(AppendTable("x", semantics))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (values("('a', 1)"), "columns k string, v int, but its schema has k string, v bigint"),
        (lambda spark: [("a", 1)], "but returned list"),
        (lambda spark: spark.readStream.format("rate").load(), "but returned a streaming one"),
    ],
    ids=["columns", "no-frame", "stream"],
)
def test_what_is_not_a_frame_of_the_schema_is_refused(
    spark: SparkSession, read: Any, message: str
) -> None:
    """A reader that returns something else is refused before any job."""
    spout = ReaderSpout(read, SCHEMA)
    assert spout.open(spark, None).simpleString() == "struct<k:string,v:bigint>"
    with pytest.raises(TopologyError, match=message):
        spout.emit_batch(spark, TransactionAttempt(1), Reading(number=1, planned_at=0))


def test_an_interval_that_means_nothing_is_refused() -> None:
    """`every` is above 0."""
    with pytest.raises(TopologyError, match="every=0: give more than 0 seconds"):
        ReaderSpout(values("('a', 1L)"), SCHEMA, every=0)


def test_a_run_until_caught_up_ends_and_a_replay_reads_what_is_there_then(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """One batch of the whole snapshot, then the run ends; a replay has the rows of its own time;
    the next run reads no more.
    """
    content = iter(["('a', 1L)", "('a', 1L), ('b', 2L)", "('never', 0L)"])

    def read(session: SparkSession) -> DataFrame:
        return values(next(content))(session)

    def topology() -> Topology:
        result = Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))
        spout = ReaderSpout(read, SCHEMA)
        table = AppendTable(warehouse / "t", "non_transactional")
        result.stream("s", spout).partition_persist(table)
        return result

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) == "1:0":
            raise FailedException("once")

    with observing(Points(after_staging=fail)):
        first = topology().run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    again = topology().run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert (attempts(first), attempts(again)) == (["1:1"], [])
    assert rows_of(warehouse / "t", "k", "v", "txid") == [("a", 1, 1), ("b", 2, 1)]
