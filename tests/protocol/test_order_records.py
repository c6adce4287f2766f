"""Orders as what is written for them; the planner's look for replays that are wanted."""

from __future__ import annotations

import pytest

from tests.zookeeper.progress_store import CONFIG, committed, leading, start
from txn.attempts import TransactionAttempt
from txn.embedded import EmbeddedZooKeeper
from txn.errors import SourceUnavailableError
from txn.protocol.events import PersistCommitted, Plan, PlanMade, Publish
from txn.protocol.order_records import publication_of, quarantine_record, requested_replay
from txn.protocol.records import QuarantineRecord
from txn.zookeeper.replay_requests import request_replays

ATTEMPT = TransactionAttempt(7, 2)


@pytest.mark.parametrize("error", [None, "boom"])
def test_only_an_emptied_txid_is_quarantined(error: str | None) -> None:
    """The record holds what the txid was to read, and why it did not."""
    order = PersistCommitted(ATTEMPT, {"s": 9}, {}, quarantined=error)
    record = QuarantineRecord(txid=7, attempt=2, spouts={"s": 5}, error="boom")
    assert quarantine_record(order, {"s": 5}) == (record if error else None)


def test_a_publication_names_every_txid_of_a_group() -> None:
    """First, last and what each of them has read; a single txid has no members."""
    order = Publish(ATTEMPT, {"s": 7}, {"s": 7}, ((TransactionAttempt(6, 1), {"s": 6}),))
    found = publication_of(order, "t", 3, {})
    assert (6, 7, 2, {"s": 7}) == (
        found.first_txid,
        found.last_txid,
        found.attempt_id,
        found.read,
    )
    members = [(m.txid, m.attempt_id, m.read) for m in found.members]
    assert [(6, 1, {"s": 6}), (7, 2, {"s": 7})] == members
    assert () == publication_of(Publish(ATTEMPT, {}, {}), "t", 3, {}).members


def test_only_a_new_txid_becomes_a_replay(zookeeper: EmbeddedZooKeeper) -> None:
    """It reads what was set aside; a stream that came later reads nothing. A txid that was
    started before is answered by the spouts, and so is one while the replay is in flight.
    """
    name = "only-a-new-txid-becomes-a-replay"
    with leading(zookeeper.hosts, name) as store:
        store.persist_start(start(1, s=1))
        aside = QuarantineRecord(txid=1, attempt=0, spouts={"s": 1}, error="boom")
        store.persist_committed(committed(1), aside)
        request_replays(zookeeper.hosts, name, CONFIG, [1])
        question = Plan(ATTEMPT, ("s", "later"), {})
        answer = PlanMade(ATTEMPT, {"s": 1, "later": None}, replay_of=1)
        assert requested_replay(store, question) == answer
        assert requested_replay(store, Plan(ATTEMPT, ("s",), {}, is_new=False)) is None
        assert requested_replay(store, Plan(ATTEMPT, ("s",), {}, replaying=frozenset({1}))) is None


def test_planning_waits_for_a_zookeeper_that_is_away(zookeeper: EmbeddedZooKeeper) -> None:
    """Whether a replay is wanted is never guessed: the txid is blocked until ZooKeeper answers."""
    name = "planning-waits-for-a-zookeeper"
    with leading(zookeeper.hosts, name) as store:
        aside = QuarantineRecord(txid=1, attempt=0, spouts={"s": 1}, error="boom")
        store.persist_start(start(1, s=1))
        store.persist_committed(committed(1), aside)
        store._patience = 0.5  # no need to wait for the whole deadline
        store._connection.close()
        with pytest.raises(SourceUnavailableError, match="ZooKeeper"):
            requested_replay(store, Plan(ATTEMPT, ("s",), {}))
