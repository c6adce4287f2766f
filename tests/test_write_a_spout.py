"""docs/write-a-spout.md, tried as a new user would: every file in it is written down and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "write-a-spout.md").read_text("utf-8")
FILES = dict(re.findall(r"^```\w+ (\S+\.\w+)\n(.*?)^```$", PAGE, re.S | re.M))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The user's folder with the files of the page, installed as `pip install -e .` would."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        )
    )
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python module, as the user runs it in the folder."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_the_plugin_of_the_page_passes_the_kit_and_is_listed(folder: Path) -> None:
    """Its tests pass, `txn plugins` lists it and `txn plan` knows what it guarantees."""
    tests = run(folder, "pytest", "-q", "-p", "no:cacheprovider", "test_sqlite_log.py")
    assert (tests.returncode, "6 passed" in tests.stdout) == (0, True), tests.stdout + tests.stderr
    listed = run(folder, "txn", "plugins", "--json")
    (found,) = (p for p in json.loads(listed.stdout) if p["distribution"] == "sqlite-log")
    assert (found["name"], found["kind"], found["error"]) == ("sqlite_log", "transactional", None)
    planned = json.loads(run(folder, "txn", "plan", "program.py:topology", "--json").stdout)
    assert planned["streams"][0]["spout"] == "SqliteLogSpout"
    assert planned["tables"][0]["guarantee"] == "exactly once"


def test_the_page_keeps_to_sixty_lines() -> None:
    """A working plugin with its test is under 60 lines of Python, as the page says."""
    code = [FILES["sqlite_log.py"], FILES["test_sqlite_log.py"]]
    lines = [line for text in code for line in text.splitlines() if line.strip()]
    assert f"in {len(lines)} lines of Python" in PAGE
    assert len(lines) < 60
