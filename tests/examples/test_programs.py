"""The small examples, each run to its end, and held against plain Python."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.state_table import StateTable
from txn.operations.loading import load_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper
    from txn.engine.reporting.report import RunReport

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = (
    "delta_to_delta",
    "duplicates",
    "global_count",
    "replay_after_failure",
    "sessions",
    "windows",
    "word_buckets",
)
SCRIPTS = ("demo", "prepare_flights")  # what is around a topology

Run = Callable[[str], tuple[dict[str, Any], "RunReport"]]


@pytest.fixture
def run(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Runs an example by its name, in an empty folder; returns its globals and the report."""

    def run(name: str) -> tuple[dict[str, Any], RunReport]:
        program = runpy.run_path(str(EXAMPLES / f"{name}.py"))
        report = program["topology"].run(spark, zookeeper=zookeeper.hosts, until="caught_up")
        return program, report

    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def state(spark: SparkSession) -> Callable[[StateTable], list[dict[str, Any]]]:
    """The rows of a state table."""

    def state(table: StateTable) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in table.read(spark).collect()]

    return state


def test_global_count(run: Run, state: Any) -> None:
    """The original document's first program counts the words of all partitions in one number."""
    program, report = run("global_count")
    assert report.committed_txid == 3  # three words of a partition in each batch
    assert state(program["total"]) == [{"words": len(" ".join(program["WORDS"].values()).split())}]


def test_word_buckets(run: Run, state: Any) -> None:
    """The original document's second program: a table of counts, and a table that feeds on it."""
    program, _ = run("word_buckets")
    counts = Counter(" ".join(program["BATCHES"]).split())
    assert {row["word"]: row["count"] for row in state(program["by_word"])} == counts
    buckets = Counter(count // 10 for count in counts.values())
    words = {row["bucket"]: row["words"] for row in state(program["by_bucket"])}
    assert words == {0: buckets[0], 1: buckets[1], 2: buckets[2]}
    assert sorted(buckets) == [0, 1, 2]


def test_windows(run: Run, state: Any) -> None:
    """Views count in the window of their own time, also one that comes two batches late.

    Trident row 43.
    """
    program, _ = run("windows")
    expected: dict[str, list[tuple[str, str, str]]] = {}
    for view in chain.from_iterable(program["VIEWS"]):
        expected.setdefault(view[0][:-1] + "0", []).append(view)
    assert {
        f"{row['window']['start']:%Y-%m-%d %H:%M}": (row["views"], row["users"], row["last"])
        for row in state(program["windows"])
    } == {
        start: (len(views), len({user for _, user, _ in views}), max(views)[2])
        for start, views in expected.items()
    }
    assert len(expected["2026-07-01 09:00"]) == 3


def test_duplicates(run: Run, state: Any) -> None:
    """An order that comes again, in its batch or in a later one, counts once."""
    program, report = run("duplicates")
    once = {number: (shop, n) for number, shop, n, _ in chain.from_iterable(program["ORDERS"])}
    shops = {shop for shop, _ in once.values()}
    assert {row["shop"]: (row["orders"], row["total"]) for row in state(program["by_shop"])} == {
        shop: (len(found), sum(found))
        for shop in shops
        for found in [[n for at, n in once.values() if at == shop]]
    }
    dropped = sum(batch.violations["orders"]["duplicate id"] for batch in report.batches)
    assert dropped == sum(map(len, program["ORDERS"])) - len(once) == 3


def test_sessions(run: Run, state: Any) -> None:
    """A visit of which no click can come any more counts once, with all of its clicks."""
    program, _ = run("sessions")
    visits: dict[str, list[list[tuple[int, int]]]] = {}
    for user, time, spent in sorted(chain.from_iterable(program["CLICKS"])):
        minute = int(time[:2]) * 60 + int(time[3:])
        of_user = visits.setdefault(user, [])
        if not of_user or minute > of_user[-1][-1][0] + 30:
            of_user.append([])
        of_user[-1].append((minute, spent))
    assert len(visits["cat"].pop()) == 2  # may still go on
    found = ((row["user"], row["clicks"], row["spent"]) for row in state(program["table"]))
    assert sorted(found) == [
        (user, len(clicks), sum(spent for _, spent in clicks))
        for user, of_user in sorted(visits.items())
        for clicks in sorted(of_user, key=len)
    ]


def test_replay_after_failure(run: Run, state: Any, spark: SparkSession) -> None:
    """The replay brings other rows than the attempt that failed, and each number counts once."""
    program, report = run("replay_after_failure")
    assert (report.committed_txid, report.replays >= 1) == (3, True)
    assert state(program["totals"]) == [{"numbers": 130, "total": sum(range(1, 131))}]
    rows = program["rows"].read(spark).collect()
    assert sorted(row["number"] for row in rows) == list(range(1, 131))
    assert Counter(row["txid"] for row in rows) == {1: 50, 2: 40, 3: 40}


@pytest.mark.parametrize("name", [*PROGRAMS, "changing_shop"])
def test_a_program_prints_what_its_docstring_shows(name: str, tmp_path: Path) -> None:
    """The command in the docstring, run by a process of its own, prints the tables below it."""
    ((command, printed),) = re.findall(
        r"^    \$ python (\S+)\n((?:    .*\n|\n(?=    ))+)",
        (EXAMPLES / f"{name}.py").read_text(),
        re.M,
    )
    ended = subprocess.run(
        [sys.executable, EXAMPLES.parent / command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.strip() == textwrap.dedent(printed).strip(), ended.stderr


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    """Each example has fewer than sixty lines, and fewer than forty below its docstring."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    if path.stem not in SCRIPTS:
        code = [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]
        assert len(code) < 40


@pytest.mark.parametrize("name", ["flights", "page_views", *PROGRAMS[1:]])
def test_a_programs_topology_is_found_by_its_name(name: str) -> None:
    """`txn run examples/NAME.py:topology` loads the topology, which has the name of its file."""
    assert load_topology(f"{EXAMPLES / name}.py:topology").name == name.replace("_", "-")
