"""The contract of `ProgressBackend`, and of `rebuild`, over every backend of the package."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.protocol.places import Place, aside, leading
from tests.zookeeper.progress_store import committed, start
from txn.errors import FencedError, LeaderExistsError, TopologyError, UserError
from txn.protocol.records import ColumnsRecord, NoticesRecord, Progress, RowReplayRecord

COLUMNS = ColumnsRecord(stream="s", columns={"fields": 1})


def replay(number: int, **given: Any) -> RowReplayRecord:
    """A replay of rows of stream s."""
    fields: dict[str, Any] = {
        "stream": "s",
        "rules": {"parses": number},
        "first_txid": number,
        "rows": 1,
        "file": f"in/{number}.csv",
        "sha256": "0",
        **given,
    }
    return RowReplayRecord(number=number, **fields)


def test_a_topology_that_had_no_leader_does_not_exist(place: Place) -> None:
    """Every question about it is refused, with the names of those that exist; none creates it."""
    leading(place, "orders")
    backend = place.backend
    calls: list[Callable[[], object]] = [
        lambda: backend.status("t"),
        lambda: backend.request_replays("t", None),
        lambda: backend.request_drops("t", [1]),
        lambda: backend.row_replays("t"),
        lambda: backend.begin_row_replay("t", replay(1)),
        lambda: backend.settle_row_replay("t", replay(1)),
    ]
    for call in calls:
        with pytest.raises(TopologyError, match=r"no topology 't'.*orders") as refused:
            call()
        assert refused.value.number == "TXN-607"
    with pytest.raises(TopologyError, match="cannot be called"):
        backend.open("a/b")
    assert (backend.is_led("t"), backend.topologies()) == (False, ["orders"])


def test_each_topology_has_its_own_leader_and_state(place: Place) -> None:
    """The status has what the leader wrote, who leads, and who led last."""
    backend, orders = place.backend, leading(place, "orders")
    orders.persist_start(start(1))
    leading(place, "stock").close()
    stock = leading(place, "stock")
    stock.persist_committed(committed(4, epoch=2))
    assert backend.topologies() == ["orders", "stock"]
    status = backend.status("orders")
    assert (status.topology, status.epoch) == ("orders", 1)
    assert (status.progress, status.incarnation) == (Progress(batches=(start(1),)), None)
    assert status.leader == status.last_leader
    assert status.leader is not None
    assert (status.leader.pid, status.leader.epoch) == (os.getpid(), 1)
    life = orders.incarnation()
    orders.close()
    assert (backend.is_led("orders"), backend.is_led("stock")) == (False, True)
    status = backend.status("orders")
    assert (status.leader, status.incarnation) == (None, life)
    assert status.last_leader is not None
    status = backend.status("stock")
    assert (status.epoch, status.progress.committed) == (2, committed(4, epoch=2))


def test_only_quarantined_txids_can_be_requested(place: Place) -> None:
    """A request is stored once, all or nothing, whether or not the topology runs, and is over with
    the record of its txid.
    """
    backend, store = place.backend, leading(place)
    with pytest.raises(UserError, match="has no quarantined txids"):
        backend.request_replays("t", None)
    for txid in (1, 2, 3):
        store.persist_committed(committed(txid), aside(txid))
    for request in (backend.request_replays, backend.request_drops):
        with pytest.raises(UserError, match=r"Txid 4 .* The quarantined txids are 1, 2, 3"):
            request("t", [4, 1])
    assert (store.requested_replay(()), store.requested_drop(())) == (None, None)
    store.close()
    assert [backend.request_replays("t", [2]), backend.request_replays("t", None)] == [
        [2],
        [1, 2, 3],
    ]
    assert [backend.request_drops("t", [3, 3]), backend.request_drops("t", [3])] == [[3], [3]]
    status = backend.status("t")
    assert status.quarantine == (aside(1), aside(2), aside(3))
    assert (status.replays_requested, status.drops_requested) == ({1, 2, 3}, {3})
    store = leading(place)
    assert (store.requested_replay(()), store.requested_replay({1})) == (aside(1), aside(2))
    assert (store.requested_replay({1, 2, 3}), store.requested_drop(())) == (None, aside(3))
    store.persist_committed(committed(4, epoch=2), replay_of=3)
    status = backend.status("t")
    assert (status.replays_requested, status.drops_requested) == ({1, 2}, frozenset())


def test_replays_of_rows_are_stored_once_by_stream_and_number(place: Place) -> None:
    """The first replay of a number stands, and is settled once."""
    leading(place).close()
    backend = place.backend
    assert backend.row_replays("t") == {}
    assert backend.begin_row_replay("t", replay(1)) == replay(1)
    assert backend.begin_row_replay("t", replay(1, sha256="1")) == replay(1)
    assert backend.begin_row_replay("t", replay(1, stream="u")) == replay(1, stream="u")
    backend.begin_row_replay("t", replay(2))
    for _ in range(2):
        backend.settle_row_replay("t", replay(1))
    settled = replay(1, placed=True)
    assert backend.row_replays("t") == {
        "s": (settled, replay(2)),
        "u": (replay(1, stream="u"),),
    }
    assert backend.begin_row_replay("t", replay(1)) == settled


@pytest.mark.parametrize("forget", [False, True])
def test_a_rebuild_begins_another_incarnation(place: Place, forget: bool) -> None:
    """It replaces COMMITTED, batches, requests to drop and what is unreadable, under a new epoch;
    of the rest it keeps all or nothing.
    """
    backend, old = place.backend, leading(place)
    life = old.incarnation()
    for txid in (1, 2):
        old.persist_committed(committed(txid), aside(txid))
    old.persist_start(start(3))
    old.persist_columns(COLUMNS)
    notices = NoticesRecord(epoch=1, txid=1, at="2026-01-01T00:00:00+00:00", streams={"s": ["x"]})
    old.persist_notices(notices)
    backend.request_replays("t", [2])
    backend.request_drops("t", [2])
    backend.begin_row_replay("t", replay(1))
    place.damage("quarantine/1")
    place.damage("batches/3")
    new = place.open()
    with pytest.raises(LeaderExistsError):
        new.rebuild(committed(7), at_least=5)
    place.depose(old)
    assert new.rebuild(committed(7), at_least=5, takes_over=[9, 0], forget=forget) == 5
    with pytest.raises(FencedError):
        old.persist_committed(committed(4))
    progress = new.load()
    assert (progress.committed, progress.batches) == (committed(7, epoch=5), ())
    new.persist_start(start(8, epoch=5))
    status, kept = backend.status("t"), not forget
    assert status.incarnation is not None
    assert (status.epoch, status.incarnation.takes_over) == (5, sorted([9, life.id]))
    assert status.incarnation.id != life.id
    assert (status.quarantine, status.replays_requested) == (
        ((aside(2),), {2}) if kept else ((), frozenset())
    )
    assert (status.drops_requested, status.notices) == (frozenset(), None)
    assert progress.columns == ({"s": {"fields": 1}} if kept else {})
    assert backend.row_replays("t") == ({"s": (replay(1),)} if kept else {})
