"""The start of `txn run`: Spark and ZooKeeper side by side, or neither of them."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from txn.embedded import running_server

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
from committers.append_table import AppendTable
from spouts.rate import RateSpout
from txn import Topology

topology = Topology("t")
topology.stream("rows", RateSpout(1, total=1)).partition_persist(AppendTable("table"))
"""


def run(folder: Path, *options: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """`txn run` in a folder, to its end."""
    (folder / "program.py").write_text(program, "utf-8")
    command = [sys.executable, "-m", "txn", "run", "program.py:topology", "--master", "local[1]"]
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )


def java_processes(folder: Path) -> list[str]:
    """Command lines of the Java processes that run in this folder or on its ZooKeeper."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            is_ours = str(folder) in line or (process / "cwd").readlink() == folder
        except OSError:  # it has just ended, or is another user's
            continue
        if is_ours and "java" in line.partition(" ")[0]:
            found.append(line)
    return found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--conf", "spark.driver.memory=1x"), "Java ended before Spark was up"),
        (
            ("--conf", "spark.serializer=no.such.Class"),
            "Spark did not start: ClassNotFoundException: no.such.Class.",
        ),
        (("--zookeeper", "embedded:program.py/no-folder"), "program.py"),
    ],
    ids=["java", "spark", "zookeeper"],
)
def test_one_that_cannot_start_takes_the_other_along(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    """The error is told as if it had been alone, and no process is left."""
    ended = run(tmp_path, *options)
    assert (ended.returncode, said in ended.stderr) == (1, True)
    assert running_server(tmp_path / ".txn/zookeeper") is None
    deadline = time.monotonic() + 30
    while java_processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert java_processes(tmp_path) == []


POISONED = """
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig

config = TopologyConfig(max_batch_attempts=1, on_exhausted="quarantine")
topology = Topology("t", config)
batches = [[(1,)], [ValueError("poison")], [(3,)]]
rows = topology.stream("rows", MemoryTransactionalSpout(batches, "n int"))
rows.partition_persist(AppendTable("table"))
"""


def test_a_failure_that_is_no_replay_is_told(tmp_path: Path) -> None:
    """The only attempt of a txid that is quarantined has failed, and nothing was replayed."""
    ended = run(tmp_path, "--json", "--until", "caught_up", program=POISONED)
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    failed = [each for each in told if each["event"] == "failed"]
    assert [(each["txid"], "poison" in each["error"]) for each in failed] == [(2, True)]
    assert (told[-1]["event"], told[-1]["replays"], told[-1]["quarantined"]) == ("ended", 0, 1)


COLLECTING = """
import gc
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.session import delta_session

def look(df):
    print("collector", gc.get_freeze_count() > 10_000, gc.get_threshold()[2], flush=True)
    return df

topology = Topology("t")
rows = topology.stream("rows", MemoryTransactionalSpout([[(1,)]], "n int"))
rows.transform(look).partition_persist(AppendTable("table"))
if __name__ == "__main__":
    spark = delta_session("t", "local[1]")
    topology.run(spark, zookeeper="embedded", until="caught_up")
    spark.stop()
"""


def test_only_a_process_of_ours_has_its_collector_tuned(tmp_path: Path) -> None:
    """`txn run` freezes what is loaded; a program that runs a topology keeps its own settings."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "program.py").write_text(COLLECTING, "utf-8")
    theirs = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    ours = run(tmp_path / "ours", "--until", "caught_up", program=COLLECTING)
    assert theirs.returncode == 0, theirs.stderr
    usual = gc.get_threshold()[2]
    assert f"collector True {10 * usual}" in ours.stdout
    assert f"collector False {usual}" in theirs.stdout
