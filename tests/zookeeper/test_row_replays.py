"""The ledger of rows that go in again, over a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.zookeeper.progress_store import bare_client, leading
from txn.embedded import EmbeddedZooKeeper
from txn.errors import NewerFormatError, ProgressUnreadableError
from txn.protocol.records import RowReplayRecord
from txn.zookeeper.backend import ZooKeeperBackend
from txn.zookeeper.client.connection import Connection, OutcomeUnknownError


@pytest.fixture
def raw(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A client that goes round the ledger."""
    with bare_client(zookeeper.hosts) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest, zookeeper: EmbeddedZooKeeper) -> str:
    """A topology of the test's own, which somebody has led."""
    name = str(request.node.name).replace("/", "-")
    with leading(zookeeper.hosts, name):
        return name


def replay(number: int, **given: Any) -> RowReplayRecord:
    """A replay of stream s."""
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


def test_an_answer_that_was_lost_is_looked_for(
    backend: ZooKeeperBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write whose outcome is unknown was carried out or is sent again; once in the end."""
    genuine = Connection.multi
    lost: list[bool] = []

    def losing(self: Connection, *arguments: Any) -> Any:
        if lost and arguments[0][0].path.endswith(("/1", "/2")):
            if lost.pop():
                genuine(self, *arguments)
            raise OutcomeUnknownError("lost")
        return genuine(self, *arguments)

    monkeypatch.setattr(Connection, "multi", losing)
    for number, carried_out in ((1, True), (2, False)):
        lost += [carried_out] * (1 if carried_out else 2)
        assert backend.begin_row_replay(name, replay(number)) == replay(number)
        lost += [carried_out]
        backend.settle_row_replay(name, replay(number))
        assert lost == []
    found = backend.row_replays(name)
    assert found == {"s": (replay(1, placed=True), replay(2, placed=True))}


def test_a_ledger_that_cannot_be_read_is_refused(
    backend: ZooKeeperBackend, name: str, raw: KazooClient
) -> None:
    """Damage, a number that is missing, and another's record are never read as "no replay"."""
    for number in (1, 2):
        backend.begin_row_replay(name, replay(number))
    path = f"/txn/{name}/row_replays/s/2"
    good = raw.get(path)[0]
    for data, error, said in (
        (b"", ProgressUnreadableError, "does not hold JSON"),
        (good.replace(b'"rows":1,', b""), ProgressUnreadableError, "lacks the field rows"),
        (good.replace(b'"version":1', b'"version":2'), NewerFormatError, "format version 2"),
        (good.replace(b'"number":2', b'"number":1'), ProgressUnreadableError, "holds replay 1 of"),
    ):
        raw.set(path, data)
        with pytest.raises(error, match=said):
            backend.row_replays(name)
        with pytest.raises(error, match=said):
            backend.begin_row_replay(name, replay(2))
        with pytest.raises(error, match=said):
            backend.settle_row_replay(name, replay(2))
    raw.set(path, good)
    raw.delete(f"/txn/{name}/row_replays/s/1")
    with pytest.raises(ProgressUnreadableError, match=r"has the replays \[2\], .* without a gap"):
        backend.row_replays(name)
