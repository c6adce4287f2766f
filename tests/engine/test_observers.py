"""Observers of a run: what each is told of it, from the first event to the last."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from tests.faults.harness import wait_for
from tests.faults.support import Points, observing
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import (
    BatchError,
    LeaderExistsError,
    ProgressUnavailableError,
    SourceUnavailableError,
    TopologyError,
    TxnError,
)
from txn.interfaces import Lag
from txn.logs import JsonFormatter
from txn.metrics import PrometheusMetrics
from txn.observers import (
    AttemptBegan,
    AttemptBlocked,
    AttemptCancelled,
    AttemptFailed,
    BackPressureBegan,
    BackPressureEnded,
    BadRows,
    BatchCommitted,
    BatchUnblocked,
    BoundChanged,
    FailureCause,
    LagChanged,
    LeadershipConfirmed,
    LeadershipInDoubt,
    LeadershipWon,
    Quarantined,
    ReplayScheduled,
    RequestEnded,
    RunBegan,
    RunEnded,
    RunEvent,
    RunStarted,
    StandingBy,
    Station,
    StationBegan,
    StationEnded,
    TablePublished,
)
from txn.testing import MemoryNodes, MemoryProgress, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.engine.reporting.report import RunReport

PAGE = Path(__file__).parents[2] / "docs" / "observers.md"
ROWS: list[Any] = [[("a", 1), ("b", 2)], [("c", 3)], [("a", 4)]]
OF_TABLES = ("stage", "prepare", "publish")
SCHEMA = "k string, v bigint"
E = TypeVar("E", bound=RunEvent)


class Kept:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def observe(self, event: RunEvent) -> None:
        """One event."""
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def stations(self, txid: int) -> list[tuple[str, str | None]]:
        """The stations that a txid has left well, with their table's name."""
        return [
            (event.station, None if event.table is None else Path(event.table).name)
            for event in self.of(StationEnded)
            if txid in [attempt.txid for attempt in event.attempts] and event.error is None
        ]


def topology(warehouse: Path, spout: Any, **config: Any) -> Topology:
    """A stream into an append table and a state."""
    settings = {"retry_backoff_ms": 1, "max_spout_pending": 1, **config}
    made = Topology("observed", TopologyConfig(**settings), bad_rows=AppendTable(warehouse / "bad"))
    rows = made.stream("s", spout).expect("below nine", "v < 9", "set_aside")
    rows.partition_persist(AppendTable(warehouse / "rows"))
    rows.group_by("k").persistent_aggregate(StateTable(warehouse / "counts"), n=Count())
    return made


def test_a_run_is_told_station_by_station(spark: SparkSession, warehouse: Path) -> None:
    """From the wish to run to the end; each txid with all its stations, tables and numbers."""
    kept = Kept()
    report = run_in_memory(
        topology(warehouse, MemoryTransactionalSpout(ROWS, SCHEMA)), spark, observers=[kept]
    )
    facts = [event for event in kept.events if not isinstance(event, RequestEnded)]
    assert {event.service for event in kept.of(RequestEnded)} == {"storage"}
    first, second, third = facts[:3]
    tables = tuple(str(warehouse / name) for name in ("rows", "counts", "bad"))
    assert first == RunBegan(first.at, "observed", 0, "caught_up", ("s",), tables, standby=False)
    assert second == LeadershipWon(second.at, "observed", 1)
    assert third == RunStarted(third.at, "observed", 1, 0, ())
    last = kept.events[-1]
    assert isinstance(last, RunEnded)
    assert (last.ended, last.error, last.committed_txid) == ("caught_up", None, 3)
    for txid in (1, 2, 3):
        found = kept.stations(txid)
        assert Counter(found) == Counter(
            (station, table)
            for station in get_args(Station)
            for table in (None, "rows", "counts", "bad")
            if (station != "stage" if table is None else station in OF_TABLES)
        )
        order = [s for s, table in found if table is None and s not in ("success", "clean_up")]
        assert order == [
            *("plan", "start", "emit", "process", "ack", "prepare", "publish", "turn", "commit")
        ]
    committed = kept.of(BatchCommitted)
    assert [event.attempt.txid for event in committed] == [1, 2, 3]
    assert [event.input_records for event in committed] == [{"s": 2}, {"s": 1}, {"s": 1}]
    assert committed[-1].tables == report.batches[-1].tables
    published = [event for event in kept.of(TablePublished) if event.table == tables[0]]
    assert [(event.rows, event.files > 0, event.bytes > 0) for event in published] == [
        (2, True, True),
        (1, True, True),
        (1, True, True),
    ]
    assert [event.metadata["s"]["index"] for event in kept.of(AttemptBegan)] == [0, 1, 2]
    assert {event.epoch for event in facts[1:]} == {1}
    assert report.observers == []
    bounds = [event.bound for event in kept.of(BoundChanged)]
    assert {"processing", "commit", "ended"} <= set(bounds)
    assert len(kept.of(BackPressureBegan)) == len(kept.of(BackPressureEnded)) > 0
    for event in kept.events:
        json.dumps(event.to_json())


class Failing(MemoryTransactionalSpout):
    """Lags by what it says, fails the first attempt of txid 2, and is away for that of txid 3."""

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of the batch."""
        if attempt == TransactionAttempt(2):
            raise FailedException("once")
        if attempt == TransactionAttempt(3):
            raise SourceUnavailableError("away")
        return super().emit_batch(spark, attempt, metadata)

    def lag(self, newest: MemoryPosition | None) -> Lag:
        """Batches that are left."""
        return Lag(records=len(self._batches) - (0 if newest is None else newest.index + 1))

    def planned_lag(self, metadata: MemoryPosition) -> Lag:
        """One of them."""
        return Lag(records=1)


def test_failures_waits_and_lag_are_told(spark: SparkSession, warehouse: Path) -> None:
    """An attempt that fails, with its cause, and its replay; a source that is away, and for how
    long; what a source lags by.
    """
    kept = Kept()
    run_in_memory(topology(warehouse, Failing(ROWS, SCHEMA)), spark, observers=[kept])
    (failed,) = kept.of(AttemptFailed)
    assert (str(failed.attempt), failed.cause, failed.phase) == ("2:0", "failed", "processing")
    assert (failed.error, failed.ends_run) == ("FailedException: once", False)
    (emit,) = [e for e in kept.of(StationEnded) if e.station == "emit" and e.error == failed.error]
    assert emit.attempts == (failed.attempt,)
    (blocked,) = kept.of(AttemptBlocked)
    assert (str(blocked.attempt), blocked.times) == ("3:0", 0)
    (back,) = kept.of(BatchUnblocked)
    assert back.attempt.txid == 3
    assert back.seconds >= 0.1
    scheduled = [(str(e.attempt), e.blocked) for e in kept.of(ReplayScheduled)]
    assert scheduled == [("2:1", False), ("3:1", True)]
    assert [str(event.attempt) for event in kept.of(AttemptBegan)] == [
        *("1:0", "2:0", "2:1", "3:0", "3:1")
    ]
    assert {str(event.attempt) for event in kept.of(AttemptCancelled)} == {"2:0", "3:0"}
    assert [event.failures for event in kept.of(AttemptBegan)] == [0, 0, 1, 0, 0]
    lags = [(event.lag, event.planned) for event in kept.of(LagChanged)]
    assert (Lag(records=3), Lag(records=1)) in lags, "of three batches one is planned"
    assert lags[-1] == (Lag(records=0), Lag(records=0))


def test_bad_rows_and_quarantines_are_told(spark: SparkSession, warehouse: Path) -> None:
    """Per rule, once the txid is committed; a batch that is set aside, with its error."""
    batches = [[("a", 1), ("b", 9), ("c", 10)], [ValueError("no"), ValueError("no")], [("d", 2)]]
    config = {"on_exhausted": "quarantine", "max_batch_attempts": 2}
    kept = Kept()
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    report = run_in_memory(topology(warehouse, spout, **config), spark, observers=[kept])
    (bad,) = kept.of(BadRows)
    about = (bad.attempt.txid, bad.stream, bad.rule, bad.rows, bad.set_aside)
    assert about == (1, "s", "below nine", 2, True)
    (quarantined,) = kept.of(Quarantined)
    assert (quarantined.attempt.txid, report.quarantined, report.replays) == (2, 1, 1)
    assert quarantined.error.startswith("ValueError: no")
    assert [event.cause for event in kept.of(AttemptFailed)] == ["error", "error"]
    assert [event.quarantined for event in kept.of(BatchCommitted)] == [False, True, False]


def test_a_quarantined_txid_is_told_until_its_replay(spark: SparkSession, warehouse: Path) -> None:
    """The next run begins with what is in quarantine, and says which commit brings it back."""
    config = {"on_exhausted": "quarantine", "max_batch_attempts": 1}
    nodes, kept = MemoryNodes(), Kept()
    poisoned = MemoryTransactionalSpout([[("a", 1)], [ValueError("no"), ("b", 2)]], SCHEMA)
    run_in_memory(topology(warehouse, poisoned, **config), spark, nodes)
    nodes.request_replays("observed", [2])
    mended = MemoryTransactionalSpout([[("a", 1)], [("b", 2)]], SCHEMA)
    run_in_memory(topology(warehouse, mended, **config), spark, nodes, observers=[kept])
    assert [event.quarantined_txids for event in kept.of(RunStarted)] == [(2,)]
    assert [(e.attempt.txid, e.replay_of) for e in kept.of(BatchCommitted)] == [(3, 2)]


def test_the_end_with_an_error_is_told(spark: SparkSession, warehouse: Path) -> None:
    """The attempt that ended the run, and the error with its number."""
    kept = Kept()
    spout = MemoryTransactionalSpout([[ValueError("no")]], SCHEMA)
    with pytest.raises(BatchError):
        run_in_memory(topology(warehouse, spout), spark, observers=[kept])
    (failed,) = kept.of(AttemptFailed)
    assert (str(failed.attempt), failed.cause, failed.ends_run) == ("1:0", "error", True)
    last = kept.events[-1]
    assert isinstance(last, RunEnded)
    assert (last.ended, last.number, last.committed_txid) == ("error", "TXN-500", 0)
    assert last.error is not None
    assert last.error.startswith("BatchError: ")


def test_a_refused_start_is_told(spark: SparkSession, warehouse: Path) -> None:
    """A run that never led has a beginning and an end."""
    kept, nodes = Kept(), MemoryNodes()
    leader = MemoryProgress("observed", nodes)
    leader.lead()
    spout = MemoryTransactionalSpout(ROWS, SCHEMA)
    with pytest.raises(LeaderExistsError):
        run_in_memory(topology(warehouse, spout), spark, nodes, observers=[kept])
    began, ended = kept.events
    assert isinstance(began, RunBegan)
    assert isinstance(ended, RunEnded)
    assert (ended.epoch, ended.number) == (0, "TXN-605")


def test_a_standby_is_told_whom_it_waits_for(spark: SparkSession, warehouse: Path) -> None:
    """Then that it leads, with its epoch."""
    kept, nodes = Kept(), MemoryNodes()
    leader = MemoryProgress("observed", nodes)
    leader.lead()
    running = topology(warehouse, MemoryTransactionalSpout(ROWS, SCHEMA)).start(
        spark,
        until="caught_up",
        standby=True,
        store=MemoryProgress("observed", nodes),
        observers=[kept],
    )
    wait_for(lambda: bool(kept.of(StandingBy)), what="a standby that says so")
    leader.close()
    assert running.await_termination(60).committed_txid == 3
    (waited,) = kept.of(StandingBy)
    assert waited.leader is not None
    assert (waited.epoch, waited.leader["epoch"]) == (0, 1)
    assert [event.epoch for event in kept.of(LeadershipWon)] == [2]


class Killed(BaseException):
    """In place of SIGKILL."""


def kill_at_commit(attempt: TransactionAttempt) -> None:
    """The process ends when the tables hold the txid and COMMITTED is not written."""
    raise Killed(str(attempt))


@pytest.mark.parametrize("poison", [False, True])
def test_a_txid_that_the_next_run_rolls_forward_is_told_by_it(
    poison: bool, spark: SparkSession, warehouse: Path
) -> None:
    """Whatever a killed run has published is told once: as committed, with its rows and versions,
    with its bad rows, and as quarantined if it was.
    """
    nodes, kept = MemoryNodes(), Kept()
    rows: list[Any] = [[ValueError("no")]] if poison else [[("a", 1), ("b", 9)]]
    config = {"on_exhausted": "quarantine", "max_batch_attempts": 1}
    made = topology(warehouse, MemoryTransactionalSpout(rows, SCHEMA), **config)
    with observing(Points(before_committed=kill_at_commit)), pytest.raises(Killed):
        run_in_memory(made, spark, nodes, observers=[kept])
    assert kept.of(BatchCommitted) == []
    made = topology(warehouse, MemoryTransactionalSpout(rows, SCHEMA), **config)
    report = run_in_memory(made, spark, nodes, observers=[kept])
    (told,) = kept.of(BatchCommitted)
    assert (told.attempt.txid, told.epoch, told.rolled_forward) == (1, 2, True)
    assert told.group == (told.attempt,)
    assert sorted(Path(table).name for table in told.tables) == ["bad", "counts", "rows"]
    assert sum(told.rows.values()) == (0 if poison else 3)
    assert told.input_records == {"s": None}
    assert set(told.metadata) == {"s"}
    assert [(bad.rule, bad.rows, bad.set_aside) for bad in kept.of(BadRows)] == (
        [] if poison else [("below nine", 1, True)]
    )
    assert [told.attempt] * poison == [each.attempt for each in kept.of(Quarantined)]
    assert (report.batches_committed, report.quarantined) == (1, poison)
    began = kept.events.index(kept.of(RunStarted)[-1])
    assert kept.events[began + 1] == told


class Cut(MemoryProgress):
    """A store that can be cut off."""

    away = False

    def assert_leading(self, seconds: float | None = None) -> None:
        """No answer while it is."""
        if self.away:
            raise ProgressUnavailableError("away")
        super().assert_leading(seconds)


def test_a_doubt_is_told_once_until_it_is_settled(spark: SparkSession, warehouse: Path) -> None:
    """A leader that ZooKeeper does not answer asks again and again, and that is one doubt."""
    kept, store = Kept(), Cut("observed")
    spout = MemoryTransactionalSpout(ROWS, SCHEMA)
    running = topology(warehouse, spout).start(spark, store=store, observers=[kept])
    wait_for(lambda: len(kept.of(BatchCommitted)) == 3, what="the batches")
    assert store.on_lost is not None
    store.away = True
    for _ in range(2):
        store.on_lost()
    store.away = False
    store.on_lost()
    running.stop(60)
    told = [e for e in kept.events if isinstance(e, LeadershipInDoubt | LeadershipConfirmed)]
    assert [type(event) for event in told] == [LeadershipInDoubt, LeadershipConfirmed]


class Groups(MemoryTransactionalSpout):
    """Its first batch takes a while, so that the others wait for it."""

    def commit(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> None:
        """The first turn waits until the others are processed."""
        if attempt.txid == 1:
            wait_for(lambda: len(self.kept.acked()) >= 4, what="the others are processed")

    kept: Acked


class Acked(Kept):
    """Knows which txids are processed."""

    def acked(self) -> Sequence[int]:
        """They are."""
        return [e.attempts[0].txid for e in self.of(StationEnded) if e.station == "ack"]


def test_a_group_is_one_span_of_all_its_attempts(spark: SparkSession, warehouse: Path) -> None:
    """Its commit turn is told once; each txid is told committed, with its group."""
    spout = Groups([[(str(n), n)] for n in range(4)], SCHEMA)
    spout.kept = kept = Acked()
    run_in_memory(topology(warehouse, spout, max_spout_pending=4), spark, observers=[kept])
    turns = [[a.txid for a in e.attempts] for e in kept.of(StationEnded) if e.station == "turn"]
    # On a busy machine others are processed before the first turn begins, and share it.
    assert [txid for turn in turns for txid in turn] == [1, 2, 3, 4]
    assert len(turns) <= 2
    groups = [[a.txid for a in event.group] for event in kept.of(BatchCommitted)]
    assert groups == [turn for turn in turns for _ in turn]


class Awkward:
    """Does what it should not."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def observe(self, event: RunEvent) -> None:
        """Nothing good."""
        raise self._error


def test_observers_that_raise_cost_the_run_nothing(spark: SparkSession, warehouse: Path) -> None:
    """The run ends well; its report names them, and the others have been told everything."""
    kept = Kept()
    observers = [Awkward(SystemExit(3)), kept, Awkward(ValueError("no"))]
    spout = MemoryTransactionalSpout(ROWS, SCHEMA)
    report = run_in_memory(topology(warehouse, spout), spark, observers=observers)
    assert (report.ended, report.committed_txid) == ("caught_up", 3)
    count = len(kept.events)
    assert report.observers == [
        f"Observer Awkward (1) raised for {count} events, the first time SystemExit.",
        f"Observer Awkward (2) raised for {count} events, the first time ValueError.",
    ]
    assert all(told in repr(report) for told in report.observers)


@pytest.mark.parametrize(
    "asked",
    [
        {"until": 0},
        {"standby": True},
        {"zookeeper": "a b"},
        {"observers": [object()]},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_run_that_is_refused_at_once_is_told(asked: dict[str, Any], tmp_path: Path) -> None:
    """It has a beginning and an end; so the port of its metrics is free for the corrected one."""
    made = topology(tmp_path, MemoryTransactionalSpout(ROWS, SCHEMA))
    nothing: Any = None
    kept, metrics = Kept(), PrometheusMetrics("0")
    others = asked.pop("observers", [])
    with pytest.raises(TxnError) as refused:
        made.start(nothing, observers=[kept, metrics, *others], **asked)
    began, ended = kept.events
    assert isinstance(began, RunBegan)
    assert isinstance(ended, RunEnded)
    assert (began.streams, ended.number) == (("s",), refused.value.number)
    assert metrics.port is None


@pytest.mark.parametrize("wrong", [print, Kept, object()])
def test_what_is_no_observer_is_refused(wrong: Any, tmp_path: Path) -> None:
    """Before anything is started."""
    made = topology(tmp_path, MemoryTransactionalSpout(ROWS, SCHEMA))
    nothing: Any = None
    with pytest.raises(TopologyError, match="is not an observer"):
        made.start(nothing, observers=[wrong])


def test_every_event_has_a_json_name_of_its_own() -> None:
    """A reader of JSON lines tells them apart."""
    names = {kind.__name__ for kind in RunEvent.__subclasses__()}
    assert len(names) == len(RunEvent.__subclasses__()) > 25


class Formatted(logging.Handler):
    """Keeps what is logged, as the formatter has it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def formatted() -> Iterator[Formatted]:
    """On the root, where a program has its handler."""
    handler, root, before = Formatted(), logging.getLogger(), logging.root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.setLevel(before)
    root.removeHandler(handler)


def test_spark_and_the_log_name_a_txid_alike(
    spark: SparkSession, warehouse: Path, formatted: Formatted
) -> None:
    """The description of each Spark job has topology, txid, attempt and station; what a transform
    logs has the same as fields; the tags that events name are those of the jobs.
    """
    log = logging.getLogger("tests.engine.test_observers")

    def noted(frame: DataFrame) -> DataFrame:
        log.info("transforming")
        return frame

    kept = Kept()
    made = Topology("described", TopologyConfig(max_spout_pending=1))
    rows = made.stream("s", MemoryTransactionalSpout(ROWS[:2], SCHEMA)).transform(noted)
    counts = rows.group_by("k")
    counts.persistent_aggregate(StateTable(warehouse / "counts", buckets=2), n=Count())
    run_in_memory(made, spark, observers=[kept])

    status = spark.sparkContext._jsc.sc().statusStore()

    def described() -> set[str]:
        jobs = status.jobsList(None)
        found = [jobs.apply(at).description() for at in range(jobs.size())]
        return {one.get() for one in found if one.isDefined() and "described txid" in one.get()}

    table = str(warehouse / "counts")
    wanted = {f"described txid {txid}:0 process" for txid in (1, 2)}
    wanted |= {f"described txid {txid}:0 prepare {table}" for txid in (1, 2)}
    wait_for(lambda: described() == wanted, what=lambda: str(described()))
    tags = {tag for event in kept.of(StationBegan) for tag in event.spark_tags}
    assert tags == {"txn-described-1-1-0", "txn-described-1-2-0"}
    found = spark.sparkContext._jsc.sc().statusTracker().getJobIdsForTag("txn-described-1-1-0")
    assert len(found) > 0
    about = {"topology": "described", "epoch": 1, "attempt": 0, "station": "emit"}
    own = [line for line in formatted.lines if line["message"] == "transforming"]
    assert [line["txid"] for line in own if line.items() >= about.items()] == [1, 2]
    committed = [line for line in formatted.lines if "] committed {" in line["message"]]
    assert [(line["topology"], line["txid"], line["attempt"]) for line in committed] == [
        ("described", 1, 0),
        ("described", 2, 0),
    ]


def test_the_page_shows_an_observer_that_works(
    spark: SparkSession, warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first program of docs/observers.md, over a topology that fails once."""
    made = topology(warehouse, Failing(ROWS, SCHEMA))

    class InMemory:
        """In the place of the reader's topology."""

        def run(self, spark: SparkSession, **given: Any) -> RunReport:
            """Without ZooKeeper."""
            return run_in_memory(made, spark, **given)

    program = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)[0]
    names: dict[str, Any] = {"topology": InMemory(), "spark": spark}
    exec(program, names)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if " took " not in line] == [
        "1:0 is committed, with 0 others",
        "2:0 failed (failed): FailedException: once",
        "2:1 is committed, with 0 others",
        "3:1 is committed, with 0 others",
    ]
    assert names["report"].observers == []


def test_the_page_names_every_event_and_station() -> None:
    """Whoever reads it knows what there is."""
    text = PAGE.read_text("utf-8")
    named = {*(kind.__name__ for kind in RunEvent.__subclasses__()), *get_args(Station)}
    named |= set(get_args(FailureCause))
    assert sorted(name for name in named if f"`{name}`" not in text) == []
