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
from txn.testing import MemoryNodes, MemoryProgress, run_in_memory

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
    """A record that Spark cannot process stops the topology at its first attempt, whatever Spark's
    plan, and the error names the cause.
    """
    config = TopologyConfig(max_spout_pending=1, max_batch_attempts=2, retry_backoff_ms=1)
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


def test_a_quarantine_takes_every_batch_that_cannot_pass(
    spark: SparkSession, warehouse: Path
) -> None:
    """With on_exhausted="quarantine", a batch that fails because of its rows or user code is
    quarantined, and the others go on.
    """
    batches: list[Any] = [
        [("1",)],
        [("x",)],
        [ValueError("no word")],
        [("-5",)],
        [("raise",)],
        [("2",)],
    ]

    def picky(df: DataFrame) -> DataFrame:
        if df.where("word = 'raise'").count():
            raise KeyError("word")
        return numbers(df)

    config = TopologyConfig(
        max_batch_attempts=1, retry_backoff_ms=1, on_exhausted="quarantine", max_group_processing=1
    )
    topology = Topology("picky", config)
    words = topology.stream("words", MemoryTransactionalSpout(batches, "word string"))
    rows = words.expect("no minus", "word NOT LIKE '-%'").transform(picky)
    rows.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    nodes = MemoryNodes()
    assert run_in_memory(topology, spark, nodes).committed_txid == len(batches)
    assert rows_of(warehouse / "rows", "word", "v", "txid") == [("1", 1, 1), ("2", 2, 6)]
    errors = {txid: r.error for txid, r in MemoryProgress("picky", nodes).quarantined().items()}
    line = picky.__code__.co_firstlineno
    transform = f"transform {picky.__qualname__} ({__file__}:{line}) of stream 'words'"
    assert errors.keys() == {2, 3, 4, 5}
    assert "[MALFORMED_RECORD_IN_PARSING" in errors[2]
    assert errors[2].endswith(f"(in the rows of stream 'words' for table '{warehouse}/rows')")
    assert errors[3] == "ValueError: no word (in the spout of stream 'words')"
    assert errors[4].startswith("RuleViolatedError: 1 row of stream 'words' in attempt 4:0 breaks")
    assert errors[5] == f"KeyError: 'word' (in {transform})"
