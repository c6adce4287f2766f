"""What a file spout has read, over crashes, a lost ZooKeeper, copies and moves: real runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from committers.append_table import AppendTable
from spouts.files import FileSpout
from tests.faults.support import crash_at, observing, rows_of
from txn import Topology, TopologyConfig
from txn.cli.app import cli
from txn.embedded import EmbeddedZooKeeper
from txn.errors import ProgressUnreadableError, TxnError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("a", "b")
PROGRAM = 'import sys\ntopology = sys.modules["txn_test_files"].newest\n'
POSITION = 6_000
"""Bytes of a position besides the files of its own batch."""


class _Built:
    """What a program that is loaded from a file may take from the test."""

    __name__ = "txn_test_files"
    newest: Topology


@dataclass
class World:
    """A topology from a folder of files into two tables, on ensembles that come and go."""

    spark: SparkSession
    server: str
    folder: Path
    warehouse: Path
    ensemble: int = 0
    tables: tuple[str, ...] = TABLES

    @property
    def hosts(self) -> str:
        return f"{self.server}/{self.folder.parent.name}-{self.ensemble}"

    def topology(self) -> Topology:
        """A new one, as another process on another machine has it."""
        topology = Topology(
            "files",
            TopologyConfig(max_group_commit=1, new_tables=(str(self.warehouse / "later"),)),
        )
        spout = FileSpout(str(self.folder / "*.txt"), format="text", files_per_batch=160)
        stream = topology.stream("s", spout)
        for name in self.tables:
            stream.partition_persist(AppendTable(self.warehouse / name, "transactional"))
        sys.modules["txn_test_files"].newest = topology  # type: ignore[attr-defined]
        return topology

    def run(self, crash: tuple[str, int] | None = None) -> None:
        """Until all is read, or until a txid comes to a point."""
        if crash is None:
            self.topology().run(self.spark, zookeeper=self.hosts, until="caught_up")
            return
        with observing(crash_at(*crash)), pytest.raises(TxnError):
            self.topology().run(self.spark, zookeeper=self.hosts, until="caught_up")

    def txn(self, *arguments: str) -> Any:
        """The JSON of a command of `txn`."""
        (self.folder.parent / "program.py").write_text(PROGRAM)
        result = CliRunner().invoke(cli, [*arguments, "--zookeeper", self.hosts, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    def recover(self) -> None:
        """`txn recover`, of the topology that was built last."""
        program = self.folder.parent / "program.py"
        assert self.txn("recover", f"{program}:topology", "--yes")["written"]

    def add(self, *names: str) -> None:
        """Files of one line each, moved in."""
        for name in names:
            unfinished = self.folder / f".{name}"
            unfinished.write_text(f"{name}\n")
            unfinished.rename(self.folder / f"{name}.txt")

    def assert_kept_everywhere(self) -> None:
        """Every table has all that the newest position names, whole."""
        named = positions(self.warehouse / "a")[-1]["segments"]
        assert named
        for table, segment in ((t, s["name"]) for t in self.tables for s in named):
            kept = self.warehouse / table / "_txn_progress" / segment
            assert kept.exists(), f"{table} lacks {segment}"
            assert blake2b(kept.read_bytes(), digest_size=16).hexdigest() == segment

    def assert_read_once(self, expected: list[str]) -> None:
        """Both tables hold the line of every file once, and every position was small."""
        for name in TABLES:
            assert rows_of(self.warehouse / name, "value") == [(n,) for n in sorted(expected)]
            largest = max(map(len, map(json.dumps, positions(self.warehouse / name))))
            assert largest < POSITION, f"a commit of {name} has a position of {largest} bytes"


def positions(table: Path) -> list[dict[str, Any]]:
    """The position in every commit of a table, without the files of its own batch."""
    found = []
    for commit in sorted((table / "_delta_log").glob("[0-9]*.json")):
        infos = [json.loads(line).get("commitInfo", {}) for line in commit.read_text().splitlines()]
        for txn in (info["txn"] for info in infos if "txn" in info):
            read = (json.loads(txn) if isinstance(txn, str) else txn)["spouts"]["s"]
            found.append({key: value for key, value in read.items() if key != "files"})
    return found


@pytest.fixture
def world(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """A world of this test alone."""
    monkeypatch.setitem(sys.modules, "txn_test_files", _Built())  # type: ignore[misc]
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "source").mkdir()
    return World(spark, zookeeper.hosts, tmp_path / "source", warehouse)


def test_each_file_is_read_once_whatever_becomes_of_zookeeper(world: World) -> None:
    """Every file is in exactly one txid, however many files a spout has read, even if ZooKeeper or
    all but one copy of the list of read files is lost; with a table that keeps this list, no
    position grows with it.
    """
    names = [f"{n:04}" for n in range(100, 700)]
    world.add(*names)
    world.run(crash=("after-start", 3))
    world.run(crash=("between-publications", 4))
    shutil.rmtree(world.warehouse / "b" / "_txn_progress")
    world.ensemble += 1
    world.recover()
    late = ["0001", "0150-late"]
    world.add(*late)
    os.utime(world.folder / "0001.txt", (1, 1))
    world.run()
    names += late
    world.assert_read_once(names)
    world.assert_kept_everywhere()
    file = str(world.folder.parent / "progress.json")
    world.txn("export", "files", "-o", file)
    world.ensemble += 1
    world.txn("import", file)
    for copy in (world.warehouse / "b" / "_txn_progress").iterdir():
        copy.write_bytes(bytes(copy.stat().st_size))
    world.tables = (*TABLES, "later")
    world.add("0002")
    world.run()
    names.append("0002")
    world.assert_read_once(names)
    world.assert_kept_everywhere()
    for table in world.tables:
        shutil.rmtree(world.warehouse / table / "_txn_progress")
    with pytest.raises(ProgressUnreadableError, match="_txn_progress"):
        world.run()
    world.assert_read_once(names)
