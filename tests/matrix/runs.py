"""Runs tests in an environment with one Spark, one Python and one Java."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.matrix.plan import Cell, Part
from tests.release.distribution import ROOT

SLOWER = (
    "import json; from txn.spark.differences import slower_ways; print(json.dumps(slower_ways()))"
)
_PROGRAMS = re.compile(r"^\{.*\} (\d+) programs", re.M)
_FINDING = re.compile(r"^(seed \d+) \(", re.M)


@dataclass(frozen=True)
class Result:
    """The counts of one part on one Spark, Python and Java."""

    HEADER: ClassVar[str] = (
        f"{'Spark':6} {'Python':6} {'Java':4} {'part':13} "
        f"{'passed':>6} {'failed':>6} {'seconds':>7}"
    )

    cell: Cell
    part: str
    passed: int
    failures: tuple[str, ...]
    """Names of what failed; or why nothing was run."""
    seconds: float
    has_environment: bool = True

    @property
    def is_good(self) -> bool:
        """Return whether something was run, and nothing failed."""
        return self.passed > 0 and not self.failures

    def __str__(self) -> str:
        """Return its lines of the table."""
        line = (
            f"{self.cell.spark:6} {self.cell.python:6} {self.cell.java:<4} {self.part:13} "
            f"{self.passed:6} {len(self.failures):6} {self.seconds:7.0f}"
        )
        return "\n".join([line, *(f"       {name}" for name in self.failures)])


@dataclass(frozen=True)
class Machine:
    """The Pythons and Javas of this machine, and environments made of them."""

    work: Path
    pythons: Mapping[str, Path]
    javas: Mapping[int, Path]
    environments: Mapping[str, Path]
    """Environments that are there: the version of Spark -> the folder."""
    limit: float
    """Seconds after which one part is ended."""

    def run(self, cell: Cell, part: Part, *, quick: bool) -> Result:
        """Run one part."""
        began = time.monotonic()
        try:
            python = self._python(cell)
        except subprocess.CalledProcessError as error:
            words = (error.stderr or "").strip().splitlines() or [str(error)]
            seconds = time.monotonic() - began
            return Result(cell, part.name, 0, (words[-1],), seconds, has_environment=False)
        folder = self.work / "results" / cell.name
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        passed, failures = self._counts(cell, part, python, folder, quick=quick)
        return Result(cell, part.name, passed, failures, time.monotonic() - began)

    def slower_ways(self, cell: Cell) -> dict[str, str]:
        """Ask an environment what its Spark does at a cost."""
        command = [str(self._python(cell)), "-c", SLOWER]
        done = subprocess.run(
            command, env=self._variables(cell), capture_output=True, text=True, cwd=ROOT
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {"?": done.stderr}

    def _counts(
        self, cell: Cell, part: Part, python: Path, folder: Path, *, quick: bool
    ) -> tuple[int, tuple[str, ...]]:
        """Return how many tests or programs passed, and the names of the others."""
        log, report = folder / f"{part.name}.log", folder / f"{part.name}.xml"
        report.unlink(missing_ok=True)
        if part.seeds != (0, 0):
            seeds = part.seeds[0 if quick else 1]
            findings = f"--findings={folder}"
            command = ["-m", "tests.differential", f"--seeds={seeds}", findings, "--no-shrink"]
        else:
            paths = part.quick if quick else (*part.quick, *part.more)
            command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
            command += paths
        with log.open("w") as output:
            try:
                code = subprocess.run(
                    [python, *command],
                    env=self._variables(cell),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    timeout=self.limit,
                ).returncode
            except subprocess.TimeoutExpired:
                return 0, (f"not ended after {self.limit:.0f} s: {log}",)
        counts = read_report(report) if report.exists() else read_programs(log.read_text())
        if code and not counts[1]:
            return counts[0], (f"exit status {code}: {log}",)
        return counts

    def _python(self, cell: Cell) -> Path:
        """Return the Python of an environment with this Spark, made if it is not there."""
        if cell.spark in self.environments:
            return self.environments[cell.spark] / "bin" / "python"
        folder = self.work / f"spark-{cell.spark}-python-{cell.python}"
        python, finished = folder / "bin" / "python", folder / ".finished"
        project = (ROOT / "pyproject.toml").read_text()
        if not finished.exists() or finished.read_text() != project:
            print(f"Installing Spark {cell.spark} for Python {cell.python} ...", file=sys.stderr)
            _check([self.pythons[cell.python], "-m", "venv", folder])
            _install(python, "--editable", f"{ROOT}[dev]")
            _install(python, f"pyspark=={cell.spark}")
            finished.write_text(project)
        return python

    def _variables(self, cell: Cell) -> dict[str, str]:
        return {**without_spark(), "JAVA_HOME": str(self.javas[cell.java])}


def without_spark() -> dict[str, str]:
    """Return this process's variables without those that name a Spark outside of pyspark."""
    hidden = ("SPARK_HOME", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _install(python: Path, *requirements: str) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _check([*pip, *requirements])


def _check(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def read_report(report: Path) -> tuple[int, tuple[str, ...]]:
    """Read the names of tests that failed, and how many passed, from pytest's report."""
    cases = list(ET.parse(report).iter("testcase"))
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return len(cases) - len(failed), tuple(failed)


def read_programs(log: str) -> tuple[int, tuple[str, ...]]:
    """Read the same of random programs from what they printed."""
    programs, findings = _PROGRAMS.search(log), _FINDING.findall(log)
    return (int(programs[1]) if programs else 0) - len(findings), tuple(findings)
