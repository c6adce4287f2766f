"""`txn rows`: what was set aside, out of the table of bad rows, without Spark."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from txn.cli.app import cli
from txn.operations.rows.bad_rows import BadRow, bad_rows_among

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [
    BadRow(1, "s", "known key", "a.csv", '{"k":null}', "not true: k IS NOT NULL"),
    BadRow(2, "s", "parses", "b.csv", "x\x1b[2J", "not csv"),
    BadRow(2, "s", "known key", None, '{"k":null}', "not true: k IS NOT NULL"),
    BadRow(4, "t", "known key", "c.csv", '{"k":null}', "not true: k IS NOT NULL"),
]
POOLS: list[pa.MemoryPool] = []
"""Memory pools that tests have made: Arrow's threads may free what they hold after a test's end,
and crash the interpreter, or harm other tests, if the pool has gone.
"""
PROGRAM = """
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology

topology = Topology("ruled", bad_rows=AppendTable("bad"))
rows = topology.stream("s", MemoryTransactionalSpout([], "k string"))
rows.expect("known key", "k IS NOT NULL", "set_aside").partition_persist(AppendTable("rows"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a program and its tables."""
    write_deltalake(tmp_path / "bad", pa.Table.from_pylist([asdict(row) for row in ROWS]))
    write_deltalake(tmp_path / "rows", pa.table({"k": ["a"], "txid": [1]}))
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def invoke(*arguments: str) -> Result:
    """The command line, in this process."""
    return CliRunner().invoke(cli, ["rows", *arguments], prog_name="txn")


def test_rules_with_what_they_set_aside(folder: Path) -> None:
    """Rows are counted by stream and rule, with the first and the last txid.

    Without a ZooKeeper it is not known which of them were replayed.
    """
    told = json.loads(invoke("list", "program.py:topology", "--json").output)
    assert (told["topology"], told["table"]) == ("ruled", "bad")
    assert [tuple(rule.values()) for rule in told["rules"]] == [
        ("s", "known key", 2, 1, 2, None, None),
        ("s", "parses", 1, 2, 2, None, None),
        ("t", "known key", 1, 4, 4, None, None),
    ]
    lines = invoke("list", "program.py:topology").output.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["stream", "rule", "rows", "txids", "replayed", "up", "to", "open"],
        ["s", "known", "key", "2", "1", "to", "2", "-", "?"],
    ]


def test_rows_that_were_set_aside(folder: Path) -> None:
    """The newest txids come first; rows of a stream, a rule or a txid can be picked."""
    table = bad_rows_among(["rows", "bad"])
    assert table is not None
    newest = [ROWS[3], ROWS[2], ROWS[1], ROWS[0]]
    assert table.newest(None) == newest
    assert table.newest(2) == newest[:2]
    assert table.newest(9, rule="known key", stream="s") == [ROWS[2], ROWS[0]]
    assert table.newest(9, txid=3) == []
    picked = ["show", "program.py:topology", "--txid", "2", "--limit", "1"]
    (row,) = json.loads(invoke(*picked, "--json").output)["rows"]
    assert row == asdict(ROWS[2])
    shown = invoke("show", "program.py:topology").output
    assert "\x1b" not in shown
    assert [line.split()[0] for line in shown.splitlines()] == ["txid", "4", "2", "2", "1"]
    *lines, more = invoke("show", "program.py:topology", "--limit", "3").output.splitlines()
    assert [line.split()[0] for line in lines] == ["txid", "4", "2", "2"]
    assert more == "There are more than these 3: `txn rows list` counts, --limit shows."


def test_a_txid_may_have_set_aside_very_many_rows(tmp_path: Path) -> None:
    """The few that are asked for are found without all of them in memory at once."""
    count, total = 5_000, 0
    for part in reversed(range(16)):
        text = pa.array([f"{part:02d}{at:04d}{'x' * 1000}" for at in reversed(range(count))])
        rows = {name: ["s"] * count for name in ("stream", "rule", "reason")}
        none = pa.array([None] * count, pa.string())
        txids = pa.array([7] * count, pa.int64())
        made = pa.table({"txid": txids, **rows, "row": text, "position": none})
        write_deltalake(tmp_path / "bad", made, mode="append")
        total += made.nbytes
    table = bad_rows_among([str(tmp_path / "bad")])
    assert table is not None
    before = pa.default_memory_pool()
    measured = pa.proxy_memory_pool(before)
    POOLS.append(measured)
    pa.set_memory_pool(measured)
    try:
        found = table.newest(3)
    finally:
        pa.set_memory_pool(before)
    assert [row.row[:6] for row in found] == ["000000", "000001", "000002"]
    assert 0 < (measured.max_memory() or 0) < total / 2


def test_rows_that_may_be_taken_back_are_not_shown(folder: Path) -> None:
    """Rows of a txid that is not committed yet are left out, where that is known."""
    table = bad_rows_among(["bad"], committed=2)
    assert table is not None
    assert [row.txid for row in table.newest(None)] == [2, 2, 1]
    assert sum(rule.rows for rule in table.by_rule()) == 3


def test_rows_that_are_not_utf8_are_shown(folder: Path, spark: SparkSession) -> None:
    """A replacement character stands for what a writer stored as text and is none."""
    text = "cast(unhex('61FF') AS string)"
    columns = [f"{text} AS row", f"{text} AS reason", "'s' AS stream", "'parses' AS rule"]
    strange = spark.range(9, 10).selectExpr("id AS txid", *columns, f"{text} AS position")
    strange.write.format("delta").mode("append").save(str(folder / "bad"))
    table = bad_rows_among(["bad"])
    assert table is not None
    a = "a\ufffd"
    assert table.newest(1) == [BadRow(9, "s", "parses", a, a, a)]
    assert table.newest(1, rule="parses", up_to=9) == table.newest(1)
    shown = invoke("show", "program.py:topology", "--json")
    assert json.loads(shown.output)["rows"][0]["row"] == a
    assert json.loads(invoke("list", "program.py:topology", "--json").output)["rules"]


def test_topologies_without_bad_rows(folder: Path) -> None:
    """A table is told by its columns; the command says what is missing."""
    assert bad_rows_among(["rows"]) is None
    text = PROGRAM.replace(', bad_rows=AppendTable("bad")', "").replace("set_aside", "drop")
    (folder / "program.py").write_text(text)
    said = invoke("list", "program.py:topology").output
    assert said.startswith("Topology 'ruled' has published to no table of bad rows. It needs one")
    (folder / "program.py").write_text(PROGRAM)
    said = invoke("show", "program.py:topology", "--rule", "other").output
    assert said == "Topology 'ruled' has no such rows in table 'bad'.\n"
