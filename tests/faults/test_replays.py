"""Batches that fail: what is replayed, what is reverted, what stops the topology."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import Points, attempts, observing, rows_of, staged_files
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import BatchError
from txn.interfaces import Spout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

SCHEMA = "k string, v bigint"
TABLES = ("rows", "totals")
BATCHES = [[("a", 1), ("b", 2)], [("a", 10), ("c", 20)], [("b", 100)]]
ROWS = sorted((k, v, txid) for txid, batch in enumerate(BATCHES, 1) for k, v in batch)
TOTALS = [("a", 2, 11), ("b", 2, 102), ("c", 1, 20)]
QUICK = {"retry_backoff_ms": 1, "max_group_commit": 1}
"""Each txid has a turn of its own; `test_groups` has the others."""

Build = Callable[..., Topology]
Function = Callable[["DataFrame"], "DataFrame"]


@pytest.fixture
def build(warehouse: Path) -> Build:
    """A topology of one stream into "rows" (append) and "totals" (upsert), in a given order."""

    def make(
        spout: Spout[Any],
        *,
        tables: tuple[str, ...] = TABLES,
        transform: Function = lambda df: df,
        **config: Any,
    ) -> Topology:
        # One ZooKeeper for all tests: the folder of the test is a name of its own.
        topology = Topology(warehouse.parent.name, TopologyConfig(**{**QUICK, **config}))
        stream = topology.stream("s", spout).transform(transform)
        for table in tables:
            if table == "rows":
                stream.partition_persist(AppendTable(warehouse / "rows", spout.kind.value))
            else:
                state = StateTable(warehouse / "totals", spout.kind.value, buckets=2)
                stream.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
        return topology

    return make


@pytest.fixture
def tables(warehouse: Path) -> Callable[[], tuple[list[Any], list[Any]]]:
    """The rows of "rows" and of "totals"."""
    return lambda: (
        rows_of(warehouse / "rows", "k", "v", "txid"),
        rows_of(warehouse / "totals", "k", "n", "total"),
    )


def transactional(batches: list[Any] | None = None) -> MemoryTransactionalSpout:
    """The three batches, the same on every replay."""
    return MemoryTransactionalSpout(BATCHES if batches is None else batches, SCHEMA)


def failing(point: str, *which: str) -> Points:
    """An observer that fails the given attempts at a point."""

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) in which:
            raise FailedException(f"told to fail {attempt} at {point}")

    return Points(**{point: fail})


def failing_transform(error: Exception, *, calls: range) -> Function:
    """A transform that raises in the given calls, counted from 0 over the second batch only."""
    count = iter(range(1000))

    def transform(df: DataFrame) -> DataFrame:
        if df.where("v = 20").count() and next(count) in calls:
            raise error
        return df

    return transform


# --- opaque replays that differ ---------------------------------------------------------------


@pytest.mark.parametrize("order", [TABLES, TABLES[::-1]], ids=lambda order: f"{order[0]}-first")
@pytest.mark.parametrize(
    ("replay", "replayed"),
    [([("b", 7)], [("b", 7)]), ([], []), (None, [])],
    ids=["other-rows", "no-rows", "nothing-to-read"],
)
def test_what_a_failed_opaque_attempt_published_is_reverted_by_its_replay(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    build: Build,
    tables: Callable[[], Any],
    order: tuple[str, ...],
    replay: list[Any] | None,
    replayed: list[Any],
) -> None:
    """Everything that a failed opaque attempt published is reverted, including keys that its replay
    does not mention.

    Trident row 49.
    """
    script = {
        (1, 0): [("a", 1), ("b", 2)],
        (2, 0): [("a", 10), ("new", 5)],
        (2, 1): replay,
        (3, 0): [("a", 100), ("new", 1000)],
    }
    with observing(failing("between_publications", "2:0")):
        report = build(MemoryOpaqueSpout(script, SCHEMA), tables=order).run(
            spark, zookeeper=zookeeper.hosts, until=3
        )
    batches = [script[1, 0], replayed, script[3, 0]]
    rows = sorted((k, v, txid) for txid, batch in enumerate(batches, 1) for k, v in batch or [])
    extra = sum(v for _, v in replayed)
    totals = [("a", 2, 101), ("b", 1 + len(replayed), 2 + extra), ("new", 1, 1000)]
    assert tables() == (rows, totals)
    assert attempts(report)[:2] == ["1:0", "2:1"]


@pytest.mark.parametrize("order", [TABLES, TABLES[::-1]], ids=lambda order: f"{order[0]}-first")
def test_what_a_failed_opaque_attempt_published_is_reverted_when_nothing_follows(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    build: Build,
    tables: Callable[[], Any],
    order: tuple[str, ...],
) -> None:
    """An empty replay alone is enough to take the failed attempt's rows away."""
    script = {(1, 0): [("a", 1)], (2, 0): [("a", 10), ("new", 5)], (2, 1): None}
    with observing(failing("between_publications", "2:0")):
        build(MemoryOpaqueSpout(script, SCHEMA), tables=order).run(
            spark, zookeeper=zookeeper.hosts, until="caught_up"
        )
    assert tables() == ([("a", 1, 1)], [("a", 1, 1)])


def test_a_key_that_only_a_failed_attempt_of_the_first_txid_brought_is_gone(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """A table whose only publication was reverted holds the replay's rows alone."""
    script = {(1, 0): [("a", 1), ("x", 9)], (1, 1): [("b", 2)], (1, 2): [("c", 3)]}
    with observing(failing("after_publish", "1:0", "1:1")):
        build(MemoryOpaqueSpout(script, SCHEMA)).run(spark, zookeeper=zookeeper.hosts, until=1)
    assert tables() == ([("c", 3, 1)], [("c", 1, 3)])


@pytest.mark.parametrize("point", ["between_publications", "after_publish"])
def test_a_published_and_replayed_transactional_batch_lands_once(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    build: Build,
    tables: Callable[[], Any],
    point: str,
) -> None:
    """A transactional batch that is published and then replayed is stored once."""
    with observing(failing(point, "2:0", "3:0")):
        report = build(transactional()).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert attempts(report) == ["1:0", "2:1", "3:1"]


# --- staged files that do not stay -------------------------------------------------------------


def delete(path: Path) -> None:
    """Take the file away."""
    path.unlink()


def truncate(path: Path) -> None:
    """Leave half of the file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [delete, truncate])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("point", ["after_staging", "before_publish"])
def test_a_staged_file_that_changed_before_its_publication_fails_the_batch(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    build: Build,
    tables: Callable[[], Any],
    warehouse: Path,
    point: str,
    table: str,
    damage: Callable[[Path], None],
) -> None:
    """If a staged file disappears or changes before its publication, the batch fails, and its
    replay makes the totals right.
    """
    damaged = []

    def strike(attempt: TransactionAttempt) -> None:
        if str(attempt) == "2:0":
            files = staged_files(warehouse / table, attempt)
            # Before the publication the upsert table's scratch has done its duty already.
            damaged.extend([f for f in files if point == "after_staging" or "_txn" not in f.parts])
            damage(damaged[0])

    with observing(Points(**{point: strike})):
        report = build(transactional()).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert attempts(report) == ["1:0", "2:1", "3:0"]
    assert "StagedFileError" in report.failures[0]


# --- failing user code ------------------------------------------------------------------------


def test_a_failed_exception_of_a_transform_is_replayed_with_a_higher_attempt(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """User code fails a batch by FailedException; the same txid comes again.

    Trident row 7.
    """
    transform = failing_transform(FailedException("not yet"), calls=range(2))
    topology = build(transactional(), transform=transform)
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert attempts(report) == ["1:0", "2:2", "3:0"]
    assert list(report.failures) == [f"2:{n}: FailedException: not yet" for n in (0, 1)]


def test_any_other_exception_of_a_transform_stops_the_topology_which_can_be_resumed(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """An error in user code stops the topology with its state intact, and the next run continues
    from there.

    Trident row 48.
    """
    broken = build(transactional(), transform=failing_transform(KeyError("k"), calls=range(1)))
    with pytest.raises(BatchError, match=r"Batch 2:0 .*KeyError.*s: batch 2") as caught:
        broken.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert isinstance(caught.value.__cause__, KeyError)
    report = build(transactional()).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert "2:1" in attempts(report)


def test_an_error_in_the_data_stops_the_topology(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """A row that Spark cannot compute is no lost work: no replay would mend it."""
    broken = build(transactional(), transform=lambda df: df.selectExpr("k", "v div (v - 20) AS v"))
    with pytest.raises(BatchError, match=r"Batch 2:0 .*DIVIDE_BY_ZERO"):
        broken.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    build(transactional()).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert [row for row in tables()[0] if row[2] > 1] == [row for row in ROWS if row[2] > 1]


def test_a_batch_whose_attempts_are_exhausted_stops_the_topology(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """Stop is the default; the next run has its attempts anew, with higher ids."""
    broken = build(
        transactional(),
        transform=failing_transform(FailedException("never"), calls=range(1000)),
        max_batch_attempts=2,
    )
    with pytest.raises(BatchError, match=r"[Bb]atch 2:1 .*never"):
        broken.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    report = build(transactional()).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert "2:2" in attempts(report)


def test_a_quarantined_batch_is_committed_empty_and_its_metadata_kept(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """The topology goes on without the batch; what it would have read stands in ZooKeeper."""
    topology = build(
        transactional(),
        transform=failing_transform(FailedException("never"), calls=range(1000)),
        max_batch_attempts=2,
        on_exhausted="quarantine",
    )
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (
        [row for row in ROWS if row[2] != 2],
        [("a", 1, 1), ("b", 2, 102)],
    )
    assert attempts(report) == ["1:0", "2:2", "3:0"]
    client = KazooClient(zookeeper.hosts)
    client.start()
    try:
        kept = json.loads(client.get(f"/txn/{topology.name}/quarantine/2")[0])
    finally:
        client.stop()
        client.close()
    assert (kept["txid"], kept["spouts"]) == (2, {"s": {"index": 1}})
    assert "never" in kept["error"]


# --- time -------------------------------------------------------------------------------------


def test_an_attempt_that_hangs_longer_than_the_timeout_is_cancelled_and_replayed(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """An attempt that makes no progress for longer than the timeout is cancelled and replayed."""
    hung = iter([True])

    def hang(df: DataFrame) -> DataFrame:
        if df.where("v = 20").count() and next(hung, False):
            sleep = "java_method('java.lang.Thread', 'sleep', 600000L)"
            return df.where(f"isnull({sleep}) OR {sleep} IS NOT NULL")
        return df

    topology = build(transactional(), transform=hang, message_timeout_secs=3)
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert "2:1" in attempts(report)
    assert any(failure.startswith("2:0: BatchTimeoutError") for failure in report.failures)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


# --- the acker --------------------------------------------------------------------------------


class LosingSpout(MemoryTransactionalSpout):
    """Says that its batches have two parts, and reads only one of them the first `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__(BATCHES, SCHEMA)
        self._losses = iter(range(times))

    def planned_parts(self, metadata: Any) -> list[str]:
        """Two parts per batch."""
        return [f"{metadata.index}-left", f"{metadata.index}-right"]

    def parts_read(self, batch: DataFrame, metadata: Any) -> list[str]:
        """Both, but for the losses."""
        parts = self.planned_parts(metadata)
        return parts if next(self._losses, None) is None else parts[:1]


def test_a_planned_part_that_was_not_read_fails_the_batch(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, build: Build, tables: Callable[[], Any]
) -> None:
    """A batch fails if a planned part of its source was not read."""
    topology = build(LosingSpout(1), max_spout_pending=1)
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert attempts(report) == ["1:1", "2:0", "3:0"]
    assert "s 0-right" in report.failures[0]


@pytest.mark.parametrize(
    "spout", [transactional, lambda: LosingSpout(1000)], ids=["well", "losing"]
)
def test_without_ackers_nothing_is_tracked_and_the_tables_are_the_same(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    build: Build,
    tables: Callable[[], Any],
    spout: Callable[[], Spout[Any]],
) -> None:
    """`ackers = 0` runs; a part that was not read goes unnoticed, as in Storm."""
    topology = build(spout(), ackers=0)
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert tables() == (ROWS, TOTALS)
    assert attempts(report) == ["1:0", "2:0", "3:0"]
