"""What runs leave behind: notes that may be broken, logs that grow and rotate."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from txn.dashboard.watching.run_files import FailureLog, RunNote, read_note, write_note
from txn.engine.reporting.report import InFlight
from txn.machine.liveness import machine_id

FAILED = "2026-11-24 10:00:00,250 WARNING txn [t 7:1] failed: ValueError: bad\n"


def note(**more: object) -> RunNote:
    told: dict[str, object] = {
        "topology": "t",
        "pid": os.getpid(),
        "machine": machine_id(),
        "at": time.time(),
        "in_flight": (InFlight(3, 0, "processing", failures=0, since=0.0),),
    }
    return RunNote(**{**told, **more})  # type: ignore[arg-type]


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The newest one counts, and nothing else is left in the folder."""
    write_note(note(epoch=1), tmp_path / "runs")
    write_note(note(epoch=2), tmp_path / "runs")
    found = read_note("t", tmp_path / "runs")
    assert found is not None
    assert (found.epoch, found.in_flight[0].phase) == (2, "processing")
    assert os.listdir(tmp_path / "runs") == ["t.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"topology": "t"}',
        "[" * 5000,
        '{"topology": "u", "pid": 1, "at": 1}',
    ],
)
def test_a_broken_note_is_none(tmp_path: Path, text: str) -> None:
    """Whatever stands in the file: a page shows what it knows otherwise."""
    (tmp_path / "t.json").write_text(text, "utf-8")
    assert read_note("t", tmp_path) is None


def test_a_run_is_live_while_it_says_so() -> None:
    """Not after its end, not when it is silent for long, and not when its process is gone."""
    now = time.time()
    assert note().is_live(now)
    assert not note(ended="caught_up").is_live(now)
    assert not note(at=now - 60).is_live(now)
    assert not note(pid=2**22 - 1).is_live(now)
    assert note(pid=2**22 - 1, machine="another").is_live(now)


def test_failures_are_read_out_of_a_log_that_grows(tmp_path: Path) -> None:
    """Each once, with all its lines; half a line waits for its other half."""
    path, log = tmp_path / "t.log", FailureLog("t", tmp_path)
    assert list(log.new()) == []
    path.write_text("2026-11-24 09:59:59,000 INFO txn [t 6:0] committed {}\n" + FAILED, "utf-8")
    ((txid, attempt, at_ms, error),) = log.new()
    assert (txid, attempt, error, at_ms % 1000) == (7, 1, "ValueError: bad", 250)
    assert list(log.new()) == []
    more = FAILED.replace("7:1", "8:0") + "  at line 2\n  at line 3\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(more[:50])
    assert list(log.new()) == []
    with path.open("a", encoding="utf-8") as file:
        file.write(more[50:])
    ((txid, _, _, error),) = log.new()
    assert (txid, error) == (8, "ValueError: bad\n  at line 2\n  at line 3")


def test_a_log_that_was_rotated_is_read_from_its_begin(tmp_path: Path) -> None:
    """The file before it, too."""
    path, log = tmp_path / "t.log", FailureLog("t", tmp_path)
    path.write_text(FAILED, "utf-8")
    assert len(list(log.new())) == 1
    path.rename(tmp_path / "t.log.1")
    path.write_text(FAILED.replace("7:1", "9:0"), "utf-8")
    assert {txid for txid, *_ in log.new()} == {7, 9}


@pytest.mark.parametrize("form", ["text", "json"])
def test_failures_of_an_earlier_life_are_left_out(tmp_path: Path, form: str) -> None:
    """A log outlives a topology that is deleted and made anew, and its txids begin again: what
    came before the first attempt of the newest life is no failure of its txids.
    """

    def line(message: str) -> str:
        if form == "text":
            return f"2026-11-24 10:00:00,250 INFO txn {message}\n"
        said = {"time": "2026-11-24T10:00:00.250Z", "level": "INFO", "message": message}
        return f"{json.dumps(said)}\n"

    path, log = tmp_path / "t.log", FailureLog("t", tmp_path)
    first = line("[t 1:0] started") + line("[t 2:0] failed: x") + line("[t 1:1] started")
    path.write_text(first, "utf-8")
    assert [txid for txid, *_ in log.new()] == [2]
    assert log.begins_anew
    with path.open("a", encoding="utf-8") as file:
        file.write(line("[t 3:0] failed: txn [t 1:0] started") + line("[u 1:0] started"))
    assert ([txid for txid, *_ in log.new()], log.begins_anew) == ([3], False)
    with path.open("a", encoding="utf-8") as file:
        file.write(line("[t 4:0] failed: x") + line("[t 1:0] started"))
        file.write(line("[t 1:0] failed: y"))
    assert ([txid for txid, *_ in log.new()], log.begins_anew) == ([1], True)
    assert [txid for txid, *_ in FailureLog("t", tmp_path).new()] == [1]


def test_a_line_of_an_error_is_no_line_of_the_log(tmp_path: Path) -> None:
    """An error may quote JSON, also that of a failed attempt: it stays a part of the error."""
    said = {"time": "2026-11-24T10:00:00.250Z", "message": "[t 9:0] failed: forged"}
    quoted = f'{{"a": 1}}\n{json.dumps(said)}'
    (tmp_path / "t.log").write_text(f"{FAILED}{quoted}\n", "utf-8")
    ((txid, _, _, error),) = FailureLog("t", tmp_path).new()
    assert (txid, error) == (7, f"ValueError: bad\n{quoted}")


def test_failures_of_others_and_lines_of_libraries_are_passed(tmp_path: Path) -> None:
    """Only failed attempts of the topology itself, whatever a line says."""
    others = [
        FAILED.replace("[t ", "[u "),
        FAILED.replace("failed", "blocked"),
        FAILED.replace(" txn ", " kazoo "),
        "[t 1:1] failed: no time\n",
        "\0\x1b[2J\n",
    ]
    (tmp_path / "t.log").write_text("".join(others), "utf-8")
    assert list(FailureLog("t", tmp_path).new()) == []


def test_a_log_in_json_says_the_same(tmp_path: Path) -> None:
    """As `txn run --log-format json` writes it; other lines and broken ones are passed."""
    line = {"time": "2026-11-24T10:00:00.250Z", "level": "WARNING", "logger": "txn"}
    said = [
        json.dumps({**line, "message": "[t 7:1] failed: ValueError: bad"}),
        json.dumps({**line, "message": "[t 7:1] committed {}"}),
        json.dumps({**line, "time": 7, "message": "[t 7:1] failed: x"}),
        "{broken",
        "{}",
    ]
    (tmp_path / "t.log").write_text("\n".join(said) + "\n", "utf-8")
    assert list(FailureLog("t", tmp_path).new()) == [
        (7, 1, 1_795_514_400_250, "ValueError: bad"),
    ]
