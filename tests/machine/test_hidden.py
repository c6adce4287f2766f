"""A user's own file or folder that has the name of one of our packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txn.doctor.machine import check_machine
from txn.machine.hidden import hiding
from txn.operations.loading import LoadError, load_topology

PROGRAM = {
    "spouts": "from txn import Topology\nfrom spouts.memory import MemoryTransactionalSpout\n",
    "committers": "import txn\nfrom committers import state_table\n",
}


def make(folder: Path, name: str, way: str) -> Path:
    """A package or a module of that name."""
    place = folder / (name if way == "folder" else f"{name}.py")
    if way == "folder":
        place.mkdir()
        (place / "__init__.py").touch()
    else:
        place.touch()
    return place


def test_a_plain_program_is_told_what_hides_txn(tmp_path: Path) -> None:
    """Spouts and committers need it: the import error names the folder that is in the way."""
    make(tmp_path, "txn", "folder")
    (tmp_path / "program.py").write_text("from spouts.memory import MemoryTransactionalSpout\n")
    ran = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, cwd=tmp_path
    )
    said = ran.stderr.splitlines()[-1]
    assert f"'{tmp_path / 'txn'}" in said
    assert "hides the installed package 'txn'" in said
    assert "Rename it, or move it" in said


@pytest.mark.parametrize("name", PROGRAM)
@pytest.mark.parametrize("way", ["folder", "module"])
def test_a_loaded_program_is_told_what_hides_our_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    """`txn run` names the folder or module that is in the way, and the program's line."""
    place = make(tmp_path, name, way)
    (tmp_path / "program.py").write_text(PROGRAM[name])
    monkeypatch.setattr("sys.path", list(sys.path))
    for loaded in [m for m in sys.modules if m.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    try:
        with pytest.raises(LoadError) as error:
            load_topology(f"{tmp_path / 'program.py'}:topology")
    finally:
        sys.modules.pop(name, None)
    said = str(error.value)
    assert said.count(f"'{place}' hides the installed package '{name}' of txn-spark") == 1
    assert "(program.py, line 2)" in said
    assert "Rename it, or move it to a folder that Python does not search first" in said


def test_the_doctor_finds_what_hides_our_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning names each; there is none where all is well."""
    monkeypatch.setattr("txn.doctor.machine._java", lambda: iter(()))
    monkeypatch.chdir(tmp_path)

    def found() -> list[str]:
        return [f.found for f in check_machine() if f.check.startswith("package ")]

    (tmp_path / "committers").mkdir()  # no package: it hides nothing
    assert found() == []
    places = [make(tmp_path, "txn", "folder"), make(tmp_path, "spouts", "module")]
    assert [said.split("'")[1] for said in found()] == list(map(str, places))


def test_a_package_that_hides_ours_is_named_by_its_folder(tmp_path: Path) -> None:
    """The folders that are searched may be given; the other packages are ours."""
    make(tmp_path, "spouts", "folder")
    assert hiding([str(tmp_path)]) == {"spouts": tmp_path / "spouts"}
