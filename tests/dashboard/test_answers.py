"""What the page's answers say, of small topologies that are read once and by no thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.dashboard.made_logs import append_version, made_table, publication
from tests.dashboard.sample import BAD
from txn.dashboard import api
from txn.dashboard.over_time import series
from txn.dashboard.watching.entries import Filter
from txn.dashboard.watching.feed import Look
from txn.dashboard.watching.run_files import RUNS_FOLDER, RunNote, write_note
from txn.dashboard.watching.topologies import Watched
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.dashboard.watching.trouble import troubles
from txn.dashboard.watching.watched_table import WatchedTable
from txn.engine.reporting.report import InFlight
from txn.machine.liveness import machine_id
from txn.operations.status import status_of
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import BatchRecord, CommittedRecord, LeaderIdentity, Progress

NOW = 1_760_000_000_000
"""Two seconds after the beginning of a bucket of six seconds."""

Read = Callable[..., Watched]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Makes a topology `t` out of the tables that it has, all of whose logs are read."""
    with contextlib.ExitStack() as made:

        def watched(*tables: Path) -> Watched:
            known = TopologyFacts("t", tables={str(table): {} for table in tables})
            found = Watched(known, tmp_path / "index", tmp_path)
            made.callback(found.close)
            for table in found.tables:
                read_once(table)
            return found

        yield watched


@pytest.fixture
def at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are made at `NOW`."""
    monkeypatch.setattr("txn.dashboard.api._now_ms", lambda: NOW)
    monkeypatch.setattr("txn.dashboard.over_time._now_ms", lambda: NOW)


def read_once(table: WatchedTable) -> None:
    """Do what a table's thread does first, then end."""
    over = threading.Event()

    def changed() -> None:
        over.set()
        table.news.set()

    table.watch(over, contextlib.nullcontext, changed)


def filled(folder: Path, *commits_ms: int, epochs: Sequence[int] = (), **more: Any) -> Path:
    """A table with a txid of 300 rows at each of these moments, all of epoch 1 if none is given."""
    table = made_table(folder / "table", {"txid": "long"})
    for txid, at_ms in enumerate(commits_ms, 1):
        epoch = epochs[txid - 1] if epochs else 1
        append_version(table, txid, publication(txid, rows=300, epoch=epoch, **more), at_ms=at_ms)
    return table


def leader(started: str) -> LeaderIdentity:
    """This process, which leads since then."""
    who = {"host": "alpha", "pid": os.getpid(), "epoch": 1, "token": "t"}
    return LeaderIdentity(started=started, machine=machine_id(), **who)


def tell(
    watched: Watched,
    committed: int,
    *open_ones: int,
    spouts: Mapping[str, Any] = {},
    leader: LeaderIdentity | None = None,
) -> None:
    """Let ZooKeeper say what is committed and open; a batch has the spouts' metadata, too."""
    progress = Progress(
        committed=CommittedRecord(txid=committed, epoch=1, spouts=dict(spouts), tables={}),
        batches=tuple(
            BatchRecord(txid=txid, attempt=0, epoch=1, spouts=dict(spouts)) for txid in open_ones
        ),
    )
    status = status_of(TopologyStatus("t", progress, 1, leader, None, ()))
    watched.looked(Look(time.time(), {"t": status}))


def note(watched: Watched, folder: Path, **more: Any) -> None:
    """Let the topology's run, which is this process, say something."""
    told = {"pid": os.getpid(), "machine": machine_id(), "epoch": 1, "at": time.time(), **more}
    write_note(RunNote(topology="t", **told), folder / RUNS_FOLDER)
    watched.refresh()


# --- over time ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_now")
def test_the_rate_is_of_the_last_minute(tmp_path: Path, read: Read) -> None:
    """All of it, and nothing that is older."""
    watched = read(filled(tmp_path, NOW - 61_000, NOW - 59_000, NOW - 40_000, NOW))
    assert api.summary(watched)["rows_per_s"] == 15.0


@pytest.mark.usefixtures("at_now")
def test_the_small_chart_shows_the_whole_half_hour(tmp_path: Path, read: Read) -> None:
    """From its first bucket to its newest one, and nothing that is older."""
    first = (NOW // 30_000 - 59) * 30_000
    watched = read(filled(tmp_path, first - 1, first, NOW))
    assert api.summary(watched)["spark"] == [10.0, *[0.0] * 58, 10.0]


@pytest.mark.usefixtures("at_now")
def test_series_leave_out_the_bucket_that_goes_on(tmp_path: Path, read: Read) -> None:
    """A part of a bucket would look as if the topology had become slow."""
    watched = read(filled(tmp_path, NOW - 3_600_000, NOW - 3000, NOW - 1000))
    lines = series(watched, 15)
    assert (lines["t"][-1], lines["rows_per_s"][-1]) == ((NOW - 8000) / 1000, 50.0)
    assert sum(filter(None, lines["rows_per_s"])) == 50.0


@pytest.mark.usefixtures("at_now")
def test_a_line_has_a_gap_where_nothing_ran(tmp_path: Path, read: Read) -> None:
    """It is at zero between two txids of one leader, and ends between two leaders."""
    hour = 3_600_000
    times = [NOW - 10 * hour, NOW - 8 * hour, NOW - 2 * hour]
    watched = read(filled(tmp_path, *times, epochs=[1, 1, 2]))
    lines = series(watched, 0)
    rates = dict(zip(lines["t"], lines["rows_per_s"], strict=True))
    within = {rate for at, rate in rates.items() if NOW - 9.5 * hour < at * 1000 < NOW - 8.5 * hour}
    between = {rate for at, rate in rates.items() if NOW - 7 * hour < at * 1000 < NOW - 3 * hour}
    assert (within, between) == ({0}, {None})


@pytest.mark.usefixtures("at_now")
def test_an_idle_run_has_a_line_at_zero(tmp_path: Path, read: Read) -> None:
    """The line begins when its leader started, which ZooKeeper knows."""
    watched = read(filled(tmp_path, NOW - 3_600_000, NOW - 1_200_000))
    started = datetime.fromtimestamp((NOW - 1_800_000) / 1000, timezone.utc).isoformat()
    tell(watched, 2, leader=leader(started))
    lines = series(watched, 60)
    rates = dict(zip(lines["t"], lines["rows_per_s"], strict=True))
    assert {rate for at, rate in rates.items() if at * 1000 > NOW - 1_100_000} == {0}
    assert api.summary(watched)["spark"][-1] == 0


@pytest.mark.usefixtures("at_now")
def test_lag_has_a_gap_where_no_run_reports_it(tmp_path: Path, read: Read) -> None:
    """A line does not go from the end of one run to the beginning of the next."""
    watched = read(filled(tmp_path, NOW - 3_600_000))
    for at in (-900, -890, -100, -90):
        note(watched, tmp_path, at=NOW / 1000 + at, lags={"flights": {"files": 1}})
    assert series(watched, 60)["lag"]["streams"][0]["values"] == [1, 1, None, 1, 1]


@pytest.mark.usefixtures("at_now")
def test_waiting_is_apart_from_processing(tmp_path: Path, read: Read) -> None:
    """In the list, and over time."""
    timings = {"started": 4.0, "processing": 900.0, "staged": 120.0, "processed": 3.0, "turn": 50.0}
    watched = read(filled(tmp_path, NOW - 60_000, timings_ms=timings))
    (line,) = api.transactions(watched, Filter(), None)["txids"]
    lines = series(watched, 15)
    assert (line["processing_ms"], line["waiting_ms"]) == (123.0, 950.0)
    assert [*filter(None, lines["processing_ms"])] == [123.0]
    assert [*filter(None, lines["waiting_ms"])] == [950.0]


@pytest.mark.usefixtures("at_now")
@pytest.mark.parametrize(
    ("metadata", "amounts"),
    [
        ({"start": 100, "end": 700}, ("records", 10.0, None)),
        ({"files": [{"path": "a.csv", "size": 6000}]}, ("bytes", None, 100.0)),
    ],
)
def test_input_is_counted_from_the_metadata(
    metadata: Any, amounts: tuple[str, float | None, float | None], tmp_path: Path, read: Read
) -> None:
    """Records where the positions have them, else bytes; the other one is unknown."""
    watched = read(filled(tmp_path, NOW - 30_000, read={"s": metadata}))
    lines = series(watched, 15)
    assert (lines["read_unit"], *api.summary(watched)["read_per_s"]) == amounts
    step = lines["t"][1] - lines["t"][0]
    assert sum(filter(None, lines["read_per_s"])) * step == (600 if amounts[1] else 6000)


@pytest.mark.usefixtures("at_now")
def test_lag_is_thinned_where_it_is_dense(tmp_path: Path, read: Read) -> None:
    """A chart gets as many points as it can show, the newest among them; sparse old ones stay."""
    watched = read(filled(tmp_path, NOW - 3_600_000))
    old = [NOW / 1000 - 1200 + 10 * each for each in range(100)]
    new = [NOW / 1000 - 200 + each / 2 for each in range(400)]
    for number, at in enumerate([*old, *new]):
        note(watched, tmp_path, at=at, lags={"flights": {"files": number}})
    lines = series(watched, 60)["lag"]
    assert lines["t"][:100] == old
    assert (lines["t"][-1], lines["streams"][0]["values"][-1]) == (new[-1], 499)
    assert len(lines["t"]) == len(lines["streams"][0]["values"]) <= 152


@pytest.mark.usefixtures("at_now")
def test_lag_is_shown_before_the_first_txid(tmp_path: Path, read: Read) -> None:
    """A first batch that hangs is when somebody looks at it: all that is known in the range."""
    watched = read()
    at = [NOW / 1000 - 900 + 10 * each for each in range(90)]
    for each in at:
        note(watched, tmp_path, at=each, lags={"flights": {"files": 1}})
    assert series(watched, 60)["lag"]["t"] == at


# --- what is wrong -----------------------------------------------------------------------------


def test_what_is_over_is_not_counted(tmp_path: Path, read: Read) -> None:
    """It is listed, but the overview names and counts only what is to be seen to now."""
    table = filled(tmp_path, NOW, NOW)
    append_version(table, 3, operation="DELETE", at_ms=NOW, removes=("part",))
    watched = read(table)
    tell(watched, 2, 3)
    watched.index.add_failures([(1, 0, NOW, "of old")])
    told = api.summary(watched)
    assert [one.is_over for one in troubles(watched)] == [True, True]
    assert (told["worst"], told["troubles"]) == (None, {"error": 0, "warning": 0, "note": 0})
    watched.index.add_failures([(3, 0, NOW, "of now")])
    watched.changed()
    told = api.summary(watched)
    assert (told["worst"], told["troubles"]) == ("of now", {"error": 0, "warning": 1, "note": 0})


def test_bad_rows_appear_with_their_commit(tmp_path: Path, read: Read) -> None:
    """A commit shows rows that the table had before; one that shows no more reads nothing."""
    table = made_table(tmp_path / "bad", BAD)
    for version, txid in enumerate((9, 18), 1):
        row = {name: pa.array(["x"]) for name in BAD} | {"txid": pa.array([txid], pa.int64())}
        append_version(table, version, publication(txid), rows=pa.table(row))
    watched = read(table)
    tell(watched, 9)
    assert [row["txid"] for row in api.bad_rows(watched)["rows"]] == [9]
    tell(watched, 18)
    told = api.bad_rows(watched)
    assert [row["txid"] for row in told["rows"]] == [18, 9]
    (one,) = troubles(watched)
    assert (one.level, one.what[:28], one.command[:14]) == (
        *("note", "2 rows were set aside: they ", "txn rows list "),
    )
    assert api.summary(watched)["set_aside"] == 2
    tell(watched, 30)
    assert api.bad_rows(watched) is told


# --- one txid ----------------------------------------------------------------------------------


def test_a_txid_is_missing_only_where_that_is_known(tmp_path: Path, read: Read) -> None:
    """Not in a table that cannot be read: it may well be there."""
    table = filled(tmp_path, NOW)
    without = made_table(tmp_path / "without", {"txid": "long"})
    told = api.transaction(read(table, without, tmp_path / "away"), 1)
    assert [one["table"] for one in told["tables"]] == [str(table)]
    assert told["missing"] == [str(without)]


def test_long_metadata_is_cut(tmp_path: Path, read: Read) -> None:
    """Of a published txid, an open one and the topology; it says how long it was."""
    told = {"long": {"at": "x" * 200_000}, "short": {"at": "x" * 90_000}}
    table = made_table(tmp_path / "table", {"txid": "long"})
    append_version(table, 1, publication(1, read=told))
    watched = read(table)
    tell(watched, 1, 2, spouts=told)
    for found in (
        api.transaction(watched, 1)["metadata"],
        api.transaction(watched, 2)["metadata"],
        api.topology(watched)["spouts"],
    ):
        assert found["short"] == told["short"]
        assert found["long"]["cut"] == "200,010 characters"
        assert len(found["long"]["beginning"]) == 2000


def test_a_table_with_a_backtick_is_quoted_in_sql(tmp_path: Path, read: Read) -> None:
    """The query can be pasted: the name does not end within itself."""
    (part,) = api.transaction(read(filled(tmp_path / "a`b", NOW)), 1)["tables"]
    sql = next(one["text"] for one in part["queries"] if one["title"] == "SQL")
    assert f"delta.`{tmp_path}/a``b/table` VERSION" in sql


# --- a run -------------------------------------------------------------------------------------


def test_a_run_says_what_its_open_txids_do(tmp_path: Path, read: Read) -> None:
    """While it goes on: their phases and what they wait for; after it, only that they are open."""
    watched = read()
    tell(watched, 1, 2, 3)
    flights = (
        InFlight(2, 0, "processing", failures=0, since=0.0, blocked="the broker is away"),
        InFlight(3, 0, "planning", failures=0, since=0.0),
    )

    def told() -> tuple[list[tuple[int, str]], Any, Any]:
        shown = api.topology(watched)["flights"]
        one = api.transaction(watched, 2)
        return [(each["txid"], each["phase"]) for each in shown], one["phase"], one["blocked"]

    note(watched, tmp_path, in_flight=flights, held_up_by="commit")
    running = [(2, "processing"), (3, "planning")]
    assert told() == (running, "processing", "the broker is away")
    note(watched, tmp_path, in_flight=flights, held_up_by="idle")
    assert told() == (running[:1], "processing", "the broker is away")
    note(watched, tmp_path, in_flight=flights, ended="stopped")
    assert told() == ([(2, "open"), (3, "open")], "open", None)


def test_the_last_run_is_one_that_has_ended(tmp_path: Path, read: Read) -> None:
    """A run that goes on is none; of one that has ended its error and moment are told."""
    watched = read()
    note(watched, tmp_path)
    assert api.topology(watched)["last_run"] is None
    note(watched, tmp_path, ended="failed", error="no more disk", at=1.5)
    last = {"ended": "failed", "error": "no more disk", "at_ms": 1500}
    assert api.topology(watched)["last_run"] == last


def test_published_tables_are_as_the_newest_run_told(tmp_path: Path, read: Read) -> None:
    """With the txids that they are behind, also after its end."""
    watched = read()
    assert api.topology(watched)["published"] == []
    tell(watched, 9)
    note(watched, tmp_path, published={"w/c": 7, "w/d": None}, ended="stopped")
    assert api.topology(watched)["published"] == [
        {"table": "w/c", "txid": 7, "behind": 2},
        {"table": "w/d", "txid": None, "behind": None},
    ]
