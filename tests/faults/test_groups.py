"""Group commit over real tables: txids that wait for commits become one version of each table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.harness import read_log, wait_for
from tests.faults.support import Points, attempts, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.engine.reporting.report import RunReport
from txn.engine.running import RunningTopology
from txn.errors import BatchError
from txn.testing import MemoryProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "k string, v bigint"
BATCHES = [[("a", 1), ("b", 2)], [("a", 10), ("c", 20)], [("b", 100)], [("a", 1000), ("c", 2000)]]
ROWS = sorted((k, v, txid) for txid, batch in enumerate(BATCHES, 1) for k, v in batch)
TOTALS = [("a", 3, 1011), ("b", 2, 102), ("c", 2, 2020)]
KINDS = pytest.mark.parametrize("kind", ["transactional", "opaque"])
ONE_BY_ONE = {"max_processing_jobs": 1, "max_group_processing": 1}
"""Txid 1 has its turn before another one is processed."""


class Lag(Points):
    """Holds the commit turn of txid 1 until the three txids behind it are processed."""

    def __init__(self, **at: Callable[[TransactionAttempt], None]) -> None:
        self.then = at.pop("before_publish", lambda attempt: None)
        super().__init__(before_publish=self._hold, **at)
        self.running: RunningTopology | None = None

    def _hold(self, attempt: TransactionAttempt) -> None:
        if attempt == TransactionAttempt(1):
            wait_for(lambda: self.phases().count("processed") == 3, what=self.phases)
        self.then(attempt)

    def phases(self) -> str:
        assert self.running is not None
        return " ".join(batch.phase for batch in self.running.status().in_flight)


Run = Callable[..., RunReport]


@pytest.fixture
def run(spark: SparkSession, warehouse: Path) -> Run:
    """Runs "rows" (append) and "totals" (upsert) while commits lag, without ZooKeeper."""

    def running(kind: str, lag: Lag, transform: Any = lambda df: df, **config: Any) -> RunReport:
        settings = {"retry_backoff_ms": 1, "max_spout_pending": 4, **ONE_BY_ONE, **config}
        topology = Topology("groups", TopologyConfig(**settings))
        script = {(txid, 0): batch for txid, batch in enumerate(BATCHES, 1)}
        spouts = {
            "transactional": MemoryTransactionalSpout(BATCHES, SCHEMA),
            "opaque": MemoryOpaqueSpout(script, SCHEMA),
        }
        stream = topology.stream("s", spouts[kind])
        stream.partition_persist(AppendTable(warehouse / "rows", kind))
        state = StateTable(warehouse / "totals", kind, buckets=2)
        stream.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
        lag.running = RunningTopology(
            topology.definition, spark, MemoryProgress(topology.name), until="caught_up"
        )
        with observing(lag):
            lag.running.begin()
            return lag.running.await_termination()

    return running


def versions(table: Path) -> dict[int, list[int]]:
    """Version -> the txids that it holds."""
    found: dict[int, list[int]] = {}
    for publication in read_log(table):
        found.setdefault(publication.version, []).append(publication.txid)
    return found


def assert_right(warehouse: Path) -> None:
    """Both tables hold every record once."""
    assert rows_of(warehouse / "rows", "k", "v", "txid") == ROWS
    assert rows_of(warehouse / "totals", "k", "n", "total") == TOTALS


@KINDS
def test_txids_that_wait_are_committed_as_one_version(run: Run, warehouse: Path, kind: str) -> None:
    """Txids that are ready for the same commit turn are published together, as one version of every
    table.
    """
    report = run(kind, Lag())
    assert_right(warehouse)
    for table in ("rows", "totals"):
        assert list(versions(warehouse / table).values()) == [[1], [2, 3, 4]]
    assert [batch.group for batch in report.batches] == [1, 3, 3, 3]
    assert attempts(report) == ["1:0", "2:0", "3:0", "4:0"]
    assert all("published" in batch.times for batch in report.batches)


def fails_once() -> Callable[[TransactionAttempt], None]:
    """What fails the first commit turn that begins with txid 2."""
    failed: list[TransactionAttempt] = []

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.txid == 2 and not failed:
            failed.append(attempt)
            raise FailedException("no more of this")

    return fail


@KINDS
def test_a_group_that_fails_before_it_is_published_is_committed_one_by_one(
    run: Run, warehouse: Path, kind: str
) -> None:
    """If the commit turn of a group fails, its txids commit one by one, and no failure is counted
    against any of them.
    """
    report = run(kind, Lag(before_publish=fails_once()), max_batch_attempts=1)
    assert_right(warehouse)
    for table in ("rows", "totals"):
        assert list(versions(warehouse / table).values()) == [[1], [2], [3], [4]]
    assert (attempts(report), report.replays) == (["1:0", "2:0", "3:0", "4:0"], 0)


@KINDS
def test_a_group_that_fails_between_two_tables_is_tried_anew(
    run: Run, warehouse: Path, kind: str
) -> None:
    """What one table got of a failed group is replaced or skipped, txid by txid."""
    report = run(kind, Lag(between_publications=fails_once()), max_batch_attempts=1)
    assert_right(warehouse)
    assert list(versions(warehouse / "totals").values()) == [[1], [2], [3], [4]]
    again = [] if kind == "transactional" else [[2], [3], [4]]
    assert list(versions(warehouse / "rows").values()) == [[1], [2, 3, 4], *again]
    assert (attempts(report), report.replays) == (["1:0", "2:1", "3:1", "4:1"], 0)


def test_the_txid_that_is_to_blame_is_named(run: Run, warehouse: Path) -> None:
    """The txid of a group that makes its turn fail fails alone, and the others are committed."""
    seen: list[str] = []

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.txid == 1:
            return
        seen.append(str(attempt))
        # The group, whose turn is called by its first attempt; then 3 alone.
        if len(seen) == 1 or attempt.txid == 3:
            raise FailedException("3 is bad")

    with pytest.raises(BatchError, match=r"Batch 3:0 of topology 'groups' was given up"):
        run("transactional", Lag(before_publish=fail), max_batch_attempts=1)
    assert seen == ["2:0", "2:0", "3:0"]
    assert list(versions(warehouse / "rows").values()) == [[1], [2]]


def test_a_topology_that_hands_on_new_values_makes_no_groups(
    spark: SparkSession, warehouse: Path
) -> None:
    """What follows from a table's new values is staged in the turn of each txid by itself."""
    topology = Topology("groups", TopologyConfig(max_spout_pending=4, **ONE_BY_ONE))
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    state = StateTable(warehouse / "totals", "transactional", buckets=2)
    kept = stream.group_by("k").persistent_aggregate(state, n=Count())
    kept.new_values().partition_persist(AppendTable(warehouse / "changes", "transactional"))
    lag = Lag()
    lag.running = RunningTopology(
        topology.definition, spark, MemoryProgress(topology.name), until="caught_up"
    )
    with observing(lag):
        lag.running.begin()
        lag.running.await_termination()
    assert list(versions(warehouse / "totals").values()) == [[1], [2], [3], [4]]
