"""One topology's table feeds another topology: real runs, with failures in the worst places."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.append_table import AppendTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import Points, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import BatchError, SourceChangedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

SCHEMA = "k string, v bigint"
SCRIPT = {
    (1, 0): [("a", 1)],
    (2, 0): [("dead", 1), ("dead", 2)],
    (2, 1): [("b", 3)],
    (3, 0): [("dead", 4)],
    (3, 1): [("dead", 5)],
    (3, 2): [("a", 6), ("c", 7)],
}

Run = Callable[..., Any]


@pytest.fixture
def upstream(spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path) -> Run:
    """Runs an opaque topology into `rows`, then `more`; a name of its own per test."""

    def run(until: Any = "caught_up") -> Any:
        config = TopologyConfig(retry_backoff_ms=1, max_spout_pending=1)
        topology = Topology(f"up-{warehouse.parent.name}", config)
        stream = topology.stream("s", MemoryOpaqueSpout(SCRIPT, SCHEMA))
        stream.partition_persist(AppendTable(warehouse / "rows"))
        stream.partition_persist(AppendTable(warehouse / "more"))
        return topology.run(spark, zookeeper=zookeeper.hosts, until=until)

    return run


@pytest.fixture
def downstream(spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path) -> Run:
    """Runs a transactional topology from `rows` into `copy`."""

    def run() -> Any:
        topology = Topology(f"down-{warehouse.parent.name}", TopologyConfig(retry_backoff_ms=1))
        stream = topology.stream("rows", DeltaSpout(warehouse / "rows"))
        stream = stream.transform(lambda df: df.withColumnRenamed("txid", "source_txid"))
        stream.partition_persist(AppendTable(warehouse / "copy", "transactional"))
        return topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")

    return run


def failing(*which: str) -> Points:
    """An observer that fails these attempts once their tables are published."""

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) in which:
            raise FailedException(f"told to fail {attempt}")

    return Points(after_publish=fail)


def test_downstream_has_each_committed_row_of_an_opaque_table_once(
    upstream: Run, downstream: Run, warehouse: Path
) -> None:
    """A topology that reads another topology's table gets each committed row once, even if the
    other one fails between publishing and committing and replays different rows.
    """
    with observing(failing("2:0", "3:0", "3:1")):
        upstream(until=3)
    published = [
        commit["txn"]["last_txid"]
        for commit in DeltaTable(str(warehouse / "rows")).history()
        if "txn" in commit
    ]
    assert Counter(published) == {1: 1, 2: 2, 3: 3}
    report = downstream()
    rows = rows_of(warehouse / "rows", "k", "v", "txid")
    assert rows == [("a", 1, 1), ("a", 6, 3), ("b", 3, 2), ("c", 7, 3)]
    assert rows_of(warehouse / "copy", "k", "v", "source_txid") == rows
    assert report.committed_txid == 3


def test_rows_of_a_txid_that_is_not_committed_wait(
    upstream: Run, downstream: Run, warehouse: Path
) -> None:
    """Rows that are published but not committed are not read until a replay has settled them."""

    def die(attempt: TransactionAttempt) -> None:
        if str(attempt) == "2:0":
            raise KeyError("the driver stops here")

    with observing(Points(between_publications=die)), pytest.raises(BatchError, match="stops here"):
        upstream(until=2)
    assert ("dead", 1, 2) in rows_of(warehouse / "rows", "k", "v", "txid")
    assert downstream().committed_txid == 1
    assert rows_of(warehouse / "copy", "k", "v", "source_txid") == [("a", 1, 1)]
    upstream(until=2)
    downstream()
    rows = rows_of(warehouse / "rows", "k", "v", "txid")
    assert rows == [("a", 1, 1), ("b", 3, 2)]
    assert rows_of(warehouse / "copy", "k", "v", "source_txid") == rows


def test_a_transactional_source_with_other_values_stops_the_run(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A source that calls itself transactional and replays other values is found out by the digest
    of its rows.
    """

    class Changing(MemoryTransactionalSpout):
        """Gives another value at every emission, and says it does not."""

        emissions = 0

        def emit_batch(self, *args: Any) -> Any:
            self.emissions += 1
            return super().emit_batch(*args).selectExpr("k", f"v + {self.emissions} AS v")

    topology = Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))
    stream = topology.stream("s", Changing([[("a", 1), ("b", 2)]], SCHEMA))
    stream.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    with (
        observing(failing("1:0")),
        pytest.raises((BatchError, SourceChangedError), match="other values in column 'v'"),
    ):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert rows_of(warehouse / "rows", "k", "v") == [("a", 2), ("b", 3)]


def test_the_example_feeds_one_topology_from_another(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`examples/delta_to_delta.py` counts every order of the first topology in the second."""
    monkeypatch.chdir(warehouse.parent)
    program = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "delta_to_delta.py"))
    for name in ("orders", "turnover"):
        program[name].run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    rows = program["items"].read(spark).collect()
    assert {row["item"]: (row["sold"], row["euro"]) for row in rows} == {
        "tea": (3, 10),
        "cup": (1, 5),
        "pot": (1, 20),
    }
