"""Txids that one Spark job stages together: each has its own files, and fails alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import Points, attempts, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

TXIDS = range(1, 8)
BATCHES = [[("a", n), (f"k{n % 3}", 10 * n)] for n in TXIDS]
CONFIG = TopologyConfig(max_spout_pending=8, max_processing_jobs=1, retry_backoff_ms=0)
ROWS = sorted((k, v, txid) for txid, batch in zip(TXIDS, BATCHES, strict=True) for k, v in batch)
WAIT_SECS = 60.0


class Queued(Points):
    """Holds the first txid's processing until five more have been started and wait."""

    def __init__(self) -> None:
        super().__init__(after_start=self._started, mid_processing=self._processing)
        self._enough = threading.Event()

    def _started(self, attempt: TransactionAttempt) -> None:
        if attempt.txid == 6:
            self._enough.set()

    def _processing(self, attempt: TransactionAttempt) -> None:
        if attempt.txid == 1:
            assert self._enough.wait(WAIT_SECS)


def totals() -> list[tuple[str, int, int]]:
    """The state that all batches make, in plain Python."""
    found: dict[str, tuple[int, int]] = {}
    for k, v, _ in ROWS:
        n, s = found.get(k, (0, 0))
        found[k] = n + 1, s + v
    return sorted((k, n, s) for k, (n, s) in found.items())


def folders(table: Path) -> dict[str, set[int]]:
    """Folder of one staging job -> the txids whose files a table has there."""
    found: dict[str, set[int]] = {}
    actions = deltalake.DeltaTable(str(table)).get_add_actions(flatten=True)
    for path, low, high in zip(
        actions["path"].to_pylist(),
        actions["min.txid"].to_pylist(),
        actions["max.txid"].to_pylist(),
        strict=True,
    ):
        assert low == high, f"{path} holds rows of txids {low} to {high}"
        found.setdefault(path.split("/")[1], set()).add(low)
    return found


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("failing", [None, 4])
def test_txids_that_one_job_stages_together_stay_apart(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    opaque: bool,
    failing: int | None,
) -> None:
    """Txids that one Spark job stages together have files of their own; one that fails is replayed
    alone.
    """

    def fails_once(frame: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        if (attempt.txid, attempt.attempt_id) == (failing, 0):
            raise FailedException("not this time")
        return frame

    topology = Topology(warehouse.parent.name, CONFIG)
    schema = "k string, v bigint"
    spout = (
        MemoryOpaqueSpout(lambda txid, _: BATCHES[txid - 1] if txid in TXIDS else None, schema)
        if opaque
        else MemoryTransactionalSpout(BATCHES, schema)
    )
    stream = topology.stream("s", spout).transform(fails_once)
    stream.partition_persist(AppendTable(warehouse / "rows"))
    state = StateTable(warehouse / "totals")
    stream.group_by("k").persistent_aggregate(state, n=Count(), s=Sum("v"))
    with observing(Queued()):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert rows_of(warehouse / "rows", "k", "v", "txid") == ROWS
    assert sorted(map(tuple, state.read(spark).collect())) == totals()
    together = [txids for txids in folders(warehouse / "rows").values() if len(txids) > 1]
    tried = dict(attempt.split(":") for attempt in attempts(report))
    if failing is None:
        assert together, "no job staged several txids"
        assert set(tried.values()) == {"0"}
        versions = {batch.attempt.txid: tuple(batch.tables.values()) for batch in report.batches}
        for txids in together:
            assert len({versions[txid] for txid in txids}) == 1, versions
    elif not opaque:
        assert tried == {str(txid): str(int(txid == failing)) for txid in TXIDS}
