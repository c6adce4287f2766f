"""A user's own file or folder that has the name of one of our packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txn.doctor.machine import check_machine
from txn.hidden import hiding
from txn.operations.loading import LoadError, load_topology

PROGRAM = {
    "spouts": "from txn import Topology\nfrom spouts.memory import MemoryTransactionalSpout\n",
    "committers": "import txn\nfrom committers import state_table\n",
    "txn": "from spouts.memory import MemoryTransactionalSpout\n",
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


@pytest.mark.parametrize("name", PROGRAM)
def test_a_plain_program_is_told_what_hides_our_package(tmp_path: Path, name: str) -> None:
    """The import error names the folder that is in the way, our package, and what to do."""
    make(tmp_path, name, "folder")
    (tmp_path / "program.py").write_text(PROGRAM[name])
    ran = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, cwd=tmp_path
    )
    said = ran.stderr.splitlines()[-1]
    assert f"'{tmp_path / name}" in said
    assert f"hides the installed package '{name}'" in said
    assert "Rename it, or move it" in said


@pytest.mark.parametrize("way", ["folder", "module"])
def test_a_loaded_program_is_told_what_hides_our_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """So does `txn run`, which names the program's line; also of a module, which has no parts."""
    place = make(tmp_path, "spouts", way)
    (tmp_path / "program.py").write_text(PROGRAM["spouts"])
    monkeypatch.setattr("sys.path", list(sys.path))
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "spouts"]:
        monkeypatch.delitem(sys.modules, loaded)
    try:
        with pytest.raises(LoadError) as error:
            load_topology(f"{tmp_path / 'program.py'}:topology")
    finally:
        sys.modules.pop("spouts", None)
    said = str(error.value)
    assert said.count(f"'{place}' hides the installed package 'spouts' of txn-spark") == 1
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


def test_a_users_own_modules_are_no_matter_of_ours(tmp_path: Path) -> None:
    """A user's `spouts` may have parts of its own, and lack others, as Python says."""
    make(tmp_path, "spouts", "folder")
    (tmp_path / "spouts" / "mine.py").touch()
    code = "import txn, spouts.mine, importlib.util as u; print(u.find_spec('spouts.other'))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert ran.stdout == "None\n"
    assert hiding([str(tmp_path)]) == {"spouts": tmp_path / "spouts"}
