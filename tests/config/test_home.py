from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from committers.append_table import AppendTable
from spouts.files import FileSpout
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.cli.completion import names
from txn.config.home import nearest_home, program_folder
from txn.config.location import at_home, home_at, resolve
from txn.interfaces import Spout
from txn.operations.homes import notes_on_homes
from txn.operations.loading import load_topology

pytestmark = pytest.mark.fast


def topology_in(
    program: Path | None, table: Path | str, spout: Spout[Any] | None = None
) -> Topology:
    """A topology `t` of a program in a folder, with one table."""
    topology = Topology("t")
    topology.program_folder = program
    spout = spout or MemoryTransactionalSpout([[]], "v int")
    topology.stream("rows", spout).partition_persist(AppendTable(table))
    return topology


def ran(home: Path, topology: str = "t") -> Path:
    """Leave in a home what a run leaves there: the node of its topology in the server's log."""
    log = home / ".txn/zookeeper/data/version-2/log.1"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"\0" * 100_000 + f"/txn/{topology}/epoch".encode() + b"\0" * 100)
    (log.parent / "snapshot.0").touch()
    return home


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder beside that of the program."""
    (tmp_path / "here").mkdir()
    (tmp_path / "program").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_progress_lies_beside_a_program_with_absolute_tables(here: Path, tmp_path: Path) -> None:
    """It has the same tables from wherever it is started, and so it has the same progress."""
    program = tmp_path / "program"
    assert topology_in(program, tmp_path / "table").home == program
    assert topology_in(program, "s3://bucket/table").home == program
    assert topology_in(program, f"file:{tmp_path}/table").home == program
    assert topology_in(None, tmp_path / "table").home.absolute() == here


def test_progress_of_relative_tables_lies_in_the_working_directory(
    here: Path, tmp_path: Path
) -> None:
    """Started elsewhere it has other tables, so it must have other progress."""
    ran(tmp_path)  # a home above the working directory is not that of these tables
    assert topology_in(tmp_path / "program", "warehouse/table").home.absolute() == here
    assert topology_in(None, "warehouse/table").home.absolute() == here


def test_a_name_is_looked_up_from_the_working_directory_upwards(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git does: the nearest folder that has .txn; the working directory if none has."""
    assert (nearest_home(), resolve("embedded").folder) == (Path(), Path(".txn/zookeeper"))
    ran(tmp_path)
    assert resolve("embedded").folder == tmp_path / ".txn/zookeeper"
    assert [item.value for item in names(None, None, "t")] == ["t"]  # type: ignore[arg-type]
    (here / ".txn").mkdir()
    assert resolve("embedded").folder == Path(".txn/zookeeper")


def test_embedded_alone_means_the_server_of_the_home(here: Path, tmp_path: Path) -> None:
    """Any other spec is what the user named."""
    program = tmp_path / "program"
    owner = topology_in(program, tmp_path / "table")
    assert at_home("embedded", owner) == f"embedded:{program}/.txn/zookeeper"
    assert home_at(f"embedded:{program}/.txn/zookeeper") == program
    assert [home_at(spec) for spec in ("embedded", "embedded:zk", "zk1:2181")] == [None] * 3
    relative, beside = topology_in(None, "table"), topology_in(here, tmp_path / "table")
    owners = (relative, beside, None)
    assert [at_home("embedded", one) for one in owners] == ["embedded"] * 3
    assert [at_home(spec, owner) for spec in ("zk1:2181", "embedded:x")] == [
        "zk1:2181",
        "embedded:x",
    ]


def test_progress_that_is_elsewhere_is_never_begun_a_second_time(
    here: Path, tmp_path: Path
) -> None:
    """An earlier release left it in the folder of the start. The note has the command that moves
    it; after that command the note is gone.
    """
    program, table = tmp_path / "program", tmp_path / "table"
    ran(here)
    topology = topology_in(program, table)
    assert topology.home == program  # another project's: this one has no table yet
    (table / "_delta_log").mkdir(parents=True)
    assert topology.home == here
    (note,) = notes_on_homes(topology)
    command = note.partition("while nothing runs: ")[2]
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert (topology.home, notes_on_homes(topology)) == (program, [])
    (here / ".txn").rename(tmp_path / ".txn")
    ran(here, "another")
    assert (topology.home, notes_on_homes(topology)) == (program, [])


def test_a_second_progress_is_pointed_out(here: Path, tmp_path: Path) -> None:
    """Whoever has two learns which one is used."""
    program = ran(tmp_path / "program")
    ran(here)
    (note,) = notes_on_homes(topology_in(program, tmp_path / "table"))
    assert note == (
        f"Topology 't' also has progress in {here}/.txn. That is not used: this run goes on with "
        f"{program}/.txn."
    )


def test_a_program_with_relative_tables_is_told_that_it_also_ran_in_its_own_folder(
    here: Path, tmp_path: Path
) -> None:
    """Whoever started it in the wrong folder sees where the other tables are."""
    program = ran(tmp_path / "program")
    (note,) = notes_on_homes(topology_in(program, "warehouse/table"))
    assert f"also has progress in {program}/.txn. The program has relative paths" in note
    assert not notes_on_homes(topology_in(here, "warehouse/table"))


def test_progress_of_relative_sources_lies_in_the_working_directory(
    here: Path, tmp_path: Path
) -> None:
    """Elsewhere their files are others, of the same names, and would be passed over."""
    for pattern, home in (("in/*.csv", here), (f"{tmp_path}/in/*.csv", tmp_path / "program")):
        spout = FileSpout(pattern, format="csv", schema="v int")
        topology = topology_in(tmp_path / "program", tmp_path / "table", spout)
        assert topology.home.absolute() == home


def test_the_home_of_a_linked_program_is_where_the_link_is(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are the tables that it names by its `__file__`."""
    text = "from txn import Topology; t = Topology('t'); folder = __file__"
    (tmp_path / "program/main.py").write_text(text, "utf-8")
    (here / "main.py").symlink_to(tmp_path / "program/main.py")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_topology("main.py:t").program_folder == here
    assert load_topology("../program/main.py:t").program_folder == tmp_path / "program"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["../program/main.py"], "program"),
        (["-m", "main"], "program"),
        (["-c", "from txn.config.home import program_folder as h; print(h())"], None),
    ],
)
def test_the_program_is_the_script_that_python_runs(
    here: Path, tmp_path: Path, command: list[str], expected: str | None
) -> None:
    """A prompt has none, nor has a test runner."""
    program = tmp_path / "program"
    (program / "main.py").write_text(
        "from txn.config.home import program_folder as h; print(h())", "utf-8"
    )
    made = subprocess.run(
        [sys.executable, *command],
        cwd=program if "-m" in command else here,
        check=True,
        capture_output=True,
        text=True,
    )
    assert made.stdout.strip() == str(None if expected is None else tmp_path / expected)
    assert program_folder() is None
