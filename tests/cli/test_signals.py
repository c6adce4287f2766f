"""Signals: to one process, to its group, to every process of a service; and what comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from txn.cli.errors import ErrorsAsParagraphs
from txn.cli.signals import StoppedEarlyError, received_signals, terminable

ROOT = Path(__file__).parents[2]
PROGRAM = """
from committers.append_table import AppendTable
from spouts.files import FileSpout
from txn import Topology

topology = Topology("idle")
spout = FileSpout("in/*.csv", format="csv", schema="n int")
topology.stream("orders", spout).partition_persist(AppendTable("table"))
"""
SCRIPT = f"{sys.executable} -m txn run program.py:topology --master 'local[1]'; echo after $?"


def below(pid: int) -> Iterator[int]:
    """Every process that this one has started, and those that they have."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from below(child)


def test_a_shell_script_goes_on_after_a_run_that_ctrl_c_has_ended(tmp_path: Path) -> None:
    """A run in an empty folder says what it waits for. Java takes neither a SIGTERM to every
    process of a service nor Ctrl-C to a script's group; the run ends with code 0 and leaves none.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "in").mkdir()
    with (tmp_path / "err").open("wb") as err:
        script = subprocess.Popen(
            ["bash", "-c", SCRIPT],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            start_new_session=True,
        )
    assert script.stdout is not None
    children: list[int] = []
    try:
        waiting = "idle: nothing to read, waiting for orders (FileSpout('in/*.csv'))"
        assert any(line.startswith(waiting) for line in script.stdout), (
            tmp_path / "err"
        ).read_text()
        named = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in below(script.pid)}
        names = ("SparkSubmit", "supervisor.py", "ZooKeeperServerMain")
        children = [pid for name in names for pid, words in named.items() if name in words]
        assert len(children) >= len(names)
        for pid in children:
            os.kill(pid, signal.SIGTERM)
        os.killpg(script.pid, signal.SIGINT)
        said = script.stdout.read()
        assert "idle: stopped. Committed txid 0;" in said
        assert (said.splitlines()[-1], script.wait()) == ("after 0", 0)
        assert (tmp_path / "err").read_text() == ""
    finally:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
        script.wait()
        script.stdout.close()
    assert not [pid for pid in children if Path(f"/proc/{pid}/exe").exists()]


def test_a_signal_that_comes_by_two_ways_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal and a wrapper both send it: only one that comes later ends the process."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    now = [100.0]
    with received_signals(clock=lambda: now[0]) as received:
        signal.raise_signal(signal.SIGINT)
        now[0] += 0.9
        signal.raise_signal(signal.SIGTERM)
        assert (list(received), codes) == ([signal.SIGINT], [])
        now[0] += 0.2
        signal.raise_signal(signal.SIGTERM)
    assert codes == [128 + signal.SIGTERM]


def test_sigterm_before_anything_ran_is_no_failure() -> None:
    """It unwinds the start as Ctrl-C does, and a service manager sees the end it asked for."""

    @click.group(cls=ErrorsAsParagraphs)
    def cli() -> None:
        pass

    @cli.command()
    def start() -> None:
        with terminable():
            signal.raise_signal(signal.SIGTERM)

    result = CliRunner().invoke(cli, ["start"])
    assert (result.exit_code, result.output) == (0, "stopped.\n")
    with pytest.raises(StoppedEarlyError), terminable():
        signal.raise_signal(signal.SIGTERM)
