"""Topologies over a state table with `layout="log"`: replays, queries, compaction in the run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.harness import wait_for
from tests.faults.support import Points, observing, rows_of
from tests.logs import commits
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

SCHEMA = "k string, v bigint"
BATCHES: list[list[Any]] = [
    [("a", 1), ("b", 2), (None, 7)],
    [("a", 10), (None, 1)],
    [("b", 5), ("c", 1), ("a", 1)],
    [("c", 2), ("a", 1)],
    [],
    [("a", 3)],
]
LAST = len(BATCHES)


def totals(batches: list[list[Any]]) -> Counter[Any]:
    """The oracle: key -> sum."""
    sums: Counter[Any] = Counter()
    for batch in batches:
        sums.update(dict(batch))
    return sums


@pytest.mark.parametrize("as_of", ["txid-1", "committed"])
def test_totals_are_exact_while_they_are_compacted(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, as_of: Any
) -> None:
    """Attempts that differ are published and replayed, files are compacted meanwhile, and a query
    reads the state in the same run: every total is exact, and so is what the query saw, and what
    each txid changed.
    """
    failed: set[int] = set()
    compacted = Event()

    def script(txid: int, attempt_id: int) -> list[Any] | None:
        """Txid 3 brings other rows until it has failed."""
        if txid == 3 and txid not in failed:
            return [("b", 99), ("x", 1)]
        return BATCHES[txid - 1] if txid <= LAST else None

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.txid == 3 and 3 not in failed:
            failed.add(3)
            raise FailedException("once")

    def hold(attempt: TransactionAttempt) -> None:
        """The last batch is not read before something was compacted."""
        assert attempt.txid < LAST or compacted.wait(120)

    topology = Topology(
        warehouse.parent.name, TopologyConfig(retry_backoff_ms=1, max_group_commit=1)
    )
    stream = topology.stream("s", MemoryOpaqueSpout(script, SCHEMA))
    table = StateTable(warehouse / "totals", "opaque", "log", compact_files=2, compact_share=1)
    state = stream.group_by("k").persistent_aggregate(table, total=Sum("v"))
    stream.state_query(state, on="k", as_of=as_of).partition_persist(
        AppendTable(warehouse / "seen", "opaque")
    )
    state.new_values().partition_persist(AppendTable(warehouse / "moves", "opaque"))
    points = Points(
        after_publish=fail, mid_processing=hold, after_maintenance=lambda _: compacted.set()
    )
    with observing(points):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until=LAST)
    assert report.replays >= 1
    found = {row["k"]: row["total"] for row in table.read(spark).collect()}
    assert found == totals(BATCHES)
    seen = rows_of(warehouse / "seen", "k", "v", "total", "txid", key=str)
    assert sorted(((k, v, txid) for k, v, _, txid in seen), key=str) == sorted(
        ((k, v, txid) for txid, batch in enumerate(BATCHES, 1) for k, v in batch), key=str
    )
    wanted = [[totals(BATCHES[:upto]).get(k) for upto in range(txid)] for k, _, _, txid in seen]
    if as_of == "txid-1":
        assert [total for _, _, total, _ in seen] == [before[-1] for before in wanted]
    else:
        assert all(total in before for (_, _, total, _), before in zip(seen, wanted, strict=True))
    moves = rows_of(warehouse / "moves", "txid", "k", "total", "prev_total", key=str)
    assert moves == sorted(
        (
            (t, k, totals(BATCHES[:t])[k], totals(BATCHES[: t - 1]).get(k))
            for t, batch in enumerate(BATCHES, 1)
            for k in dict(batch)
        ),
        key=str,
    )
    compacted_txids = compactions(warehouse)
    assert compacted_txids
    assert all(last < LAST for _, last in compacted_txids)


def test_what_a_busy_time_left_is_compacted_when_it_is_over(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A compaction that had no time while batches came is made without a further commit."""
    topology = Topology(warehouse.parent.name, TopologyConfig(max_spout_pending=1))
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES[:3], SCHEMA))
    # Too short a time has passed for one, until seconds after the last commit.
    table = StateTable(
        warehouse / "totals", "transactional", "log", compact_files=3, compact_share=0.03
    )
    stream.group_by("k").persistent_aggregate(table, total=Sum("v"))
    running = topology.start(spark, zookeeper=zookeeper.hosts)
    try:
        log = warehouse / "totals/_delta_log"
        wait_for(lambda: log.is_dir() and compactions(warehouse) != [], what="a compaction")
    finally:
        report = running.stop()
    assert report.committed_txid == 3
    assert compactions(warehouse) == [[1, 3]]
    assert {row["k"]: row["total"] for row in table.read(spark).collect()} == totals(BATCHES[:3])


def compactions(warehouse: Path) -> list[Any]:
    """The first and last txid of each compaction of the table."""
    log = commits(warehouse / "totals")
    infos = [json.loads(text.splitlines()[0])["commitInfo"] for _, text in log]
    return [info["txn_compaction"]["txids"] for info in infos if "txn_compaction" in info]


def test_rows_are_conserved(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """`verify="rows"` counts into and out of the partials of a log table as of any other."""
    topology = Topology(warehouse.parent.name, TopologyConfig(verify="rows"))
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    table = StateTable(warehouse / "totals", "transactional", "log")
    stream.group_by("k").persistent_aggregate(table, total=Sum("v"))
    alone = StateTable(warehouse / "alone", "transactional", "log")
    stream.persistent_aggregate(alone, n=Count())
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert {row["k"]: row["total"] for row in table.read(spark).collect()} == totals(BATCHES)
    assert [row["n"] for row in alone.read(spark).collect()] == [sum(map(len, BATCHES))]
