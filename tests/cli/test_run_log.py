"""The log of `txn run`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from txn.cli.running.run_log import logging_to_file


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_name_that_is_not_utf_8_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """With its odd characters as escapes; nothing is lost, and nothing goes to the screen."""
    monkeypatch.chdir(tmp_path)
    # Not into pytest's report: pytest-xdist's workers die of half a character in there.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with logging_to_file("t", "info", form) as path:
        logging.getLogger("txn").warning("cannot open '%s'", "in/\udcff.csv")
    assert path is not None
    assert r"cannot open 'in/\udcff.csv'" in path.read_text("utf-8")
    assert "Logging error" not in capsys.readouterr().err


def test_a_file_is_of_one_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with another `--log-format` than the one before begins a file; else it goes on."""
    monkeypatch.chdir(tmp_path)
    for form in ("text", "text", "json", "json"):
        with logging_to_file("t", "info", form) as path:
            logging.getLogger("txn").info("a line")
    assert path is not None
    assert [line[0] for line in path.read_text("utf-8").splitlines()] == ["{", "{"]
    assert len(Path(f"{path}.1").read_text("utf-8").splitlines()) == 2
