"""The line that a program shows on a terminal while it runs a topology."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.embedded import EmbeddedZooKeeper
from txn.engine.reporting.report import InFlight, RunStatus, Totals
from txn.engine.running import RunningTopology
from txn.progress_bar import status_line


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
    line = "orders: txid 2 committed, 2 rows"
    assert (line in re.sub(r"\x1b\[[0-9;?]*\w", "", said.err)) is shown
    assert said.out == ""


def test_an_interrupt_before_the_line_is_there_stops_the_run(
    tmp_path: Path,
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C between the start and the moment in which signals are ours leaves no run behind."""

    def interrupted(running: RunningTopology, *_: object) -> AbstractContextManager[None]:
        runs.append(running)
        signal.raise_signal(signal.SIGINT)
        return nullcontext()

    runs: list[RunningTopology] = []
    monkeypatch.setattr("txn.progress_bar.progress_bar", interrupted)
    topology = Topology("orders")
    spout = MemoryTransactionalSpout([[(1,)]], "n int")
    topology.stream("s", spout).partition_persist(AppendTable(tmp_path / "out"))
    with signals(signal.SIGINT, signal.default_int_handler):
        report = topology.run(spark, zookeeper=f"{zookeeper.hosts}/{tmp_path.name}")
    assert report.ended == "stopped"
    assert not runs[0].is_active


@contextmanager
def signals(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    """A signal's handler as Python has it by default: Spark's would cancel all jobs as well."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_the_line_has_what_a_run_waits_for() -> None:
    """A source that is away is told in place of the stage; a stranger's text does no harm."""
    staged = Totals(rows_staged=1400)
    status = RunStatus("orders", 1, 14, (), 14, 0, None, 2.0, "processing", totals=staged)
    assert status_line(status) == "orders: txid 14 committed, 1,400 rows, held up by processing"
    waits = InFlight(15, 0, "planning", 0, 0.0, blocked="no broker answers \x1b[2J" + "x" * 99)
    line = status_line(replace(status, in_flight=(waits,), replays=1))
    assert line.startswith("orders: txid 14 committed, 1,400 rows, 1 in flight, 1 replays, waits: ")
    assert line.endswith("x…")
    assert "\x1b" not in line


NOTEBOOK = """
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.session import delta_session

spark = delta_session("notebook", master="local[2]")
topology = Topology("orders")
spout = MemoryTransactionalSpout([[(1,)], [(2,)]], "n int")
topology.stream("s", spout).partition_persist(AppendTable("out"))
report = topology.run(spark, until=2)
"""


def test_a_notebook_shows_the_line_and_the_report_as_a_table(tmp_path: Path) -> None:
    """Without widgets: the line stays below its cell; the report has a table and a chart."""
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in (NOTEBOOK, "report")]
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=where).execute()
    line, report = (cell.outputs for cell in notebook.cells)
    (shown,) = [one["data"]["text/plain"] for one in line if one["output_type"] == "display_data"]
    assert shown.startswith("orders: txid 2 committed, 2 rows")
    assert "Warning" not in str(line)
    ((html, told),) = [(one["data"]["text/html"], one["data"]["text/plain"]) for one in report]
    assert "<td>out</td>" in html
    assert "<svg" in html
    assert told.startswith("orders: until, 2 txids committed (1 to 2) in ")
