from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from txn.cli.app import cli
from txn.cli.commands.dev import saves

pytestmark = pytest.mark.fast

PROGRAM = """
from committers.append_table import AppendTable
from parts import NAME
from spouts.files import FileSpout
from txn import Topology

topology = Topology(NAME)
spout = FileSpout("in/*.csv", format="csv", schema="v int")
topology.stream("rows", spout).partition_persist(AppendTable("table"))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that takes its name from a module beside it."""
    (tmp_path / "parts.py").write_text("NAME = 'first'", "utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "program.py"


def save(file: Path, text: str) -> None:
    """Save a file as an editor does, at another time than before."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text, "utf-8")
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


def sleeps(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Let the command alone sleep so; other threads of this process sleep as ever."""
    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr("txn.cli.commands.dev.time", clock)


def test_each_save_of_a_file_of_the_program_is_one_turn(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first comes at once; a module beside the program counts, and is loaded anew."""
    edits: Iterator[tuple[Path, str]] = iter(
        [(program, PROGRAM), (program.with_name("parts.py"), "NAME = 'second'")]
    )
    polls = []

    def sleep(secs: float) -> None:
        polls.append(secs)
        if len(polls) % 3 == 0:
            save(*next(edits))

    monkeypatch.syspath_prepend(str(program.parent))
    turns = saves(program, sleep)
    next(turns)
    names = [__import__("parts").NAME]
    for _ in range(2):
        next(turns)
        names.append(__import__("parts").NAME)
    assert (names, len(polls)) == (["first", "first", "second"], 6)
    del sys.modules["parts"]


def test_an_error_of_the_program_waits_for_the_next_save(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark is started once, for the first program that loads; Ctrl-C ends the command well."""
    edits = iter(["topology = ", PROGRAM, PROGRAM.replace("NAME)", "'t2')")])
    program.write_text("import nothing_of_the_kind", "utf-8")
    shown: list[str] = []
    sessions: list[str] = []

    def sleep(_: float) -> None:
        if (text := next(edits, None)) is None:
            raise KeyboardInterrupt
        save(program, text)

    @contextlib.contextmanager
    def session(topology: Any, *_: object) -> Iterator[object]:
        sessions.append(topology.name)
        yield object()

    sleeps(monkeypatch, sleep)
    monkeypatch.setattr("txn.cli.commands.dev.session_for", session)
    monkeypatch.setattr(
        "txn.cli.commands.preview.show_preview", lambda topology, *_: shown.append(topology.name)
    )
    result = CliRunner().invoke(cli, ["dev", "program.py:topology"])
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert (result.exit_code, sessions, shown) == (0, ["first"], ["first", "t2"])
    assert ["nothing_of_the_kind" in errors[0], "SyntaxError" in errors[1]] == [True, True]
    assert len(errors) == 2


def test_a_file_that_is_not_there_is_refused(program: Path) -> None:
    """There is nothing to watch."""
    result = CliRunner().invoke(cli, ["dev", "other.py:topology"])
    assert (result.exit_code, "There is no file 'other.py'" in result.stderr) == (2, True)
    result = CliRunner().invoke(cli, ["dev", "kafka"])
    assert "A server to try things with: txn trial kafka." in " ".join(result.stderr.split())


def test_no_save_is_missed(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that comes while a preview runs, nor one that repairs a module which could not be
    loaded, nor one that brings a file back.
    """
    polls: list[float] = []

    def sleep(secs: float) -> None:
        polls.append(secs)
        assert len(polls) < 3, "the save was missed"

    monkeypatch.syspath_prepend(str(program.parent))
    parts = program.with_name("parts.py")
    turns = saves(program, sleep)
    next(turns)
    for text in ("NAME =", "NAME = 'repaired'"):  # while the caller is at work
        save(parts, text)
        next(turns)
    parts.unlink()
    next(turns)
    save(parts, "NAME = 'back'")
    next(turns)
    assert polls == []


def test_a_program_that_ends_python_does_not_end_the_command(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.exit` in a program is an error like any other."""
    program.write_text("import sys; sys.exit(3)", "utf-8")

    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    sleeps(monkeypatch, sleep)
    result = CliRunner().invoke(cli, ["dev", "program.py:topology"])
    assert (result.exit_code, "SystemExit: 3" in result.stderr) == (0, True)
