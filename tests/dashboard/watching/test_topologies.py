"""Topologies under watch: every source may be away, and what is known stays shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.children import wait_until
from tests.dashboard.hanging import hanging
from tests.dashboard.made_logs import append_version, counts, publication
from tests.dashboard.sample import Sample, Told, with_stopped
from txn.dashboard.api import series
from txn.dashboard.watching.feed import Look
from txn.dashboard.watching.run_files import RunNote
from txn.dashboard.watching.topologies import Watch, Watched
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.dashboard.watching.trouble import Trouble, state_of, troubles
from txn.delta.commits import Commit
from txn.errors import UserError
from txn.machine.liveness import machine_id
from txn.protocol.records import IncarnationRecord


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path, txids=120)


@pytest.fixture
def watch(sample: Sample) -> Iterator[Watch]:
    """All topologies of the sample, looked at once."""
    with Watch([], "zk1:2181", where=sample.folder, feed=Told) as watch:
        yield watch


def watched(watch: Watch, look: Look) -> Watched:
    Told.last.say(look)
    return watch.topology("flights")


def comes(condition: Callable[[], object], what: str) -> None:
    wait_until(lambda: bool(condition()), what, 20)


def test_everything_is_indexed_in_the_background(watch: Watch, sample: Sample) -> None:
    """Tables that ZooKeeper names are read to their beginning, and their files are looked at."""
    found = watched(watch, sample.look())
    comes(lambda: found.index.span() == (1, 120) and not found.reads_old, "all txids")
    comes(lambda: all(table.facts for table in found.tables), "the tables' facts")
    assert found.committed == 120
    assert {table.name for table in found.tables} == {sample.delays, sample.routes, sample.bad}


def test_what_is_new_raises_the_revision(watch: Watch, sample: Sample) -> None:
    """A commit, a note of the run and a failure in its log are each seen within two seconds."""
    found = watched(watch, sample.look())
    comes(lambda: found.index.span() == (1, 120), "all txids")
    began = time.monotonic()
    before = found.revision
    sample.commit(121)
    comes(lambda: found.index.span() == (1, 121) and found.revision > before, "the txid")
    sample.note()
    comes(lambda: found.is_live and found.note and found.note.held_up_by == "commit", "the note")
    with (sample.folder / ".txn/logs/flights.log").open("a", encoding="utf-8") as log:
        log.write("2026-11-24 10:00:00,000 WARNING txn [flights 122:0] failed: Boom\n")
    comes(lambda: found.index.failures(122), "the failure")
    assert time.monotonic() - began < 3 * 2 + 2


def test_what_zookeeper_says_is_taken_in_at_once(
    watch: Watch, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that it tells of is read out of the logs at once, not at the next look at them."""
    found = watched(watch, sample.look())
    comes(lambda: found.index.span() == (1, 120) and not found.reads_old, "all txids")
    comes(lambda: all(table.facts for table in found.tables), "the tables' facts")
    for name in ("topologies._NOTES_SECS", "watched_table.EVERY_SECS"):
        monkeypatch.setattr(f"txn.dashboard.watching.{name}", 3600.0)
    Told.last.say(sample.look(running=False))
    before = found.revision
    comes(lambda: found.revision > before, "that it does not run")
    sample.commit(121)
    Told.last.say(sample.look(committed=121))
    comes(lambda: found.index.span() == (1, 121), "the txid")
    assert found.revision > before


def test_files_are_counted_again_for_who_asks(
    watch: Watch, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long after the last count; while nobody asks, new versions cost no counting."""
    found = watched(watch, sample.look())
    comes(lambda: all(table.facts for table in found.tables), "the tables' facts")
    monkeypatch.setattr("txn.dashboard.watching.watched_table._FACTS_SECS", 0.5)
    monkeypatch.setattr("txn.dashboard.watching.watched_table._FACTS_FACTOR", 0.0)
    table = found.table(sample.delays)
    table._next_facts = 0.0
    before = table.facts
    assert before is not None
    assert table.follower is not None
    for txid in (121, 122):
        newest = table.follower.newest
        sample.commit(txid)
        Told.last.say(sample.look(committed=txid))
        comes(lambda newest=newest: table.follower.newest > newest, "the version")
    time.sleep(0.3)
    assert table.facts is before
    assert table.ask_facts() is before
    comes(lambda: table.facts.version == table.follower.newest, "a count of the newest version")


def test_a_table_that_is_away_hides_no_other(watch: Watch, sample: Sample) -> None:
    """It is named with the reason, and read again when it is there."""
    Path(sample.routes).rename(sample.routes + "-away")
    found = watched(watch, sample.look())
    comes(lambda: found.index.span() == (1, 120), "the other tables")
    comes(lambda: found.table(sample.routes).error, "the error")
    assert any(one.area == "table" and one.table == sample.routes for one in troubles(found))
    comes(lambda: not found.reads_old, "an end of reading")
    Path(sample.routes + "-away").rename(sample.routes)
    comes(lambda: found.table(sample.routes).error is None, "the table")


def test_a_table_that_goes_away_is_told(watch: Watch, sample: Sample) -> None:
    """Also after it was read: what is known of it stays, with the reason."""
    found = watched(watch, sample.look())
    comes(lambda: found.index.span() == (1, 120) and not found.reads_old, "all txids")
    comes(lambda: all(table.facts for table in found.tables), "the tables' facts")
    before = found.revision
    Path(sample.routes).rename(sample.routes + "-away")
    comes(lambda: found.table(sample.routes).error, "the error")
    assert found.table(sample.routes).error == "There is no Delta table there any more."
    comes(lambda: found.revision > before, "the revision")
    assert found.index.span(found.table(sample.routes).number) == (1, 120)


@pytest.mark.parametrize("same", [False, True], ids=["other tables", "the same tables"])
def test_nothing_is_left_of_an_earlier_life(tmp_path: Path, same: bool) -> None:
    """A topology that was deleted and made anew under its name has only its own txids and tables,
    whether those lie where the old ones lay or not, and so has one that gave up a table.
    """
    sample = Sample(tmp_path / "old", txids=6)
    first = sample.look()
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch:
        found = watched(watch, in_life(first, 1))
        comes(lambda: found.index.span() == (1, 6) and not found.reads_old, "all txids")
        (tmp_path / "old").rename(tmp_path / "away")
        again = Sample(tmp_path / ("old" if same else "new"), txids=2)
        watched(watch, in_life(again.look(), 2))
        comes(lambda: found.index.span() == (1, 2) and not found.reads_old, "the new life")
        assert {table.name for table in found.tables} == {again.delays, again.routes, again.bad}
        one = found.index.txid(1)
        assert one is not None
        assert (one[0].rows, len(one[1])) == (sum(part.rows for part in one[1]), 3)
        assert not of_area(found, "table")
        look = in_life(again.look(), 2)
        progress = look.statuses["flights"].found.progress
        del progress.committed.tables[again.bad]
        watched(watch, look)
        comes(lambda: found.index.span() == (1, 2) and not found.reads_old, "all txids")
        assert {table.name for table in found.tables} == {again.delays, again.routes}


def in_life(look: Look, number: int) -> Look:
    """What is said of a topology in one of its lives."""
    status = look.statuses["flights"]
    life = IncarnationRecord(id=number)
    found = replace(status.found, incarnation=life)
    return replace(look, statuses={"flights": replace(status, found=found)})


def test_a_table_that_does_not_answer_holds_up_nothing_else(tmp_path: Path) -> None:
    """Other tables of its topology, the run's note, and other topologies are read meanwhile."""
    sample = Sample(tmp_path, txids=120)
    look = with_stopped(sample.look(), tmp_path)
    with (
        hanging(Path(sample.delays) / "_delta_log/_last_checkpoint"),
        Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch,
    ):
        Told.last.say(look)
        flights, orders = watch.topology("flights"), watch.topology("orders")
        others = [flights.table(name) for name in (sample.routes, sample.bad)]
        comes(lambda: all(table.facts for table in others), "the tables beside it")
        comes(lambda: orders.index.span() == (1, 30), "the other topology")
        sample.note()
        comes(lambda: flights.is_live, "the note")
        assert flights.table(sample.delays).facts is None


def test_old_versions_that_do_not_come_hold_up_nothing_else(tmp_path: Path) -> None:
    """A table whose older commit files cannot be had leaves the turn to others."""
    sample = Sample(tmp_path, txids=120)
    look = with_stopped(sample.look(), tmp_path)
    with (
        hanging(Path(sample.delays) / f"_delta_log/{110:020d}.json"),
        Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch,
    ):
        Told.last.say(look)
        flights, orders = watch.topology("flights"), watch.topology("orders")
        comes(lambda: orders.index.span() == (1, 30) and not orders.reads_old, "the other topology")
        others = [flights.table(name) for name in (sample.routes, sample.bad)]
        comes(lambda: not any(table.reads_old for table in others), "the tables beside it")
        sample.commit(121)
        comes(lambda: flights.index.span(others[0].number) == (1, 121), "what is new")
        assert flights.table(sample.delays).reads_old


def test_a_topology_that_cannot_be_read_is_shown(watch: Watch, sample: Sample) -> None:
    """With the reason; so is one that ZooKeeper does not know any more."""
    look = sample.look()
    watched(watch, replace(look, errors={"broken": "Node /txn/broken cannot be read."}))
    broken = watch.topology("broken")
    assert (state_of(broken), broken.error) == ("unknown", "Node /txn/broken cannot be read.")
    found = watched(watch, replace(look, statuses={}))
    assert (found.committed, found.error) == (
        120,
        "ZooKeeper does not know topology 'flights' any more.",
    )
    assert watched(watch, look).error is None


def test_a_topology_that_is_named_twice(tmp_path: Path) -> None:
    """It is watched once, with what its program says of it."""
    program = TopologyFacts("t", plan={"topology": "t"})
    for both in ([TopologyFacts("t"), program], [program, TopologyFacts("t")]):
        with Watch(both, "zk1:2181", where=tmp_path, feed=Told) as watch:
            assert watch.names == ["t"]
            assert watch.topology("t").plan == {"topology": "t"}


def test_zookeeper_may_be_away(watch: Watch, sample: Sample) -> None:
    """What was known stays, with the reason, and goes on when ZooKeeper answers."""
    look = sample.look()
    found = watched(watch, look)
    watched(watch, Look(time.time(), look.statuses, {}, "ZooKeeper did not answer."))
    assert (found.committed, state_of(found)) == (120, "running")
    assert troubles(found)[0].area in ("zookeeper", "quarantine")
    assert found.error == "ZooKeeper did not answer."
    watched(watch, sample.look(committed=119))
    assert (found.error, found.committed) == (None, 119)


def test_states_are_told_apart(watch: Watch, sample: Sample) -> None:
    """Running, lost, standby and stopped; before the first answer and without any."""
    look = sample.look()
    found = watched(watch, look)
    status = look.statuses["flights"]
    assert state_of(found) == "running"
    for changed, expected in (
        (replace(status, leader_alive=False), "lost"),
        (replace(status, found=replace(status.found, leader=None)), "standby"),
        (replace(status, found=replace(status.found, leader=None), standbys=()), "stopped"),
    ):
        watched(watch, replace(look, statuses={"flights": changed}))
        assert state_of(found) == expected
    found.status = None
    assert state_of(found) == "starting"
    found.error = "away"
    assert state_of(found) == "unknown"


def test_a_run_that_was_killed_is_no_run_that_was_stopped(watch: Watch, sample: Sample) -> None:
    """Nobody leads, and what it said last is no end; a run after it that ended well is told so."""
    look = sample.look()
    status = replace(look.statuses["flights"], standbys=())
    status = replace(status, found=replace(status.found, leader=None))
    gone = RunNote(
        topology="flights",
        pid=2**22 - 1,
        machine=machine_id(),
        epoch=status.found.epoch,
        at=time.time(),
        program="flights.py:topology",
    )
    for last, expected in (
        (gone, "died"),
        (gone.model_copy(update={"ended": "stopped"}), "stopped"),
        (gone.model_copy(update={"epoch": gone.epoch - 1}), "stopped"),
        (gone.model_copy(update={"pid": os.getpid()}), "stopped"),
    ):
        found = watched(watch, replace(look, statuses={"flights": status}))
        found._note = last
        assert state_of(found) == expected
        assert bool(of_area(found, "run")) == (expected == "died")


def test_a_lost_leader_says_what_to_do(watch: Watch, sample: Sample) -> None:
    """A standby takes over if there is one; an embedded server, for one, can have none."""
    look = sample.look()
    lost = replace(look.statuses["flights"], leader_alive=False)
    for status, expected in ((lost, "A standby"), (replace(lost, standbys=()), "Start the")):
        found = watched(watch, replace(look, statuses={"flights": status}))
        assert of_area(found, "leader")[0].do.startswith(expected)


def of_area(found: Watched, area: str) -> list[Trouble]:
    return [one for one in troubles(found) if one.area == area]


def test_trouble_says_what_to_do(watch: Watch, sample: Sample) -> None:
    """Quarantine, failures, foreign commits and notices: each with the way out."""
    found = watched(watch, sample.look())
    comes(lambda: counts(found.index)["failures"] == 3, "the failures")
    comes(lambda: not found.reads_old and found.index.span() == (1, 120), "all txids")
    (emptied,) = of_area(found, "quarantine")
    replay = f"txn quarantine replay flights {sample.quarantined} --zookeeper zk1:2181"
    assert emptied.command == replay
    assert (emptied.level, emptied.is_over) == ("error", False)
    (foreign,) = of_area(found, "foreign commit")
    assert "DELETE by ann" in foreign.what
    assert (foreign.table, foreign.is_over) == (sample.routes, True)
    failed = {one.txid: one.is_over for one in of_area(found, "failure")}
    assert failed == {87: True, sample.quarantined: True, 121: False}
    (notice,) = of_area(found, "notice")
    assert notice.what.startswith("flights: 2 files were changed")
    # A notice says it by itself.
    assert all(one.do or one.is_over or one == notice for one in troubles(found))


def test_failures_are_warnings_only_while_they_matter(tmp_path: Path) -> None:
    """Not while nobody tells what is committed, nor if the topology was made anew since."""
    sample = Sample(tmp_path, txids=1)
    with (tmp_path / ".txn/logs/flights.log").open("a", encoding="utf-8") as log:
        for txid in (2, 50):
            log.write(f"2026-11-24 10:00:00,000 WARNING txn [flights {txid}:0] failed: Boom\n")
    with Watch([TopologyFacts("flights")], "zk1:2181", where=tmp_path, feed=Told) as watch:
        found = watch.topology("flights")
        comes(lambda: found.index.failures(50), "the failures")

        def said(*txids: int) -> list[tuple[str, bool]]:
            by_txid = {one.txid: (one.level, one.is_over) for one in of_area(found, "failure")}
            return [by_txid[txid] for txid in txids]

        assert said(2, 50) == [("note", False), ("note", False)]
        watched(watch, sample.look())
        assert said(2, 50) == [("warning", False), ("note", True)]
        watched(watch, sample.look(committed=2))
        assert said(2) == [("note", True)]


def test_failures_of_an_earlier_life_are_not_of_this_one(watch: Watch, sample: Sample) -> None:
    """They go away when the first attempt of the new life is in the log."""
    found = watched(watch, sample.look())
    comes(lambda: counts(found.index)["failures"] == 3, "the failures")
    before = found.revision
    with (sample.folder / ".txn/logs/flights.log").open("a", encoding="utf-8") as log:
        log.write("2026-11-25 10:00:00,000 INFO txn [flights 1:0] started\n")
    comes(lambda: counts(found.index)["failures"] == 0, "their end")
    comes(lambda: found.revision > before, "the revision")
    assert not of_area(found, "failure")


def test_lag_is_kept_longer_than_every_word_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest samples are all there, older ones every ten seconds; a chart has as many points
    of one hour as of another.
    """
    monkeypatch.setattr("txn.dashboard.watching.topologies._SAMPLES", 100)
    found = Watched(TopologyFacts("t"), tmp_path / "index", tmp_path)
    now = time.time()
    for second in range(-1200, 0):
        lags = {"s": {"records": float(-second)}}
        found._sample(RunNote(topology="t", pid=1, at=now + second, lags=lags))
    ages = [round(now - sample.at_ms / 1000) for sample in found.samples]
    assert ages == [*range(1200, 100, -10), *range(100, 0, -1)]
    began = Commit(1, int((now - 1200) * 1000), "WRITE", publication=publication(1))
    found.index.add_newer(0, [began])
    times = series(found, 60)["lag"]["t"]
    found.index.close()
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert now - times[0] > 1190
    assert len(times) < 155
    assert max(gaps) <= 20


def test_a_batch_that_is_blocked_is_trouble(watch: Watch, sample: Sample) -> None:
    """With the error of the source, and since when."""
    found = watched(watch, sample.look())
    flight = {
        "txid": 121,
        "attempt_id": 0,
        "phase": "planning",
        "failures": 0,
        "since": time.time() - 5,
    }
    sample.note(
        in_flight=({**flight, "blocked": "Kafka is away", "blocked_since": time.time() - 90},)
    )
    comes(lambda: of_area(found, "batch"), "the blocked batch")
    (batch,) = of_area(found, "batch")
    assert "Kafka is away" in batch.what
    assert "1 min 30 s" in batch.what or "1 min 31 s" in batch.what
    assert batch.txid == 121


def test_the_note_of_a_leader_that_was_cut_off_is_not_the_runs(
    watch: Watch, sample: Sample
) -> None:
    """Whether it comes before or after its successor has taken a newer epoch."""
    look = sample.look()
    status = look.statuses["flights"]
    found = watched(watch, look)
    sample.note()
    comes(lambda: found.is_live, "the note")
    successor = replace(status, found=replace(status.found, epoch=4))
    watched(watch, replace(look, statuses={"flights": successor}))
    assert (found.note, found.is_live) == (None, False)
    sample.note(epoch=4, held_up_by="emit")
    comes(lambda: found.is_live, "the successor's note")
    sample.note(epoch=3, waits=("for ever",))
    found.refresh()
    assert found.note is not None
    assert (found.note.epoch, found.is_live) == (4, True)


def test_a_run_that_ended_with_an_error(watch: Watch, sample: Sample) -> None:
    """Its last words are shown while nobody leads; they are no trouble of a leader."""
    look = sample.look(running=False)
    status = look.statuses["flights"]
    found = watched(watch, replace(look, statuses={"flights": replace(status, standbys=())}))
    sample.note(ended="error", error="BatchError: txid 121 failed for good")
    comes(lambda: of_area(found, "run"), "the error")
    assert "txid 121 failed for good" in of_area(found, "run")[0].what
    assert of_area(found, "leader") == []


def test_topologies_are_found_one_after_the_other(watch: Watch, sample: Sample) -> None:
    """Whatever ZooKeeper knows appears; nobody else is answered for."""
    assert watch.names == []
    watched(watch, sample.look())
    assert watch.names == ["flights"]
    assert set(watch.revisions) == {"flights"}
    with pytest.raises(UserError, match="no topology of that name"):
        watch.topology("other")
    with pytest.raises(UserError, match="no table of that name"):
        watch.topology("flights").table("/etc/passwd")


def test_a_program_brings_its_graph_and_its_storage_options(tmp_path: Path) -> None:
    """The tables are known before ZooKeeper answers, and are read with the program's options."""
    table = tmp_path / "warehouse/rows"
    (tmp_path / "program.py").write_text(
        "from committers.append_table import AppendTable\n"
        "from spouts.rate import RateSpout\n"
        "from txn import Topology\n"
        "topology = Topology('t')\n"
        "secret = {'aws_secret_access_key': 'hidden'}\n"
        f"rows = AppendTable({str(table)!r}, storage_options=secret)\n"
        "topology.stream('rows', RateSpout(1)).partition_persist(rows)\n",
        "utf-8",
    )
    from tests.dashboard.made_logs import made_table

    made_table(table, {"x": "long"})
    append_version(table, 1, publication(1))
    target = f"{tmp_path / 'program.py'}:topology"
    with Watch([TopologyFacts.named(target)], "zk1:2181", where=tmp_path, feed=Told) as watch:
        found = watch.topology("t")
        comes(lambda: found.index.span() == (1, 1), "the txid")
        assert found.plan["streams"][0]["spout"] == "RateSpout"
        assert found.tables[0].options == {"aws_secret_access_key": "hidden"}
        assert state_of(found) == "starting"
