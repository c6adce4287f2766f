"""A user's own file or folder that has the name of one of our packages."""

from __future__ import annotations

import os
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
    place = folder / (f"{name}.py" if way == "module" else name)
    if way != "module":
        place.mkdir()
        (place / "__init__.py").touch()
        (place / "errors.py").touch()
    else:
        place.touch()
    return place


def run(program: Path) -> str:
    """What a plain program says on stderr."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, program]
    return subprocess.run(command, capture_output=True, text=True, env=env).stderr


@pytest.mark.parametrize("name", ["spouts.memory", "committers.append_table"])
@pytest.mark.parametrize("way", ["folder", "module", "program"])
def test_a_plain_program_is_told_what_hides_txn(tmp_path: Path, name: str, way: str) -> None:
    """Spouts and committers need it: the import error names what is in the way, be it the program
    itself, or a package that has modules with the names of ours.
    """
    program = tmp_path / ("txn.py" if way == "program" else "program.py")
    place = program if way == "program" else make(tmp_path, "txn", way)
    program.write_text(f"import {name}\nfrom txn import Topology\n")
    said = run(program).splitlines()[-1]
    assert said.startswith(f"ImportError: '{place}' hides the installed package 'txn' of txn-spark")
    assert "Rename it, or move it" in said


@pytest.mark.parametrize("name", PROGRAM)
@pytest.mark.parametrize("way", ["folder", "module"])
def test_a_plain_program_is_told_what_hides_our_package(
    tmp_path: Path, name: str, way: str
) -> None:
    """`import txn` warns of it, before Python's own message; it is no error by itself."""
    place = make(tmp_path, name, way)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM[name])
    warned, *_, failed = run(program).splitlines()
    assert warned.startswith(f"{program}:1: UserWarning: '{place}' hides the installed package")
    assert "Rename it, or move it" in warned
    assert failed.startswith(("ModuleNotFoundError: No module named", "ImportError: cannot import"))
    program.write_text("import txn\n")
    assert "Traceback" not in run(program)


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
