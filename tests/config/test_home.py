from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.cli.completion import names
from txn.config.home import nearest_home, program_folder
from txn.config.location import at_home, home_at, resolve
from txn.errors import SetupError
from txn.operations.homes import check_homes

pytestmark = pytest.mark.fast


def topology_in(program: Path | None, table: Path | str) -> Topology:
    """A topology `t` of a program in a folder, with one table."""
    topology = Topology("t")
    topology.program_folder = program
    stream = topology.stream("rows", MemoryTransactionalSpout([[]], "v int"))
    stream.partition_persist(AppendTable(table))
    return topology


def ran(home: Path, *, with_progress: bool = True) -> Path:
    """Leave in a home what a run of `t` leaves there."""
    (home / ".txn/logs").mkdir(parents=True)
    (home / ".txn/logs/t.log").touch()
    if with_progress:
        (home / ".txn/zookeeper/data").mkdir(parents=True)
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
    assert at_home("embedded", program) == f"embedded:{program}/.txn/zookeeper"
    assert home_at(f"embedded:{program}/.txn/zookeeper") == program
    assert [home_at(spec) for spec in ("embedded", "embedded:zk", "zk1:2181")] == [None] * 3
    assert (at_home("embedded", Path()), at_home("embedded", here)) == ("embedded", "embedded")
    assert [at_home(spec, program) for spec in ("zk1:2181", "embedded:x")] == [
        "zk1:2181",
        "embedded:x",
    ]


def test_progress_that_an_earlier_release_left_elsewhere_is_moved_and_not_begun_anew(
    here: Path, tmp_path: Path
) -> None:
    """The refusal has the command that moves it; after that command the run goes on."""
    program = tmp_path / "program"
    ran(here)
    topology = topology_in(program, tmp_path / "table")
    with pytest.raises(SetupError, match="move it: ") as refused:
        check_homes(topology)
    command = str(refused.value).partition("move it: ")[2].partition(". If other")[0]
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert (program / ".txn/zookeeper/data").is_dir()
    (note,) = check_homes(topology)
    assert note.startswith(f"Topology 't' also ran in {here}. That one is not used")


def test_a_program_with_relative_tables_is_told_that_it_also_ran_in_its_own_folder(
    here: Path, tmp_path: Path
) -> None:
    """Whoever started it in the wrong folder sees where the other tables are."""
    program = ran(tmp_path / "program")
    (note,) = check_homes(topology_in(program, "warehouse/table"))
    assert f"also ran in {program}. Its tables have relative paths" in note
    assert not check_homes(topology_in(here, "warehouse/table"))


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
