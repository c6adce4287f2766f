"""The public API as type checkers see it in an installed wheel (`py.typed`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.release.distribution import ROOT, build, install
from tests.release.pages import modules

FILES = ("user_code.py", "wrong_code.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    return install(build("wheel", ROOT, folder), folder / "env")


def run(folder: Path, *command: str) -> str:
    """The output of a checker in a folder that has nothing of the repository but the programs."""
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode in {0, 1}, ended.stdout + ended.stderr
    return ended.stdout


def mypy(folder: Path, python: Path, *arguments: str) -> str:
    options = ("--no-incremental", "--python-executable", str(python))
    return run(folder, "mypy", *options, *arguments)


def by_mypy(folder: Path, python: Path) -> list[tuple[str, int]]:
    output = mypy(folder, python, "--strict", *FILES)
    reported = re.findall(r"^(\S+):(\d+): error:", output, re.M)
    return [(name, int(line)) for name, line in reported]


def by_pyright(folder: Path, python: Path) -> list[tuple[str, int]]:
    report = json.loads(run(folder, "pyright", "--outputjson", "--pythonpath", str(python), *FILES))
    return [
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1)
        for found in report["generalDiagnostics"]
    ]


@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_a_users_program_is_checked_against_the_wheel(
    checker: Callable[[Path, Path], list[tuple[str, int]]], python: Path, tmp_path: Path
) -> None:
    """A program with plugins has no error, and each mistake in another program is reported."""
    for name in FILES:
        shutil.copy(ROOT / "tests" / "release" / name, tmp_path)
    lines = (tmp_path / "wrong_code.py").read_text().splitlines()
    mistakes = [n for n, line in enumerate(lines, 1) if "# mistake:" in line]
    assert [("wrong_code.py", n) for n in mistakes] == sorted(set(checker(tmp_path, python)))


def test_the_code_on_pages_fits_the_wheel(python: Path, tmp_path: Path) -> None:
    """Every name and argument in the Python code of docs/ exists, and has a type that fits."""
    for name, text in modules():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) > 10
    options = ("--check-untyped-defs", "--ignore-missing-imports")
    assert mypy(tmp_path, python, *options, *names).startswith("Success: no issues found")
