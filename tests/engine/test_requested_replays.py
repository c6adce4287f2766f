"""The planner's look for quarantined txids that are wanted back, before it asks the spouts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.zookeeper.progress_store import CONFIG, committed, leading, start
from txn.attempts import TransactionAttempt
from txn.embedded import EmbeddedZooKeeper
from txn.engine.broadcast import Broadcast
from txn.engine.pipeline import Pipeline
from txn.errors import SourceUnavailableError
from txn.protocol.events import CoordinatorState, Plan, PlanMade
from txn.protocol.records import QuarantineRecord
from txn.zookeeper import ZooKeeperProgress
from txn.zookeeper.replay_requests import request_replays

ATTEMPT = TransactionAttempt(7, 2)
FROM_SPOUTS = {"s": 9}


def answer(store: ZooKeeperProgress, question: Plan) -> Any:
    """What the planner's thread reports, with spouts that always have something to read."""
    stations = SimpleNamespace(plan=lambda order, window_full: FROM_SPOUTS, lags={}, notices={})
    tables, jobs = SimpleNamespace(all=(), maintained=()), SimpleNamespace(slots=1)
    equipment: Any = SimpleNamespace(stations=stations, tables=tables, jobs=jobs)
    state = CoordinatorState(6, {}, frozenset(), ("s",), 1, 1)
    clocks: Any = {"clock": time.time, "monotonic": time.monotonic, "ids": lambda: 1}
    broadcast = Broadcast("t", time.time)
    pipeline = Pipeline("t", CONFIG, store, equipment, state, broadcast, **clocks)
    pipeline._ask(question, window_full=False)
    return pipeline._facts.next()


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
        replay = PlanMade(ATTEMPT, {"s": 1, "later": None}, replay_of=1)
        assert answer(store, Plan(ATTEMPT, ("s", "later"), {})) == replay
        for question in (
            Plan(ATTEMPT, ("s",), {}, is_new=False),
            Plan(ATTEMPT, ("s",), {}, replaying=frozenset({1})),
        ):
            assert answer(store, question) == PlanMade(ATTEMPT, FROM_SPOUTS)


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
            answer(store, Plan(ATTEMPT, ("s",), {}))
