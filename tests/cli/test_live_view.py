from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from txn.attempts import TransactionAttempt
from txn.cli.running.live_view import LiveView, render
from txn.cli.running.observers import JsonLines, PlainLines, RunInfo
from txn.cli.tables import history_table
from txn.engine.base.input import Input
from txn.engine.reporting.report import (
    STATIONS,
    BatchReport,
    InFlight,
    RunReport,
    RunStatus,
    Totals,
)
from txn.interfaces import Lag
from txn.operations.history import HistoryEntry

INFO = RunInfo("flights", 3, "embedded", "caught_up", 6)


def status(in_flight=(), failure=None, replays=0) -> RunStatus:
    return RunStatus(
        topology="flights",
        epoch=3,
        committed_txid=7,
        in_flight=tuple(in_flight),
        batches_committed=1,
        replays=replays,
        last_failure=failure,
        seconds=65.0,
    )


def batch(txid: int = 7) -> BatchReport:
    times = {station: 100.0 + i / 10 for i, station in enumerate(STATIONS)}
    rows = {"warehouse/delays": 1200, "warehouse/routes": 34}
    return BatchReport(
        TransactionAttempt(txid),
        rows,
        {"warehouse/delays": 9, "warehouse/routes": 8},
        times,
        read=Input({"flights": 1_500}, {"flights": 84}),
    )


def drawn(picture, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(picture)
    return console.file.getvalue().rstrip("\n").splitlines()


def picture(state: RunStatus, recent=(), height: int = 24):
    return render(INFO, state, list(recent), (1.5, 2000.0), now=110.0, height=height)


def test_header_says_what_runs_and_how_far_it_is() -> None:
    """The first two lines name topology, epoch and ZooKeeper, and give progress and speed."""
    first, second = drawn(picture(status(replays=2)))[:2]
    assert first.rstrip() == "flights  epoch 3  until caught_up  zookeeper embedded"
    assert second.rstrip() == (
        "committed 7  1.5 batches/s  2,000 staged rows/s  replays 2  1 min 05 s"
    )


def test_header_says_what_was_read_staged_and_written() -> None:
    """In one line; what a source or a log does not say is left out."""
    known = Totals(12_345, 1_250_000, 340, 340)
    assert drawn(picture(replace(status(), totals=known)))[2].rstrip() == (
        "read 12,345 records, 1.2 MB; staged 340 rows; wrote 340 rows"
    )
    unknown = Totals(None, None, 340, None)
    third = drawn(picture(replace(status(), totals=unknown)))[2]
    assert third.rstrip() == "staged 340 rows"


def test_lag_is_one_line_with_what_each_source_can_say() -> None:
    """Zeros are shown, because they are known; without any number there is no line."""
    lags = {"a": Lag(files=1200, bytes=2_100_000), "b": Lag(records=9, seconds=75), "c": Lag()}
    planned = {"a": Lag(files=0, bytes=0), "b": Lag(records=7)}
    state = replace(status(), lags=lags, planned=planned)
    lines = [line.rstrip() for line in drawn(picture(state))]
    assert "lag  a 1,200 files, 2.1 MB; b 9 records, 1 min 15 s (7 records planned)" in lines
    lines = drawn(picture(replace(status(), lags={"c": Lag()})))
    assert not any(line.startswith("lag") for line in lines)


def test_what_the_tables_have_nothing_of_is_one_line_and_only_if_there_is_something() -> None:
    """Rows dropped, rows set aside, txids quarantined, of this run."""
    lost = Totals(rows_dropped=1200, quarantined=1)
    lines = [line.rstrip() for line in drawn(picture(replace(status(), totals=lost)))]
    assert "left out  1,200 rows dropped, 1 txid quarantined" in lines
    aside = Totals(rows_set_aside=3, quarantined=2)
    lines = [line.rstrip() for line in drawn(picture(replace(status(), totals=aside)))]
    assert "left out  3 rows set aside, 2 txids quarantined" in lines
    assert not any("left out" in line for line in drawn(picture(status())))


def test_batches_in_flight_show_attempt_phase_and_seconds_in_it() -> None:
    """Each open txid has a line with its attempt, phase, seconds in that phase and failures."""
    flying = [InFlight(8, 1, "committing", 1, 107.5), InFlight(9, 0, "processing", 0, 100.0)]
    lines = [line.split() for line in drawn(picture(status(flying)))]
    assert ["8:1", "committing", "2.5", "1"] in lines
    assert ["9:0", "processing", "10.0"] in lines


def test_committed_batches_show_rows_phases_and_versions() -> None:
    """A committed batch has its rows, milliseconds by phase and table versions, newest first."""
    lines = [line.rstrip() for line in drawn(picture(status(), [batch(6), batch(7)]), width=120)]
    shown = [line.split() for line in lines if line.strip().startswith(("6:0", "7:0"))]
    row = "200 ms 200 ms 300 ms delays 1,200 rows (v9), routes 34 rows (v8)"
    assert [" ".join(words) for words in shown] == [f"7:0 {row}", f"6:0 {row}"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_view_fits_its_terminal(width: int, height: int) -> None:
    """However many batches are in flight and however long a failure, the view fits."""
    flying = [InFlight(8 + i, 0, "processing", 0, 100.0) for i in range(1000)]
    failure = "8:0: " + "something went wrong " * 100
    state = replace(status(flying, failure), totals=Totals(rows_dropped=1))
    state = replace(state, lags={"s" * 500: Lag(files=1)})
    lines = drawn(picture(state, [batch(i) for i in range(1, 8)], height), width, height)
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
    assert any("more" in line for line in lines)


def test_the_line_that_counts_the_others_stands_for_several() -> None:
    """Of one batch more than fits, the batch itself is shown in that line."""

    def last(batches: int) -> list[str]:
        flying = [InFlight(8 + i, 0, "processing", 0, 100.0) for i in range(batches)]
        lines = [line.split() for line in drawn(picture(status(flying), height=20), height=20)]
        return [words for words in lines if words and words[0] in ("...", f"{7 + batches}:0")][-1]

    counted = next(number for number in range(1, 30) if last(number)[0] == "...")
    assert last(counted) == ["...", "and", "2", "more"]


def test_idle_topology_says_that_it_waits() -> None:
    """With nothing in flight the view says so instead of showing an empty table."""
    assert any("waiting for something to read" in line for line in drawn(picture(status())))


def test_last_failure_is_shown_as_it_is() -> None:
    """A failure may hold brackets; they are text, not markup."""
    lines = drawn(picture(status(failure="7:0: no such path [red]x[/red]")))
    assert lines[-1].rstrip() == "last failure  7:0: no such path [red]x[/red]"


def test_live_view_leaves_the_last_picture_and_a_summary() -> None:
    """When the run has ended the picture stays and one line says how it went."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    view = LiveView(console, wall=lambda: 110.0)
    view.starting("flights", "starting Spark")
    view.started(INFO)
    view.update(status(), [batch()], [])
    report = RunReport(
        "flights", committed_txid=7, batches_committed=1, rows_staged=1234, seconds=65.0
    )
    report.ended = "caught_up"
    view.ended(report, status(), None)
    text = console.file.getvalue()
    assert "7:0" in text
    assert f"zookeeper {Path('.txn/zookeeper').absolute()}" in text.replace("\n", "")
    assert text.rstrip().endswith(
        "flights: caught up. Committed txid 7; this run committed 1 batch with 1,234 rows and "
        "0 replays in 1 \nmin 05 s."
    )


def test_plain_lines_have_one_line_per_commit_and_failure() -> None:
    """Without a terminal there is one line for the start, each failure, each commit, the end."""
    out = io.StringIO()
    lines, folder = PlainLines(out), Path(".txn/zookeeper").absolute()
    lines.starting("flights", "starting Spark")
    lines.started(INFO)
    lines.update(status(), [batch()], ["7:0: lost\nan executor"])
    report = RunReport(
        "flights", committed_txid=7, batches_committed=1, rows_staged=1234, ended="stopped"
    )
    lines.ended(report, status(), None)
    assert out.getvalue().splitlines() == [
        "flights: starting Spark",
        f"flights: running, epoch 3, from txid 7, until caught_up, zookeeper {folder}",
        "flights: failed 7:0: lost an executor",
        (
            "flights: committed 7:0: read 1,500 records, 84 bytes; delays 1,200 rows (v9), "
            "routes 34 rows (v8); processing 200 ms, waiting 200 ms, commit 300 ms"
        ),
        (
            "flights: stopped. Committed txid 7; this run committed 1 batch with 1,234 rows "
            "and 0 replays in 0.0 s."
        ),
    ]


def test_a_txid_that_was_committed_empty_is_told_and_counted() -> None:
    """In a pipe as in the live view: who reads only the end learns that something is missing."""
    out, console = io.StringIO(), Console(file=io.StringIO(), width=200)
    lines, view = PlainLines(out), LiveView(console)
    report = RunReport("flights", committed_txid=7, quarantined=2, ended="stopped")
    for observer in (lines, view):
        observer.started(INFO)
        observer.update(status(), [replace(batch(), quarantined=True)], [])
        observer.ended(report, status(), None)
    told = "2 txids were committed empty: `txn quarantine list flights` says which, and why."
    assert "flights: quarantined 7:0: committed empty" in out.getvalue().splitlines()
    assert f"flights: {told}" in out.getvalue().splitlines()
    assert told in console.file.getvalue()


def test_json_lines_are_one_object_per_event() -> None:
    """With --json each event is one JSON object on one line, with the time and its own fields."""
    out = io.StringIO()
    lines = JsonLines(out, wall=lambda: 5.0)
    lines.started(INFO)
    lines.update(status(), [batch()], ["7:0: lost: an executor"])
    lag = {"flights": Lag(files=3, bytes=0)}
    lines.ended(RunReport("flights"), replace(status(), lags=lag), ValueError("bad"))
    started, failed, committed, ended = map(json.loads, out.getvalue().splitlines())
    assert (started["event"], started["at"], started["committed_txid"]) == ("started", 5.0, 6)
    assert failed == {
        "event": "failed",
        "at": 5.0,
        "txid": 7,
        "attempt": 0,
        "error": "lost: an executor",
    }
    assert (committed["event"], committed["txid"], committed["attempt"]) == ("committed", 7, 0)
    assert committed["tables"] == {"warehouse/delays": 9, "warehouse/routes": 8}
    assert committed["ms"]["published"] == 100.0
    assert ended["lag"] == {"flights": {"files": 3, "bytes": 0}}
    assert (ended["ended"], ended["error"]) == ("error", "ValueError: bad")


def test_the_speed_in_the_picture_is_that_of_the_last_ten_seconds() -> None:
    """A burst long ago does not count in the present speed."""
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=100, height=40))
    view.started(INFO)
    told = status([])
    for seconds, batches in ((6.0, 60), (12.0, 60), (23.0, 60)):
        view.update(replace(told, seconds=seconds, batches_committed=batches), [], [])
    view.close()
    shown = re.findall(r"([\d.]+) batches/s", out.getvalue())
    assert list(dict.fromkeys(shown)) == ["10.0", "5.0", "0.0"]


# --- a source that is away, and replays of what was quarantined --------------------------------

AWAY = InFlight(
    8, 3, "processing", 0, 109.0, blocked="SourceUnavailableError: p1 [is] away", blocked_since=70.0
)


def test_blocked_batch_shows_since_when_and_why() -> None:
    """Its phase is "blocked" also while it looks again, its seconds those of the whole wait."""
    lines = drawn(picture(status([AWAY, InFlight(9, 0, "processed", 0, 100.0)])))
    assert ["8:3", "blocked", "40.0"] in [line.split() for line in lines]
    assert "blocked  8: SourceUnavailableError: p1 [is] away" in [line.rstrip() for line in lines]


def test_view_with_everything_fits_its_terminal() -> None:
    """What blocks and a failure, both long, leave the view within 24 lines."""
    away = InFlight(8, 3, "waiting", 0, 109.0, blocked="away " * 100, blocked_since=70.0)
    flying = [away, *(InFlight(9 + i, 0, "processing", 0, 100.0) for i in range(20))]
    lines = drawn(
        picture(status(flying, "8:0: " + "wrong " * 100), [batch(i) for i in range(1, 9)])
    )
    assert len(lines) <= 24


def test_replay_of_a_quarantined_txid_is_told_as_such() -> None:
    """The phase names the txid whose records are read."""
    lines = drawn(picture(status([InFlight(9, 0, "processing", 0, 100.0, replay_of=5)])))
    assert ["9:0", "processing", "(replays", "5)", "10.0"] in [line.split() for line in lines]


def test_lines_tell_a_wait_once_when_it_begins_and_once_when_it_ends() -> None:
    """However often the batch looks again: one line with the reason, one line at the end."""
    out = io.StringIO()
    lines = PlainLines(out)
    for state in ([AWAY], [AWAY], []):
        lines.update(status(state), [], [])
    assert out.getvalue().splitlines() == [
        "flights: blocked 8:3: SourceUnavailableError: p1 [is] away",
        "flights: txid 8 is no longer blocked",
    ]


def test_json_lines_tell_a_wait_once() -> None:
    """Events `blocked`, with the time since when, and `unblocked`."""
    out = io.StringIO()
    lines = JsonLines(out, wall=lambda: 110.0)
    for state in ([AWAY], [AWAY], []):
        lines.update(status(state), [], [])
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event.pop("at") for event in told] == [110.0, 110.0]
    assert told == [
        {
            "event": "blocked",
            "txid": 8,
            "attempt": 3,
            "error": "SourceUnavailableError: p1 [is] away",
            "since": 70.0,
        },
        {"event": "unblocked", "txid": 8},
    ]


def test_a_record_that_would_move_the_cursor_does_not() -> None:
    """An error may quote a stranger's record: control characters reach no terminal."""
    out = io.StringIO()
    PlainLines(out).update(status(), [], ["8:3: ValueError: \x1b[2Jgone \u202edlo\ud800"])
    assert out.getvalue() == "flights: failed 8:3: ValueError: \\x1b[2Jgone \\u202edlo\\ud800\n"


def test_rules_that_rows_broke_are_told() -> None:
    """By batch and at the end, in lines and in events; a topology without rules tells nothing."""
    broken = {"flights": {"known key": 12, "positive": 0}}
    report = RunReport("flights", ended="caught_up")
    plain, events = io.StringIO(), io.StringIO()
    for violations in ({}, broken):
        report.add(replace(batch(), violations=violations))
        for observer in (PlainLines(plain), JsonLines(events)):
            observer.update(status(), [replace(batch(), violations=violations)], [])
            observer.ended(report, status(), None)
    lines = [line for line in plain.getvalue().splitlines() if "rules" in line]
    assert lines == [
        "flights: broken rules in 7:0: known key 12 (flights)",
        "flights: rows that broke rules: known key 12 (flights).",
    ]
    told = [json.loads(line).get("violations") for line in events.getvalue().splitlines()]
    assert told == [None, None, broken, broken]


def test_a_history_shows_broken_rules() -> None:
    """In a column of its own, which only a topology with rules has."""
    entries = [
        HistoryEntry(2, 0, 1, committed=True, violations={"s": {"known key": 3, "few": 0}}),
        HistoryEntry(1, 0, 1, committed=True, violations={"s": {"known key": 0}}),
    ]
    shown = drawn(history_table(entries), width=200)
    assert "broken rules" in shown[0]
    assert [line.split()[-3:] for line in shown if ":0" in line] == [
        ["key", "3", "(s)"],
        ["0", "ms", "none"],
    ]
    assert "broken rules" not in drawn(history_table([replace(entries[0], violations={})]))[0]


def test_waiting_for_spark_is_no_processing() -> None:
    """A txid of many waits for Spark for long: whoever tunes Spark for that tunes in vain."""
    timings = {"started": 1.0, "processing": 13_000.0, "staged": 5_300.0, "processed": 0.1}
    entry = HistoryEntry(1, 0, 1, committed=True, timings_ms=timings)
    assert drawn(history_table([entry]), width=200)[1].split()[-4:] == [
        "5,300",
        "ms",
        "13,000",
        "ms",
    ]


def test_a_history_shows_which_txids_were_committed_empty() -> None:
    """With the first line of the error: such a txid does not look like one without rows."""
    error = "ValueError: a \x1b[31mred row\nsecond line"
    entries = [
        HistoryEntry(2, 1, 1, committed=True, quarantined=error),
        HistoryEntry(1, 0, 1, committed=True),
    ]
    shown = drawn(history_table(entries), width=200)
    assert shown[0].rstrip().endswith("quarantined")
    assert [line.rpartition(" ms")[2].strip() for line in shown[1:3]] == [
        "ValueError: a \\x1b[31mred row",
        "",
    ]
    assert "quarantined" not in drawn(history_table(entries[1:]))[0]
