"""One record that no plan can digest: the same end of the run wherever the plan meets it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.errors import BatchError
from txn.interfaces import Spout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

BATCHES = [[("1",), ("2",)], [("x",)], [("3",)]]


def numbers(words: DataFrame) -> DataFrame:
    """The words as numbers, on their way into a shuffle: "x" is the poison."""
    parsed = sf.from_csv("word", "v bigint", {"mode": "FAILFAST"})
    return words.select("word", parsed["v"].alias("v")).repartition(2, "v")


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        ("append", "opaque"),
        ("state", "opaque"),
        ("shared", "opaque"),
        ("shared", "transactional"),
        ("commit turn", "opaque"),
    ],
)
def test_a_poison_record_stops_the_run_in_every_plan(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, plan: str, kind: str
) -> None:
    """A record that Spark cannot digest stops the topology at its first attempt, whatever the plan,
    and the error names the cause.
    """
    config = TopologyConfig(
        max_spout_pending=1, max_batch_attempts=2, retry_backoff_ms=1, on_exhausted="quarantine"
    )
    script = {(txid, 0): rows for txid, rows in enumerate(BATCHES, start=1)}
    spout: Spout[Any] = MemoryOpaqueSpout(script, "word string")
    if kind == "transactional":
        spout = MemoryTransactionalSpout(BATCHES, "word string")
    topology = Topology(warehouse.parent.name, config)
    words = topology.stream("words", spout)
    if plan == "commit turn":
        state = StateTable(warehouse / "words", kind, buckets=2)
        changes = words.group_by("word").persistent_aggregate(state, n=Count()).new_values()
        changes.transform(numbers).partition_persist(AppendTable(warehouse / "rows", kind))
    else:
        parsed = words.transform(numbers)
        if plan != "state":
            parsed.partition_persist(AppendTable(warehouse / "rows", kind))
        if plan != "append":
            state = StateTable(warehouse / "sums", kind, buckets=2)
            parsed.group_by("word").persistent_aggregate(state, total=Sum("v"))
    running = topology.start(spark, zookeeper=zookeeper.hosts, until="caught_up")
    with pytest.raises(BatchError, match=r"2:0 .*MALFORMED_RECORD") as error:
        running.await_termination(120)
    assert 'For input string: "x"' in str(error.value)
    assert "An error occurred" not in str(error.value)
    assert (running.report.replays, running.report.committed_txid) == (0, 1)
    table = warehouse / ("sums" if plan == "state" else "rows")
    assert rows_of(table, "word") == [("1",), ("2",)]
