"""Groups in the tables' logs: what a new leader, `txn recover` and `txn history` make of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delta.publishing import publish
from txn.errors import RecoveryRefusedError
from txn.interfaces import Member, Publication
from txn.operations.history import history
from txn.protocol.rebuild import rebuild
from txn.protocol.records import BatchRecord, CommittedRecord, Progress
from txn.protocol.recovery import Recovered, reconcile

COMMITTED = CommittedRecord(txid=4, epoch=2, spouts={"s": "p4"}, tables={"a": 14, "b": 24})
OPEN = tuple(
    BatchRecord(txid=txid, attempt=attempt, epoch=2, spouts={"s": f"p{txid}"})
    for txid, attempt in ((5, 1), (6, 0), (7, 0), (8, 0))
)
OPAQUE = pytest.mark.parametrize("opaque", [False, True])


def group(first: int, last: int, *, epoch: int = 2, **attempts: int) -> Publication:
    """A publication of [first..last]; `t5=3` says that the attempt of txid 5 was 3."""
    members = tuple(
        Member(txid=t, attempt_id=attempts.get(f"t{t}", t == 5), read={"s": f"p{t}"}, rows=t)
        for t in range(first, last + 1)
    )
    return Publication(
        topology="t",
        epoch=epoch,
        first_txid=first,
        last_txid=last,
        attempt_id=members[-1].attempt_id,
        spouts={"s": f"p{last}"},
        read={"s": f"p{last}"},
        members=members if len(members) > 1 else (),
    )


def reconciled(a, b, *, committed=COMMITTED, opaque=False, skipping=(), batches=OPEN) -> Recovered:
    """`reconcile` for the tables "a" and "b"."""
    progress = Progress(committed=committed, batches=batches)
    found = {
        name: (newer if held.first_txid > committed.txid else committed.tables[name], held)
        for name, newer, held in (("a", 20, a), ("b", 30, b))
    }
    streams = ("s",) if opaque else ()
    return reconcile("t", ("s",), streams, progress, found, skipping=skipping)


@OPAQUE
def test_a_group_that_all_tables_hold_is_rolled_forward(opaque):
    """Every table at the same group: all of its txids are committed."""
    record = CommittedRecord(txid=7, epoch=2, spouts={"s": "p7"}, tables={"a": 20, "b": 30})
    expected = Recovered(record, OPEN[3:], roll_forward=True)
    assert expected == reconciled(group(5, 7), group(5, 7), opaque=opaque)


@OPAQUE
def test_a_group_that_some_tables_hold_is_replayed(opaque):
    """Its txids come again, with attempts above those that the table has seen."""
    recovered = reconciled(group(5, 7, t6=4), group(4, 4), opaque=opaque)
    assert (COMMITTED, frozenset({5, 6, 7})) == (recovered.committed, recovered.published)
    assert [1, 4, 0, 0] == [batch.attempt for batch in recovered.batches]


@pytest.mark.parametrize(
    "other", [group(5, 7, t6=1), group(5, 7, epoch=3), group(5, 6), group(5, 5), group(5, 8)]
)
def test_other_groups_in_other_tables_are_replayed_where_replays_differ(other):
    """Opaque tables are rolled forward together only if every txid is of the same attempt."""
    recovered = reconciled(group(5, 7), other, opaque=True)
    assert not recovered.roll_forward
    assert frozenset(range(5, max(7, other.last_txid) + 1)) == recovered.published


def test_what_all_tables_hold_of_other_groups_is_rolled_forward_where_replays_are_identical():
    """Transactional: up to the smallest last txid, as that table says; the rest is open."""
    recovered = reconciled(group(5, 7, t7=3), group(5, 6, t6=2), skipping=("a", "b"))
    record = CommittedRecord(txid=6, epoch=2, spouts={"s": "p6"}, tables={"a": 20, "b": 30})
    batches = (OPEN[2].model_copy(update={"attempt": 3}), OPEN[3])
    assert Recovered(record, batches, True, published=frozenset({7})) == recovered


def test_a_group_that_can_only_be_taken_back_whole_is_not_split_by_rolling_forward():
    """Transactional spouts, opaque tables: one holds more, as a whole, so all of it is replayed."""
    recovered = reconciled(group(5, 7, t7=3), group(5, 6, t6=2), skipping=("b",))
    assert (COMMITTED, frozenset({5, 6, 7})) == (recovered.committed, recovered.published)
    assert [1, 2, 3, 0] == [batch.attempt for batch in recovered.batches]


def test_a_table_that_skips_may_hold_part_of_a_group_beyond_the_committed_txid():
    """A replay came in smaller groups than what the table holds, and some are committed."""
    committed = COMMITTED.model_copy(update={"txid": 5, "spouts": {"s": "p5"}})
    recovered = reconciled(
        group(5, 7), group(5, 5), committed=committed, skipping=("a",), batches=OPEN[1:]
    )
    expected = Recovered(committed, OPEN[1:], published=frozenset({6, 7}))
    assert expected == recovered


@OPAQUE
def test_a_group_that_can_only_be_taken_back_whole_must_begin_behind_the_committed_txid(opaque):
    """A table that does not skip would lose what is committed: ZooKeeper is not as it was."""
    committed = COMMITTED.model_copy(update={"txid": 5})
    with pytest.raises(RecoveryRefusedError, match=r"Table 'a' holds txid 7"):
        reconciled(group(5, 7), group(5, 5), committed=committed, opaque=opaque, batches=OPEN[1:])


@OPAQUE
def test_a_group_further_ahead_is_refused(opaque):
    """A group that begins behind C + 1 was published when more was committed."""
    with pytest.raises(RecoveryRefusedError, match=r"Table 'a' holds txid 8.*txn recover FILE"):
        reconciled(group(6, 8), group(6, 8), opaque=opaque, skipping=("a", "b"))


def test_members_whose_starts_are_missing_are_starts_themselves():
    """What each txid of a group has read stands in the table's log."""
    recovered = reconciled(group(5, 7), group(4, 4), batches=())
    assert OPEN[:3] == recovered.batches


# --- txn recover ------------------------------------------------------------------------------


@OPAQUE
def test_rebuilding_from_a_group_that_all_tables_hold(opaque):
    """Committed is its last txid."""
    found = {"a": [(20, group(5, 7))], "b": [(30, group(5, 7))]}
    progress = rebuild("t", {"s"} if opaque else (), found)
    record = CommittedRecord(txid=7, epoch=2, spouts={"s": "p7"}, tables={"a": 20, "b": 30})
    assert Progress(committed=record) == progress


@OPAQUE
def test_rebuilding_from_a_group_that_some_tables_hold(opaque):
    """Committed is the txid before it, and each of its txids is open."""
    found = {"a": [(20, group(5, 7)), (19, group(3, 4))], "b": [(30, group(3, 4))]}
    progress = rebuild("t", {"s"} if opaque else (), found)
    record = CommittedRecord(txid=4, epoch=2, spouts={"s": "p4"}, tables={"a": 19, "b": 30})
    assert record == progress.committed
    assert [(5, 1), (6, 0), (7, 0)] == [(b.txid, b.attempt) for b in progress.batches]


def test_rebuilding_from_other_groups_where_replays_differ():
    """Opaque tables may disagree about everything since the group began."""
    found = {"a": [(20, group(5, 7)), (19, group(4, 4))], "b": [(30, group(5, 6, epoch=3))]}
    progress = rebuild("t", {"s"}, found)
    assert 4 == progress.committed.txid
    assert [(5, 3), (6, 3), (7, 2)] == [(b.txid, b.epoch) for b in progress.batches]


def test_rebuilding_from_part_of_a_group_where_replays_are_identical():
    """Committed is what all tables hold, with the positions of the table that ends there."""
    found = {"a": [(20, group(5, 7))], "b": [(31, group(6, 6)), (30, group(5, 5))]}
    progress = rebuild("t", (), found, skipping=("a", "b"))
    record = CommittedRecord(txid=6, epoch=2, spouts={"s": "p6"}, tables={"a": 20, "b": 31})
    assert (record, [7]) == (progress.committed, [batch.txid for batch in progress.batches])


def test_rebuilding_splits_no_group_that_can_only_be_taken_back_whole():
    """Identical replays, opaque tables: committed is the txid before the group."""
    a, b = [(20, group(5, 7)), (19, group(4, 4))], [(31, group(5, 6)), (30, group(4, 4))]
    progress = rebuild("t", (), {"a": a, "b": b}, skipping=("b",))
    record = CommittedRecord(txid=4, epoch=2, spouts={"s": "p4"}, tables={"a": 19, "b": 30})
    assert (record, [5, 6, 7]) == (progress.committed, [batch.txid for batch in progress.batches])


@OPAQUE
def test_rebuilding_refuses_a_group_that_is_too_far_ahead(opaque):
    """Txids between the tables are missing: no run leaves that behind."""
    found = {"a": [(20, group(6, 8))], "b": [(30, group(4, 4))]}
    with pytest.raises(RecoveryRefusedError, match=r"'a' holds txid 8, but 'b' holds txid 4"):
        rebuild("t", {"s"} if opaque else (), found)


# --- txn history ------------------------------------------------------------------------------


def grouped(first: int, last: int, **more) -> dict:
    """The fields by which `publish` makes a group."""
    found = group(first, last, **more)
    return {"first_txid": first, "members": found.members, "epoch": found.epoch}


def test_history_tells_of_every_txid_of_a_group(tmp_path: Path):
    """Each has what it read, its rows and its attempt, and the version that holds all."""
    publish(tmp_path / "a", 4)
    publish(tmp_path / "a", 7, **grouped(5, 7, t6=2))
    entries = history("t", [str(tmp_path / "a")], committed=7, limit=3)
    assert [(7, 0, 7), (6, 2, 6), (5, 1, 5)] == [
        (entry.txid, entry.attempt_id, *entry.rows.values()) for entry in entries
    ]
    assert [{"s": "p7"}, {"s": "p6"}, {"s": "p5"}] == [entry.read for entry in entries]
    assert [1, 1, 1] == [version for entry in entries for version in entry.tables.values()]


def test_history_leaves_out_what_a_replay_took_back(tmp_path: Path):
    """A group that was replaced by a smaller one is gone, with the txids that are not back yet."""
    publish(tmp_path / "a", 7, **grouped(5, 7))
    publish(tmp_path / "a", 5, attempt=9)
    entries = history("t", [str(tmp_path / "a")], committed=4)
    assert [(5, 9, {str(tmp_path / "a"): 1})] == [(e.txid, e.attempt_id, e.tables) for e in entries]
