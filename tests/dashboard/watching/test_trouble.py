"""What the page calls trouble, and its advice: true, and possible to follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dashboard.sample import Sample
from txn.dashboard.watching.feed import Look
from txn.dashboard.watching.follower import LogFollower
from txn.dashboard.watching.topologies import Watched
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.dashboard.watching.trouble import Trouble, state_of, troubles
from txn.dashboard.watching.watched_table import NOT_YET
from txn.operations.quarantine import Quarantined
from txn.protocol.records import CommittedRecord, Progress
from txn.storage.storage import Storage


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path, txids=80)


@pytest.fixture
def flights(sample: Sample) -> Iterator[Watched]:
    """The sample's topology; nobody reads its tables."""
    watched = Watched(TopologyFacts("flights"), sample.folder / "index.sqlite", sample.folder)
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
    """The replay of a changed file is refused: the program is corrected, or a new file made and
    the txid given up.
    """
    flights.looked(sample.look())
    (one,) = said(flights, "quarantine")
    assert one.do.startswith("Correct the program")
    assert "must stay as it is" in one.do
    assert "TXN-407" in one.do
    assert "`txn quarantine drop flights 20`" in one.do


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
    flights.looked(replayed_by(sample.look(), "drop requested"))
    given_up = "It is given up: one of the next txids drops its records."
    assert [one.do for one in said(flights, "quarantine")] == [given_up]


@pytest.mark.parametrize(
    ("listed", "words"),
    [(True, "its rows are in no table."), (False, "and replayed or given up since.")],
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


@pytest.mark.parametrize(
    ("zookeeper", "option"),
    [
        ("embedded", ""),
        ("zk1:2181,zk2:2181/prod", " --zookeeper zk1:2181,zk2:2181/prod"),
        ("embedded:my folder", " --zookeeper 'embedded:my folder'"),
        ("ann:secret@zk1:2181", ""),
    ],
)
def test_commands_ask_the_zookeeper_of_the_page(
    sample: Sample, zookeeper: str, option: str
) -> None:
    """Pasted, they act on the ensemble that was looked at; credentials are never repeated."""
    watched = Watched(
        TopologyFacts("flights"), sample.folder / "x.sqlite", sample.folder, zookeeper
    )
    watched.looked(replace(sample.look(), error="It did not answer."))
    commands = [one.command for one in troubles(watched)]
    watched.index.close()
    assert f"txn quarantine replay flights {sample.quarantined}{option}" in commands
    assert f"txn doctor{option}" in commands


def test_a_topology_that_nobody_has_led(sample: Sample) -> None:
    """A wrong name is said to be one, not a ZooKeeper that is away; a new program is no trouble."""
    error = "ZooKeeper at zk1:2181 knows no topology 'fligths'. It knows flights. [TXN-607]"
    look = Look(1.0, {}, {"fligths": error}, absent=frozenset({"fligths"}))
    for program, expected in (
        ("", ("topology", "warning", error, "")),
        (
            "my shop.py:topology",
            ("topology", "note", "It has not run yet.", "txn run 'my shop.py:topology'"),
        ),
    ):
        index = sample.folder / f"index of {program[:2]}"
        watched = Watched(TopologyFacts("fligths", program=program), index, sample.folder)
        watched.looked(look)
        (one,) = troubles(watched)
        assert state_of(watched) == "absent"
        assert (one.area, one.level, one.what, one.command) == expected
        watched.index.close()


def test_a_table_before_the_first_commit_is_no_trouble(flights: Watched, sample: Sample) -> None:
    """That there is none yet is normal until something is committed."""
    look = sample.look()
    flights.looked(look)
    flights.tables[0].error = NOT_YET
    assert [one.what for one in said(flights, "table")] == [NOT_YET]
    status = look.statuses["flights"]
    nothing = replace(status.found, progress=Progress(committed=CommittedRecord()))
    flights.looked(Look(1.0, {"flights": replace(status, found=nothing)}))
    assert said(flights, "table") == []
