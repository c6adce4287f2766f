"""What a run asks of its spouts for people to see: it must not be able to harm the run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.dataflow.graph import Source
from txn.engine.spouts import Spouts
from txn.interfaces import Lag
from txn.protocol.events import Plan
from txn.testing import MemoryProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [[("a",), ("b",)], [("c",)], [("d",)]]


class Answers(MemoryTransactionalSpout):
    """Answers every question for a number with what it was given, or raises it."""

    def __init__(self, answer: Any) -> None:
        super().__init__(ROWS, "k string")
        self.answer = answer
        self.threads: set[int] = set()

    def _told(self) -> Any:
        self.threads.add(threading.get_ident())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def planned_rows(self, metadata: MemoryPosition) -> Any:
        """See the class."""
        return self._told()

    def planned_bytes(self, metadata: MemoryPosition) -> Any:
        """See the class."""
        return self._told()

    def lag(self, newest: MemoryPosition | None) -> Any:
        """See the class."""
        return self._told()


class Writers(MemoryProgress):
    """Remembers which thread writes: the protocol's."""

    threads: frozenset[int] = frozenset()

    def persist_committed(self, *args: Any) -> None:
        """As it is."""
        self.threads |= {threading.get_ident()}
        super().persist_committed(*args)


@pytest.mark.parametrize("answer", [OSError("no number"), "7", -1, 1.5, Lag(records=-1)])
def test_a_number_that_cannot_be_had_is_told_once_and_not_known(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """By stream, spout and method; whatever a plugin raises or returns."""
    spouts = Spouts("t", [Source("s", Answers(answer))])
    for _ in range(2):
        spouts.plan(Plan(TransactionAttempt(1), ("s",), {}), window_full=False)
        read = spouts.planned_input({"s": {"index": 0}})
    assert (dict(read.records), dict(read.bytes), dict(spouts.lags)) == (
        {"s": None},
        {"s": None},
        {},
    )
    told = [record.message.partition(" raised ")[0] for record in caplog.records]
    names = ("lag", "planned_rows", "planned_bytes")
    assert told == [f"[t] Answers.{name} of stream 's'" for name in names]


def test_the_lag_of_a_source_is_that_of_its_newest_plan() -> None:
    """Also if it has nothing to read; a replay that asks for an old txid changes nothing."""
    spouts = Spouts("t", [Source("s", MemoryTransactionalSpout(ROWS, "k string"))])
    seen = []
    for txid, previous in ((1, {}), (2, {"s": {"index": 0}}), (4, {"s": {"index": 2}})):
        spouts.plan(Plan(TransactionAttempt(txid), ("s",), previous), window_full=False)
        seen.append(dict(spouts.lags))
    spouts.plan(Plan(TransactionAttempt(1), ("s",), {}, is_new=False), window_full=False)
    assert seen == [{"s": Lag(records=left)} for left in (2, 1, 0)]
    assert spouts.lags == seen[-1]


@pytest.mark.parametrize("verify", ["edges", "rows"])
def test_a_spout_that_cannot_count_neither_ends_nor_stalls_a_run(
    spark: SparkSession, warehouse: Path, verify: Any
) -> None:
    """It is asked on other threads than the protocol's; every record is committed."""
    spout = Answers(OSError("no number"))
    topology = Topology(warehouse.parent.name, TopologyConfig(verify=verify))
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "t"))
    store = Writers(topology.name)
    running = topology.start(spark, until="caught_up", store=store)
    report = running.await_termination()
    assert (report.ended, report.rows_staged, report.replays) == ("caught_up", 4, 0)
    assert (report.input_records, report.input_bytes, running.status().lags) == (None, None, {})
    assert spout.threads
    assert not spout.threads & store.threads
