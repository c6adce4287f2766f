"""The line that a program shows on a terminal while it runs a topology."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.embedded import EmbeddedZooKeeper
from txn.engine.report import InFlight, RunStatus
from txn.progress_bar import told


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (None, False), (False, False)])
def test_a_run_shows_where_it_is_if_it_is_wanted(
    progress: bool | None,
    shown: bool,
    tmp_path: Path,
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a terminal, or if the program says so; on stderr, and nothing of it stays."""
    topology = Topology("orders")
    spout = MemoryTransactionalSpout([[(1,)], [(2,)]], "n int")
    topology.stream("s", spout).partition_persist(AppendTable(tmp_path / "out"))
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    report = topology.run(spark, zookeeper=hosts, until=2, progress=progress)
    assert report.committed_txid == 2
    said = capsys.readouterr()
    line = "orders: txid 2 committed, 2 rows, held up by "
    assert (line in re.sub(r"\x1b\[[0-9;?]*\w", "", said.err)) is shown
    assert said.out == ""


def test_the_line_has_what_a_run_waits_for() -> None:
    """A source that is away is told in place of the stage; a stranger's text does no harm."""
    status = RunStatus("orders", 1, 14, (), 14, 1400, 0, None, 2.0, "processing")
    assert told(status) == "orders: txid 14 committed, 1,400 rows, held up by processing"
    waits = InFlight(15, 0, "planning", 0, 0.0, blocked="no broker answers \x1b[2J" + "x" * 99)
    line = told(replace(status, in_flight=(waits,), replays=1))
    assert line.startswith("orders: txid 14 committed, 1,400 rows, 1 in flight, 1 replays, waits: ")
    assert line.endswith("x…")
    assert "\x1b" not in line
