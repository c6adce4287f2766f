"""The planner's look for quarantined txids that are wanted back, before it asks the spouts."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.zookeeper.progress_store import CONFIG, committed, leading, start
from txn.attempts import TransactionAttempt
from txn.backends import open_backend
from txn.embedded import EmbeddedZooKeeper
from txn.engine.loop.pipeline import Pipeline
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.spout_facts import SpoutFacts
from txn.errors import SourceChangedError, SourceUnavailableError
from txn.protocol.events import CoordinatorState, Plan, PlanMade
from txn.protocol.records import QuarantineRecord
from txn.zookeeper import ZooKeeperProgress, read_status

ATTEMPT = TransactionAttempt(7, 2)
FROM_SPOUTS = {"s": 9}


def answer(
    store: ZooKeeperProgress, question: Plan, readable: Callable[..., Any] = lambda _, read: read
) -> Any:
    """What the planner's thread reports, with spouts that always have something to read.

    Args:
        readable: what they say of quarantined txids.
    """
    stations = SimpleNamespace(
        plan=lambda order, window_full: FROM_SPOUTS,
        facts=SpoutFacts("t", lambda: None),
        readable=readable,
        dimensions=dict,
    )
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
        with open_backend(zookeeper.hosts, CONFIG) as backend:
            backend.request_replays(name, [1])
        replay = PlanMade(ATTEMPT, {"s": 1, "later": None}, replay_of=1)
        assert answer(store, Plan(ATTEMPT, ("s", "later"), {})) == replay
        for question in (
            Plan(ATTEMPT, ("s",), {}, is_new=False),
            Plan(ATTEMPT, ("s",), {}, replaying=frozenset({1})),
        ):
            assert answer(store, question) == PlanMade(ATTEMPT, FROM_SPOUTS)


def test_a_replay_is_looked_at_before_it_is_durable(zookeeper: EmbeddedZooKeeper) -> None:
    """It reads what is left; one that cannot be read is refused, whatever the error, and the next
    wanted one takes its place; while a source is away, nothing is decided.
    """
    name = "a-replay-is-looked-at"
    question = Plan(ATTEMPT, ("s",), {})

    def readable(_: TransactionAttempt, read: Any) -> Any:
        if read["s"] == 1:
            raise SourceChangedError(f"It is gone. {SourceChangedError.LET_GO}")
        if read["s"] == 2:
            raise ValueError("not ours")
        return {"s": f"what is left of {read['s']}"}

    def away(_: TransactionAttempt, read: Any) -> Any:
        raise SourceUnavailableError("no broker")

    with leading(zookeeper.hosts, name) as store:
        for txid in (1, 2, 3):
            store.persist_start(start(txid, s=txid))
            aside = QuarantineRecord(txid=txid, attempt=0, spouts={"s": txid}, error="boom")
            store.persist_committed(committed(txid), aside)
        with open_backend(zookeeper.hosts, CONFIG) as backend:
            backend.request_replays(name, None)
        with pytest.raises(SourceUnavailableError, match="no broker"):
            answer(store, question, away)
        left = PlanMade(ATTEMPT, {"s": "what is left of 3"}, replay_of=3)
        assert answer(store, question, readable) == left
        found = read_status(zookeeper.hosts, name, CONFIG)
    assert found.replays_requested == {3}
    assert [record.error for record in found.quarantine] == [
        *(
            f"boom (replay refused) {why}. The request is withdrawn: ask again (`txn quarantine "
            f"replay t {txid}`) when it can be read."
            for txid, why in [(1, "SourceChangedError: It is gone"), (2, "ValueError: not ours")]
        ),
        "boom",
    ]


def test_what_is_given_up_reads_nothing(zookeeper: EmbeddedZooKeeper) -> None:
    """A txid that was given up has its place taken by one without records, also if its replay was
    asked for before; a replay that is at work goes on.
    """
    name = "what-is-given-up"
    with leading(zookeeper.hosts, name) as store:
        aside = QuarantineRecord(txid=1, attempt=0, spouts={"s": 1}, error="boom")
        store.persist_start(start(1, s=1))
        store.persist_committed(committed(1), aside)
        with open_backend(zookeeper.hosts, CONFIG) as backend:
            backend.request_replays(name, [1])
            backend.request_drops(name, [1])
        nothing = PlanMade(ATTEMPT, {"s": None, "t": None}, replay_of=1)
        assert answer(store, Plan(ATTEMPT, ("s", "t"), {})) == nothing
        at_work = Plan(ATTEMPT, ("s",), {}, replaying=frozenset({1}))
        assert answer(store, at_work) == PlanMade(ATTEMPT, FROM_SPOUTS)


def test_planning_waits_for_a_zookeeper_that_is_away(zookeeper: EmbeddedZooKeeper) -> None:
    """Whether a replay is wanted is never guessed: the txid is blocked until ZooKeeper answers."""
    name = "planning-waits-for-a-zookeeper"
    with leading(zookeeper.hosts, name) as store:
        aside = QuarantineRecord(txid=1, attempt=0, spouts={"s": 1}, error="boom")
        store.persist_start(start(1, s=1))
        store.persist_committed(committed(1), aside)
        store._timeout_secs = 0.5  # no need to wait for the whole deadline
        store._connection.close()
        with pytest.raises(SourceUnavailableError, match="ZooKeeper"):
            answer(store, Plan(ATTEMPT, ("s",), {}))
