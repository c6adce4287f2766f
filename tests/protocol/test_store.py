"""The contract of `ProgressStore`, over every implementation that the package has."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from tests.faults.harness import wait_for
from tests.protocol.places import Place, aside, leading
from tests.zookeeper.progress_store import committed, start
from txn.errors import BatchError, FencedError, LeaderExistsError, ProgressUnavailableError
from txn.protocol.records import (
    ColumnsRecord,
    LeaderIdentity,
    NoticesRecord,
    ProgramRecord,
    Progress,
    StageRecord,
)
from txn.protocol.store import ProgressStore

PROGRAM = ProgramRecord(
    python="cpython-311 3.11.7",
    stages=[StageRecord(id="s/transform-1", told="transform clean", fingerprint=None)],
    changes=["transform clean is new"],
    since=2,
)
COLUMNS = ColumnsRecord(stream="s", columns={"fields": 1})


def noticed(epoch: int, *lines: str) -> NoticesRecord:
    """What the spout of one stream has for the user."""
    streams = {"s": list(lines)} if lines else {}
    return NoticesRecord(epoch=epoch, txid=1, at="2026-01-01T00:00:00+00:00", streams=streams)


# --- leadership --------------------------------------------------------------------------------


def test_nothing_is_there_before_the_first_leader(place: Place) -> None:
    """A look finds nothing and leads nothing; without an epoch there is nothing to ask for."""
    store = place.open()
    assert store.peek() == Progress()
    with pytest.raises(RuntimeError, match="lead"):
        _ = store.epoch
    assert (store.lead(), store.epoch, store.load()) == (1, 1, Progress())


def test_there_is_one_leader_and_epochs_grow(place: Place) -> None:
    """A rival is refused while somebody leads, and has the next epoch once that one is closed."""
    first, rival = leading(place), place.open()
    with pytest.raises(LeaderExistsError):
        rival.lead()
    first.close()
    first.close()
    assert rival.lead() == 2


def test_a_standby_waits_for_the_leader_to_close(place: Place) -> None:
    """It is told who leads, and leads as soon as that one is gone."""
    first, standby = leading(place), place.open()
    told: list[LeaderIdentity | None] = []
    epochs: list[int] = []
    thread = threading.Thread(
        target=lambda: epochs.append(standby.lead(wait=True, on_waiting=told.append))
    )
    thread.start()
    wait_for(lambda: bool(told), what="a standby")
    assert [(who.pid, who.epoch) for who in told if who] == [(os.getpid(), 1)]
    first.close()
    thread.join(30)
    assert (len(told), epochs) == (1, [2])


def test_a_standby_that_is_stopped_leads_nothing(place: Place) -> None:
    """It stops waiting, and the leader leads on."""
    first, standby = leading(place), place.open()
    stopped = threading.Event()
    with pytest.raises(ProgressUnavailableError):
        standby.lead(wait=True, on_waiting=lambda _: stopped.set(), stopped=stopped.is_set)
    first.assert_leading()


def test_a_lost_session_is_told_and_taken_up_again(place: Place) -> None:
    """While nobody else leads, the leader keeps its epoch and goes on writing."""
    store = leading(place)
    lost: list[bool] = []
    store.on_lost = lambda: lost.append(True)
    place.interrupt(store)
    wait_for(lambda: bool(lost), what="the loss")
    store.assert_leading()
    store.persist_start(start(1))
    assert (lost, store.epoch, [b.txid for b in store.peek().batches]) == ([True], 1, [1])


def test_whoever_was_replaced_writes_nothing(place: Place) -> None:
    """A leader that wakes up after its successor has begun is refused by every call."""
    old = leading(place)
    old.persist_start(start(1))
    place.depose(old)
    new = leading(place)
    calls: list[Callable[[], object]] = [
        old.assert_leading,
        old.load,
        lambda: old.persist_start(start(2)),
        lambda: old.persist_committed(committed(1)),
        lambda: old.persist_columns(COLUMNS),
        lambda: old.persist_program(PROGRAM),
        lambda: old.persist_notices(noticed(1, "late")),
        old.drop_open,
    ]
    for call in calls:
        with pytest.raises(FencedError):
            call()
    assert new.load() == Progress(batches=(start(1),))


def test_a_life_has_one_incarnation(place: Place) -> None:
    """The first leader begins it; later ones are of the same life."""
    first = leading(place)
    life = first.incarnation()
    assert (life.takes_over, first.incarnation()) == ([], life)
    first.close()
    assert leading(place).incarnation() == life


# --- what is kept ------------------------------------------------------------------------------


def test_the_next_leader_finds_what_was_written(place: Place) -> None:
    """The newest attempt of each open txid, the newest commit, the columns; no batch below it."""
    store = leading(place)
    for record in (
        start(1, s={"at": 1}),
        start(1, attempt=1, s={"at": 2}),
        start(2, s=None),
        start(3, s={"at": 3}),
    ):
        store.persist_start(record)
    store.persist_columns(COLUMNS.model_copy(update={"columns": {}}))
    store.persist_columns(COLUMNS)
    expected = Progress(
        batches=(start(1, attempt=1, s={"at": 2}), start(2, s=None), start(3, s={"at": 3})),
        columns={"s": {"fields": 1}},
    )
    assert place.open().peek() == expected
    store.persist_committed(committed(2, s={"at": 2}))
    store.close()
    done = {"committed": committed(2, s={"at": 2}), "batches": expected.batches[2:]}
    assert leading(place).load() == expected.model_copy(update=done)


def test_the_newest_program_is_kept(place: Place) -> None:
    """Each takes the place of the one before, for the next leader and for whoever looks."""
    store = leading(place)
    store.persist_program(ProgramRecord(python="cpython-310 3.10.1"))
    store.persist_program(PROGRAM)
    store.persist_start(start(1))
    assert place.open().peek() == Progress(batches=(start(1),), program=PROGRAM)
    store.close()
    store = leading(place)
    assert store.load().program == PROGRAM
    later = PROGRAM.model_copy(update={"since": 7})
    store.persist_program(later)
    assert store.load().program == later


def test_the_newest_notices_are_kept_until_the_next_leader(place: Place) -> None:
    """Each takes the place of those before; what a run has said, its successor does not say."""
    store = leading(place)
    assert place.backend.status("t").notices is None
    store.persist_notices(noticed(1, "no file"))
    assert place.backend.status("t").notices == noticed(1, "no file")
    store.persist_notices(noticed(1))
    store.persist_notices(noticed(1, "one", "two"))
    with pytest.raises(ValueError, match="epoch"):
        store.persist_notices(noticed(2, "not its own"))
    assert place.backend.status("t").notices == noticed(1, "one", "two")
    assert store.load() == Progress()
    store.close()
    store = leading(place)
    assert place.backend.status("t").notices is None
    store.persist_notices(noticed(2, "three"))
    assert place.backend.status("t").notices == noticed(2, "three")


def test_what_is_open_can_be_forgotten(place: Place) -> None:
    """Every START that is not committed goes at once, large ones too, and another may come."""
    store = leading(place)
    store.persist_start(start(1, s={"at": ["x" * 1000] * 1000}))
    store.persist_start(start(2))
    store.drop_open()
    assert store.peek() == Progress()
    store.drop_open()
    store.persist_start(start(1, s={"at": 1}))
    store.close()
    assert leading(place).load() == Progress(batches=(start(1, s={"at": 1}),))


def with_three_quarantined(place: Place) -> ProgressStore:
    """A leader's store after txids 1 to 3 were committed empty."""
    store = leading(place)
    for txid in (1, 2, 3):
        store.persist_start(start(txid))
        store.persist_committed(committed(txid), aside(txid))
    return store


def test_quarantined_txids_wait_for_a_user(place: Place) -> None:
    """The oldest that is asked for is handed out, by any leader, until a txid has replayed it."""
    store = with_three_quarantined(place)
    assert store.requested_replay([]) is None
    place.backend.request_replays("t", [2, 3])
    assert (store.requested_replay([]), store.requested_replay([2])) == (aside(2), aside(3))
    store.close()
    store = leading(place)
    assert store.requested_replay([]) == aside(2)
    store.persist_start(start(4, epoch=2))
    store.persist_committed(committed(4, epoch=2), None, 2)
    assert (store.requested_replay([]), store.requested_replay([3])) == (aside(3), None)


def test_quarantined_txids_are_given_up_or_refused(place: Place) -> None:
    """The oldest that was given up is handed out until a txid has its place; a replay that is
    refused is wanted no more, its record says why last, and it can be asked for again.
    """
    store = with_three_quarantined(place)
    assert store.requested_drop([]) is None
    place.backend.request_drops("t", [3, 2])
    assert (store.requested_drop([]), store.requested_drop([2])) == (aside(2), aside(3))
    store.persist_committed(committed(4), None, 2)
    assert store.requested_drop([]) == aside(3)
    for why in ("gone", "still gone"):
        place.backend.request_replays("t", [1, 3])
        store.refuse_replay(1, why)
        assert store.requested_replay([]) == aside(3)
    store.close()
    store = leading(place)
    place.backend.request_replays("t", [1])
    refused = store.requested_replay([])
    assert refused is not None
    assert refused.error == "poison (replay refused) still gone"
    assert refused == aside(1).model_copy(update={"error": refused.error})
    store.persist_committed(committed(5, epoch=2), None, 1)
    assert store.load().quarantined == {3}


def test_quarantined_txids_and_their_streams_are_known(place: Place) -> None:
    """Whoever starts is told which txids were committed empty, until their replay, and of which
    streams: such a txid has made no table.
    """
    store = leading(place)
    assert (store.load().quarantined, store.load().quarantined_streams) == (
        frozenset(),
        frozenset(),
    )
    store.persist_start(start(1))
    store.persist_committed(
        committed(1), aside(1).model_copy(update={"spouts": {"s": 1, "t": None}})
    )
    assert (store.load().quarantined, store.load().quarantined_streams) == ({1}, {"s"})
    store.persist_start(start(2))
    store.persist_committed(committed(2), None, 1)
    assert (store.load().quarantined, store.load().quarantined_streams) == (
        frozenset(),
        frozenset(),
    )


@pytest.mark.parametrize("value", [object(), float("nan")], ids=["object", "nan"])
def test_what_is_not_json_is_refused(place: Place, value: object) -> None:
    """It is the batch's fault, nothing is written, and the store goes on."""
    store = leading(place)
    with pytest.raises(BatchError):
        store.persist_start(start(1, s=value))
    with pytest.raises(BatchError):
        store.persist_columns(ColumnsRecord(stream="s", columns={"fields": value}))
    assert store.load() == Progress()
    store.persist_start(start(1))


def test_a_record_of_another_epoch_is_refused(place: Place) -> None:
    """A leader writes in its own name only."""
    store = leading(place)
    with pytest.raises(ValueError, match="epoch 2"):
        store.persist_start(start(1, epoch=2))
    with pytest.raises(ValueError, match="epoch 2"):
        store.persist_committed(committed(1, epoch=2))
    assert store.load() == Progress()
