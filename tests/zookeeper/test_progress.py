from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.zookeeper.progress_store import (
    CONFIG,
    LARGE,
    bare_client,
    committed,
    leading,
    reloaded,
    start,
)
from txn.embedded import EmbeddedZooKeeper
from txn.errors import BatchError, FencedError, ProgressUnreadableError
from txn.protocol.records import ColumnsRecord, Progress, QuarantineRecord
from txn.zookeeper import ZooKeeperProgress, list_topologies, read_status


@pytest.fixture
def raw(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A bare client, to look and to spoil."""
    with bare_client(zookeeper.hosts) as client:
        yield client


# --- what is kept ------------------------------------------------------------------------------


def test_a_new_topology_has_nothing(store: ZooKeeperProgress, raw: KazooClient, name: str) -> None:
    """Nothing was committed, nothing is open; all lasting nodes are there from the beginning."""
    assert Progress() == store.load()
    expected = ["batches", "committed", "epoch", "format", "leader", "parts", "quarantine"]
    assert expected == sorted(raw.get_children(f"/txn/{name}"))
    assert {"version": 1} == json.loads(raw.get(f"/txn/{name}/format")[0])


def test_starts_and_commits_are_found_again(store: ZooKeeperProgress) -> None:
    """The next leader reads exactly what was written last."""
    store.persist_start(start(1, s=1))
    store.persist_start(start(2, s=2))
    store.persist_start(start(3, s=None))
    store.persist_committed(committed(1, s={"at": 1}))
    store.persist_start(start(2, attempt=1, s=22))
    expected = Progress(
        committed=committed(1, s={"at": 1}),
        batches=(start(2, attempt=1, s=22), start(3, s=None)),
    )
    assert expected == store.load()
    assert expected == reloaded(store)


def test_a_batch_node_goes_with_its_commit(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """COMMITTED and the batch's end are one multi; several txids may be committed at once."""
    for txid in (1, 2, 3):
        store.persist_start(start(txid))
    store.persist_committed(committed(2))
    assert ["3"] == raw.get_children(f"/txn/{name}/batches")


def test_one_multi_for_a_start_and_one_for_a_commit(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """Two transactions of ZooKeeper per batch, whatever the number of partitions."""
    raw.create(f"/{name}")
    before = raw.get(f"/{name}")[1].czxid
    store.persist_start(start(1, s={str(i): i for i in range(1000)}))
    started = raw.get(f"/txn/{name}/batches/1")[1].czxid
    store.persist_committed(committed(1))
    ended = raw.get(f"/txn/{name}/committed")[1].mzxid
    assert [before + 1, before + 2] == [started, ended]


def test_a_quarantined_txid_is_kept_with_its_commit(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, name: str
) -> None:
    """The record of a txid that was committed empty is in the same multi, and stays."""
    entry = QuarantineRecord(txid=1, attempt=4, spouts={"s": [1, 2]}, error="ValueError: no")
    store.persist_start(start(1))
    store.persist_committed(committed(1), entry)
    store.persist_start(start(2))
    store.persist_committed(committed(2))
    assert (entry,) == read_status(zookeeper.hosts, name, CONFIG).quarantine


def test_a_commit_may_leap_ahead(store: ZooKeeperProgress) -> None:
    """Recovery rolls forward to what the tables hold, also past batches that have no node."""
    store.persist_start(start(1))
    store.persist_committed(committed(9))
    assert Progress(committed=committed(9)) == store.load()
    store.persist_start(start(10))
    assert [10] == [batch.txid for batch in reloaded(store).batches]


def test_metadata_that_is_no_json_changes_nothing(store: ZooKeeperProgress) -> None:
    """The batch fails for good before anything is sent."""
    with pytest.raises(BatchError, match="START of txid 1"):
        store.persist_start(start(1, s=float("nan")))
    assert Progress() == store.load()


def test_a_chroot_is_created_and_kept(zookeeper: EmbeddedZooKeeper, raw: KazooClient) -> None:
    """Everything lies below the path at the end of the connect string."""
    hosts = f"{zookeeper.hosts}/apps/one"
    store = ZooKeeperProgress(hosts, "t", CONFIG)
    assert 1 == store.lead()
    store.load()
    store.persist_start(start(1))
    assert [1] == [batch.txid for batch in reloaded(store).batches]
    assert raw.exists("/apps/one/txn/t/epoch")
    assert ["t"] == list_topologies(hosts, CONFIG)


def test_state_outlives_the_server(tmp_path: Path) -> None:
    """A server that is started again on its folder has everything, and the run goes on."""
    with EmbeddedZooKeeper(tmp_path) as server:
        with leading(server.hosts, "t") as store:
            store.persist_start(start(1, s=5))
            server.stop()
            server.start()
            store.persist_start(start(2, s=6))
            expected = Progress(batches=(start(1, s=5), start(2, s=6)))
            assert expected == store.load()
        assert expected == reloaded(store)


# --- records larger than a node ---------------------------------------------------------------


def test_five_megabytes_of_metadata(store: ZooKeeperProgress, raw: KazooClient, name: str) -> None:
    """Split over nodes, found again, and the parts go with what they belong to."""
    parts = f"/txn/{name}/parts"
    store.persist_start(start(1, **LARGE))
    first = set(raw.get_children(parts))
    assert len(first) > 10
    store.persist_start(start(1, attempt=1, **LARGE))
    second = set(raw.get_children(parts))
    assert (set(), len(first)) == (first & second, len(second))
    entry = QuarantineRecord(txid=1, attempt=1, spouts=LARGE, error="x")
    store.persist_committed(committed(1, **LARGE), entry)
    assert set() == second & set(raw.get_children(parts))
    aside = Progress(quarantined_streams=entry.streams, quarantined=frozenset({1}))
    expected = aside.model_copy(update={"committed": committed(1, **LARGE)})
    assert expected == store.load()
    store.persist_start(start(2))
    store.persist_committed(committed(2))
    left = raw.get_children(parts)
    assert {"quarantine"} == {part.split("-")[0] for part in left}
    status = read_status(f"{raw.hosts[0][0]}:{raw.hosts[0][1]}", name, CONFIG)
    assert (entry,) == status.quarantine
    assert aside.model_copy(update={"committed": committed(2)}) == reloaded(store)
    assert left == raw.get_children(parts)


def test_the_same_large_start_twice_is_one(store: ZooKeeperProgress) -> None:
    """Writing it again takes the parts that are there and does not delete them."""
    store.persist_start(start(1, **LARGE))
    store.persist_start(start(1, **LARGE))
    assert Progress(batches=(start(1, **LARGE),)) == reloaded(store)


def test_columns_of_streams_are_found_again(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """They are replaced one by one, also when they are large, and no parts are left behind."""
    large = {"fields": [{"name": f"c{i}", "type": "string" * 20} for i in range(5000)]}
    for stream, columns in (("s", {"fields": []}), ("t", large), ("s", large), ("t", {"n": 1})):
        store.persist_columns(ColumnsRecord(stream=stream, columns=columns))
    store.persist_start(start(1, s=1))
    store.persist_committed(committed(1, s=1))
    assert reloaded(store).columns == {"s": large, "t": {"n": 1}}
    parts = raw.get_children(f"/txn/{name}/parts")
    assert parts
    assert all(part.startswith("columns-1-e1-") for part in parts)


def test_leftover_parts_are_removed_by_the_next_leader(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """Parts that no record names were written before a crash; they are not state."""
    for i in range(150):
        raw.create(f"/txn/{name}/parts/batch-1-0-e1-0123456789abcdef-{i:04d}", b"x")
    assert Progress() == reloaded(store)
    assert [] == raw.get_children(f"/txn/{name}/parts")


def test_a_changed_part_is_refused(store: ZooKeeperProgress, raw: KazooClient, name: str) -> None:
    """The checksum of the whole does not fit any more."""
    store.persist_start(start(1, **LARGE))
    part = sorted(raw.get_children(f"/txn/{name}/parts"))[3]
    raw.set(f"/txn/{name}/parts/{part}", b"spoilt")
    with pytest.raises(ProgressUnreadableError, match=f"'/txn/{name}/batches/1'.*checksum"):
        store.load()


def test_a_missing_part_is_refused(store: ZooKeeperProgress, raw: KazooClient, name: str) -> None:
    """It is named."""
    store.persist_start(start(1, **LARGE))
    part = sorted(raw.get_children(f"/txn/{name}/parts"))[3]
    raw.delete(f"/txn/{name}/parts/{part}")
    with pytest.raises(ProgressUnreadableError, match=f"parts/{part}' is missing"):
        store.load()


# --- fail closed ------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["format", "epoch", "committed", "batches/1"])
@pytest.mark.parametrize("data", [b"", b"not json", b'{"version":2}', b'{"version":1,"x":1}'])
def test_unreadable_nodes_are_refused_by_name(
    store: ZooKeeperProgress, raw: KazooClient, name: str, node: str, data: bytes
) -> None:
    """An unreadable znode is refused by name, and never treated as "no state"."""
    store.persist_start(start(1))
    raw.set(f"/txn/{name}/{node}", data)
    with pytest.raises(ProgressUnreadableError, match=node):
        reloaded(store)
    hosts = f"{raw.hosts[0][0]}:{raw.hosts[0][1]}"
    with pytest.raises(ProgressUnreadableError, match=node):
        read_status(hosts, name, CONFIG)


@pytest.mark.parametrize("node", ["format", "epoch", "committed", "batches", "quarantine", "parts"])
def test_missing_nodes_are_refused_by_name(
    store: ZooKeeperProgress, raw: KazooClient, name: str, node: str
) -> None:
    """A topology is created whole; what lacks a node was not left so by this program."""
    raw.delete(f"/txn/{name}/{node}")
    with pytest.raises(ProgressUnreadableError, match=f"/{node}' is missing"):
        reloaded(store)


def test_a_gap_between_batches_is_refused(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """Starts are contiguous; a batch in between cannot have vanished by a crash."""
    for txid in (1, 2, 3):
        store.persist_start(start(txid))
    raw.delete(f"/txn/{name}/batches/2")
    with pytest.raises(ProgressUnreadableError, match="txids 1, 3, but"):
        reloaded(store)


def test_a_batch_that_is_committed_already_is_refused(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """COMMITTED deletes it in the same multi."""
    store.persist_start(start(1))
    data = raw.get(f"/txn/{name}/batches/1")[0]
    store.persist_committed(committed(1))
    raw.create(f"/txn/{name}/batches/1", data)
    with pytest.raises(ProgressUnreadableError, match="without a gap"):
        reloaded(store)


def test_a_record_of_another_txid_is_refused(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """The node's name and its contents must agree."""
    store.persist_start(start(1))
    raw.set(f"/txn/{name}/batches/1", start(2).model_dump_json().encode())
    with pytest.raises(ProgressUnreadableError, match="batches/1' holds the record of txid 2"):
        reloaded(store)


def test_an_epoch_that_went_back_is_refused(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """Records of a later epoch than the newest cannot be."""
    raw.set(f"/txn/{name}/committed", committed(0, epoch=9).model_dump_json().encode())
    with pytest.raises(ProgressUnreadableError, match="written in epoch 9"):
        reloaded(store)


def test_a_node_that_somebody_else_changed_is_not_overwritten(
    store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """Every write carries the version that it was computed from."""
    store.persist_start(start(1))
    raw.set(f"/txn/{name}/batches/1", b"mine")
    with pytest.raises(FencedError, match="batches/1' is not as this leader left it"):
        store.persist_start(start(1, attempt=1))
    with pytest.raises(FencedError, match="batches/1' is not as this leader left it"):
        store.persist_committed(committed(1))
    assert b"mine" == raw.get(f"/txn/{name}/batches/1")[0]
    assert 0 == json.loads(raw.get(f"/txn/{name}/committed")[0])["txid"]


def test_a_start_that_arrives_after_its_commit_changes_nothing(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """A request that was delayed in the network cannot bring a committed batch back."""
    sent: list[Any] = []
    store.persist_start(start(1))
    genuine = store._leadership.write
    store._leadership.write = lambda ops, end: sent.append(ops) or genuine(ops, end)  # type: ignore[func-returns-value,method-assign]
    store.persist_start(start(2))
    store._leadership.write = genuine  # type: ignore[method-assign]
    store.persist_committed(committed(1))
    store.persist_committed(committed(2))
    request = raw.transaction()
    epoch = store._leadership.check
    request.check(epoch.path, epoch.version)
    request.check(sent[0][0].path, sent[0][0].version)
    request.create(sent[0][1].path, sent[0][1].data)
    assert "BadVersionError" in [type(result).__name__ for result in request.commit()]
    assert [] == raw.get_children(f"/txn/{name}/batches")


# --- rebuilding -------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["committed", "epoch", "format", "gone", "batches", "batch"])
def test_progress_is_rebuilt_from_what_the_tables_say(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, raw: KazooClient, spoil: str
) -> None:
    """`txn recover`: whatever is missing or unreadable, the new state is complete and readable."""
    name = store._topology
    store.persist_start(start(1))
    store.close()
    if spoil == "gone":
        raw.delete(f"/txn/{name}", recursive=True)
    elif spoil == "batches":
        raw.delete(f"/txn/{name}/batches", recursive=True)
    else:
        raw.set(f"/txn/{name}/{'batches/1' if spoil == 'batch' else spoil}", b"spoilt")
    again = ZooKeeperProgress(zookeeper.hosts, name, CONFIG)
    assert 6 == again.rebuild(committed(40), at_least=6)
    assert Progress(committed=committed(40, epoch=6)) == again.load()
    again.persist_start(start(41, epoch=6))
    again.close()
    assert 6 == read_status(zookeeper.hosts, name, CONFIG).epoch


def test_rebuilding_does_not_touch_a_later_format(
    zookeeper: EmbeddedZooKeeper, store: ZooKeeperProgress, raw: KazooClient, name: str
) -> None:
    """What a newer program wrote is refused, not replaced."""
    store.close()
    raw.set(f"/txn/{name}/format", b'{"version":2}')
    again = ZooKeeperProgress(zookeeper.hosts, name, CONFIG)
    with pytest.raises(ProgressUnreadableError, match="format version 2"):
        again.rebuild(committed(40), at_least=6)
    again.close()
