"""Processing runs ahead, commits stay in order: seen in the report and in the tables' logs."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.aggregates import Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from tests.faults.harness import read_log
from tests.faults.support import Points, observing, rows_of
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.engine.reporting.report import RunReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

BATCHES = [[("a", n), ("b", 10 * n)] for n in range(1, 7)]
WAIT_SECS = 60.0


class Overlap(Points):
    """Holds every commit turn until the next txid's processing is under way."""

    def __init__(self) -> None:
        super().__init__(mid_processing=self._processing, before_publish=self._commit)
        self._begun = {txid: threading.Event() for txid in range(1, len(BATCHES) + 1)}
        self.alone: list[int] = []
        """Txids whose successor did not begin while they were held."""

    def _processing(self, attempt: TransactionAttempt) -> None:
        self._begun[attempt.txid].set()

    def _commit(self, attempt: TransactionAttempt) -> None:
        following = self._begun.get(attempt.txid + 1)
        if following is not None and not following.wait(WAIT_SECS):
            self.alone.append(attempt.txid)


@pytest.fixture
def run(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> tuple[RunReport, Overlap]:
    """A run in which each txid's commit turn is held until the next txid is being processed."""
    config = TopologyConfig(max_spout_pending=3, max_group_commit=1)
    topology = Topology(warehouse.parent.name, config)
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, "k string, v bigint"))
    stream.partition_persist(AppendTable(warehouse / "rows"))
    stream.group_by("k").persistent_aggregate(StateTable(warehouse / "totals"), total=Sum("v"))
    overlap = Overlap()
    with observing(overlap):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    return report, overlap


def test_processing_of_the_next_txid_starts_before_a_txid_commits_and_commits_stay_in_order(
    run: tuple[RunReport, Overlap], warehouse: Path
) -> None:
    """Txids commit strictly in order, one at a time, while later txids are being processed."""
    report, overlap = run
    times = [batch.times for batch in report.batches]
    assert overlap.alone == []
    for current, following in pairwise(times):
        assert following["processing"] < current["committed"]
        assert following["turn"] >= current["committed"]
    turns = [(p, a) for p, a in overlap.seen if p in ("before-publish", "after-committed")]
    assert turns == [
        (point, f"{txid}:0")
        for txid in range(1, len(BATCHES) + 1)
        for point in ("before-publish", "after-committed")
    ]
    for table in ("rows", "totals"):
        log = read_log(warehouse / table)
        assert [p.txid for p in log] == list(range(1, len(BATCHES) + 1))
        assert [p.timestamp for p in log] == sorted(p.timestamp for p in log)
        assert [b.tables[str(warehouse / table)] for b in report.batches] == [
            p.version for p in log
        ]


def test_no_more_txids_are_in_flight_than_the_configuration_allows(
    run: tuple[RunReport, Overlap],
) -> None:
    """`max_spout_pending` bounds what is started and not committed."""
    _, overlap = run
    open_txids, most = 0, 0
    for point, _ in overlap.seen:
        open_txids += {"after-start": 1, "after-committed": -1}.get(point, 0)
        most = max(most, open_txids)
    assert most <= 3


def test_the_tables_hold_every_row_with_its_txid(
    run: tuple[RunReport, Overlap], warehouse: Path
) -> None:
    """Parallel processing changes nothing in the result."""
    expected = sorted((k, v, txid) for txid, batch in enumerate(BATCHES, 1) for k, v in batch)
    assert rows_of(warehouse / "rows", "k", "v", "txid") == expected
    assert rows_of(warehouse / "totals", "k", "total") == [("a", 21), ("b", 210)]
