"""Which stage waits on which: sentences and shares of time out of plain states."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from txn.attempts import TransactionAttempt
from txn.cli.running.live_view import render
from txn.cli.running.observers import JsonLines, RunInfo
from txn.cli.words import BOUND_NAMES, held_up
from txn.engine.reporting.bottleneck import bound, waits
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.reporting.recorder import Recorder
from txn.engine.reporting.report import RunReport, RunStatus
from txn.observers import Bound
from txn.protocol.events import Batch, CoordinatorState, Phase

NOW = 100.0
LETTERS = {
    "w": Phase.WAITING,
    "l": Phase.PLANNING,
    "p": Phase.PROCESSING,
    "d": Phase.PROCESSED,
    "c": Phase.COMMITTING,
}
"""A letter for each phase: "cdp" is a batch in its turn, one that is processed, one at work."""


def state(phases: str, *, window: int = 8, **fields: object) -> CoordinatorState:
    """Open batches from txid 11 on, in these phases."""
    batches = {
        txid: Batch(TransactionAttempt(txid), LETTERS[letter], held=letter == "w")
        for txid, letter in enumerate(phases, 11)
    }
    known: dict[str, object] = {
        "committed": 10,
        "positions": {},
        "opaque_streams": frozenset(),
        "streams": ("s",),
        "max_spout_pending": window,
        "max_batch_attempts": 5,
        "batches": batches,
    }
    return CoordinatorState(**{**known, **fields})  # type: ignore[arg-type]


def said(phases: str, times: Mapping[str, float] | None = None, **fields: object) -> list[str]:
    """The sentences, with these times for every batch."""
    return list(waits(state(phases, **fields), lambda _: times or {}, NOW))


@pytest.mark.parametrize(
    ("phases", "idle", "stage"),
    [
        ("", False, "idle"),
        ("l", False, "source"),
        ("l", True, "idle"),
        ("pl", False, "source"),
        ("pl", True, "processing"),
        ("ppp", False, "processing"),
        ("cpp", False, "processing"),
        ("cdp", False, "commit"),
        ("ccd", False, "commit"),
        ("c", False, "commit"),
        ("c", True, "commit"),
        ("cl", False, "commit"),
        ("pdd", False, "processing"),
        ("wdd", False, "replay"),
        ("pw", False, "processing"),
        ("cw", False, "commit"),
    ],
)
def test_the_stage_that_holds_the_run_up(phases: str, idle: bool, stage: str):
    """The one that a faster run would need faster: the first with a queue before it."""
    assert bound(state(phases, plan_idle=idle)) == stage


@pytest.mark.parametrize(
    ("phases", "blocked", "stage"),
    [
        ("w", 0, "away"),
        ("l", 0, "away"),
        ("p", 0, "away"),
        ("pw", 1, "away"),
        ("pl", 1, "away"),
        ("cw", 1, "away"),
        ("cdw", 2, "commit"),
    ],
)
def test_a_source_that_is_away_is_named_as_that(phases: str, blocked: int, stage: str):
    """Also while its batch looks again; but not if processed batches already wait for a commit."""
    found = state(phases)
    batches = dict(found.batches)
    batches[11 + blocked] = replace(batches[11 + blocked], blocked="gone")
    assert bound(replace(found, batches=batches)) == stage


def test_a_full_window_holds_planning_back():
    """Who plans waits for the oldest txid in flight."""
    assert (
        said("pppppppp")[0]
        == "waiting for the current batches before reading more: 8 of 8 txids in flight"
    )


def test_processed_batches_wait_for_the_turn_before_them():
    """With the station of that turn and since when it lasts."""
    times = {"turn": NOW - 1.34, "prepared": NOW - 0.2}
    assert said("cddp", {"turn": NOW - 1.34})[-1] == (
        "txids 12 to 13 wait for the commit turn of 11 (prepare, 1.3 s)"
    )
    assert said("cd", times)[-1] == "txid 12 waits for the commit turn of 11 (publish, 1.3 s)"


def test_a_group_in_its_turn_is_named_from_first_to_last():
    """Several txids may have their turn together."""
    assert said("ccd", {"turn": NOW})[-1] == (
        "txid 13 waits for the commit turn of 11 to 12 (prepare, 0.0 s)"
    )


def test_the_commit_waits_for_the_oldest_txid():
    """Nothing is published before it, however much is processed behind it."""
    times = {"started": NOW - 2, "processing": NOW - 0.8}
    assert said("pp", times)[-1] == "commit waits for txid 11 (processing, 0.8 s)"
    assert said("pdd", times)[-1] == (
        "commit and txids 12 to 13 wait for txid 11 (processing, 0.8 s)"
    )


def test_many_txids_are_named_in_few_words():
    """One run of txids, or two, and how many more there are."""
    times = {"started": NOW - 2, "processing": NOW - 0.8}
    assert said("pddddld", times)[-1].startswith(
        "commit and txids 12 to 15 and 1 more wait for txid 11"
    )
    assert said("pdlddldld", times)[-1].startswith(
        "commit and txids 12 and 4 more wait for txid 11"
    )
    assert "txids 12, 14 and 1 more wait for a replay" in said("pwpwpw")
    assert said("pldldl", times)[-1].startswith("commit and txids 13 and 1 more wait for txid 11")


def test_the_source_is_told_from_planning():
    """A source with nothing to read, one that is being asked, and the pace that the user set."""
    assert said("", plan_idle=True) == ["source: nothing to read"]
    assert said("l", {"planned": NOW - 3}) == ["planning waits for the source: txid 11 (3.0 s)"]
    assert said("", plan_scheduled=True) == ["waiting for the emit interval before reading more"]
    both = "waiting for the current batches before reading more"
    assert said("p", plan_scheduled=True)[0] == both
    assert said("d", plan_scheduled=True)[0] == "waiting for the emit interval before reading more"


def test_the_end_of_planning_is_said():
    """A run until a txid, and one that is being stopped, plan no more."""
    assert said("p", until=11)[0] == "planning is over: txid 11 is the last one"
    assert said("p", stopping=True)[0] == "planning is over: the run is being stopped"
    assert said("p", ended=True) == []


def test_batches_that_wait_for_a_replay_are_named():
    """Those in a back-off, and those whose source is away."""
    assert "txids 11, 13 wait for a replay" in said("wpw")
    away = Batch(TransactionAttempt(11), Phase.WAITING, blocked="gone", held=True)
    told = ["txid 11 waits for a source or storage that is away"]
    assert [*said("", batches={11: away}, plan_idle=True)] == told


def test_a_stream_without_known_columns_is_not_told_as_a_source_that_is_away():
    """Its batch waits as for a source, and looks again as for one, but the source is there."""
    lacking = {11: replace(state("w").batches[11], blocked="x", lacks=frozenset({"s"}))}
    assert "txid 11 waits for the columns of a stream" in said("", batches=lacking)
    assert not [line for line in said("", batches=lacking) if "away" in line]
    assert bound(state("", batches=lacking)) == "replay"


PHASES = st.tuples(st.text("c", max_size=4), st.text("wlpd", max_size=10)).map("".join)
"""Commits are in order, so those in their turn are the oldest."""


@settings(deadline=None)
@example("pddddld", False, False, False)
@example("pwwwwpww", False, False, False)
@given(PHASES, st.booleans(), st.booleans(), st.booleans())
def test_any_state_has_one_stage_and_sentences_that_fit_a_terminal(phases, idle, plan, stop):
    """Whatever the phases: a stage that has a name, and at most five lines of eighty columns."""
    fields = {"plan_idle": idle, "plan_scheduled": plan, "stopping": stop}
    batches = dict(state(phases).batches)
    for txid, batch in batches.items():
        if batch.held and txid % 3:
            columns = frozenset({"s"} if txid % 3 == 1 else ())
            batches[txid] = replace(batch, blocked="gone", lacks=columns)
    found = said(phases, {"turn": 1.0, "started": 1.0}, batches=batches, **fields)
    assert bound(state(phases, batches=batches, **fields)) in BOUND_NAMES
    assert len(found) <= 5
    assert all(len(line) <= 80 for line in found)


def test_every_stage_has_words_for_the_user():
    """None is shown by its bare name."""
    assert set(BOUND_NAMES) == set(get_args(Bound))


def test_time_is_put_down_to_the_stage_that_held_the_run_up():
    """From one state to the next; nothing before the first, nothing after the end."""
    now = [1000.0]
    recorder = Recorder("t", 10, Broadcast("t", lambda: now[0]), lambda: now[0])
    for seconds, phases in ((5, "pp"), (2, "cd"), (3, "pp"), (7, "")):
        recorder.observe(state(phases))
        now[0] += seconds
    recorder.observe(state("", ended=True))
    now[0] += 50
    recorder.observe(state("", ended=True))
    assert recorder.report.bound_seconds == {"processing": 8.0, "commit": 2.0, "idle": 7.0}
    assert recorder.report.to_json()["bound_seconds"]["commit"] == 2.0


def test_the_end_of_a_run_says_what_held_it_up():
    """The largest share first; what is next to nothing is left out, and so is an empty line."""
    report = RunReport("t", bound_seconds={"idle": 0.01, "commit": 3.0, "processing": 7.0})
    assert held_up(report) == "t: held up by processing 70%, commits 30%."
    assert held_up(RunReport("t")) is None


def status(phases: str, in_flight: int = 8) -> RunStatus:
    """What a recorder says of such a state."""
    broadcast = Broadcast("flights", lambda: NOW)
    return Recorder("flights", 10, broadcast, lambda: NOW).status(state(phases, window=in_flight))


def test_the_live_view_shows_who_waits_for_whom_in_eighty_columns():
    """Between the batches in flight and the committed ones."""
    out = io.StringIO()
    console = Console(file=out, width=80, height=30)
    info = RunInfo("flights", 3, "embedded", "caught_up", 6)
    console.print(render(info, status("cdp", 3), [], (1.0, 2.0), NOW, 30))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "held up by commits" in lines
    assert "waiting for the current batches before reading more: 3 of 3 txids in flight" in lines
    assert max(map(len, lines)) <= 80


def test_json_lines_tell_who_waits_at_most_once_a_second():
    """A busy run changes it many times a second."""
    out, now = io.StringIO(), [10.0]
    lines = JsonLines(out, lambda: now[0])
    for passed, phases in ((0, "cdp"), (0.5, "pp"), (0.6, "pp"), (5, "pp")):
        now[0] += passed
        lines.update(status(phases, 3), [], [])
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(e["event"], e["at"], e["held_up_by"]) for e in events] == [
        ("waiting", 10.0, "commit"),
        ("waiting", 11.1, "processing"),
    ]
