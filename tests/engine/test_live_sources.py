"""When the next txid is planned: ahead of the work while a source is behind, with it when not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.append_table import AppendTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from tests.faults.harness import wait_for
from txn import FailedException, Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.errors import TxnError
from txn.interfaces import Lag
from txn.testing import MemoryNodes, MemoryProgress, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.engine.running import RunningTopology

BATCHES = 8


class Watched(MemoryTransactionalSpout):
    """Notes how many of its batches are being processed, each time it is asked for another one.

    Args:
        lag: what it says to lag by.
    """

    def __init__(self, lag: Lag | None) -> None:
        super().__init__([[("a", number)] for number in range(BATCHES)], "k string, v bigint")
        self._lag = lag
        self._at_work: set[int] = set()
        self.found: list[int] = []

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: MemoryPosition | None
    ) -> MemoryPosition | None:
        """See the class."""
        self.found.append(len(self._at_work))
        return super().initialize_transaction(attempt, previous)

    def lag(self, newest: MemoryPosition | None) -> Lag | None:
        """As it was told."""
        return self._lag

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The work on a batch begins."""
        self._at_work.add(attempt.txid)
        return super().emit_batch(spark, attempt, metadata)

    def check_read(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> None:
        """Its rows are staged."""
        self._at_work.remove(attempt.txid)


@pytest.mark.parametrize(
    ("lags", "waits"),
    [
        ([Lag(records=0, partitions={"0": 0})], True),
        ([Lag(records=0, files=1)], False),
        ([Lag()], False),
        ([None], False),
        ([Lag(files=0), Lag(versions=0)], True),
        ([Lag(records=0), Lag(records=1)], False),
    ],
)
def test_a_source_that_is_caught_up_is_asked_when_its_batch_is_processed(
    spark: SparkSession, warehouse: Path, lags: list[Lag | None], waits: bool
) -> None:
    """What comes meanwhile is in one batch then, and not in many that wait for each other."""
    topology = Topology("live")
    spouts = [Watched(lag) for lag in lags]
    for number, spout in enumerate(spouts):
        rows = topology.stream(f"s{number}", spout)
        rows.partition_persist(AppendTable(warehouse / f"rows{number}"))
    report = run_in_memory(topology, spark)
    assert report.batches_committed == BATCHES
    found = {number for spout in spouts for number in spout.found}
    assert (found == {0}) is waits


def test_a_replay_does_not_hold_up_planning(spark: SparkSession, warehouse: Path) -> None:
    """A batch that waits for its next attempt is not at work."""
    spout = Watched(Lag(records=0))
    failing = {3}

    def fail_once(attempt: TransactionAttempt, metadata: MemoryPosition) -> None:
        Watched.check_read(spout, attempt, metadata)
        if attempt.txid in failing:
            failing.remove(attempt.txid)
            raise FailedException("not yet")

    spout.check_read = fail_once  # type: ignore[method-assign]
    topology = Topology("live")
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows"))
    report = run_in_memory(topology, spark)
    assert (report.batches_committed, report.replays) == (BATCHES, 1)


class Held(MemoryTransactionalSpout):
    """Emits nothing until it may."""

    may: threading.Event

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of the batch."""
        assert self.may.wait(60)
        if attempt.txid == 1 and attempt.attempt_id == 0:
            raise ValueError("the run ends, and leaves open what was planned")
        return super().emit_batch(spark, attempt, metadata)


def test_what_is_planned_lags_until_it_is_committed(spark: SparkSession, warehouse: Path) -> None:
    """Txids that wait count as lag, also those that an earlier run has planned; one that Spark has
    not taken yet is queued, and not processing.
    """
    nodes, rows = MemoryNodes(), [[("a", 1), ("b", 2)]] * 5
    config = TopologyConfig(max_processing_jobs=1, max_group_processing=1)
    whole, nothing = {"s": Lag(records=10)}, {"s": Lag(records=0)}
    for attempt in (0, 1):
        spout = Held(rows, "k string, v bigint")
        spout.may = threading.Event()
        topology = Topology("held", config)
        topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows"))
        store = MemoryProgress(topology.name, nodes)
        running = topology.start(spark, until="caught_up", store=store)

        def waits(running: RunningTopology = running) -> bool:
            status = running.status()
            return (status.lags, status.planned) == (whole, whole)

        wait_for(waits, what="five batches are planned, and lag")
        in_flight = running.status().in_flight
        phases = [f"{each.txid}:{each.attempt_id} {each.phase}" for each in in_flight]
        assert phases[:5] == [
            f"1:{attempt} processing",
            *(f"{txid}:{attempt} queued" for txid in (2, 3, 4, 5)),
        ]
        spout.may.set()
        if attempt == 0:
            with pytest.raises(TxnError, match="the run ends"):
                running.await_termination()
        else:
            assert running.await_termination().committed_txid == 5
    assert (running.status().lags, running.status().planned) == (nothing, nothing)
