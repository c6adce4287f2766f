"""What the page calls trouble, and its advice: true, and possible to follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dashboard.sample import Sample
from txn.operations.quarantine import Quarantined
from txn.operations.watching.feed import Look
from txn.operations.watching.follower import LogFollower
from txn.operations.watching.known import Known
from txn.operations.watching.topologies import Watched
from txn.operations.watching.trouble import Trouble, troubles
from txn.storage.storage import Storage


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path, txids=80)


@pytest.fixture
def flights(sample: Sample) -> Iterator[Watched]:
    """The sample's topology; nobody reads its tables."""
    watched = Watched(Known("flights"), sample.folder / "index.sqlite", sample.folder)
    yield watched
    watched.index.close()


def said(watched: Watched, area: str) -> list[Trouble]:
    return [one for one in troubles(watched) if one.area == area]


def replayed_by(look: Look, replay: object) -> Look:
    """The same look; the quarantined txid is replayed."""
    status = look.statuses["flights"]
    (entry,) = status.quarantine
    asked = (Quarantined(entry.record, replay),)  # type: ignore[arg-type]
    return replace(look, statuses={"flights": replace(status, quarantine=asked)})


def test_a_file_is_not_to_be_corrected_before_a_replay(flights: Watched, sample: Sample) -> None:
    """The replay of a changed file stops the run: the program is corrected, or a new file made."""
    flights.looked(sample.look())
    (one,) = said(flights, "quarantine")
    assert one.do.startswith("Correct the program")
    assert "must stay as it is" in one.do
    assert "TXN-407" in one.do


@pytest.mark.parametrize(
    ("replay", "words"), [("requested", "one of the next txids"), (83, "txid 83")]
)
def test_nobody_reads_while_it_does_not_run(
    flights: Watched, sample: Sample, replay: object, words: str
) -> None:
    """Who replays a quarantined txid, and that it waits for a run if there is none."""
    asked = f"Its replay is requested: {words} reads its records"
    flights.looked(replayed_by(sample.look(), replay))
    assert [one.do for one in said(flights, "quarantine")] == [f"{asked}."]
    flights.looked(replayed_by(sample.look(running=False), replay))
    assert [one.do for one in said(flights, "quarantine")] == [
        f"{asked} when the topology runs again."
    ]


@pytest.mark.parametrize(
    ("listed", "words"),
    [(True, "its rows are in no table."), (False, "and its replay has read its records.")],
)
def test_what_became_of_a_txid_that_was_committed_empty(
    flights: Watched, sample: Sample, listed: bool, words: str
) -> None:
    """Its failed attempts do not say that a later one has committed its rows."""
    look = sample.look()
    if not listed:
        status = replace(look.statuses["flights"], quarantine=())
        look = replace(look, statuses={"flights": status})
    flights.looked(look)
    follower = LogFollower(flights.index, 0, Storage(sample.routes), 10**6)
    follower.catch_up()
    while follower.step_back():
        pass
    flights.refresh()
    (one,) = [one for one in said(flights, "failure") if one.txid == sample.quarantined]
    assert one.is_over
    assert one.do.startswith("The txid was committed empty")
    assert one.do.endswith(words)


def test_a_notice_brings_its_own_advice(flights: Watched, sample: Sample) -> None:
    """A file that was changed is no wrong path: nothing is said beside what the source says."""
    flights.looked(sample.look())
    assert [one.do for one in said(flights, "notice")] == [""]
