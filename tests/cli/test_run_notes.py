"""What a run says of itself, and the page that it brings along."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.children import wait_until
from txn.cli import cli
from txn.cli.observers import Observer, RunInfo
from txn.cli.run_notes import NotedRun, page_of_run
from txn.engine.report import BatchReport, InFlight, RunReport, RunStatus, Totals
from txn.interfaces import Lag
from txn.operations.watching.run_files import read_note


class Heard(Observer):
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def started(self, info: RunInfo) -> None:
        self.told.append("started")

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        self.told.append("update")

    def note(self, text: str) -> None:
        self.told.append(text)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        self.told.append("ended")


def status(**more: Any) -> RunStatus:
    flight = InFlight(8, 1, "processing", 1, time.time(), blocked="Kafka is away")
    told: dict[str, Any] = {
        "topology": "t",
        "epoch": 3,
        "committed_txid": 7,
        "in_flight": (flight,),
        "batches_committed": 1,
        "replays": 1,
        "last_failure": None,
        "seconds": 1.0,
        "held_up_by": "away",
        "waits": ("the source",),
        "totals": Totals(),
        "lags": {"s": Lag(files=3, bytes=10)},
    }
    return RunStatus(**{**told, **more})


def test_a_run_says_what_it_is_doing(tmp_path: Path) -> None:
    """Phases, lag, what holds it up and the plan; the other observer hears everything, too."""
    heard = Heard()
    noted = NotedRun(heard, "t", {"topology": "t"}, tmp_path)
    noted.update(status(), (), ())
    found = read_note("t", tmp_path)
    assert found is not None
    assert found.is_live(time.time())
    assert (found.epoch, found.held_up_by, found.waits) == (3, "away", ("the source",))
    assert found.lags == {"s": {"files": 3, "bytes": 10}}
    assert (found.in_flight[0].phase, found.in_flight[0].blocked) == ("processing", "Kafka is away")
    assert found.plan == {"topology": "t"}
    assert heard.told == ["update"]


def test_it_says_nothing_new_twice_a_second(tmp_path: Path) -> None:
    """Several looks a second write one note; what has not changed waits longer."""
    noted = NotedRun(Heard(), "t", {}, tmp_path)
    noted.update(status(), (), ())
    (tmp_path / "t.json").unlink()
    noted.update(status(committed_txid=8), (), ())
    assert read_note("t", tmp_path) is None


def test_the_last_note_says_how_it_ended(tmp_path: Path) -> None:
    """Well, or with an error; nothing is in flight any more."""
    for error, expected in (
        (None, ("caught_up", None)),
        (ValueError("bad"), ("error", "ValueError: bad")),
    ):
        noted = NotedRun(Heard(), "t", {}, tmp_path)
        noted.ended(RunReport("t", 3, ended="caught_up"), status(), error)
        found = read_note("t", tmp_path)
        assert found is not None
        assert (found.ended, found.error) == expected
        assert (found.in_flight, found.is_live(time.time())) == ((), False)


def test_a_standby_and_a_full_disk_cost_nothing(tmp_path: Path) -> None:
    """Before it leads there is no note, and where none can be written the run goes on."""
    heard = Heard()
    NotedRun(heard, "t", {}, tmp_path).update(status(epoch=0), (), ())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    NotedRun(heard, "t", {}, tmp_path / "file").update(status(), (), ())
    assert heard.told == ["update", "update"]


def test_a_page_that_cannot_start_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on, and is told why there is no page."""
    monkeypatch.chdir(tmp_path)
    heard = Heard()
    with page_of_run("none.py:topology", "zk1:2181", "127.0.0.1", 0, heard):
        wait_until(lambda: bool(heard.told), "the note", 60)
    assert "There is no page: error: There is no file 'none.py'" in heard.told[0]


def test_where_to_listen_is_checked_before_anything_runs(tmp_path: Path) -> None:
    """A wrong HOST:PORT is a mistake on the command line."""
    program = tmp_path / "program.py"
    program.write_text(
        "from committers.append_table import AppendTable\n"
        "from spouts.rate import RateSpout\n"
        "from txn import Topology\n"
        "topology = Topology('t')\n"
        "topology.stream('rows', RateSpout(1)).partition_persist(AppendTable('table'))\n",
        "utf-8",
    )
    said = CliRunner().invoke(cli, ["run", f"{program}:topology", "--dashboard", "here"])
    assert said.exit_code == 1
    assert "'here' is not an address to listen on" in said.output


def test_a_topology_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file that does not exist ends `txn dashboard` with the reason."""
    said = CliRunner().invoke(cli, ["dashboard", f"{tmp_path}/none.py:topology"])
    assert said.exit_code == 2
    assert "There is no file" in said.output
