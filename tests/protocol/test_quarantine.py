"""The coordinator and the replay of a quarantined txid: exactly what was set aside, once."""

from __future__ import annotations

import pytest

from tests.protocol.coordinator_run import MIXED, OPAQUE, TRANSACTIONAL, Run, a, record
from txn.protocol.events import (
    Cancel,
    Finish,
    Halt,
    PersistCommitted,
    PersistStart,
    Plan,
    PlanDue,
    PlanMade,
    Process,
    Publish,
    SchedulePlan,
    ScheduleRetry,
)
from txn.protocol.records import BatchRecord, CommittedRecord

ASIDE = {"t": 30, "o": 30}
STREAMS = [TRANSACTIONAL, OPAQUE, MIXED]


def of(streams: dict[str, bool], metadata: dict[str, int]) -> dict[str, int]:
    """The metadata of the streams that there are."""
    return {stream: metadata[stream] for stream in streams}


def replaying(streams: dict[str, bool], **settings: object) -> Run:
    """A run that has just been asked to replay txid 3, as its txid 8."""
    committed = CommittedRecord(txid=7, epoch=1, spouts=of(streams, {"t": 70, "o": 70}))
    run = Run(streams, committed=committed, **settings)  # type: ignore[arg-type]
    run.start()
    run.tell(PlanMade(a("8:0"), of(streams, ASIDE), replay_of=3))
    return run


def next_plan(run: Run, name: str) -> Plan:
    """The question for a new txid, once the interval is over."""
    (question,) = (order for order in run.tell(PlanDue()) if isinstance(order, Plan))
    assert question.attempt == a(name)
    return question


@pytest.mark.parametrize("streams", STREAMS)
def test_replay_is_started_with_what_was_set_aside(streams: dict[str, bool]) -> None:
    """START says which txid is replayed, and carries its metadata."""
    run = Run(streams)
    (question,) = run.start()
    assert isinstance(question, Plan)
    assert (question.is_new, question.replaying) == (True, frozenset())
    aside = of(streams, ASIDE)
    assert run.tell(PlanMade(a("1:0"), aside, replay_of=3)) == (
        PersistStart(a("1:0"), aside, None, 3),
        Process(a("1:0"), aside),
        SchedulePlan(idle=False),
    )


@pytest.mark.parametrize("streams", STREAMS)
def test_replay_moves_no_position(streams: dict[str, bool]) -> None:
    """Later txids go on where the streams stood, and so do the tables and COMMITTED."""
    run = replaying(streams)
    positions = of(streams, {"t": 70, "o": 70})
    assert next_plan(run, "9:0").previous == positions
    (publish,) = run.processed("8:0")
    assert publish == Publish(a("8:0"), of(streams, ASIDE), positions)
    durable = run.published("8:0")[0]
    assert isinstance(durable, PersistCommitted)
    assert (durable.positions, durable.replay_of, durable.quarantined) == (positions, 3, None)
    assert run.state.positions == positions


@pytest.mark.parametrize("streams", STREAMS)
def test_failed_replay_reads_the_same_again(streams: dict[str, bool]) -> None:
    """Its metadata is fixed, that of opaque streams too, and later txids are not dropped."""
    run = replaying(streams)
    next_plan(run, "9:0")
    run.plan("9:0", **of(streams, {"t": 71, "o": 71}))
    assert run.failed("8:0") == (Cancel(a("8:0")), ScheduleRetry(a("8:1"), 1))
    assert run.phases()["9:0"] == "processing"
    aside = of(streams, ASIDE)
    assert run.retry_due("8:1") == (
        PersistStart(a("8:1"), aside, None, 3),
        Process(a("8:1"), aside),
    )


def test_replay_stands_when_an_earlier_opaque_batch_fails() -> None:
    """What it reads follows from no other batch."""
    run = Run(OPAQUE)
    run.start()
    run.plan("1:0", o=1)
    run.tell(PlanMade(a("2:0"), {"o": 30}, replay_of=9))
    next_plan(run, "3:0")
    run.plan("3:0", o=2)
    assert run.failed("1:0") == (Cancel(a("1:0")), Cancel(a("3:0")), ScheduleRetry(a("1:1"), 1))
    assert run.phases()["2:0"] == "processing"
    run.processed("2:0")
    run.retry_due("1:1")
    assert run.plan("1:1", o=5)[-1] == Plan(
        a("3:1"), ("o",), {"o": 5}, is_new=False, replaying=frozenset({9})
    )


@pytest.mark.parametrize("streams", STREAMS)
def test_replay_survives_a_restart(streams: dict[str, bool]) -> None:
    """A START that is a replay is begun again as that, and nobody is asked about it."""
    aside = of(streams, ASIDE)
    start = BatchRecord(txid=8, attempt=0, epoch=1, spouts=aside, replay_of=3)
    positions = of(streams, {"t": 70, "o": 70})
    run = Run(
        streams, committed=CommittedRecord(txid=7, epoch=1, spouts=positions), batches=(start,)
    )
    assert run.start() == (
        PersistStart(a("8:1"), aside, None, 3),
        Process(a("8:1"), aside),
        Plan(a("9:0"), tuple(streams), positions, replaying=frozenset({3})),
    )


@pytest.mark.parametrize("streams", STREAMS)
def test_replay_that_is_exhausted_is_quarantined_under_its_own_txid(
    streams: dict[str, bool],
) -> None:
    """It is committed empty; COMMITTED says both what is quarantined and what it replayed."""
    run = replaying(streams, max_batch_attempts=1, on_exhausted="quarantine")
    aside = of(streams, ASIDE)
    assert run.failed("8:0") == (
        Cancel(a("8:0")),
        PersistStart(a("8:1"), aside, "disk on fire", 3),
        Process(a("8:1"), aside, empty=True),
    )
    run.processed("8:1")
    durable = run.published("8:1")[0]
    assert isinstance(durable, PersistCommitted)
    assert (durable.quarantined, durable.replay_of) == ("disk on fire", 3)
    assert durable.positions == of(streams, {"t": 70, "o": 70})


@pytest.mark.parametrize("streams", STREAMS)
def test_later_txids_are_planned_while_a_replay_waits(streams: dict[str, bool]) -> None:
    """Nothing follows from it, so that its back-off holds nobody up."""
    run = replaying(streams)
    run.failed("8:0")
    assert next_plan(run, "9:0").previous == of(streams, {"t": 70, "o": 70})
    run.plan("9:0", **of(streams, {"t": 71, "o": 71}))
    assert run.phases()["9:0"] == "processing"


def test_exhausted_replay_is_emptied_out_of_turn() -> None:
    """Its metadata cannot prove wrong any more, whatever becomes of earlier opaque batches."""
    run = Run(OPAQUE, max_batch_attempts=1, on_exhausted="quarantine")
    run.start()
    run.plan("1:0", o=1)
    run.tell(PlanMade(a("2:0"), {"o": 30}, replay_of=9))
    assert run.failed("2:0")[1] == PersistStart(a("2:1"), {"o": 30}, "disk on fire", 9)


def test_exhausted_replay_that_had_its_turn_halts() -> None:
    """A table may hold it: it is not emptied."""
    run = replaying(TRANSACTIONAL, max_batch_attempts=1, on_exhausted="quarantine")
    run.processed("8:0")
    assert isinstance(run.failed("8:0")[-1], Halt)


def test_replay_in_flight_is_named_in_every_question() -> None:
    """Otherwise the same records would be read by two txids; once committed, it is gone."""
    run = replaying(TRANSACTIONAL)
    assert next_plan(run, "9:0").replaying == {3}
    run.processed("8:0")
    run.published("8:0")
    run.plan("9:0", t=71)
    assert run.phases() == {"9:0": "processing", "10:0": "planning"}
    run.answer("10:0", t=None)
    assert next_plan(run, "10:1").replaying == frozenset()


@pytest.mark.parametrize("again", [3, 4])
def test_second_replay_of_a_txid_is_refused(again: int) -> None:
    """The shell must not answer with a replay that is in flight; another one may be."""
    run = replaying(TRANSACTIONAL)
    next_plan(run, "9:0")
    answer = PlanMade(a("9:0"), {"t": 30}, replay_of=again)
    if again == 4:
        assert run.tell(answer)[0] == PersistStart(a("9:0"), {"t": 30}, None, 4)
        return
    with pytest.raises(ValueError, match="that replay is in flight already"):
        run.tell(answer)


def test_txid_that_was_started_cannot_become_a_replay() -> None:
    """What it read before is in nobody else's batch."""
    run = Run(OPAQUE, batches=(record(1, o=1),))
    (question,) = run.start()
    assert isinstance(question, Plan)
    assert question.is_new is False
    with pytest.raises(ValueError, match="not about a new txid"):
        run.tell(PlanMade(a("1:1"), {"o": 30}, replay_of=3))


def test_replay_of_what_had_nothing_to_read_is_a_batch_all_the_same() -> None:
    """A quarantined txid without records is replayed, empty, and its record goes."""
    run = Run(until="caught_up")
    run.start()
    run.tell(PlanMade(a("1:0"), {"t": None}, replay_of=3))
    assert run.phases() == {"1:0": "processing"}


def test_run_is_caught_up_only_when_no_replay_is_wanted() -> None:
    """With nothing in flight, an answer of the spouts says that no replay was wanted."""
    run = Run(until="caught_up")
    run.start()
    run.tell(PlanMade(a("1:0"), {"t": 30}, replay_of=3))
    next_plan(run, "2:0")
    assert run.answer("2:0", t=None) == (SchedulePlan(idle=True),)
    run.processed("1:0")
    run.published("1:0")
    next_plan(run, "2:1")
    assert run.answer("2:1", t=None) == (Finish(),)
