from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from txn.errors import TopologyError
from txn.operations.loading import LoadError, TargetError, load_topology

PROGRAM = """
from txn import Topology
import beside

one = Topology("one")
NUMBER = 3

class holder:
    two = Topology("two")

def made():
    return Topology(beside.NAME)

def broken():
    raise ValueError("no such luck")

def wrong_name():
    return Topology("a/b")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file with a module beside it, in a folder that is not the working directory."""
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "app", raising=False)
    (tmp_path / "app").mkdir()
    # A package: a file app.py anywhere on the path would hide a folder that is none.
    (tmp_path / "app" / "__init__.py").touch()
    (tmp_path / "app" / "beside.py").write_text('NAME = "three"')
    path = tmp_path / "app" / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    ("name", "expected"), [("one", "one"), ("holder.two", "two"), ("made", "three")]
)
def test_topology_of_a_file(program: Path, name: str, expected: str) -> None:
    """A topology is found by its name in a file, also in a class, also made by a function."""
    assert load_topology(f"{program}:{name}").name == expected


def test_topology_of_a_module(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dotted module that can be imported from the working directory will do as well."""
    monkeypatch.chdir(program.parent.parent)
    monkeypatch.syspath_prepend(program.parent)
    assert load_topology("app.program:one").name == "one"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{folder}/none.py:one", "no file"),
        ("{folder}/program.py:none", "it has: one"),
        ("{folder}/program.py:NUMBER", "is int"),
        ("{folder}/program.py:holder", "is type"),
        ("{folder}/program.py", "names no topology"),
        ("{folder}/beside.py:NAME", "it has no Topology"),
        ("{folder}/data.txt:x", "must end in .py"),
        ("no.such.module:x", "no module"),
        (":x", "no module"),
    ],
)
def test_what_is_not_there_is_named(program: Path, target: str, message: str) -> None:
    """A file, module or name that is not there, or is no topology, is a mistake of the caller."""
    (program.parent / "data.txt").write_text("")
    with pytest.raises(TargetError, match=message):
        load_topology(target.format(folder=program.parent))


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_a_function_that_makes_a_topology_is_offered(tmp_path: Path, future: str) -> None:
    """As `txn new` writes it: a misspelt name is answered with the function's."""
    (tmp_path / "shop.py").write_text(
        f"{future}from txn import Topology\n"
        "def shop(name: str = 'shop') -> Topology:\n    return Topology(name)\n"
    )
    with pytest.raises(TargetError, match="has no 'shpo'; it has: shop"):
        load_topology(f"{tmp_path / 'shop.py'}:shpo")


def test_error_of_the_file_is_told_with_its_line(program: Path) -> None:
    """What the user's file raises is told with its kind, file and line, and kept as the cause."""
    with pytest.raises(
        LoadError, match=r"ValueError: no such luck \(program.py, line 15\)"
    ) as info:
        load_topology(f"{program}:broken")
    assert isinstance(info.value.__cause__, ValueError)


def test_file_that_does_not_parse(program: Path) -> None:
    """A syntax error is told as one."""
    program.write_text("def (:")
    with pytest.raises(LoadError, match="SyntaxError"):
        load_topology(f"{program}:one")


def test_errors_of_the_project_come_through(program: Path) -> None:
    """A TopologyError says what is wrong well enough by itself."""
    with pytest.raises(TopologyError, match="cannot name a topology"):
        load_topology(f"{program}:wrong_name")


def test_a_package_that_fails_while_it_is_looked_for_is_told(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports a package to look for a module in it: what that raises is the user's error."""
    package = program.parent / "failing"
    package.mkdir()
    (package / "__init__.py").write_text("raise IndexError('no such luck')")
    monkeypatch.syspath_prepend(program.parent)
    with pytest.raises(LoadError, match=r"failing\.module.*IndexError: no such luck"):
        load_topology("failing.module:x")


def planned_with(command: list[str], cwd: Path) -> str:
    """What a process of its own says of a program's plan, started in another folder."""
    ran = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("way", ["script", "module"])
def test_the_programs_own_folder_comes_first(tmp_path: Path, way: str) -> None:
    """As with `python FILE`, modules beside the program win, and the working directory has none."""
    app, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    app.mkdir()
    elsewhere.mkdir()
    (app / "beside.py").write_text('NAME = "beside-the-program"')
    (elsewhere / "beside.py").write_text('NAME = "of-the-working-directory"')
    (elsewhere / "only_here.py").write_text("")
    for package in ("spouts", "committers"):
        (elsewhere / package).mkdir()
        (elsewhere / package / "__init__.py").write_text("raise RuntimeError('a stranger')")
    (app / "program.py").write_text(
        "import importlib.util\n"
        "from txn import Topology\n"
        "from beside import NAME\n"
        "from spouts.memory import MemoryTransactionalSpout\n"
        "from committers.append_table import AppendTable\n"
        "assert importlib.util.find_spec('only_here') is None\n"
        "topology = Topology(NAME)\n"
        "rows = topology.stream('rows', MemoryTransactionalSpout([[(1,)]], 'v int'))\n"
        "rows.partition_persist(AppendTable('table'))\n"
    )
    (tmp_path / "link.py").symlink_to(app / "program.py")
    start = {
        "script": [str(Path(sys.executable).with_name("txn"))],
        "module": [sys.executable, "-m", "txn"],
    }
    for target in (app / "program.py", tmp_path / "link.py"):
        said = planned_with([*start[way], "plan", f"{target}:topology"], elsewhere)
        assert "beside-the-program" in said, said


def test_a_folder_that_stands_further_back_comes_to_the_front(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's folder that PYTHONPATH names, too, is still searched before all others."""
    sys.path.append(str(program.parent))
    load_topology(f"{program}:one")
    assert sys.path[0] == str(program.parent)
    load_topology(f"{program}:one")
    assert sys.path[1] != str(program.parent)
    monkeypatch.chdir(program.parent.parent)
    load_topology("app.program:one")
    assert sys.path[0] == str(program.parent.parent)


def test_a_correction_within_the_same_second_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program is compiled as it is now, whatever was compiled of it before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, text = tmp_path / "program.py", "from txn import Topology\nmade = Topology('{}')\n"
    for name in ("one", "two"):
        file.write_text(text.format(name))
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert load_topology(f"{file}:made").name == name
    assert [*tmp_path.iterdir()] == [file]
