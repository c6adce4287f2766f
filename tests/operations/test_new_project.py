"""`txn new` makes a project, whole or not at all; what is in it is run by tests/examples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from txn.errors import SetupError, UserError
from txn.operations import new_project
from txn.operations.new_project import make_project


def test_a_project_has_its_name_everywhere(tmp_path: Path) -> None:
    """Its module, its test, its topology; and nothing beside it is left."""
    project = make_project("sales", tmp_path)
    assert os.listdir(tmp_path) == ["sales"]
    assert sorted(str(f.relative_to(project)) for f in project.rglob("*") if f.is_file()) == [
        ".gitignore",
        "README.md",
        "data/monday.csv",
        "data/tuesday.csv",
        "pyproject.toml",
        "sales.py",
        "tests/test_sales.py",
    ]
    texts = [file.read_text() for file in project.rglob("*") if file.is_file()]
    assert not any("PROJECT" in text for text in texts)
    assert 'Topology("sales"' in (project / "sales.py").read_text()


@pytest.mark.parametrize("name", ["Sales", "1st", "a-b", "../up", "", "class", "spouts", "x" * 61])
def test_a_name_that_no_module_can_have_is_refused(name: str, tmp_path: Path) -> None:
    """It says what a name looks like."""
    with pytest.raises(UserError, match="cannot name a project.*Use small letters") as error:
        make_project(name, tmp_path)
    assert (error.value.number, os.listdir(tmp_path)) == ("TXN-104", [])


@pytest.mark.parametrize("name", ["csv", "json", "pyspark", "delta"])
def test_a_name_that_would_hide_a_module_is_refused(name: str, tmp_path: Path) -> None:
    """`python csv.py` would import itself wherever Spark wants Python's csv."""
    with pytest.raises(UserError, match=f"in place of the module '{name}'.*{name}_totals") as error:
        make_project(name, tmp_path)
    assert (error.value.number, os.listdir(tmp_path)) == ("TXN-104", [])


def test_nothing_is_overwritten_or_left_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there stays, a link that leads nowhere, too; after a full disk there is nothing."""
    (tmp_path / "sales").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SetupError, match="is there already, and nothing was changed"):
        make_project("sales", tmp_path)
    with pytest.raises(SetupError, match=r"cannot be made: No such file.* that you may write to"):
        make_project("sales", tmp_path / "none")

    def full(folder: Path, name: str) -> None:
        (folder / f"{name}.py").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(new_project, "_fill", full)
    with pytest.raises(SetupError, match="cannot be made: No space left on device"):
        make_project("orders", tmp_path)
    assert os.listdir(tmp_path) == ["sales"]
