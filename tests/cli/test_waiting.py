"""What a run and a command say while there is no ZooKeeper, or nothing to read."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from committers.append_table import AppendTable
from spouts.files import FileSpout
from txn import Topology, TopologyConfig
from txn.cli.running.driver import drive
from txn.cli.running.idleness import Idleness
from txn.cli.running.observers import JsonLines, PlainLines
from txn.cli.running.run_notes import RunNotes
from txn.engine.reporting.report import RunReport, RunStatus
from txn.errors import ProgressUnavailableError, SetupError

ROOT = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:1"


def topology(**settings: Any) -> Topology:
    """One that copies files into a table."""
    made = Topology("orders", TopologyConfig(**settings))
    spout = FileSpout("in/*.csv", format="csv", schema="n int")
    made.stream("orders", spout).partition_persist(AppendTable("table"))
    return made


class Spark:
    """A session that is there at once."""

    def stop(self) -> None:
        """Nothing to stop."""


@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
def test_a_run_without_zookeeper_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    """After two seconds it tells address, reason and what is left, even if the log wants only
    errors; then it ends with an error that has the way out.
    """
    monkeypatch.setattr("txn.session.delta_session", lambda *_, **__: Spark())
    monkeypatch.setattr("txn.cli.running.driver.log.level", 40)
    out = io.StringIO()
    observer = JsonLines(out) if as_json else PlainLines(out)
    with pytest.raises(ProgressUnavailableError, match=r"within 2 s \(.*zookeeper_connect_secs"):
        drive(
            topology(zookeeper_connect_secs=2.4),
            observer,
            RunNotes("orders", {}),
            zookeeper=NOWHERE,
            master=None,
            until="caught_up",
            conf={},
        )
    starting, line, *ended = out.getvalue().splitlines()
    assert "starting Spark" in starting
    assert [json.loads(event)["number"] for event in ended] == ["TXN-600"] * as_json
    said = json.loads(line)["text"] if as_json else line
    assert said.startswith(f"Waiting for ZooKeeper at {NOWHERE}, which does not answer (the last")
    assert said.endswith(": 0 s more.")


def test_a_start_that_fails_does_not_wait_for_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with Spark is told at once."""

    def broken(*_: Any, **__: Any) -> Spark:
        raise SetupError("no Java")

    monkeypatch.setattr("txn.session.delta_session", broken)
    began = time.monotonic()
    with pytest.raises(SetupError, match="no Java"):
        drive(
            topology(),
            PlainLines(io.StringIO()),
            RunNotes("orders", {}),
            zookeeper=NOWHERE,
            master=None,
            until="caught_up",
            conf={},
        )
    assert time.monotonic() - began < 10


def test_a_command_without_zookeeper_says_so_and_ends(tmp_path: Path) -> None:
    """`txn status` waits as long as the setting says, with one line on stderr meanwhile."""
    ran = subprocess.run(
        [sys.executable, "-m", "txn", "status", "orders", "--zookeeper", NOWHERE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TXN_ZOOKEEPER_CONNECT_SECS": "2.4"},
        capture_output=True,
        text=True,
    )
    waiting, error = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert waiting.startswith(f"Waiting for ZooKeeper at {NOWHERE}, which does not answer")
    assert error.startswith(f"error: ZooKeeper at {NOWHERE} did not answer within 2 s (the last")
    assert "Start it, or correct its address (--zookeeper" in error


def status(held_up_by: str, committed_txid: int = 0, batches: int = 0) -> RunStatus:
    """A snapshot with nothing in flight."""
    return RunStatus("orders", 1, committed_txid, (), batches, 0, None, 1.0, held_up_by)


@pytest.mark.parametrize(("committed", "new"), [(0, ""), (7, " new")])
def test_a_run_that_finds_nothing_says_once_what_it_waits_for(committed: int, new: str) -> None:
    """After two seconds in which nothing was there to read: stream, and the spout's own words."""
    now = [0.0]
    idleness = Idleness(topology(), clock=lambda: now[0])
    said = []
    for _ in range(50):
        said.append(idleness.look(status("idle", committed)))
        now[0] += 0.1
    told = [line for line in said if line is not None]
    assert said.index(told[0]) == 20
    (line,) = told
    assert line == (
        f"orders: nothing{new} to read, waiting for orders (FileSpout('in/*.csv')). With --until "
        "caught_up a run ends instead."
    )


def test_a_run_that_catches_up_with_nothing_says_so() -> None:
    """A pattern that matches no file does not look like work that is done."""
    idleness = Idleness(topology())
    nothing = "orders: nothing to read in orders (FileSpout('in/*.csv'))."
    assert idleness.ended(RunReport("orders", ended="caught_up")) == nothing
    later = RunReport("orders", committed_txid=7, ended="caught_up")
    assert idleness.ended(later) == nothing.replace("nothing", "nothing new")
    assert idleness.ended(RunReport("orders", batches_committed=1, ended="caught_up")) is None
    assert idleness.ended(RunReport("orders", ended="stopped")) is None


def test_a_run_that_works_says_nothing_when_it_is_done() -> None:
    """Reading the source takes its time, and whoever has committed a batch needs no advice."""
    now = [0.0]
    idleness = Idleness(topology(), clock=lambda: now[0])
    for seen in (status("idle"), status("source"), status("idle"), status("idle", 1, 1)) * 3:
        assert idleness.look(seen) is None
        now[0] += 1.9
