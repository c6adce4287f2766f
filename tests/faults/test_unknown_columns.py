"""Streams and tables of which nobody knows the columns yet: no row of the others is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from pydantic import BaseModel
from pyspark.sql import functions as sf

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.engine.work.staging import Stager
from txn.errors import BatchError, FailedException, TableRefusedError, TxnError
from txn.interfaces import Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.dataflow.graph import Sink
    from txn.embedded import EmbeddedZooKeeper
    from txn.engine.base.attempt import Emission
    from txn.engine.reporting.report import RunStatus
    from txn.engine.running import RunningTopology

SCHEMA = "k string, v bigint"
BATCHES: list[list[Any]] = [[("a", 1), ("b", 2), ("b", 2), (None, 3)], [("a", 4), ("c", 5)]]
KINDS = ("inner", "left", "right", "full", "left_semi", "left_anti", "cross")
PATIENCE_SECS = 60.0


class Txid(BaseModel):
    """Metadata of `TwoMethods`: what it emits is looked up by txid."""

    txid: int


class TwoMethods(Spout[Txid]):
    """Only the two methods that a spout must have: its columns are known once it has emitted."""

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Txid

    def __init__(self, rows: Mapping[int, list[Any]], schema: str) -> None:
        self._rows = rows
        self._schema = schema

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Txid | None
    ) -> Txid | None:
        """What there is for this txid."""
        return Txid(txid=attempt.txid) if attempt.txid in self._rows else None

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Txid
    ) -> DataFrame:
        """The rows of the txid."""
        return spark.createDataFrame(self._rows[metadata.txid], self._schema)


@pytest.fixture
def topology(warehouse: Path) -> Topology:
    """A topology with a name of this test's own."""
    return named(warehouse)


def named(warehouse: Path, timeout: float = 300.0) -> Topology:
    """The same topology again, as a later run of its program makes it."""
    config = TopologyConfig(
        retry_backoff_ms=1, max_batch_attempts=2, message_timeout_secs=timeout, verify="rows"
    )
    return Topology(warehouse.parent.name, config)


def never(schema: str = "k string, name string") -> TwoMethods:
    """A stream that is idle for its whole life."""
    return TwoMethods({}, schema)


def known() -> MemoryTransactionalSpout:
    """A stream that declares its columns, and has two batches."""
    return MemoryTransactionalSpout(BATCHES, SCHEMA)


def waiting(running: RunningTopology) -> RunStatus:
    """The status of a run as soon as its oldest batch waits."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_SECS / 0.05)):
        status = running.status()
        if status.in_flight and status.in_flight[0].blocked:
            return status
        assert running.is_active
        pause.wait(0.05)
    raise AssertionError("no batch has come to wait")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_join_keeps_every_row_that_it_owes(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    topology: Topology,
    warehouse: Path,
    side: str,
) -> None:
    """Whatever is unknown of the other side, a join brings the rows that it brings without one."""
    one = topology.stream("known", known())
    other = topology.stream("unknown", never())
    kinds: tuple[str, ...] = tuple(kind for kind in KINDS if side == "right" or "_" not in kind)
    for kind in kinds:
        joined = one.join(other, "k", kind) if side == "right" else other.join(one, "k", kind)
        thrice = joined.join(other, "k", "left") if side == "right" else joined
        thrice.group_by("k").persistent_aggregate(
            StateTable(warehouse / kind), n=Count(), total=Sum("v")
        )
    if side == "right":
        kinds = (*kinds, "below_left_of_new_values")
        state = other.group_by("k").persistent_aggregate(StateTable(warehouse / "own"), w=Sum("w"))
        one.join(state.new_values(), "k", "left").group_by("k").persistent_aggregate(
            StateTable(warehouse / kinds[-1]), n=Count(), total=Sum("v")
        )
    report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert (report.committed_txid, report.replays, report.waits) == (2, 0, 0)
    every = Counter(row[0] for batch in BATCHES for row in batch)
    totals = Counter[Any]()
    for key, value in (row for batch in BATCHES for row in batch):
        totals[key] += value
    oracle = sorted(((key, n, totals[key]) for key, n in every.items()), key=str)
    keeps = {
        "left": ("left", "full", "left_anti", "below_left_of_new_values"),
        "right": ("right", "full"),
    }
    for kind in kinds:
        whole = kind in keeps["left" if side == "right" else "right"]
        found = rows_of(warehouse / kind, "k", "n", "total", key=str)
        assert found == (oracle if whole else []), kind


def test_rows_wait_for_columns_and_a_restart_knows_them(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """No row is lost while the columns of another stream or of a queried state are unknown: its
    batch is committed whole, or waits.

    Later txids bring the columns, and later runs keep them. The transform, the plain rows, the
    merge and the query below hold every row; in the second run the other stream is idle for good,
    and has said nothing of itself.
    """

    def build(batches: list[list[Any]], names: Mapping[int, list[Any]]) -> Topology:
        topology = named(warehouse)
        rows = topology.stream("rows", MemoryTransactionalSpout(batches, SCHEMA))
        other = topology.stream("names", TwoMethods(names, "k string, name string"))
        joined = rows.join(other, "k", "left")
        joined.partition_persist(AppendTable(warehouse / "joined"))
        joined.transform(lambda df: df.selectExpr("k", "upper(name) AS name")).partition_persist(
            AppendTable(warehouse / "upper")
        )
        state = other.group_by("k").persistent_aggregate(
            StateTable(warehouse / "names"), of=Count()
        )
        asked = rows.state_query(state, on="k", as_of="txid-1")
        asked.partition_persist(AppendTable(warehouse / "asked"))
        merged = rows.transform(lambda df: df.selectExpr("k")).merge(
            other.transform(lambda df: df.selectExpr("k"))
        )
        merged.aggregate(n=Count()).partition_persist(AppendTable(warehouse / "counted"))
        return topology

    names = {2: [("a", "one"), ("x", "two")]}
    report = build(BATCHES, names).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert (report.committed_txid, report.replays, list(report.failures)) == (2, 0, [])
    more = [*BATCHES, [("a", 6), ("d", 7)]]
    report = build(more, names).run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert report.committed_txid == 3
    called = {(2, "a"): "one"}
    seen = {(3, "a"): 1}
    rows = [(txid, k, v) for txid, batch in enumerate(more, 1) for k, v in batch]
    assert rows_of(warehouse / "joined", "txid", "k", "v", "name", key=str) == sorted(
        ((txid, k, v, called.get((txid, k))) for txid, k, v in rows), key=str
    )
    assert rows_of(warehouse / "upper", "txid", "k", "name", key=str) == sorted(
        ((t, k, "ONE" if (t, k) in called else None) for t, k, _ in rows), key=str
    )
    assert rows_of(warehouse / "asked", "txid", "k", "v", "of", key=str) == sorted(
        ((txid, k, v, seen.get((txid, k))) for txid, k, v in rows), key=str
    )
    assert rows_of(warehouse / "counted", "txid", "n") == [(1, 4), (2, 4), (3, 2)]
    assert report.waits == 0


def test_columns_that_never_come_end_a_run_that_is_to_end(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """Nothing is committed without columns that matter, and `until` ends with an error in time."""

    def build(how: str) -> Topology:
        topology = named(warehouse, timeout=3.0)
        rows, names = topology.stream("rows", known()), topology.stream("names", never())
        if how == "query":
            state = names.group_by("k").persistent_aggregate(
                StateTable(warehouse / "names"), last=Max("name")
            )
            followed = rows.state_query(state, on="k", as_of="txid-1")
        else:
            followed = rows.join(names, "k", how)
        followed.partition_persist(AppendTable(warehouse / "joined"))
        return topology

    running = build("left").start(spark, zookeeper=zookeeper.hosts)
    status = waiting(running)
    assert "stream 'names'" in (status.in_flight[0].blocked or "")
    assert "open()" in (status.in_flight[0].blocked or "")
    assert running.stop(PATIENCE_SECS).committed_txid == 0
    for until, how in (("caught_up", "left"), (2, "inner"), (2, "query")):
        with pytest.raises(BatchError, match="waited for 3 s.*stream 'names'"):
            build(how).run(spark, zookeeper=zookeeper.hosts, until=until)  # type: ignore[arg-type]
    assert not (warehouse / "joined").exists()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_full_window_does_not_keep_away_the_rows_that_it_waits_for(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, restarted: bool
) -> None:
    """Batches that wait for a stream's columns fill the window, and the stream is asked all the
    same. A program that does not fit the columns of earlier runs is told what does not fit.
    """
    batches: list[list[Any]] = [[("a", 1)], [("b", 2)], [("c", 3)]]
    names: dict[int, list[Any]] = {}

    def build(select: str = "", of: Mapping[int, list[Any]] = names) -> Topology:
        topology = Topology(
            warehouse.parent.name,
            TopologyConfig(retry_backoff_ms=1, max_spout_pending=2, message_timeout_secs=20.0),
        )
        rows = topology.stream("rows", MemoryTransactionalSpout(batches, SCHEMA))
        other = topology.stream("names", TwoMethods(of, "k string, name string"))
        joined = rows.join(other, "k", "left")
        if select:
            joined = joined.transform(lambda df: df.select("k", select))
        joined.partition_persist(AppendTable(warehouse / "joined"))
        return topology

    running = build().start(spark, zookeeper=zookeeper.hosts, until="forever")
    pause = threading.Event()
    while len(waiting(running).in_flight) < 2:
        pause.wait(0.05)
    if restarted:
        running.stop(PATIENCE_SECS)
    names.update({3: [("z", "late")]})
    if restarted:
        build().run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    else:
        for _ in range(int(PATIENCE_SECS / 0.05)):
            if running.status().committed_txid >= 4:
                break
            pause.wait(0.05)
        running.stop(PATIENCE_SECS)
    oracle = [(1, "a", 1), (2, "b", 2), (4, "c", 3)]
    assert rows_of(warehouse / "joined", "txid", "k", "v") == oracle
    if restarted:
        batches.append([("d", 4)])
        wrong = build("nope", {}).start(spark, zookeeper=zookeeper.hosts)
        assert "nope" in (waiting(wrong).in_flight[0].blocked or "")
        wrong.stop(PATIENCE_SECS)


def test_a_delta_table_that_is_not_there_yet(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """A batch joined with an absent Delta table waits, goes on when it is made, or is told before.

    The other stream is opaque, so that no later txid is planned while its first one waits.
    """

    def build(name: str, declared: str | None) -> Topology:
        topology = Topology(f"{warehouse.parent.name}-{name}", named(warehouse).config)
        script = {(txid, 0): batch for txid, batch in enumerate(BATCHES, 1)}
        rows = topology.stream("rows", MemoryOpaqueSpout(script, SCHEMA))
        names = topology.stream("names", DeltaSpout(warehouse / "other", schema=declared))
        rows.join(names, "k", "left").partition_persist(AppendTable(warehouse / name))
        return topology

    build("told", "k string, name string").run(spark, zookeeper=zookeeper.hosts, until=2)
    oracle = sorted(((k, v, None) for batch in BATCHES for k, v in batch), key=str)
    assert rows_of(warehouse / "told", "k", "v", "name", key=str) == oracle
    running = build("waits", None).start(spark, zookeeper=zookeeper.hosts, until=2)
    assert "stream 'names'" in (waiting(running).in_flight[0].blocked or "")
    spark.createDataFrame([], "k string, name string").write.format("delta").save(
        str(warehouse / "other")
    )
    running.await_termination(PATIENCE_SECS)
    assert rows_of(warehouse / "waits", "k", "v", "name", key=str) == oracle


def test_a_query_of_a_state_that_is_not_there_keeps_every_row(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """Before the first batch of a state, own or another topology's, a query brings NULL values."""
    rows = topology.stream("rows", known())
    own = (
        topology.stream("names", never())
        .group_by("k")
        .persistent_aggregate(StateTable(warehouse / "own"), names=Sum("v"))
    )
    foreign = StateTable(warehouse / "foreign")
    queries = {
        "own": rows.state_query(own, on="k"),
        "turn": rows.state_query(own, on="k", as_of="txid-1"),
        "else": rows.state_query(foreign, on="k"),
    }
    for name, query in queries.items():
        query.group_by("k").persistent_aggregate(StateTable(warehouse / f"of-{name}"), n=Count())
    running = topology.start(spark, zookeeper=zookeeper.hosts, until=2)
    running.await_termination(PATIENCE_SECS)
    every = Counter(row[0] for batch in BATCHES for row in batch)
    for name in queries:
        found = rows_of(warehouse / f"of-{name}", "k", "n", key=str)
        assert found == sorted(every.items(), key=str), name

    counts = Topology(f"{topology.name}-counts", topology.config)
    counted = counts.stream("names", never()).group_by("k")
    state = counted.persistent_aggregate(StateTable(warehouse / "counts"), n=Count())
    counts.stream("rows", known()).state_query(state, on="k").partition_persist(
        AppendTable(warehouse / "with-n")
    )
    assert counts.run(spark, zookeeper=zookeeper.hosts, until=2).waits == 0
    oracle = sorted(((k, v, None) for batch in BATCHES for k, v in batch), key=str)
    assert rows_of(warehouse / "with-n", "k", "v", "n", key=str) == oracle

    whole = Topology(f"{topology.name}-whole", topology.config)
    whole.stream("rows", known()).state_query(foreign, on="k").partition_persist(
        AppendTable(warehouse / "whole")
    )
    running = whole.start(spark, zookeeper=zookeeper.hosts, until=2)
    assert "table '" in (waiting(running).in_flight[0].blocked or "")
    maker = Topology(f"{topology.name}-maker", topology.config)
    maker.stream("s", MemoryTransactionalSpout([[("z", 9)]], SCHEMA)).group_by(
        "k"
    ).persistent_aggregate(foreign, total=Sum("v"))
    maker.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    running.await_termination(PATIENCE_SECS)
    assert rows_of(warehouse / "whole", "k", "v", "total", key=str) == oracle


def test_a_former_program_is_refused_also_before_its_columns_are_known(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """The former program publishes nothing in a table that a newer one has rebuilt, not even a
    txid without rows, also if its stream may yet have columns that nobody knows.
    """

    def run(key: str, batches: list[list[Any]], **more: Any) -> int:
        topology = Topology(warehouse.parent.name, TopologyConfig(**more))
        rows = topology.stream("rows", MemoryTransactionalSpout(batches, SCHEMA))
        rows.partition_persist(AppendTable(warehouse / "rows"))
        other = topology.stream("other", TwoMethods({1: [("a", 1)]}, SCHEMA))
        named = other.transform(lambda df: df.withColumnRenamed("k", key))
        table = StateTable(warehouse / "totals", columns_were={"user": "k"})
        named.group_by(key).persistent_aggregate(table, n=Count())
        report = topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
        return report.committed_txid

    rebuilt = (str(warehouse / "totals"),)
    assert run("k", BATCHES[:1]) == 1
    assert run("user", BATCHES[:1], rebuilt_tables=rebuilt) == 1
    with pytest.raises(TableRefusedError, match="key 'k' is new"):
        run("k", BATCHES)
    assert run("user", BATCHES) == 2
    assert rows_of(warehouse / "totals", "user", "n") == [("a", 1)]


def test_a_ledger_does_not_close_without_the_job_that_read(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    topology: Topology,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planned part counts as read only when a Spark job has staged rows that were computed from
    it.
    """
    topology.stream("rows", known()).partition_persist(AppendTable(warehouse / "rows"))

    def forgets(_: Stager, sink: Sink, emission: Emission) -> None:
        """Compute what is to be staged, as always, and then stage nothing."""
        emission.evaluation.rows(sink.parent)

    monkeypatch.setattr(Stager, "_rows", forgets)
    with pytest.raises(BatchError, match="planned and never read: part"):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert not deltalake.DeltaTable(str(warehouse / "rows")).to_pyarrow_table().num_rows


class FirstFails(TwoMethods):
    """Its first txid is replayed, so that the second one is ready long before it."""

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Txid
    ) -> DataFrame:
        """The rows of the txid, with a column more from txid 2 on."""
        if attempt == TransactionAttempt(1):
            raise FailedException("once")
        rows = spark.createDataFrame(self._rows[metadata.txid], self._schema)
        return rows.withColumn("more", sf.lit(attempt.txid)) if self.grows(attempt) else rows

    def grows(self, attempt: TransactionAttempt) -> bool:
        """Whether this txid has the other column."""
        return attempt.txid > 1


class Steady(FirstFails):
    """The same columns in each txid."""

    def grows(self, attempt: TransactionAttempt) -> bool:
        """None has the other column."""
        return False


@pytest.mark.parametrize("changes", ["source", "transform"])
def test_the_smallest_txid_decides_the_columns(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, changes: str
) -> None:
    """If the columns of a stream are not declared, the smallest txid that brings columns decides
    them, even if it arrives last.

    A later txid with others is the one that is refused. It was the one that made the table, and
    then the table refused the first txid at every run.
    """
    name, path = warehouse.parent.name, warehouse / "table"
    rows: dict[int, list[Any]] = {1: [("a", 1)], 2: [("b", 2)]}
    config = TopologyConfig(retry_backoff_ms=3_000, max_group_processing=1)

    def grown(df: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        return df.withColumn("more", sf.lit(attempt.txid)) if attempt.txid > 1 else df

    def build(spout: TwoMethods, *, grows: bool) -> Topology:
        topology = Topology(name, config)
        stream = topology.stream("s", spout)
        (stream.transform(grown) if grows else stream).partition_persist(AppendTable(path))
        return topology

    spout = (FirstFails if changes == "source" else Steady)(rows, SCHEMA)
    with pytest.raises(TxnError, match="more"):
        build(spout, grows=changes == "transform").run(
            spark, zookeeper=zookeeper.hosts, until="caught_up"
        )
    assert deltalake.DeltaTable(path).schema().to_arrow().names == ["k", "v", "txid"]
    report = build(TwoMethods(rows, SCHEMA), grows=False).run(
        spark, zookeeper=zookeeper.hosts, until="caught_up"
    )
    assert report.committed_txid == 2
    assert rows_of(path, "k", "v", "txid") == [("a", 1, 1), ("b", 2, 2)]
