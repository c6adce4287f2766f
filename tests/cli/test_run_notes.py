"""What a run says of itself, and the page that it brings along."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.children import free_ports, wait_until
from txn.cli import cli
from txn.cli.running.observers import CliObserver, RunInfo
from txn.cli.running.run_log import logging_to_file
from txn.cli.running.run_notes import RunNotes, _end_of, page_of_run
from txn.config import TopologyConfig
from txn.dashboard.watching.run_files import read_note
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.engine.reporting.report import BatchReport, InFlight, RunReport, RunStatus, Totals
from txn.errors import SourceChangedError
from txn.interfaces import Lag
from txn.machine.listening import Address
from txn.operations.loading import load_topology

NOWHERE = "127.0.0.1:1"


class Heard(CliObserver):
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
        "planned": {"s": Lag(files=1)},
        "published": {"w/c": 7},
    }
    return RunStatus(**{**told, **more})


def test_a_run_says_what_it_is_doing(tmp_path: Path) -> None:
    """Phases, lag, what holds it up, the plan and the program."""
    RunNotes("t", {"topology": "t"}, tmp_path, "t.py:topology").update(status())
    found = read_note("t", tmp_path)
    assert found is not None
    assert found.is_live(time.time())
    assert (found.epoch, found.held_up_by, found.waits) == (3, "away", ("the source",))
    assert found.published == {"w/c": 7}
    assert (found.lags, found.planned) == ({"s": {"files": 3, "bytes": 10}}, {"s": {"files": 1}})
    assert (found.in_flight[0].phase, found.in_flight[0].blocked) == ("processing", "Kafka is away")
    assert (found.plan, found.program) == ({"topology": "t"}, "t.py:topology")


def test_it_says_nothing_new_twice_a_second(tmp_path: Path) -> None:
    """Several looks a second write one note; what has not changed waits longer."""
    notes = RunNotes("t", {}, tmp_path)
    notes.update(status())
    (tmp_path / "t.json").unlink()
    notes.update(status(committed_txid=8))
    assert read_note("t", tmp_path) is None


def test_the_last_note_says_how_it_ended(tmp_path: Path) -> None:
    """Well, or with an error; nothing is in flight any more."""
    for error, expected in (
        (None, ("caught_up", None)),
        (ValueError("bad"), ("error", "ValueError: bad")),
        (
            SourceChangedError("bad", number="TXN-407"),
            ("error", "SourceChangedError: bad [TXN-407]"),
        ),
    ):
        notes = RunNotes("t", {}, tmp_path)
        notes.ended(RunReport("t", 3, ended="caught_up"), status(), error)
        found = read_note("t", tmp_path)
        assert found is not None
        assert (found.ended, found.error) == expected
        assert (found.in_flight, found.is_live(time.time())) == ((), False)


def test_a_standby_a_full_disk_and_odd_text_cost_nothing(tmp_path: Path) -> None:
    """Before it leads there is no note, and where none can be written the run goes on."""
    RunNotes("t", {}, tmp_path).update(status(epoch=0))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    RunNotes("t", {}, tmp_path / "file").update(status())
    # The name of a file that is not UTF-8, in the error of a source.
    away = InFlight(8, 1, "planning", 1, time.time(), blocked="cannot open 'in/\udcff.csv'")
    RunNotes("t", {}, tmp_path).update(status(in_flight=(away,)))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


KNOWN = TopologyFacts("t", TopologyConfig(zookeeper_connect_secs=2.0), {"topology": "t"}, {})


def test_a_page_that_cannot_start_is_a_note() -> None:
    """The run goes on, and is told why there is no page."""
    heard = Heard()
    (port,) = free_ports(1)
    with (
        socket.create_server(("127.0.0.1", port)),
        page_of_run(KNOWN, "zk1:2181", Address("127.0.0.1", port), heard),
    ):
        wait_until(lambda: bool(heard.told), "the note", 60)
    (told,) = heard.told
    assert told.startswith(f"There is no page: The page cannot listen on 127.0.0.1:{port}")
    assert "--dashboard HOST:PORT" in told


def test_a_page_that_ends_before_its_run_is_a_note() -> None:
    """Its address is told first, then that nobody answers there any more."""
    heard = Heard()
    with page_of_run(KNOWN, NOWHERE, Address("127.0.0.1", 0), heard):
        wait_until(lambda: bool(heard.told), "the address", 60)
        for child in children_of(os.getpid(), "--of-run"):
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: len(heard.told) == 2, "the end", 20)
    assert heard.told[0].startswith("The page is at http://127.0.0.1:")
    assert heard.told[1].startswith("The page has ended: ")


def test_what_a_page_says_is_not_kept_in_the_run() -> None:
    """Of its stderr only the end is, however much there was: its last line tells why it ended."""
    many = ["a traceback " * 100] * 1000
    said = _end_of(io.BytesIO("\n".join([*many, "error: no more"]).encode()))
    assert len(said) <= 2000
    assert said.endswith(b"\nerror: no more")


def children_of(parent: int, word: str) -> list[int]:
    """Child processes with this word in their command."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"PPid:\t{parent}\n" in (each / "status").read_text("utf-8")
            if is_ours and word.encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
        except OSError:  # it has just ended
            continue
    return found


def test_the_page_knows_what_the_run_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of --set, credentials, tables with their options, the graph; the user's program,
    whose side effects are not wanted twice, is not loaded again.
    """
    monkeypatch.chdir(tmp_path)
    loaded = tmp_path / "loaded"
    (tmp_path / "program.py").write_text(
        f"with open({str(loaded)!r}, 'a') as file:\n"
        "    file.write('once\\n')\n"
        "print('a program may print')\n"
        "from committers.append_table import AppendTable\n"
        "from spouts.rate import RateSpout\n"
        "from txn import Topology, TopologyConfig\n"
        "config = TopologyConfig(zookeeper_auth=(('digest', 'ann:hidden-1'),))\n"
        "topology = Topology('t', config)\n"
        "rows = AppendTable('rows', storage_options={'aws_secret_access_key': 'hidden-2'})\n"
        "topology.stream('rows', RateSpout(1)).partition_persist(rows)\n",
        "utf-8",
    )
    given = ["zookeeper_connect_secs=2.5", "max_spout_pending=3"]
    topology = load_topology("program.py:topology", given)
    known, heard = TopologyFacts.of(topology, "program.py:topology"), Heard()
    again = TopologyFacts.of_line(known.to_line())
    assert again.program == "program.py:topology"
    assert again.config.model_dump() == known.config.model_dump()
    assert (again.plan, again.tables) == (json.loads(json.dumps(known.plan)), known.tables)
    assert again.config.zookeeper_connect_secs == 2.5
    assert again.config.zookeeper_auth[0][1].get_secret_value() == "ann:hidden-1"
    with page_of_run(known, NOWHERE, Address("127.0.0.1", 0), heard):
        wait_until(lambda: bool(heard.told), "the address", 60)
        url = heard.told[0].removeprefix("The page is at ")
        with urllib.request.urlopen(f"{url}api/topology", timeout=20) as answer:
            told = json.load(answer)
        for child in children_of(os.getpid(), "--of-run"):
            assert b"hidden" not in Path(f"/proc/{child}/cmdline").read_bytes()
            assert b"hidden" not in Path(f"/proc/{child}/environ").read_bytes()
    assert [node["label"] for node in told["graph"]["nodes"]] == ["rows", "rows"]
    settings = {one["name"]: one["place"] for one in told["settings"]}
    assert settings == {"max_spout_pending": "--set max_spout_pending"}
    assert loaded.read_text("utf-8") == "once\n"


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
    assert said.exit_code == 2
    assert "'here' is not an address to listen on" in said.output


def test_a_topology_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file that does not exist ends `txn dashboard` with the reason."""
    said = CliRunner().invoke(cli, ["dashboard", f"{tmp_path}/none.py:topology"])
    assert said.exit_code == 2
    assert "There is no file" in said.output


@pytest.mark.parametrize(("level", "logged"), [("warning", True), ("error", False)])
def test_a_note_says_whether_the_log_has_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, logged: bool
) -> None:
    """They are warnings, which `--log-level error` leaves out."""
    monkeypatch.chdir(tmp_path)
    with logging_to_file("t", level, "text"):
        RunNotes("t", {}, tmp_path).update(status())
    found = read_note("t", tmp_path)
    assert found is not None
    assert found.failures_logged is logged
