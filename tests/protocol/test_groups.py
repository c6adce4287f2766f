"""Group commit in the coordinator: which txids get a turn together, and what its end means."""

from __future__ import annotations

import pytest

from tests.protocol.coordinator_run import (
    MIXED,
    OPAQUE,
    TRANSACTIONAL,
    Run,
    a,
    record,
    three,
    unchanged,
)
from txn.protocol.events import (
    BatchFailed,
    BatchPublished,
    Cancel,
    Finish,
    GroupFailed,
    PersistCommitted,
    Publish,
    StopRequested,
    Succeed,
)
from txn.protocol.records import CommittedRecord

KINDS = pytest.mark.parametrize("streams", [TRANSACTIONAL, OPAQUE, MIXED], ids=["t", "o", "mixed"])


def lagging(streams=TRANSACTIONAL, **settings) -> Run:
    """Txid 1 has its turn, and 2 to 4 are processed meanwhile."""
    run = three(streams, max_spout_pending=5, **{"max_group_commit": 3, **settings})
    run.plan("4:0", **dict.fromkeys(streams, 4))
    for name in ("1:0", "2:0", "3:0", "4:0"):
        run.processed(name)
    return run


def grouped(streams=TRANSACTIONAL, **settings) -> Run:
    """Txids 2 to 4 have their turn together."""
    run = lagging(streams, **settings)
    run.published("1:0")
    return run


def publishes(actions) -> list[list[str]]:
    """The attempts of every commit turn that is ordered."""
    return [[str(at) for at, _ in x.members] for x in actions if isinstance(x, Publish)]


@KINDS
def test_all_that_are_processed_get_the_turn_together(streams):
    """While commits lag, all consecutive processed txids get one turn, with what each has read."""
    run = lagging(streams)
    read = {n: dict.fromkeys(streams, n) for n in range(5)}
    *_, publish = run.published("1:0")
    assert Publish(a("4:0"), read[4], read[4], ((a("2:0"), read[2]), (a("3:0"), read[3]))) == (
        publish
    )
    assert {"2:0", "3:0", "4:0"} == {n for n, phase in run.phases().items() if phase[:3] == "com"}


def test_a_group_ends_before_a_txid_that_is_still_processed():
    """A txid behind one that is not processed waits for the next turn."""
    run = three(max_group_commit=5)
    run.processed("1:0")
    run.processed("3:0")
    assert [] == publishes(run.published("1:0"))
    assert [["2:0", "3:0"]] == publishes(run.processed("2:0"))


@pytest.mark.parametrize(("limit", "expected"), [(1, ["2:0"]), (2, ["2:0", "3:0"])])
def test_a_group_is_no_larger_than_the_limit(limit, expected):
    """`max_group_commit` txids at most have a turn together."""
    assert [expected] == publishes(lagging(max_group_commit=limit).published("1:0"))


def test_a_topology_that_cannot_group_gives_each_txid_its_turn():
    """Tables that are staged in the commit turn need each txid by itself."""
    assert [["2:0"]] == publishes(lagging(grouped=False).published("1:0"))


def test_a_group_does_not_go_beyond_until():
    """Nothing above `until` is started, so that no group holds it."""
    run = lagging(until=3)
    assert [["2:0", "3:0"]] == publishes(run.published("1:0"))
    assert Finish() == run.published("2:0", "3:0")[-1]


@KINDS
def test_a_group_is_committed_by_one_write(streams):
    """COMMITTED of the last txid stands for all; then success of each, in order."""
    actions = grouped(streams).published("2:0", "3:0", "4:0")
    assert (
        PersistCommitted(
            a("4:0"),
            dict.fromkeys(streams, 4),
            {"table": 4},
            earlier=(a("2:0"), a("3:0")),
        ),
        Succeed(a("2:0")),
        Succeed(a("3:0")),
        Succeed(a("4:0")),
    ) == actions[:4]


def test_an_emptied_txid_is_committed_alone():
    """What is quarantined writes a record with its COMMITTED, and is in no group."""
    run = three(max_group_commit=5, max_batch_attempts=1, on_exhausted="quarantine")
    run.failed("2:0")
    run.processed("2:1")
    run.processed("3:0")
    assert [["1:0"]] == publishes(run.processed("1:0"))
    assert [["2:1"]] == publishes(run.published("1:0"))
    assert [["3:0"]] == publishes(run.published("2:1"))


def test_a_replay_of_what_was_quarantined_is_committed_alone():
    """It strikes out a record with its COMMITTED, and is in no group."""
    replay = record(2, t=9).model_copy(update={"replay_of": 7})
    batches = (record(1, t=1), replay, record(3, t=3))
    run = Run(TRANSACTIONAL, batches=batches, max_group_commit=5)
    run.start()
    for name in ("2:1", "3:1"):
        run.processed(name)
    assert [["1:1"]] == publishes(run.processed("1:1"))
    assert [["2:1"]] == publishes(run.published("1:1"))


@KINDS
def test_a_group_that_no_table_holds_is_dissolved_with_its_work(streams):
    """A failed turn that published nothing blames nobody: each has a turn, as it was staged."""
    run = grouped(streams)
    actions = run.group_failed("2:0", "3:0", "4:0")
    assert (Publish(a("2:0"), dict.fromkeys(streams, 2), dict.fromkeys(streams, 2)),) == actions
    assert [0, 0, 0] == [run.state.batches[txid].failures for txid in (2, 3, 4)]
    assert {"2:0": "committing", "3:0": "processed", "4:0": "processed"}.items() <= (
        run.phases().items()
    )


@KINDS
def test_the_txids_of_a_dissolved_group_are_never_grouped_again(streams):
    """Each of them has a turn of its own, and what follows them may be grouped again."""
    run = grouped(streams)
    run.group_failed("2:0", "3:0", "4:0")
    run.plan("5:0", **dict.fromkeys(streams, 5))
    run.plan("6:0", **dict.fromkeys(streams, 6))
    run.processed("5:0")
    run.processed("6:0")
    assert [["3:0"]] == publishes(run.published("2:0"))
    assert [["4:0"]] == publishes(run.published("3:0"))
    assert [["5:0", "6:0"]] == publishes(run.published("4:0"))


def test_the_one_to_blame_fails_alone():
    """Of a dissolved transactional group only the txid that fails by itself is replayed."""
    run = grouped()
    run.group_failed("2:0", "3:0", "4:0")
    run.published("2:0")
    assert Cancel(a("3:0")) == run.failed("3:0")[0]
    assert {"3:1": "waiting", "4:0": "processed"}.items() <= run.phases().items()


def test_a_group_that_a_table_may_hold_is_tried_anew_one_by_one():
    """Transactional: every txid gets a new attempt of the same batch, and nothing is counted."""
    run = grouped()
    run.plan("5:0", t=5)
    actions = run.group_failed("2:0", "3:0", "4:0", published=True)
    assert tuple(Cancel(a(name)) for name in ("2:0", "3:0", "4:0")) == actions[:3]
    assert {
        "2:1": "processing",
        "3:1": "processing",
        "4:1": "processing",
        "5:0": "processing",
    }.items() <= run.phases().items()
    assert [0, 0, 0] == [run.state.batches[txid].failures for txid in (2, 3, 4)]
    assert all(run.state.batches[txid].had_turn for txid in (2, 3, 4))
    run.processed("3:1")
    assert [["2:1"]] == publishes(run.processed("2:1"))


def test_an_opaque_group_that_a_table_may_hold_is_planned_anew():
    """Opaque: the group and every later txid are planned anew, as after a failed batch."""
    run = grouped(OPAQUE)
    run.plan("5:0", o=5)
    actions = run.group_failed("2:0", "3:0", "4:0", published=True)
    assert tuple(Cancel(a(name)) for name in ("2:0", "3:0", "4:0", "5:0")) == actions[:4]
    waiting = dict.fromkeys(("3:1", "4:1", "5:1", "6:1"), "waiting")
    assert {"2:1": "planning", **waiting} == run.phases()
    assert {"o": 1} == actions[4].previous


def test_a_failure_of_one_member_is_one_of_the_group():
    """Nobody can say which txid of a group failed, nor what tables hold: it is tried anew."""
    run = grouped()
    run.failed("3:0")
    assert {"2:1", "3:1", "4:1"} <= set(run.phases())
    assert [0, 0, 0] == [run.state.batches[txid].failures for txid in (2, 3, 4)]


def test_a_dissolved_group_that_no_table_holds_may_be_emptied():
    """Only a turn of its own, or a group that a table may hold, keeps a txid from quarantine."""
    run = grouped(max_batch_attempts=1, on_exhausted="quarantine")
    run.group_failed("2:0", "3:0", "4:0")
    assert [True, False, False] == [run.state.batches[txid].had_turn for txid in (2, 3, 4)]


@pytest.mark.parametrize(
    "event",
    [
        BatchPublished(a("4:0"), {}),
        BatchPublished(a("3:0"), {}, (a("2:0"),)),
        BatchPublished(a("4:0"), {}, (a("2:0"), a("3:1"))),
        GroupFailed((a("2:0"), a("3:0")), "late", published=True),
        GroupFailed((a("2:1"), a("3:0"), a("4:0")), "late", published=False),
        BatchFailed(a("2:1"), "late"),
    ],
)
def test_the_end_of_another_group_changes_nothing(event):
    """A turn ends in the words of all its attempts, or not at all."""
    assert unchanged(grouped(), event)


def test_the_end_of_a_dissolved_group_changes_nothing():
    """What is told of a group after it was dissolved comes too late."""
    run = grouped()
    run.group_failed("2:0", "3:0", "4:0")
    group = (a("2:0"), a("3:0"), a("4:0"))
    assert unchanged(run, GroupFailed(group, "late", published=True))
    assert unchanged(run, BatchPublished(group[-1], {}, group[:-1]))


def test_a_single_turn_is_no_group():
    """The turn of one txid fails by BatchFailed alone."""
    run = lagging()
    assert unchanged(run, GroupFailed((a("1:0"),), "late", published=False))


def test_stop_lets_the_turn_of_a_group_end():
    """A stop cancels no member of a running group, and ends the run behind its COMMITTED."""
    run = grouped()
    run.plan("5:0", t=5)
    assert () == run.tell(StopRequested())
    actions = run.published("2:0", "3:0", "4:0")
    assert 4 == actions[0].attempt.txid
    assert (Cancel(a("5:0")), Finish()) == actions[4:]


def test_a_group_that_fails_while_stopping_ends_the_run():
    """Its txids are left to the next run, which finds them open."""
    run = grouped()
    run.tell(StopRequested())
    actions = run.group_failed("2:0", "3:0", "4:0")
    assert (*(Cancel(a(name)) for name in ("2:0", "3:0", "4:0")), Finish()) == actions


def test_the_first_turn_of_a_run_may_be_that_of_a_group():
    """Recovered txids are grouped like any others."""
    batches = tuple(record(txid, t=txid) for txid in (5, 6, 7))
    committed = CommittedRecord(txid=4, spouts={"t": 4})
    run = Run(TRANSACTIONAL, committed=committed, batches=batches, max_group_commit=9)
    run.start()
    run.processed("6:1")
    run.processed("7:1")
    assert [["5:1", "6:1", "7:1"]] == publishes(run.processed("5:1"))
