"""Partitioned spouts over real Spark, ZooKeeper and Delta tables."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from tests.faults.partitioned_run import History, Literals
from tests.faults.support import Points, attempts, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.interfaces import SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

WAIT_SECS = 120.0
HISTORY = "test_after_a_random_history_the_tables_equal_the_oracle"
SEEDS = range(int(os.environ.get("TXN_HISTORIES", "50")))
"""TXN_HISTORIES=500 makes a long run of it."""


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_random_history_the_tables_equal_the_oracle(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, seed: int
) -> None:
    """Every record of every partition is counted once, whichever partitions go, return or are
    added, and whatever fails or crashes, with three txids in flight.

    Trident row 10.
    """
    kind = (SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)[seed % 2]
    history = History(seed, kind, warehouse)
    try:
        history.live(spark, zookeeper.hosts)
        history.judge()
    finally:
        again = f"pytest 'tests/faults/test_partitioned.py::{HISTORY}[{seed}]'"
        print(f"{kind.value}; again: {again}", *history.happened, sep="\n  ")


class Shortened(Literals):
    """Takes fifty rows, but forty for a replay of txid 1."""

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> dict[str, int] | None:
        """The next rows; see the class."""
        position = super().plan_partition(attempt, partition, previous)
        if position and attempt.txid == 1 and attempt.attempt_id:
            return {**position, "end": position["start"] + 40}
        return position


def test_a_shorter_replay_of_a_moves_b_in_the_tables(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """Opaque batch A was 1-50 and B 51-100; A fails in its commit turn and is replayed as 1-40, so
    B, which had been processed and fails late as well, becomes 41-90.
    """
    rows = [("p", i, "k", i) for i in range(1, 121)]
    spout = Shortened({"p": rows}, "p string, i int, k string, v bigint", take_per_partition=50,
                      kind=SpoutKind.OPAQUE)  # fmt: skip
    topology = Topology(
        warehouse.parent.name, TopologyConfig(retry_backoff_ms=1, max_group_commit=1)
    )
    table = AppendTable(warehouse / "rows", "opaque")
    topology.stream("s", spout).partition_persist(table)
    staged = threading.Event()
    failed = threading.Event()

    def commit_turn(attempt: TransactionAttempt) -> None:
        if str(attempt) == "1:0":
            assert staged.wait(WAIT_SECS)
            failed.set()
            raise FailedException("A fails, after it was published")

    def after_staging(attempt: TransactionAttempt) -> None:
        if str(attempt) == "2:0":
            staged.set()
            assert failed.wait(WAIT_SECS)
            raise FailedException("B fails late")

    with observing(Points(after_publish=commit_turn, after_staging=after_staging)):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    found = rows_of(warehouse / "rows", "i", "txid")
    assert [txid for _, txid in found] == [1] * 40 + [2] * 50 + [3] * 30
    assert [i for i, _ in found] == list(range(1, 121))
    assert attempts(report)[0] == "1:1"
