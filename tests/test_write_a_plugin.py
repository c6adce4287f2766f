"""docs/write-a-spout.md and docs/write-a-committer.md, tried as a new user would.

Every file in them is written down and used.
"""

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
PAGES = {
    name: (ROOT / "docs" / f"write-a-{name}.md").read_text("utf-8")
    for name in ("spout", "committer")
}
FILES = {
    name: dict(re.findall(r"^```\w+ (\S+\.\w+)\n(.*?)^```$", page, re.S | re.M))
    for name, page in PAGES.items()
}


def installed(files: dict[str, str], folder: Path) -> Path:
    """The user's folder with the files of a page, installed as `pip install -e .` would."""
    for name, text in files.items():
        (folder / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
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
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python module, as the user runs it in the folder."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("page", "tests", "kind"), [("spout", 6, "transactional"), ("committer", 11, "opaque")]
)
def test_the_plugin_of_a_page_passes_the_kit_and_is_listed(
    tmp_path: Path, page: str, tests: int, kind: str
) -> None:
    """Its tests pass, `txn plugins` lists it and `txn plan` knows what it guarantees."""
    folder = installed(FILES[page], tmp_path)
    project = tomllib.loads(FILES[page]["pyproject.toml"])["project"]
    ((module, made),) = (
        entry.split(":") for entry in next(iter(project["entry-points"].values())).values()
    )
    kit = run(folder, "pytest", "-q", "-p", "no:cacheprovider", f"test_{module}.py")
    passed = (kit.returncode, f"{tests} passed" in kit.stdout)
    assert passed == (0, True), kit.stdout + kit.stderr
    listed = json.loads(run(folder, "txn", "plugins", "--json").stdout)
    (found,) = (plugin for plugin in listed if plugin["distribution"] == project["name"])
    assert (found["name"], found["kind"], found["error"]) == (module, kind, None)
    planned = json.loads(run(folder, "txn", "plan", "program.py:topology", "--json").stdout)
    assert made in (planned["streams"][0]["spout"], planned["tables"][0]["committer"])
    assert planned["tables"][0]["guarantee"] == "exactly once"


@pytest.mark.parametrize(("page", "most"), [("spout", 60), ("committer", 140)])
def test_a_page_says_how_long_its_plugin_is(page: str, most: int) -> None:
    """The lines of Python, test included, are as many as the page says, and few."""
    module = next(name for name in FILES[page] if name.startswith("sqlite_"))
    code = [FILES[page][module], FILES[page][f"test_{module}"]]
    lines = [line for text in code for line in text.splitlines() if line.strip()]
    assert f"in {len(lines)} lines of Python" in PAGES[page]
    assert len(lines) < most
