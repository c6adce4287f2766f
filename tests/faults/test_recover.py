"""A wiped ZooKeeper: `txn recover` rebuilds what the tables' logs tell, and the run goes on.

Wiped means another chroot: as empty as a new ensemble, and one server serves all tests.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.kafka import KafkaSpout
from tests.faults.harness import read_log, wait_for
from tests.faults.partitioned_run import SCHEMA, Literals
from tests.faults.support import CrashedError, Points, clean_logs, crash_at, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.cli.app import cli
from txn.embedded import EmbeddedZooKeeper
from txn.errors import RecoveryRefusedError, TxnError
from txn.interfaces import SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spouts.kafka_broker import Broker
Record = tuple[str, int, str, int]
AS_RUN = ("--set", "max_spout_pending=8")
"""A setting, which `txn recover` takes as `txn run` does."""
TABLES = ("rows", "totals", "log")
# What `txn recover` loads: the topology that the test has built last.
PROGRAM = """
import sys
topology = sys.modules["txn_test_recover"].topologies[-1]
"""


class Poisonable(Literals):
    """A partitioned spout with records that cannot be read until they are mended."""

    poison: frozenset[int] = frozenset()

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """The rows at these positions."""
        found = {row[3] for row in self.rows_at(attempt, positions)} & self.poison
        if found:
            raise FailedException(f"record {min(found)} is poisonous")
        return super().emit_partitions(spark, attempt, positions)


@dataclass
class World:
    """A topology over three tables and a partitioned source, on a ZooKeeper that can be wiped."""

    spark: SparkSession
    server: str
    folder: Path
    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    wiped: int = 0
    more: tuple[str, ...] = ()
    """Tables of rows besides those of every run."""

    @property
    def hosts(self) -> str:
        return f"{self.server}/{self.folder.parent.name}-{self.wiped}"

    def topology(
        self, counts: Mapping[str, int], poison: frozenset[int], **config: Any
    ) -> Topology:
        """Over the first so many records of each partition."""
        data = {name: records(name, count) for name, count in counts.items()}
        spout = Poisonable(data, SCHEMA, take_per_partition=1, kind=self.kind)
        spout.poison = poison
        settings = {"max_batch_attempts": 1, "on_exhausted": "quarantine", **config}
        topology = Topology("recovered", TopologyConfig(**settings))
        stream = topology.stream("s", spout)
        stream.partition_persist(AppendTable(self.folder / "rows", self.kind.value))
        for name, layout in (("totals", "upsert"), ("log", "log")):
            more: dict[str, Any] = {"compact_files": 2, "compact_share": 1} if name == "log" else {}
            state = StateTable(self.folder / name, self.kind.value, layout=layout, **more)
            stream.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
        for name in self.more:
            stream.partition_persist(AppendTable(self.folder / name, self.kind.value))
        sys.modules["txn_test_recover"].topologies.append(topology)  # type: ignore[attr-defined]
        return topology

    def run(
        self, counts: Mapping[str, int], poison: frozenset[int] = frozenset(), **config: Any
    ) -> int:
        """Run until all is read; the newest txid."""
        topology = self.topology(counts, poison, **config)
        report = topology.run(self.spark, zookeeper=self.hosts, until="caught_up")
        return report.committed_txid

    def wipe(self) -> None:
        """ZooKeeper has forgotten everything."""
        self.wiped += 1

    def txn(self, *arguments: str) -> Any:
        """The JSON of a command of `txn`."""
        (self.folder.parent / "program.py").write_text(PROGRAM)
        result = CliRunner().invoke(cli, [*arguments, "--zookeeper", self.hosts, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    def export(self, file: str) -> int:
        """`txn export`; the committed txid in the file."""
        txid: int = self.txn("export", "recovered", "-o", file)["committed_txid"]
        return txid

    def recover(self) -> dict[str, Any]:
        """`txn recover`, of the topology that was built last."""
        program = self.folder.parent / "program.py"
        written: dict[str, Any] = self.txn("recover", f"{program}:topology", "--yes", *AS_RUN)
        assert written["written"]
        return written

    def assert_holds(self, counts: Mapping[str, int]) -> None:
        """Every table holds what plain Python makes of so many records of each partition."""
        expected = sorted(row for name, count in counts.items() for row in records(name, count))
        assert rows_of(self.folder / "rows", "p", "i", "k", "v") == expected
        count, total = Counter[str](), Counter[str]()
        for _, _, key, value in expected:
            count[key] += 1
            total[key] += value
        sums = sorted((key, count[key], total[key]) for key in count)
        for name in ("totals", "log"):
            shown = StateTable(self.folder / name).read(self.spark).select("k", "n", "total")
            assert sorted(map(tuple, shown.collect())) == sums


def records(partition: str, count: int) -> list[Record]:
    """Rows that say where they are from."""
    return [(partition, i, "ab"[i % 2], 10 * i + int(partition[1:])) for i in range(count)]


class _Topologies:
    """What a program that is loaded from a file may take from the test."""

    __name__ = "txn_test_recover"

    def __init__(self) -> None:
        self.topologies: list[Topology] = []


@pytest.fixture
def world(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """A world of this test alone."""
    monkeypatch.setitem(sys.modules, "txn_test_recover", _Topologies())  # type: ignore[misc]
    monkeypatch.setattr(sys, "path", list(sys.path))
    return World(spark, zookeeper.hosts, warehouse)


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("cleaned", [False, True], ids=["kept", "cleaned"])
@pytest.mark.parametrize("crash", ["between-publications", "after-publish", "none"])
def test_a_wiped_zookeeper_is_rebuilt_and_the_run_goes_on(
    world: World, kind: str, cleaned: bool, crash: str
) -> None:
    """A wiped ZooKeeper is refused; after `txn recover` the run continues from the tables' logs,
    with the position of every partition of every spout, and every record lands once.
    """
    world.kind = SpoutKind(kind)
    first = {"p1": 2, "p2": 5, "p3": 4}
    if crash == "none":
        world.run(first)
        compacted = [f for f in DeltaTable(str(world.folder / "log")).file_uris() if "compact" in f]
        assert compacted or kind == "opaque"
    else:
        with observing(crash_at(crash, 4)), pytest.raises(TxnError):
            world.run(first, max_group_commit=1)
    if cleaned:
        clean_logs(*(world.folder / name for name in TABLES))
    world.wipe()
    before = [DeltaTable(str(world.folder / name)).version() for name in TABLES]
    with pytest.raises(RecoveryRefusedError, match="`txn recover FILE.py:TOPOLOGY`"):
        world.run(first)
    assert before == [DeltaTable(str(world.folder / name)).version() for name in TABLES]
    told = world.recover()
    held = max(p.txid for p in read_log(world.folder / "rows")) if not cleaned else None
    expected = {"none": held, "after-publish": 4, "between-publications": 3}[crash]
    assert told["committed"]["txid"] == expected or (cleaned and crash == "none")
    latest = {
        **told["committed"]["spouts"]["s"]["latest"],
        **told["committed"]["spouts"]["s"]["read"],
    }
    assert set(latest) == {"p1", "p2", "p3"}
    last = {"p1": 4, "p2": 5, "p3": 6, "p4": 2}
    world.run(last)
    world.assert_holds(last)


def test_a_group_that_is_in_some_tables_only_is_replayed_after_recovery(world: World) -> None:
    """The tables hold several txids in one version, or not at all: all of them are open again."""
    counts = {"p1": 12}
    staged: list[TransactionAttempt] = []
    turns: list[TransactionAttempt] = []

    def hold(attempt: TransactionAttempt) -> None:
        turns.append(attempt)
        # The first turn waits until all others are ready, so that the next one is a group.
        wait_for(lambda: len(staged) >= 12, what="a group")

    def crash(_: TransactionAttempt) -> None:
        if len(turns) > 1:
            raise CrashedError

    points = Points(before_publish=hold, after_staging=staged.append, between_publications=crash)
    with observing(points), pytest.raises(TxnError):
        world.run(counts)
    last = read_log(world.folder / "rows")[-1]
    assert last.first < last.txid
    assert read_log(world.folder / "totals")[-1].txid == last.first - 1
    world.wipe()
    told = world.recover()
    assert told["committed"]["txid"] == last.first - 1
    assert [batch["txid"] for batch in told["batches"]] == list(range(last.first, last.txid + 1))
    world.run(counts)
    world.assert_holds(counts)


def test_the_quarantine_is_rebuilt_as_far_as_the_logs_tell(world: World) -> None:
    """What was emptied comes back with its error; what was replayed since does not; and a replay
    after the recovery brings the records once.
    """
    counts = {"p1": 3}
    world.run(counts, frozenset({1, 11}))  # txids 1 and 2
    listed = world.txn("quarantine", "list", "recovered")["quarantine"]
    assert [entry["txid"] for entry in listed] == [1, 2]
    world.txn("quarantine", "replay", "recovered", "1")
    assert world.run(counts) == 4
    world.wipe()
    world.recover()
    again = world.txn("quarantine", "list", "recovered")["quarantine"]
    assert again == listed[1:]
    world.txn("quarantine", "replay", "recovered", "--all")
    world.run({"p1": 4})
    world.assert_holds({"p1": 4})
    assert world.txn("quarantine", "list", "recovered")["quarantine"] == []


def test_a_kafka_topic_goes_on_where_the_tables_are(kafka: Broker, world: World) -> None:
    """Offsets of every partition are in the tables' logs, those of idle ones too."""
    topic = kafka.create(f"recover-{world.folder.parent.name}", 3)

    def run(hosts: str, numbers: range, build_only: bool = False) -> None:
        producer = kafka.producer()
        for number in numbers:
            # Partition 2 is idle but for the first records.
            partition = number % (3 if number < 9 else 2)
            producer.produce(topic, value=str(number).encode(), partition=partition)
        assert producer.flush(30) == 0
        topology = Topology("recovered-kafka", TopologyConfig(max_group_commit=1))
        spout = KafkaSpout(kafka.servers, topics=[topic], max_records_per_batch=4)
        topology.stream("k", spout).transform(
            lambda df: df.selectExpr("CAST(CAST(value AS string) AS int) AS n", "partition")
        ).partition_persist(AppendTable(world.folder / "rows"))
        sys.modules["txn_test_recover"].topologies.append(topology)  # type: ignore[attr-defined]
        if not build_only:
            topology.run(world.spark, zookeeper=hosts, until="caught_up")

    run(world.hosts, range(9))
    run(world.hosts, range(9, 15))
    world.wipe()
    with pytest.raises(RecoveryRefusedError, match="`txn recover"):
        run(world.hosts, range(0))
    told = world.recover()
    assert len(json.dumps(told["committed"]["spouts"]["k"])) > 2
    run(world.hosts, range(15, 25))
    assert rows_of(world.folder / "rows", "n") == [(n,) for n in range(25)]


def test_a_topology_moves_to_another_ensemble(
    world: World, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A topology that is exported from one ensemble and imported into another continues exactly
    once, and an export that is behind the tables is refused.
    """
    file, stale = str(tmp_path / "progress.json"), str(tmp_path / "stale.json")
    world.run({"p1": 1, "p2": 1}, max_group_commit=1)
    assert world.export(stale) == 1
    with observing(crash_at("after-committed", 4)), pytest.raises(TxnError):
        world.run({"p1": 6, "p2": 4}, frozenset({22}), max_group_commit=1)
    committed = world.export(file)
    assert committed >= 4
    aside = world.txn("quarantine", "list", "recovered")["quarantine"]
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("another")) as another:
        world.server = another.hosts
        world.txn("import", stale)
        with pytest.raises(RecoveryRefusedError, match="`txn recover FILE.py:TOPOLOGY`"):
            world.run({"p1": 6, "p2": 4})
        world.txn("import", file, "--replace")
        assert world.txn("quarantine", "list", "recovered")["quarantine"] == aside
        assert aside
        world.txn("quarantine", "replay", "recovered", "--all")
        world.run({"p1": 7, "p2": 4, "p3": 2})
        world.assert_holds({"p1": 7, "p2": 4, "p3": 2})


def test_a_backup_that_is_one_txid_behind_a_compaction_is_refused(
    world: World, tmp_path: Path
) -> None:
    """A log table loses nothing that was compacted: progress that is older than a compaction is
    refused.

    `txn recover` is the way on.
    """
    world.kind = SpoutKind.OPAQUE
    file, compacted = str(tmp_path / "progress.json"), Event()
    world.run({"p1": 2}, max_group_commit=1)
    assert world.export(file) == 2

    def crash(attempt: TransactionAttempt) -> None:
        if attempt.txid == 4:
            wait_for(
                lambda: compacted.is_set() and 3 in compactions(), what=lambda: str(compactions())
            )
            raise CrashedError

    def compactions() -> list[int]:
        marks = [c.get("txn_compaction") for c in DeltaTable(str(world.folder / "log")).history()]
        return [mark["txids"][1] for mark in marks if mark]

    points = Points(mid_processing=crash, after_maintenance=lambda _: compacted.set())
    with observing(points), pytest.raises(TxnError):
        world.run({"p1": 4}, max_group_commit=1)
    world.wipe()
    world.txn("import", file)
    # A table that the program has now, and had not then: txid 3 is not in all of them.
    world.more = ("added",)
    with pytest.raises(RecoveryRefusedError, match="`txn recover"):
        world.run({"p1": 4}, new_tables=(str(world.folder / "added"),))
    world.more = ()
    world.topology({"p1": 4}, frozenset())
    assert world.recover()["committed"]["txid"] == 3
    world.run({"p1": 5})
    world.assert_holds({"p1": 5})
