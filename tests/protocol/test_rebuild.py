from __future__ import annotations

import pytest

from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.protocol.rebuild import quarantined, rebuild, replayed
from txn.protocol.records import BatchRecord, CommittedRecord, Progress, QuarantineRecord


def publication(txid: int, attempt: int = 0, epoch: int = 1, topology: str = "t") -> Publication:
    return Publication(
        topology=topology,
        epoch=epoch,
        first_txid=txid,
        last_txid=txid,
        attempt_id=attempt,
        spouts={"s": f"p{txid}"},
        read={"s": f"p{txid}"},
    )


def committed(txid: int, tables: dict[str, int], epoch: int = 1) -> CommittedRecord:
    return CommittedRecord(txid=txid, epoch=epoch, spouts={"s": f"p{txid}"}, tables=tables)


def test_all_tables_at_one_txid_are_committed() -> None:
    """What every table holds is committed, with the positions that were published with it."""
    found = {"a": [(9, publication(5)), (8, publication(4))], "b": [(7, publication(5))]}
    assert rebuild("t", {"s"}, found) == Progress(committed=committed(5, {"a": 9, "b": 7}))


def test_a_txid_that_some_tables_hold_becomes_an_open_batch() -> None:
    """A txid that not all tables hold is open; committed is the one before, with its positions."""
    found = {
        "a": [(9, publication(5, attempt=2, epoch=3)), (8, publication(4))],
        "b": [(7, publication(4))],
    }
    assert rebuild("t", {"s"}, found) == Progress(
        committed=committed(4, {"a": 8, "b": 7}),
        batches=(BatchRecord(txid=5, attempt=2, epoch=3, spouts={"s": "p5"}, opaque=["s"]),),
    )


def test_first_txid_in_some_tables_only() -> None:
    """When the very first txid is half published, nothing is committed and txid 1 is open."""
    progress = rebuild("t", (), {"a": [(1, publication(1))], "b": []})
    assert progress.committed == CommittedRecord()
    assert [batch.txid for batch in progress.batches] == [1]


def test_no_publication_is_the_very_beginning() -> None:
    """Tables that were never published to tell of an empty state."""
    assert rebuild("t", (), {"a": [], "b": []}) == Progress()


def test_opaque_attempts_that_differ_are_replayed() -> None:
    """Opaque tables that hold the txid from different attempts may disagree: it stays open."""
    found = {
        "a": [(9, publication(5, attempt=1, epoch=2)), (8, publication(4))],
        "b": [(7, publication(5)), (6, publication(4))],
    }
    progress = rebuild("t", {"s"}, found)
    assert progress.committed == committed(4, {"a": 8, "b": 6})
    assert [(b.txid, b.attempt) for b in progress.batches] == [(5, 1)]


def test_transactional_attempts_that_differ_are_the_same() -> None:
    """A transactional replay is identical, so attempts of one txid need not be the same."""
    found = {"a": [(9, publication(5, attempt=1, epoch=2))], "b": [(7, publication(5))]}
    assert rebuild("t", (), found).committed == committed(5, {"a": 9, "b": 7}, epoch=2)


@pytest.mark.parametrize("behind", [[(2, publication(3))], []])
def test_tables_further_apart_are_refused(behind: list[tuple[int, Publication]]) -> None:
    """Tables more than one txid apart come from no run: both are named, nothing is guessed."""
    with pytest.raises(RecoveryRefusedError, match=r"'a' holds txid 5") as error:
        rebuild("t", (), {"a": [(9, publication(5))], "b": behind})
    assert "'b'" in str(error.value)
    assert ("--new 'b'" in str(error.value)) == (not behind)


def test_another_topologys_table_is_refused() -> None:
    """A table that belongs to another topology says nothing about this one."""
    with pytest.raises(RecoveryRefusedError, match="belongs to topology 'other'"):
        rebuild("t", (), {"a": [(9, publication(5, topology="other"))]})


def test_positions_that_no_log_holds_any_more_are_refused() -> None:
    """Without the positions of the last committed txid there is nothing to go on from."""
    found = {
        "a": [(9, publication(5, attempt=1, epoch=2))],
        "b": [(7, publication(5))],
    }
    with pytest.raises(RecoveryRefusedError, match="by txid 4"):
        rebuild("t", {"s"}, found)


def replay(txid: int, of: int) -> Publication:
    """A publication of a txid that replays txid `of`."""
    read = {"spouts": {"s": f"p{txid - 1}"}, "read": {"s": f"p{of}"}, "replay_of": of}
    return publication(txid).model_copy(update=read)


def test_replay_that_some_tables_hold_stays_a_replay() -> None:
    """As an ordinary batch it would take its stream back; its COMMITTED strikes out a record."""
    found = {"a": [(9, replay(5, of=2)), (8, publication(4))], "b": [(7, publication(4))]}
    progress = rebuild("t", (), found)
    assert progress.committed.spouts == {"s": "p4"}
    assert [(b.txid, b.spouts, b.replay_of) for b in progress.batches] == [(5, {"s": "p2"}, 2)]


def test_replay_that_all_tables_hold_moves_no_position() -> None:
    """What is committed with a replay is where the streams stood."""
    found = {"a": [(9, replay(5, of=2)), (8, publication(4))]}
    assert rebuild("t", (), found).committed.spouts == {"s": "p4"}


def aside(txid: int, **spouts: str | None) -> QuarantineRecord:
    """A quarantine record."""
    return QuarantineRecord(txid=txid, attempt=0, spouts=spouts, error="boom")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (aside(2, s="p2"), {2: 5}),
        (aside(2, s=None), {2: 5}),
        (aside(3, s="p2"), {}),
    ],
)
def test_what_the_tables_hold_as_replayed(
    record: QuarantineRecord, expected: dict[int, int]
) -> None:
    """The txid that a publication says it replays, and no other that reads the same."""
    assert replayed([record], [publication(6), replay(5, of=2), publication(4)]) == expected


def test_a_replay_says_itself_what_it_has_replayed() -> None:
    """It may have read less than was set aside, or nothing: then the txid was given up. One that
    was emptied itself has replayed nothing.
    """
    less, nothing, empty = (
        replay(txid, of=txid).model_copy(
            update={"replay_of": of, "read": {"s": read}, "quarantined": error}
        )
        for txid, of, read, error in (
            (7, 2, "p2 in part", None),
            (8, 3, None, None),
            (9, 4, "p4", "no"),
        )
    )
    records = [aside(txid, s=f"p{txid}") for txid in (2, 3, 4)]
    assert replayed(records, [empty, nothing, less]) == {2: 7, 3: 8}


def emptied(
    txid: int, attempt: int = 0, epoch: int = 1, replay_of: int | None = None
) -> Publication:
    """A publication of a txid that was given up, maybe as the replay of another one."""
    found = publication(txid, attempt, epoch)
    return found.model_copy(update={"quarantined": f"no {txid}", "replay_of": replay_of})


def test_the_quarantine_is_what_was_emptied_and_not_replayed_since() -> None:
    """Each with its newest attempt; a replay that was emptied itself is quarantined in its turn."""
    told = [
        emptied(2),
        publication(3),
        emptied(4),
        publication(5).model_copy(update={"replay_of": 4}),
        emptied(6),
        emptied(7, replay_of=6),
        publication(8, attempt=1, epoch=2),
        emptied(8, attempt=3, epoch=1),
        emptied(10, attempt=1),
        emptied(10),
        emptied(11),
    ]
    for publications in (told, told[::-1]):
        found = quarantined([*publications, *publications], committed=10)
        assert [(record.txid, record.attempt) for record in found] == [(2, 0), (7, 0), (10, 1)]
    assert found[0] == QuarantineRecord(txid=2, attempt=0, spouts={"s": "p2"}, error="no 2")
    assert quarantined([], 0) == ()


def test_an_emptied_txid_that_some_tables_hold_is_emptied_again() -> None:
    """Its records were given up: the other tables get nothing of it, either."""
    found = {"a": [(9, emptied(5)), (8, publication(4))], "b": [(7, publication(4))]}
    (batch,) = rebuild("t", {"s"}, found).batches
    assert (batch.txid, batch.quarantined, batch.replay_of) == (5, "no 5", None)
