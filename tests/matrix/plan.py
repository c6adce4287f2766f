"""Which Sparks, Pythons and Javas are tried together, and what is run on each."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from txn.spark.versions import LINES, line_of

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
JAVAS = (17, 21, 25)
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.M)


@dataclass(frozen=True)
class Cell:
    """A Spark, a Python and a Java that run together."""

    spark: str
    python: str
    java: int

    @property
    def line(self) -> str:
        """The line of its Spark: 4.2."""
        return line_of(self.spark)

    @property
    def name(self) -> str:
        """For a folder."""
        return f"spark-{self.spark}-python-{self.python}-java-{self.java}"


@dataclass(frozen=True)
class Part:
    """Tests, or random programs, that are run in one process."""

    name: str
    quick: tuple[str, ...]
    """Paths of tests for a quick run."""
    more: tuple[str, ...] = ()
    """Paths that only a full run has."""
    seeds: tuple[int, int] = (0, 0)
    """Instead of tests: how many random programs a quick run has, and a full one."""


PARTS = (
    Part(
        "core",
        ("tests/spark", "tests/delta"),
        (
            "tests/machine/test_jars.py",
            "tests/committers/staging/test_writing.py",
            "tests/engine/test_failures.py",
            "tests/engine/test_reported_causes.py",
        ),
    ),
    Part("aggregates", ("tests/committers/aggregates",)),
    Part(
        "files",
        ("tests/spouts/test_csv_files.py", "tests/spouts/test_files_bad_rows.py"),
        ("tests/spouts/test_files.py", "tests/spouts/test_files_columns.py"),
    ),
    Part(
        "layouts",
        ("tests/committers/log_layout", "tests/committers/test_append_table.py"),
        (
            "tests/committers/test_state_table.py",
            "tests/committers/test_state_table_changes.py",
            "tests/committers/test_state_table_reading.py",
            "tests/committers/test_state_table_removal.py",
        ),
    ),
    Part("crashes", ("tests/faults/test_crash_matrix.py",), ("tests/faults/test_log_layout.py",)),
    Part(
        "kafka",
        ("tests/spouts/test_kafka_values.py", "tests/spouts/test_kafka_relation.py"),
        (
            "tests/spouts/test_kafka.py",
            "tests/spouts/test_kafka_read.py",
            "tests/faults/test_kafka.py",
        ),
    ),
    Part("s3", ("tests/spouts/test_delta_s3.py",), ("tests/faults/test_staging_on_s3.py",)),
    Part("differential", (), seeds=(5, 40)),
)


def supported(cells: Iterable[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Separate cells whose Java goes with their Spark from the others."""
    cells = list(cells)
    good = [cell for cell in cells if cell.java in LINES[cell.line].javas]
    return good, [cell for cell in cells if cell not in good]


def cover(sparks: Sequence[str], pythons: Sequence[str], javas: Sequence[int]) -> list[Cell]:
    """Return cells in which every Spark meets every Java and every Python once."""
    by_java = [Cell(spark, pythons[0], java) for spark in sparks for java in javas]
    by_python = [Cell(spark, python, javas[0]) for spark in sparks for python in pythons]
    return list(dict.fromkeys(by_java + by_python))


def product(sparks: Sequence[str], pythons: Sequence[str], javas: Sequence[int]) -> list[Cell]:
    """Return every cell."""
    return list(itertools.starmap(Cell, itertools.product(sparks, pythons, javas)))


def find_pythons() -> dict[str, Path]:
    """Return the Pythons of this machine: a version -> the program."""
    folders = sorted(Path.home().glob(".pyenv/versions/*/bin"))
    pythons: dict[str, Path] = {}
    for version in PYTHONS:
        names = [shutil.which(f"python{version}"), *(f / f"python{version}" for f in folders)]
        programs = [Path(name) for name in names if name and Path(name).exists()]
        program = next(filter(_runs, programs), None)
        if program is not None:
            pythons[version] = program
    return pythons


def _runs(program: Path) -> bool:
    """Return whether it is more than a shim without a Python behind it."""
    return subprocess.run([program, "-c", ""], capture_output=True).returncode == 0


def find_javas(homes: Iterable[Path]) -> dict[int, Path]:
    """Return the Javas of these folders and of this machine: a major version -> its home."""
    named = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    javas: dict[int, Path] = {}
    for home in (*homes, *named, *sorted(Path("/usr/lib/jvm").glob("*"))):
        release = home / "release"
        match = _JAVA_VERSION.search(release.read_text()) if release.exists() else None
        if match and (home / "bin" / "java").exists():
            javas.setdefault(int(match[1]), home)
    return {major: javas[major] for major in JAVAS if major in javas}


def missing(pythons: Mapping[str, Path], javas: Mapping[int, Path]) -> str:
    """Name what this machine lacks; empty if it has everything."""
    lacking = [f"Python {version}" for version in PYTHONS if version not in pythons]
    lacking += [f"Java {major}" for major in JAVAS if major not in javas]
    return ", ".join(lacking)
