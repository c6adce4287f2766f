"""Two ensembles that know one topology: another chroot is as empty as another server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from committers.append_table import AppendTable
from spouts.feeder import FeederSpout
from spouts.memory import MemoryTransactionalSpout
from tests.faults.harness import DEADLINE_SECS
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.cli.app import cli
from txn.errors import FencedError, RecoveryRefusedError, TxnError
from txn.zookeeper import read_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

PROGRAM = """
import sys
topology = sys.modules["txn_test_ensembles"].topologies[-1]
"""


@dataclass
class World:
    """Topologies over tables in one folder, on several ensembles."""

    spark: SparkSession
    server: str
    folder: Path
    topologies: list[Topology] = field(default_factory=list)
    __name__ = "txn_test_ensembles"

    def hosts(self, ensemble: str) -> str:
        """A connect string."""
        return f"{self.server}/{self.folder.parent.name}-{ensemble}"

    def topology(self, batches: int, *tables: str) -> Topology:
        """One row a batch into each table; each batch is a version of its own."""
        topology = Topology(
            "twice",
            TopologyConfig(max_group_commit=1, new_tables=(str(self.folder / "later"),)),
        )
        spout = MemoryTransactionalSpout([[(n,)] for n in range(batches)], "n int")
        stream = topology.stream("s", spout)
        for table in tables or ("rows",):
            stream.partition_persist(AppendTable(self.folder / table, "transactional"))
        self.topologies.append(topology)
        return topology

    def run(self, ensemble: str, batches: int, *tables: str) -> int:
        """Run until so many batches are committed; the newest txid."""
        topology = self.topology(batches, *tables)
        return topology.run(
            self.spark, zookeeper=self.hosts(ensemble), until="caught_up"
        ).committed_txid

    def recover(self, ensemble: str, *options: str) -> tuple[int, str]:
        """`txn recover` of the newest topology: exit code and output."""
        program = self.folder.parent / "program.py"
        program.write_text(PROGRAM)
        arguments = ["recover", f"{program}:topology", "--zookeeper", self.hosts(ensemble)]
        result = CliRunner().invoke(cli, [*arguments, "--yes", *options])
        return result.exit_code, result.output

    def rows(self, table: str = "rows") -> list[int]:
        """What a table holds."""
        return [n for (n,) in rows_of(self.folder / table, "n")]

    def version(self, table: str = "rows") -> int:
        """The newest version of a table."""
        return DeltaTable(str(self.folder / table)).version()


@pytest.fixture
def world(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    """A world of this test alone."""
    made = World(spark, zookeeper.hosts, warehouse)
    monkeypatch.setitem(sys.modules, "txn_test_ensembles", made)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "path", list(sys.path))
    return made


def test_of_two_ensembles_one_leads_a_table(world: World) -> None:
    """A table that another ensemble leads is refused until you let this ensemble take over, and
    from then on the other ensemble is refused.
    """
    assert world.run("a", 1) == 1
    before = world.version()
    # Its first epoch is 1, too, and one txid ahead is what a crash leaves.
    with pytest.raises(RecoveryRefusedError, match="from another ensemble.*`txn recover FILE"):
        world.run("b", 2, "new", "rows")
    assert world.version() == before
    assert not (world.folder / "new").exists()  # nothing was made on the way to the refusal
    assert world.run("a", 2) == 2
    assert "Written" in world.recover("b")[1]
    assert "agree" in world.recover("b")[1]
    assert world.run("b", 3) == 3
    with pytest.raises(RecoveryRefusedError, match="from another ensemble"):
        world.run("a", 4)
    assert world.recover("a")[0] == 0
    assert world.run("a", 4) == 4
    with pytest.raises(RecoveryRefusedError, match="from another ensemble"):
        world.run("b", 5)
    assert world.rows() == [0, 1, 2, 3]
    life = read_status(world.hosts("a"), "twice", TopologyConfig()).incarnation
    assert life is not None
    assert len(life.takes_over) == 2  # its own first, and that of b


def test_a_leader_is_shut_out_by_the_ensemble_that_takes_over(world: World) -> None:
    """A leader whose tables another ensemble has taken over publishes nothing more."""
    spout = FeederSpout("n int")
    topology = Topology("twice")
    topology.stream("s", spout).partition_persist(AppendTable(world.folder / "rows"))
    running = topology.start(world.spark, zookeeper=world.hosts("a"))
    try:
        assert spout.feed([(0,)], timeout=DEADLINE_SECS)
        other = Topology("twice")
        feeder = FeederSpout("n int")
        other.stream("s", feeder).partition_persist(AppendTable(world.folder / "rows"))
        world.topologies.append(other)
        code, output = world.recover("b")
        assert code == 0, output
        feeder.feed([(1,)], timeout=0)
        other.run(world.spark, zookeeper=world.hosts("b"), until=2)
        spout.feed([(2,)], timeout=0)
        with pytest.raises(FencedError):
            running.await_termination(DEADLINE_SECS)
    finally:
        with pytest.raises(TxnError):
            running.stop()
    assert world.rows() == [0, 1]


def test_recovery_goes_on_beside_a_table_that_was_never_made(world: World) -> None:
    """`txn recover` names a table without any txid, and goes on when it is told that it is new."""
    world.run("a", 2)
    world.topology(2, "rows", "later")
    code, output = world.recover("b")
    assert code == 1
    said = " ".join(output.split())
    assert f"--new '{world.folder / 'later'}'" in said
    assert world.recover("b", "--new", str(world.folder / "rows"))[0] == 1  # it holds txids
    assert world.recover("b", "--new", "elsewhere")[0] == 2
    code, output = world.recover("b", "--new", f"{world.folder}//later", "--json")
    assert code == 0, output
    assert json.loads(output)["committed"]["txid"] == 2
    assert world.run("b", 4, "rows", "later") == 4
    assert (world.rows(), world.rows("later")) == ([0, 1, 2, 3], [2, 3])
