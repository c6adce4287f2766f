"""Signals: to one process, to its group, to every process of a service; and what comes twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
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


def java_below(pid: int) -> int | None:
    """The Java process of Spark that this one has started."""
    for child in below(pid):
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if words[0].endswith(b"java") and b"org.apache.spark.deploy.SparkSubmit" in words:
            return child
    return None


@pytest.mark.parametrize(
    ("command", "number", "end"),
    [
        ("run", signal.SIGTERM, (0, "stopped.\n")),
        ("preview", signal.SIGINT, (130, "error: interrupted.\n")),
    ],
)
def test_a_start_that_is_interrupted_leaves_no_java(
    tmp_path: Path, command: str, number: int, end: tuple[int, str]
) -> None:
    """A signal to the command alone, while Java starts, ends both, and one line says so."""
    (tmp_path / "program.py").write_text(PROGRAM)
    txn = subprocess.Popen(
        [sys.executable, "-m", "txn", command, "program.py:topology", "--master", "local[1]"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    java = None
    try:
        while java is None and txn.poll() is None:
            time.sleep(0.01)
            with contextlib.suppress(OSError):  # a process has ended meanwhile
                java = java_below(txn.pid)
        assert java is not None
        txn.send_signal(number)
        said = txn.communicate(timeout=60)[1]
        # txn preview has said there what it was about to do.
        assert (txn.returncode, said.splitlines(keepends=True)[-1]) == end
        deadline = time.monotonic() + 30
        while Path(f"/proc/{java}/exe").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{java}/exe").exists()
    finally:
        txn.kill()
        if java is not None and Path(f"/proc/{java}/exe").exists():
            os.kill(java, signal.SIGKILL)


ASKING = """
import os, signal, threading
from txn.cli.signals import quiet_interrupts
from txn.session import delta_session
spark = delta_session("asked", "local[1]")
with quiet_interrupts():
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        spark._jvm.java.lang.Thread.sleep(30_000)
    except KeyboardInterrupt:
        print("interrupted")
    spark.stop()
"""


def test_ctrl_c_while_spark_is_asked_prints_no_stack_trace(tmp_path: Path) -> None:
    """What py4j logs of a call that Ctrl-C has ended is not shown by a command."""
    said = subprocess.run(
        [sys.executable, "-c", ASKING],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (said.stdout, said.stderr, said.returncode) == ("interrupted\n", "", 0)


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
