"""The program in README.md, run as it stands by a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def program() -> tuple[str, str]:
    """The program, and the table that it prints: the block with `Topology`, and the next one."""
    ((code, printed),) = re.findall(
        r"^```python\n((?:(?!```).)*Topology\(.*?)^```\n\n```\n(.*?)^```$", README, re.S | re.M
    )
    return code, printed


def rows(printed: str) -> list[tuple[str, ...]]:
    """The cells of a table that `DataFrame.show` has printed."""
    lines = (line.strip() for line in printed.splitlines())
    return [
        tuple(cell.strip() for cell in line[1:-1].split("|"))
        for line in lines
        if line.startswith("|")
    ]


def test_the_readmes_program_does_what_the_readme_says(
    program: tuple[str, str], tmp_path: Path
) -> None:
    """It prints the table shown below it; run again with another file, it counts only that one."""
    code, printed = program
    (command,) = re.findall(r"^\$ (mkdir .*)$", README, re.M)
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True)
    (tmp_path / "shop.py").write_text(code, "utf-8")

    def run() -> list[tuple[str, ...]]:
        ended = subprocess.run(
            [sys.executable, "shop.py"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return rows(ended.stdout)

    header = ("customer", "orders", "spent")
    assert run() == rows(printed) == [header, ("anna", "2", "15"), ("bert", "1", "20")]
    (tmp_path / "orders" / "tuesday.csv").write_text("bert,1\ncarl,7\n")
    assert run() == [header, ("anna", "2", "15"), ("bert", "2", "21"), ("carl", "1", "7")]


def test_the_readme_stays_short(program: tuple[str, str]) -> None:
    """The program has at most 15 lines and ends within the first 50; the page has at most 120."""
    code, _ = program
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    lines = README.splitlines()
    assert len(lines) <= 120
    assert lines.index('topology.run(spark, until="caught_up")') < 50
