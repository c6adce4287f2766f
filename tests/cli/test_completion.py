"""Completion, asked as Bash asks, and as a shell that does not split FILE.py:TOPOLOGY."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import add_completion_class
from click.testing import CliRunner

from txn.cli import cli
from txn.cli.completion import Bash

PROGRAM = """
import txn
from txn import Topology
raise SystemExit("a file is parsed, not run")
orders = Topology("orders")
ordered = other = txn.Topology("other")
total = 3
def make(kind: str) -> Topology: ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with topologies, one that is no Python, and the log of one that ran."""
    (tmp_path / "app.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / ".txn" / "logs").mkdir(parents=True)
    (tmp_path / ".txn" / "logs" / "page_views.log").touch()
    monkeypatch.chdir(tmp_path)


def completed(shell: str, *words: str) -> list[str]:
    """What a shell offers for the last of these words."""
    add_completion_class(Bash)
    asked = {
        "_TXN_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    said = CliRunner().invoke(cli, [], prog_name="txn", env=asked).output.split()
    return [line.partition(",")[2] for line in said]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pre"], ["preview"]),
        (["run", "app"], ["app.py:orders", "app.py:ordered", "app.py:other", "app.py:make"]),
        (["run", "app.py", ":"], ["orders", "ordered", "other", "make"]),
        (["preview", "app.py", ":", "ord"], ["orders", "ordered"]),
        (["plan", "app.py:m"], ["app.py:make"]),
        (["status", "p"], ["page_views"]),
        (["status", "app.py", ":", "m"], ["make"]),
        (["run", "broken.py", ":"], []),
    ],
)
def test_bash_is_offered_what_fits(words: list[str], offered: list[str]) -> None:
    """Commands, files with their topologies, names that ran here; Bash cuts words at a colon."""
    assert completed("bash", "txn", *words) == offered


def test_other_shells_get_the_whole_word() -> None:
    """Fish and Zsh do not cut it."""
    assert completed("fish", "txn", "run", "app.py:ma") == ["app.py:make"]
