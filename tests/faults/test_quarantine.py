"""Quarantined batches come back: replayed exactly once, through failures and crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from tests.faults.driver import LogSpout, Span
from tests.faults.support import Points, attempts, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt, TxnError
from txn.cli.app import cli
from txn.interfaces import SpoutKind
from txn.zookeeper import read_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

RECORDS = [(f"k{number % 3}", number) for number in range(14)]
POISON = {2, 6}
PATIENCE_SECS = 60.0


class PoisonedSpout(LogSpout):
    """A log of which no attempt can read the poisonous records, until they are mended."""

    def __init__(self, kind: SpoutKind) -> None:
        self.records = list(RECORDS[:10])
        self.mended: set[int] = set()
        super().__init__(self.records, kind)

    def emit_batch(self, spark: SparkSession, attempt: TransactionAttempt, metadata: Span) -> Any:
        """The planned records."""
        found = set(range(metadata.start, metadata.end)) & POISON - self.mended
        if found:
            raise FailedException(f"record {min(found)} is poisonous")
        return super().emit_batch(spark, attempt, metadata)


class KilledError(TxnError):
    """The end of a run at a point, as by a crash: nothing of it is carried out any more."""


@pytest.fixture
def build(warehouse: Path) -> Callable[[PoisonedSpout], Topology]:
    """A topology of one stream into an append table and an upsert table."""

    def make(spout: PoisonedSpout) -> Topology:
        config = TopologyConfig(
            max_batch_attempts=2,
            on_exhausted="quarantine",
            retry_backoff_ms=1,
            max_group_commit=1,
        )
        topology = Topology(warehouse.parent.name, config)
        stream = topology.stream("s", spout)
        stream.partition_persist(AppendTable(warehouse / "rows", spout.kind.value))
        state = StateTable(warehouse / "totals", spout.kind.value, buckets=2)
        stream.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
        return topology

    return make


@pytest.fixture
def txn(zookeeper: EmbeddedZooKeeper) -> Callable[..., Any]:
    """The command line over the ZooKeeper of the tests; returns the JSON that it prints."""

    def run(*arguments: str) -> Any:
        options = ["--zookeeper", zookeeper.hosts, "--json"]
        result = CliRunner().invoke(cli, [*arguments, *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    return run


def kill_at(point: str, txid: int) -> Points:
    """An observer that ends the run when any attempt of `txid` comes to a point."""

    def kill(attempt: TransactionAttempt) -> None:
        if attempt.txid == txid:
            raise KilledError(f"{attempt} at {point}")

    return Points(**{point: kill})


def assert_tables_hold(warehouse: Path, records: list[tuple[str, int]]) -> None:
    """Both tables hold just these records, each once."""
    assert rows_of(warehouse / "rows", "v") == sorted((v,) for _, v in records)
    by_key: dict[str, list[int]] = {}
    for key, value in records:
        by_key.setdefault(key, []).append(value)
    totals = sorted((key, len(values), sum(values)) for key, values in by_key.items())
    assert rows_of(warehouse / "totals", "k", "n", "total") == totals


def set_aside(found: Any) -> set[int]:
    """The records that the quarantined txids were to read."""
    spans = [entry["spouts"]["s"] for entry in found["quarantine"]]
    return {number for span in spans for number in range(span["start"], span["end"])}


def without(records: list[tuple[str, int]], numbers: set[int]) -> list[tuple[str, int]]:
    """The records but for those of the numbers."""
    return [record for record in records if record[1] not in numbers]


@pytest.mark.parametrize("kind", [SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE])
def test_what_was_quarantined_is_replayed_once_through_crashes(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    build: Callable[[PoisonedSpout], Topology],
    txn: Callable[..., Any],
    kind: SpoutKind,
) -> None:
    """The records of a quarantined txid are counted once when it is replayed, and never before,
    whatever crashes.
    """
    spout = PoisonedSpout(kind)
    topology = build(spout)
    name = topology.name

    def run() -> Any:
        return build(spout).run(spark, zookeeper=zookeeper.hosts, until="caught_up")

    report = run()
    found = txn("quarantine", "list", name)
    first, second = (entry["txid"] for entry in found["quarantine"])
    aside = set_aside(found)
    assert POISON <= aside
    assert_tables_hold(warehouse, without(spout.records, aside))

    # Replayed while nothing is mended: it is quarantined again, as another txid.
    assert txn("quarantine", "replay", name, str(first))["replay"] == [first]
    assert txn("quarantine", "list", name)["quarantine"][0]["replay"] == "requested"
    report = run()
    again = report.committed_txid
    found = txn("quarantine", "list", name)
    assert [(e["txid"], e["replay"]) for e in found["quarantine"]] == [
        (second, None),
        (again, None),
    ]
    assert set_aside(found) == aside
    assert_tables_hold(warehouse, without(spout.records, aside))

    # Mended, with new records behind it; the run dies twice on its way.
    spout.mended |= POISON
    spout.records += RECORDS[10:]
    assert txn("quarantine", "replay", name, "--all")["replay"] == [second, again]
    with observing(kill_at("between_publications", again + 1)), pytest.raises(KilledError):
        run()
    found = txn("quarantine", "list", name)
    assert found["quarantine"][0]["replay"] == again + 1
    with observing(kill_at("before_committed", again + 1)), pytest.raises(KilledError):
        run()
    rolled, replayed = attempts(run())[:2]
    assert (rolled.split(":")[0], replayed.split(":")[0]) == (str(again + 1), str(again + 2))
    assert txn("quarantine", "list", name)["quarantine"] == []
    assert_tables_hold(warehouse, RECORDS)


def test_a_running_topology_takes_a_replay_up(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    build: Callable[[PoisonedSpout], Topology],
    txn: Callable[..., Any],
) -> None:
    """A replay that is asked for while the topology runs is begun without a restart."""
    spout = PoisonedSpout(SpoutKind.OPAQUE)
    topology = build(spout)
    idle, replayed = Event(), Event()

    def committed(attempt: TransactionAttempt) -> None:
        status = read_status(zookeeper.hosts, topology.name, topology.config)
        (idle if status.progress.committed.spouts["s"]["end"] == 10 else Event()).set()
        (replayed if idle.is_set() and not status.quarantine else Event()).set()

    with observing(Points(during_clean_up=committed)):
        running = topology.start(spark, zookeeper=zookeeper.hosts)
        try:
            assert idle.wait(PATIENCE_SECS)
            spout.mended |= POISON
            txn("quarantine", "replay", topology.name, "--all")
            assert replayed.wait(PATIENCE_SECS)
        finally:
            running.stop()
    assert_tables_hold(warehouse, RECORDS[:10])


def test_an_emptied_txid_that_is_rolled_forward_is_quarantined(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    build: Callable[[PoisonedSpout], Topology],
    txn: Callable[..., Any],
) -> None:
    """A crash between the empty publication and COMMITTED loses no quarantine record."""
    spout = PoisonedSpout(SpoutKind.OPAQUE)
    topology = build(spout)
    emptied: list[int] = []

    def kill(attempt: TransactionAttempt) -> None:
        batches = read_status(zookeeper.hosts, topology.name, topology.config).progress.batches
        if batches[0].quarantined and not emptied:
            emptied.append(attempt.txid)
            raise KilledError(str(attempt))

    with observing(Points(before_committed=kill)), pytest.raises(KilledError):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    build(spout).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    found = txn("quarantine", "list", topology.name)
    assert emptied[0] in [entry["txid"] for entry in found["quarantine"]]
    assert_tables_hold(warehouse, without(spout.records, set_aside(found)))
