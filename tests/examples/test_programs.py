"""The small examples, each run to its end, and held against plain Python."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from committers.state_table import StateTable
from txn.operations.loading import load_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper
    from txn.engine.reporting.report import RunReport

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = ("global_count", "word_buckets", "windows", "replay_after_failure")

Run = Callable[[str], tuple[ModuleType, "RunReport"]]


@pytest.fixture
def run(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Run]:
    """Runs an example by its name, with its tables below `warehouse`."""
    loaded: list[ModuleType] = []

    def run(name: str) -> tuple[ModuleType, RunReport]:
        program = importlib.reload(importlib.import_module(f"examples.{name}"))
        loaded.append(program)
        return program, program.topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")

    monkeypatch.setenv("TXN_DEMO_DIR", str(warehouse))
    yield run
    monkeypatch.undo()
    for program in loaded:
        importlib.reload(program)


@pytest.fixture
def state(spark: SparkSession, warehouse: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Rows of a state table, by the name of its folder."""

    def state(name: str) -> list[dict[str, Any]]:
        rows = StateTable(warehouse / "tables" / name).read(spark).collect()
        return [row.asDict(recursive=True) for row in rows]

    return state


def test_global_count(run: Run, state: Any) -> None:
    """The original document's first program counts the words of all partitions in one number."""
    program, report = run("global_count")
    assert report.committed_txid == 3  # three words of a partition in each batch
    assert state("global_count") == [{"words": len(" ".join(program.WORDS.values()).split())}]


def test_word_buckets(run: Run, state: Any) -> None:
    """The original document's second program: a table of counts, and a table that feeds on it."""
    program, _ = run("word_buckets")
    counts = Counter(" ".join(program.BATCHES).split())
    assert {row["word"]: row["count"] for row in state("word_counts")} == counts
    buckets = Counter(count // 10 for count in counts.values())
    found = {row["bucket"]: row["words"] for row in state("word_buckets")}
    assert found == {0: buckets[0], 1: buckets[1], 2: buckets[2]}
    assert sorted(buckets) == [0, 1, 2]


def test_windows(run: Run, state: Any) -> None:
    """Views count in the window of their own time, also one that comes two batches late.

    Trident row 43.
    """
    program, _ = run("windows")
    wanted: dict[str, list[tuple[str, str, str]]] = {}
    for view in chain.from_iterable(program.VIEWS):
        wanted.setdefault(view[0][:-1] + "0", []).append(view)
    assert {
        f"{row['window']['start']:%Y-%m-%d %H:%M}": (row["views"], row["users"], row["last"])
        for row in state("page_views")
    } == {
        start: (len(views), len({user for _, user, _ in views}), max(views)[2])
        for start, views in wanted.items()
    }
    assert len(wanted["2026-07-01 09:00"]) == 3


def test_replay_after_failure(run: Run, state: Any, spark: SparkSession, warehouse: Path) -> None:
    """The replay brings other rows than the attempt that failed, and each number counts once."""
    _, report = run("replay_after_failure")
    assert (report.committed_txid, report.replays >= 1) == (3, True)
    assert state("totals") == [{"numbers": 130, "total": sum(range(1, 131))}]
    rows = AppendTable(warehouse / "tables" / "numbers").read(spark).collect()
    assert sorted(row["number"] for row in rows) == list(range(1, 131))
    assert Counter(row["txid"] for row in rows) == {1: 50, 2: 40, 3: 40}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_short_and_say_how_to_run_them(name: str) -> None:
    """Each example has fewer than forty lines, and its docstring's command loads its topology."""
    path = EXAMPLES / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    target = f"examples/{name}.py:topology"
    assert f"    txn run {target} --until caught_up\n" in text
    assert load_topology(f"{path}:topology").name == name.replace("_", "-")
