"""A program that was changed between two processes, as `txn run` and `txn status` tell it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
from committers.append_table import AppendTable
from spouts.files import FileSpout
from txn import Topology
import helpers

NAMES = {"anna", "bert", "carl", "dora"}

def clean(df):
    return helpers.positive(df).where(df.name.isin(NAMES))

topology = Topology("sales")
files = FileSpout("in/*.csv", format="csv", schema="name string, n int")
orders = topology.stream("orders", files).transform(clean)
orders.partition_persist(AppendTable("table"))
"""
LATER = """
from committers.aggregates import Count
from committers.state_table import StateTable

orders.group_by("name").persistent_aggregate(StateTable("totals"), n=Count())
"""
HELPERS = "def positive(df):\n    return df.where('n > 0')\n"


def txn(folder: Path, *arguments: str) -> str:
    """What a process of `txn` prints."""
    command = [sys.executable, "-m", "txn", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run(folder: Path, file: str) -> list[str]:
    """The lines of a run, after another file has come."""
    (folder / "in" / file).write_text("anna,1\n")
    options = ("--until", "caught_up", "--master", "local[1]")
    return txn(folder, "run", "sales.py:topology", *options).splitlines()


def test_a_process_tells_what_has_changed_since_the_last_one(tmp_path: Path) -> None:
    """Nothing for equal code; a changed helper is told by the transform that calls it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "sales.py").write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    told = "The program is not as it was"
    assert told not in "".join(run(tmp_path, "1.csv") + run(tmp_path, "2.csv"))
    (tmp_path / "helpers.py").write_text(HELPERS.replace("n > 0", "n > 1"))
    [line] = [line for line in run(tmp_path, "3.csv") if told in line]
    change = f"transform clean ({tmp_path / 'sales.py'}:9) of stream 'orders' was changed"
    assert line == (
        f"[sales] {told} at txid 2: {change}. Txids from 3 on are processed by the program as it "
        "is now; what the tables hold from before stays."
    )
    assert line in (tmp_path / ".txn/logs/sales.log").read_text()
    status = json.loads(txn(tmp_path, "status", "sales", "--json"))
    assert status["changes"] == {"since_txid": 3, "changes": [change]}
    shown = " ".join(txn(tmp_path, "status", "sales").split())
    assert "program from txid 3 on: transform clean" in shown


def test_a_new_table_gets_its_history_from_the_command_line(tmp_path: Path) -> None:
    """`txn backfill` fills a table that the program has got, by any spelling of its path, and the
    run that it advises goes on with all tables.
    """
    (tmp_path / "in").mkdir()
    (tmp_path / "sales.py").write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    run(tmp_path, "1.csv")
    (tmp_path / "sales.py").write_text(PROGRAM + LATER)
    told = txn(tmp_path, "backfill", "sales.py:topology", "--table", f"{tmp_path}/totals")
    assert told.splitlines()[-2:] == [
        "Table totals is filled up to txid 1.",
        (
            "Stop the former program, then start the new one with --set "
            f"backfilled_tables={tmp_path}/totals. `txn plan sales.py:topology --set "
            f"backfilled_tables={tmp_path}/totals` shows what else it needs."
        ),
    ]
    again = txn(tmp_path, "backfill", "sales.py:topology", "--set", "backfilled_tables=totals")
    assert "filled up to" not in again
    (tmp_path / "in" / "2.csv").write_text("anna,1\n")
    options = ("--until", "caught_up", "--master", "local[1]", "--set", "backfilled_tables=totals")
    txn(tmp_path, "run", "sales.py:topology", *options)
    rows = DeltaTable(str(tmp_path / "totals")).to_pyarrow_table().to_pylist()
    assert [(row["name"], row["n"]) for row in rows] == [("anna", 2)]
