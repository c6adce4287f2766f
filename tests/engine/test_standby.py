"""`Topology.start(standby=True)`: ready before its time, clean when it is not wanted any more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.append_table import AppendTable
from committers.publishing.log import DeltaLog
from spouts.memory import MemoryTransactionalSpout
from tests.faults.harness import wait_for
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.engine.running import RunningTopology
from txn.errors import FencedError, RecoveryRefusedError, TopologyError, UserError
from txn.interfaces import Prepared, Publication, Published
from txn.protocol.records import CommittedRecord
from txn.storage.storage import Storage
from txn.zookeeper import ZooKeeperProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = TopologyConfig(zookeeper_timeout_secs=4.0, max_group_commit=1)
Make = Callable[..., Topology]


@pytest.fixture
def hosts(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """A ZooKeeper of one test: a chroot of its own."""
    return f"{zookeeper.hosts}/{tmp_path.name}"


@pytest.fixture
def leader(hosts: str) -> Iterator[ZooKeeperProgress]:
    """Somebody else, who leads the topology."""
    store = ZooKeeperProgress(hosts, "t", CONFIG)
    store.lead()
    store.load()
    yield store
    store.close()


@pytest.fixture
def make(warehouse: Path) -> Make:
    """Makes the program of a standby."""

    def topology(stream: str = "s", column: str = "n") -> Topology:
        made = Topology("t", CONFIG)
        rows = made.stream(stream, MemoryTransactionalSpout([[(1,)], [(2,)]], "n int"))
        rows.transform(lambda df: df.select(column)).partition_persist(
            AppendTable(warehouse / "rows")
        )
        return made

    return topology


def standing_by(running: RunningTopology) -> RunningTopology:
    """`running`, when it waits."""
    wait_for(lambda: running.standby is not None, what="a standby")
    return running


def test_a_standby_waits_takes_over_and_runs(
    spark: SparkSession, hosts: str, leader: ZooKeeperProgress, make: Make, warehouse: Path
) -> None:
    """It says for whom it waits and since when, and goes on from where the leader was."""
    running = standing_by(make().start(spark, zookeeper=hosts, until="caught_up", standby=True))
    assert running.standby is not None
    assert running.standby.leader is not None
    assert running.standby.leader["pid"] == os.getpid()
    assert (running.leads, running.is_active, running.status().epoch) == (False, True, 0)
    assert f"standing by, waiting for process {os.getpid()} on " in repr(running)
    assert not (warehouse / "rows").exists()
    leader.close()
    report = running.await_termination(60)
    assert (report.ended, report.epoch, report.committed_txid) == ("caught_up", 2, 2)
    assert (running.leads, running.standby) == (True, None)
    assert repr(running).endswith("committed txid 2, 0 in flight, ended: caught_up>")
    assert rows_of(warehouse / "rows", "n") == [(1,), (2,)]


def test_without_a_leader_a_standby_leads_at_once(
    spark: SparkSession, hosts: str, make: Make
) -> None:
    """Nobody has to know who is first."""
    report = make().run(spark, zookeeper=hosts, until="caught_up", standby=True)
    assert (report.ended, report.epoch) == ("caught_up", 1)


def test_a_standby_that_is_stopped_has_run_nothing(
    spark: SparkSession, hosts: str, leader: ZooKeeperProgress, make: Make
) -> None:
    """A clean end, and the leader leads on."""
    running = standing_by(make().start(spark, zookeeper=hosts, standby=True))
    report = running.stop(30)
    assert (report.ended, report.epoch, running.is_active) == ("stopped", 0, False)
    leader.assert_leading()


def test_what_can_be_refused_early_is(
    spark: SparkSession, hosts: str, leader: ZooKeeperProgress, make: Make, warehouse: Path
) -> None:
    """Wrong columns, a table that is gone, other streams: told when the standby starts, not when
    it is needed.
    """
    with pytest.raises(TopologyError, match="`m`"):
        make(column="m").start(spark, zookeeper=hosts, standby=True)
    leader.persist_committed(CommittedRecord(txid=1, epoch=1, spouts={"other": 1}))
    with pytest.raises(RecoveryRefusedError, match="progress for stream 'other'"):
        make().start(spark, zookeeper=hosts, standby=True)
    tables = {str(warehouse / name): 1 for name in ("rows", "gone")}
    leader.persist_committed(CommittedRecord(txid=2, epoch=1, spouts={"s": 1}, tables=tables))
    with pytest.raises(RecoveryRefusedError, match="does not name table .*gone'.*dropped_tables"):
        make().start(spark, zookeeper=hosts, standby=True)
    assert not (warehouse / "rows").exists()


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (CommittedRecord(txid=1, epoch=1, spouts={"other": 1}), "progress for stream 'other'"),
        (CommittedRecord(txid=1, epoch=1, tables={"{rows}": 3}), "holds txid none"),
    ],
    ids=["stream", "table"],
)
def test_a_leader_with_another_plan_is_not_succeeded(
    spark: SparkSession,
    hosts: str,
    leader: ZooKeeperProgress,
    make: Make,
    warehouse: Path,
    record: CommittedRecord,
    told: str,
) -> None:
    """What came meanwhile and does not fit the program is refused at the takeover; nothing is
    written, and the next standby may try.
    """
    running = standing_by(make().start(spark, zookeeper=hosts, standby=True))
    tables = {name.format(rows=warehouse / "rows"): v for name, v in record.tables.items()}
    leader.persist_committed(record.model_copy(update={"tables": tables}))
    leader.close()
    with pytest.raises(RecoveryRefusedError, match=told):
        running.await_termination(60)
    assert not (warehouse / "rows").exists()
    successor = ZooKeeperProgress(hosts, "t", CONFIG)
    assert 3 == successor.lead()
    successor.close()


@pytest.mark.parametrize("spec", ["embedded", "embedded:{}/zk"])
def test_the_embedded_server_is_refused(
    spark: SparkSession, make: Make, tmp_path: Path, spec: str
) -> None:
    """It ends with the leader, and so nothing is started for it."""
    with pytest.raises(UserError, match="ends together with the leader.*host:2181"):
        make().start(spark, zookeeper=spec.format(tmp_path), standby=True)
    assert not (tmp_path / "zk").exists()


def test_a_leader_that_a_table_fences_names_the_winner(
    spark: SparkSession, hosts: str, make: Make, warehouse: Path
) -> None:
    """Also when a table is first to say that there is a newer leader."""
    heirs: list[ZooKeeperProgress] = []
    begun: list[RunningTopology] = []
    topology = make()
    committer = topology.sinks[0].committer
    publish = committer.publish

    def taken_over(prepared: Prepared, publication: Publication) -> Published:
        if publication.last_txid == 2 and not heirs:
            wait_for(lambda: bool(begun), what="the run")
            store = begun[0]._store
            assert store is not None
            store._leadership.release(time.monotonic() + 60)
            heirs.append(ZooKeeperProgress(hosts, "t", CONFIG))
            epoch = heirs[0].lead()
            log = DeltaLog(Storage(str(warehouse / "rows")))
            log.attach("t")
            log.fence(epoch)
        return publish(prepared, publication)

    committer.publish = taken_over  # type: ignore[method-assign]
    begun.append(topology.start(spark, zookeeper=hosts))
    with pytest.raises(FencedError) as error:
        begun[0].await_termination(60)
    heirs[0].close()
    assert f"epoch 2, taken by process {os.getpid()} on {os.uname().nodename}" in str(error.value)
    assert "A table reported it" in str(error.value)
    assert rows_of(warehouse / "rows", "n") == [(1,)]
