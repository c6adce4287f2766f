"""The pages of a first hour, tried as a new user would: every command and every program on them."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts.files import FileSpout
from txn.operations.new_project import make_project

DOCS = Path(__file__).parents[2] / "docs"
OWN_FILES = "## Your own files"


def blocks(page: str, section: str = "") -> list[tuple[str, str]]:
    """(what stands behind the fence, text) of each block of a page, or of sections of it."""
    text = (DOCS / page).read_text("utf-8")
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", text[text.index(section) :], re.S | re.M)


def follow(found: list[tuple[str, str]], folder: Path) -> tuple[Path, int]:
    """Do what blocks of a page say.

    Returns:
        The folder in which that ends, and how many tables were shown and printed.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    printed, compared = "", 0
    for kind, text in found:
        if kind == "console":
            lines = [line.removeprefix("$ ") for line in text.splitlines()]
            lines = [line.removeprefix("pip install pytest && ") for line in lines]
            ran = subprocess.run(
                ["/bin/sh", "-ec", "\n".join([*lines, "pwd"])],
                cwd=folder,
                env=os.environ | {"PATH": path},
                capture_output=True,
                text=True,
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
            *said, place = ran.stdout.splitlines()
            folder, printed = Path(place), "\n".join(said)
        elif kind.startswith("python "):
            (folder / kind.removeprefix("python ")).write_text(text)
        elif kind == "text" or text.startswith("+--"):
            assert text.strip() in printed
            compared += 1
    return folder, compared


def test_the_first_hour_goes_as_the_page_says(tmp_path: Path) -> None:
    """From `txn new` to a job that was killed and goes on: each table that is shown is printed."""
    before = blocks("first-hour.md")[: -len(blocks("first-hour.md", OWN_FILES))]
    assert follow(before, tmp_path) == (tmp_path / "sales", 2)


def test_tables_are_read_without_spark_as_the_page_says(tmp_path: Path) -> None:
    """Frames, a snapshot and the command line, over the tables of the first hour."""
    assert follow(blocks("reading.md"), tmp_path) == (tmp_path / "sales", 3)


def test_files_of_ones_own_go_as_the_page_says(tmp_path: Path) -> None:
    """A project with other columns is planned, previewed and run; its totals are printed."""
    (tmp_path / "sales").mkdir()
    own = blocks("first-hour.md", OWN_FILES)
    assert follow(own, tmp_path / "sales") == (tmp_path / "shops", 1)


def test_a_new_project_passes_its_own_test(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `txn new` makes runs, twice, and its totals are those of plain Python."""
    project = make_project("sales", tmp_path)
    monkeypatch.syspath_prepend(project)
    found = runpy.run_path(str(project / "tests" / "test_sales.py"))
    (tmp_path / "run").mkdir()
    found["test_every_order_is_counted_once"](spark, tmp_path / "run")
    assert sorted(f.name for f in (tmp_path / "run" / "warehouse").iterdir()) == [
        "bad_rows",
        "totals",
    ]


def test_the_tests_on_the_page_pass(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/testing.md: each test function, in a folder of its own."""
    ((_, text),) = [b for b in blocks("testing.md") if b[0] == "python test_orders.py"]
    (tmp_path / "test_orders.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path("test_orders.py")
    tests: dict[str, Callable[..., None]] = {n: f for n, f in found.items() if n[:5] == "test_"}
    assert len(tests) == 4
    for name, test in tests.items():
        (tmp_path / name).mkdir()
        test(spark, tmp_path / name)


def test_the_program_of_event_time_prints_what_the_page_shows(tmp_path: Path) -> None:
    """docs/time.md: each program prints what stands below it; the late row is the picture's."""
    assert follow(blocks("time.md"), tmp_path) == (tmp_path, 5)


def test_the_spout_on_the_page_is_made() -> None:
    """docs/files.md: it has no argument that does not exist."""
    (program,) = [text for kind, text in blocks("files.md") if kind == "python"]
    found: dict[str, object] = {}
    exec(program, found)
    assert isinstance(found["flights"], FileSpout)
