"""The spout that is fed by the program: `feed` comes back when its batch is committed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.append_table import AppendTable
from spouts.feeder import Feeding
from spouts.memory import FeederSpout
from tests.faults.support import Points, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.interfaces import Lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

SCHEMA = "k string, v int"
WAIT_SECS = 60.0


def test_batches_are_planned_in_the_order_in_which_they_were_fed() -> None:
    """Each txid has the batch after the previous one's; with nothing more queued it is None."""
    spout = FeederSpout(SCHEMA, name="f")
    assert spout.initialize_transaction(TransactionAttempt(1), None) is None
    assert [spout.feed([("a", n)], timeout=0) for n in range(2)] == [False, False]
    first = spout.initialize_transaction(TransactionAttempt(1, 1), None)
    second = spout.initialize_transaction(TransactionAttempt(2), first)
    third = spout.initialize_transaction(TransactionAttempt(3), second)
    expected = (Feeding(feeder="f", number=1), Feeding(feeder="f", number=2), None)
    assert (first, second, third) == expected


def test_a_feed_comes_back_with_the_success_of_its_own_txid() -> None:
    """A txid that reads the batch of an earlier plan no longer does not confirm it."""
    spout = FeederSpout(SCHEMA, name="f")
    results: dict[int, bool] = {}
    threads = []
    for n in (1, 2):
        thread = threading.Thread(
            target=lambda n=n: results.update({n: spout.feed([("a", n)], WAIT_SECS)}),
            daemon=True,
        )
        thread.start()
        threads.append(thread)
    first = None
    while first is None:
        first = spout.initialize_transaction(TransactionAttempt(1), None)
    while spout.initialize_transaction(TransactionAttempt(2), first) is None:
        pass
    spout.success(1)
    # Planned anew, txid 2 has nothing: its success says nothing about the second batch.
    spout.initialize_transaction(TransactionAttempt(2, 1), Feeding(feeder="f", number=2))
    spout.success(2)
    spout.close()
    for thread in threads:
        thread.join(WAIT_SECS)
    assert sorted(results.values()) == [False, True]


def test_the_end_of_the_run_ends_the_waiting_and_keeps_the_batch() -> None:
    """A `feed` whose run ends comes back with False; the next run takes its batch."""
    spout = FeederSpout(SCHEMA, name="f")
    said: list[bool] = []
    thread = threading.Thread(target=lambda: said.append(spout.feed([("a", 1)])), daemon=True)
    thread.start()
    while spout.initialize_transaction(TransactionAttempt(1), None) is None:
        pass
    spout.close()
    thread.join(WAIT_SECS)
    assert said == [False]
    again = spout.initialize_transaction(TransactionAttempt(1, 1), None)
    assert again == Feeding(feeder="f", number=1)


def test_rows_of_another_object_are_refused(spark: SparkSession) -> None:
    """What another object was fed is not here: it fails, rather than to emit other rows."""
    spout = FeederSpout(SCHEMA, name="f")
    spout.feed([("a", 1)], timeout=0)
    for metadata in (Feeding(feeder="g", number=1), Feeding(feeder="f", number=2)):
        assert spout.planned_rows(metadata) is None
        with pytest.raises(FailedException, match="its rows are gone"):
            spout.emit_batch(spark, TransactionAttempt(1), metadata)
    after = spout.initialize_transaction(TransactionAttempt(2), Feeding(feeder="g", number=7))
    assert after == Feeding(feeder="f", number=1)


def test_what_was_fed_is_in_the_table_when_feed_comes_back(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """`feed` comes back after the batch is committed, once, though its first attempt failed.

    Trident row 65.
    """
    spout = FeederSpout(SCHEMA)
    topology = Topology(
        warehouse.parent.name, TopologyConfig(retry_backoff_ms=1, max_group_commit=1)
    )
    topology.stream("fed", spout).partition_persist(AppendTable(warehouse / "t", "opaque"))

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.attempt_id == 0:
            raise FailedException("the first attempt of each")

    def feed(*batch: tuple[str, int]) -> tuple[bool, list[tuple[str, int]]]:
        return spout.feed(batch, WAIT_SECS), rows_of(warehouse / "t", "k", "v")

    with observing(Points(before_publish=fail)):
        running = topology.start(spark, zookeeper=zookeeper.hosts)
        try:
            seen = [feed(("a", 1), ("b", 2)), feed(("c", 3))]
        finally:
            running.stop()
    assert seen == [
        (True, [("a", 1), ("b", 2)]),
        (True, [("a", 1), ("b", 2), ("c", 3)]),
    ]


def test_lag_is_the_rows_that_were_fed_and_are_in_no_batch() -> None:
    """After the newest batch of this object; another object's positions say nothing here."""
    spout = FeederSpout(SCHEMA, name="f")
    spout.feed([("a", 1), ("b", 2)], timeout=0)
    spout.feed([("c", 3)], timeout=0)
    newest = (None, Feeding(feeder="g", number=9), Feeding(feeder="f", number=1))
    assert [spout.lag(each) for each in newest] == [Lag(records=rows) for rows in (3, 3, 1)]
