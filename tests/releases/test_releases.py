"""The state that each release left behind is continued; a successor's is refused by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from committers.state_table import StateTable
from tests.faults.support import rows_of
from tests.releases.stored import RELEASES, Kept, write_nodes
from tests.releases.topology import (
    COLUMNS,
    CORRECTED,
    NAME,
    REMOVING,
    STATES,
    removing,
    upgraded,
)
from tests.zookeeper.progress_store import bare_client
from txn.cli.app import cli
from txn.errors import TableRefusedError
from txn.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

PROGRAMS = Path(__file__).with_name("topology.py")
PROGRAM = f"{PROGRAMS}:topology"
QUARANTINED = (4, 5, 6)
"""The quarantined txids; the replay of 5 is requested, and 6 is to be dropped."""


class World:
    """The kept state of a release in a folder of its own, and a ZooKeeper that is empty."""

    def __init__(self, kept: Kept, folder: Path, zookeeper: EmbeddedZooKeeper) -> None:
        self.kept, self.folder = kept, folder
        self.server, self.chroot = zookeeper.hosts, f"/{folder.name}"
        self.hosts = self.server + self.chroot
        self.unrecorded: tuple[Path, ...] = ()
        """Files of replays of which ZooKeeper has no record any more."""
        kept.unpack(folder)

    def txn(self, *arguments: str) -> Any:
        """Return the JSON of a command of `txn`."""
        result = CliRunner().invoke(cli, [*arguments, "--zookeeper", self.hosts, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    def from_nodes(self) -> None:
        """Put back the nodes of ZooKeeper."""
        with bare_client(self.server) as client:
            write_nodes(client, {self.chroot + at: data for at, data in self.kept.nodes.items()})

    def from_export(self) -> None:
        """Import the exports into an ensemble that knows nothing."""
        self.txn("import", "progress.json")
        self.txn("import", "removing.json")

    def from_tables(self) -> None:
        """Rebuild ZooKeeper's state from the tables; the requests are made again."""
        assert self.txn("recover", PROGRAM, "--yes")["written"]
        assert self.txn("recover", f"{PROGRAMS}:{REMOVING}", "--yes")["written"]
        self.txn("quarantine", "replay", NAME, "5")
        self.txn("quarantine", "drop", NAME, "6")
        self.unrecorded = tuple(Path("in").glob("txn-rows-*"))

    def quarantined(self) -> dict[int, str | None]:
        """Return each quarantined txid, with the state of its replay."""
        entries = self.txn("quarantine", "list", NAME)["quarantine"]
        return {entry["txid"]: entry["replay"] for entry in entries}

    def run(self, spark: SparkSession, topology: Topology) -> None:
        """Continue with this code until all input is read."""
        topology.run(spark, zookeeper=self.hosts, until="caught_up", progress=False)

    def correct(self) -> None:
        """Replay, corrected, the rows that the release has set aside last."""
        for path in self.unrecorded:  # as the refusal of the replay asks
            path.rename(path.name)
        exported = self.txn("rows", "export", PROGRAM, "--stream", "files", "open.csv")
        Path("open.csv").write_text("\n".join(["k,v", *CORRECTED[1].split(), ""]))
        which = ["--number", str(exported["number"]), "--up-to", str(exported["up_to"])]
        self.txn("rows", "replay", PROGRAM, "--stream", "files", *which, "open.csv")

    def rows(self, spark: SparkSession, name: str) -> list[list[Any]]:
        """Return the rows of a table, sorted."""
        table, columns = Path("tables") / name, COLUMNS[name]
        if name not in STATES:
            return [[*row] for row in rows_of(table, *columns)]
        shown = StateTable(table).read(spark).select(*columns)
        return sorted([*row] for row in shown.collect())


@pytest.fixture(params=RELEASES)
def world(
    request: pytest.FixtureRequest,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """What one release has left behind, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return World(Kept(request.param), tmp_path, zookeeper)


@pytest.mark.parametrize("way", ["nodes", "export", "tables"])
def test_what_a_release_left_behind_is_continued(
    world: World, spark: SparkSession, way: str
) -> None:
    """What an earlier release left behind, open batches, a group, quarantined txids, bad rows,
    requests, removed keys and checkpoints, is continued exactly once, from its ZooKeeper, its
    exports or its tables alone.
    """
    {"nodes": world.from_nodes, "export": world.from_export, "tables": world.from_tables}[way]()
    assert tuple(world.quarantined()) == QUARANTINED
    world.run(spark, upgraded())
    assert world.quarantined() == {4: None}
    world.txn("quarantine", "replay", NAME, "4")
    world.correct()
    world.run(spark, upgraded())
    assert world.quarantined() == {}
    world.run(spark, removing())
    assert world.kept.rows == {name: world.rows(spark, name) for name in COLUMNS}


def test_a_successors_node_of_every_kind_is_refused_by_name(world: World) -> None:
    """Of the nodes that a release writes, each is refused and named once its version is higher."""
    world.from_nodes()
    refused = []
    with bare_client(world.server) as client:
        for path, data in world.kept.nodes.items():
            if not data.startswith(b'{"version":1'):
                continue  # a folder, or part of a record
            client.set(world.chroot + path, data.replace(b'{"version":1', b'{"version":2', 1))
            name = path.split("/")[2]
            result = CliRunner().invoke(cli, ["export", name, "--zookeeper", world.hosts])
            told = f"ZooKeeper node '{world.chroot}{path}' has format version 2, and this program"
            refused.append((path, told in result.output))
            client.set(world.chroot + path, data)
    assert [path for path, by_name in refused if not by_name] == []
    assert len(refused) > 15
    world.txn("export", NAME, "-o", "after.json")


@pytest.mark.parametrize("name", ["rows", "totals", "log"])
def test_a_successors_table_is_refused_by_name(
    world: World, spark: SparkSession, name: str
) -> None:
    """A table of a later format is refused by a run and by readers, and not written to."""
    world.from_nodes()
    table = DeltaTable(f"tables/{name}")
    table.alter.set_table_properties({"txn.format": "5"}, raise_if_not_exists=False)
    message = rf"Table tables/{name} has format version 5, and this program knows 4\. Run the ver"
    with pytest.raises(TableRefusedError, match=message):
        world.run(spark, upgraded())
    if name in STATES:
        with pytest.raises(TableRefusedError, match=message):
            StateTable(f"tables/{name}").read(spark)
    assert DeltaTable(f"tables/{name}").version() == table.version()
