"""Queries of a state from a stream: what they read, in which phase, and what that promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state import keys
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.harness import read_log, wait_for
from tests.faults.support import CrashedError, Points, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.dataflow import asked_keys, evaluation
from txn.errors import TopologyError, TxnError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper
    from txn.interfaces import KeysReader

SCHEMA = "k string, v bigint"
LAST_OF_TIDY = 8
BATCHES: list[list[Any]] = [
    [("a", 1), ("b", 2), (None, 7)],
    [("a", 10), (None, 1)],
    [("b", 5), ("c", 1), ("a", 1)],
    [("c", 2), ("a", 1)],
]


@pytest.fixture
def topology(warehouse: Path) -> Topology:
    """A topology with a name of this test's own."""
    return Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1, max_group_commit=1))


@pytest.fixture(params=[False, True], ids=["a small state", "a large one"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whether states count as large, of which only the keys of the batch are combined."""
    narrowed: list[bool] = []

    def rows_for(
        found: DataFrame, state: DataFrame, of_keys: KeysReader, *, may_repeat: bool
    ) -> DataFrame:
        rows = asked_keys.rows_for(found, state, of_keys, may_repeat=may_repeat)
        narrowed.append(rows is not state)
        return rows

    monkeypatch.setattr(evaluation, "rows_for", rows_for)
    if request.param:
        monkeypatch.setattr(keys, "NARROWED_FROM_BYTES", 0)
    yield
    assert any(narrowed) is request.param
    assert all(narrowed)


def before(batches: list[list[Any]]) -> list[tuple[Any, ...]]:
    """(key, value, total of the key as of txid - 1, txid) of every row."""
    totals: Counter[Any] = Counter()
    result = []
    for txid, batch in enumerate(batches, 1):
        result += [(k, v, totals.get(k), txid) for k, v in batch]
        totals.update(dict(batch))
    return sorted(result, key=str)


def fail_once(point: str, *which: str) -> Points:
    """An observer that fails the given attempts at a point."""

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) in which:
            raise FailedException("once")

    return Points(**{point: fail})


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("transactional", "between_publications"),
        ("opaque", "between_publications"),
        ("opaque", "after_publish"),
    ],
)
def test_a_query_in_the_commit_turn_reads_the_state_as_of_the_txid_before(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    topology: Topology,
    warehouse: Path,
    kind: str,
    point: str,
) -> None:
    """A query as of txid - 1 sees exactly the state that the previous txid left, at every replay.

    Trident row 40.
    """
    failed: set[int] = set()

    def script(txid: int, attempt_id: int) -> list[Any] | None:
        """Txid 3 brings other rows until it has failed."""
        if txid == 3 and txid not in failed:
            return [("b", 99), ("x", 1)]
        return BATCHES[txid - 1] if txid <= len(BATCHES) else None

    def fail(attempt: TransactionAttempt) -> None:
        if attempt.txid in {1, 3} - failed:
            failed.add(attempt.txid)
            raise FailedException("once")

    spout: Any = (
        MemoryTransactionalSpout(BATCHES, SCHEMA)
        if kind == "transactional"
        else MemoryOpaqueSpout(script, SCHEMA)
    )
    stream = topology.stream("s", spout)
    totals = stream.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals", kind, buckets=2), total=Sum("v")
    )
    stream.state_query(totals, on="k", as_of="txid-1").partition_persist(
        AppendTable(warehouse / "seen", kind)
    )
    with observing(Points(**{point: fail})):
        report = topology.run(spark, zookeeper=zookeeper.hosts, until=4)
    assert report.replays == 2
    assert rows_of(warehouse / "seen", "k", "v", "total", "txid", key=str) == before(BATCHES)


@pytest.mark.usefixtures("size")
def test_a_query_in_the_processing_phase_reads_a_committed_txid(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """A query as of the last committed txid never sees a txid that may still be replayed."""
    batches = [[("a", 1)] for _ in range(8)]
    stream = topology.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
    totals = stream.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals"), total=Sum("v")
    )
    stream.state_query(totals, on="k").partition_persist(AppendTable(warehouse / "seen"))
    started: list[tuple[int, int]] = []
    committed: list[int] = [0]

    def watch(attempt: TransactionAttempt) -> None:
        started.append((attempt.txid, committed[-1]))

    points = Points(
        after_start=watch, after_committed=lambda attempt: committed.append(attempt.txid)
    )
    with observing(points), observing(fail_once("between_publications", "2:0", "5:0", "5:1")):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    seen = dict(rows_of(warehouse / "seen", "txid", "total"))
    earliest: dict[int, int] = {}
    for txid, known in started:
        earliest[txid] = min(known, earliest.get(txid, known))
    assert sorted(seen) == list(range(1, 9))
    # Every batch adds one, so the total is the txid that was read. Between START and the query
    # commits may come in, but never the batch's own txid.
    assert all(earliest[txid] <= (seen[txid] or 0) < txid for txid in seen)


def test_a_global_state_is_queried_without_keys(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """One running row is added to every row; before the first txid it is NULL."""
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES[:2], SCHEMA))
    everything = stream.persistent_aggregate(StateTable(warehouse / "all"), n=Count())
    stream.state_query(everything, as_of="txid-1").partition_persist(
        AppendTable(warehouse / "seen")
    )
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    seen = rows_of(warehouse / "seen", "txid", "n", key=str)
    assert seen == [(1, None)] * 3 + [(2, 3)] * 2


@pytest.mark.usefixtures("size")
def test_a_state_that_another_topology_keeps_is_read_as_of_its_newest_version(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """A static state: one that no stream of this topology updates.

    Trident row 19.
    """
    other = Topology(f"{topology.name}-other", topology.config)
    other.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA)).group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals"), total=Sum("v")
    )
    other.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    stream = topology.stream("s", MemoryTransactionalSpout([[("a", 1), ("z", 2)]], SCHEMA))
    stream.state_query(StateTable(warehouse / "totals"), on="k").partition_persist(
        AppendTable(warehouse / "seen")
    )
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert rows_of(warehouse / "seen", "k", "total", key=str) == [("a", 13), ("z", None)]


def tidy(path: Path) -> None:
    """What somebody's nightly job does: OPTIMIZE, and VACUUM of all that is not current."""
    before = set(DeltaTable(str(path)).file_uris())
    DeltaTable(str(path)).optimize.z_order(["k"])
    table = DeltaTable(str(path))
    assert not before & set(table.file_uris())
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert not any(Path(uri).exists() for uri in before)


@pytest.mark.usefixtures("size")
def test_queries_go_on_while_files_are_rewritten_and_deleted(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """An OPTIMIZE by anybody, and the VACUUM after it, stop no query and no commit, in a run or at
    a restart.
    """
    tidied: list[str] = []

    def script(txid: int, attempt_id: int) -> list[Any] | None:
        return [("a", 1), ("b", txid)] if txid <= LAST_OF_TIDY else None

    def between_batches(attempt: TransactionAttempt) -> None:
        if attempt.txid == 5:
            tidied.append("5:0")
            tidy(warehouse / "totals")
            tidy(warehouse / "log")

    def before_the_job(df: Any, attempt: TransactionAttempt) -> Any:
        if str(attempt) == "7:0":
            tidied.append("7:0")
            tidy(warehouse / "totals")
        return df

    def run(until: int) -> Any:
        # One at a time: VACUUM without retention deletes what others have staged, too.
        config = TopologyConfig(max_spout_pending=1, retry_backoff_ms=1)
        topology = Topology(warehouse.parent.name, config)
        stream = topology.stream("s", MemoryOpaqueSpout(script, SCHEMA))
        by_key = stream.group_by("k")
        totals = by_key.persistent_aggregate(StateTable(warehouse / "totals"), total=Sum("v"))
        log = by_key.persistent_aggregate(StateTable(warehouse / "log", layout="log"), n=Sum("v"))
        stream.state_query(totals, on="k").transform(before_the_job).partition_persist(
            AppendTable(warehouse / "seen")
        )
        stream.state_query(log, on="k", as_of="txid-1").partition_persist(
            AppendTable(warehouse / "seen before")
        )
        with observing(Points(after_committed=between_batches)):
            return topology.run(spark, zookeeper=zookeeper.hosts, until=until)

    run(3)
    for name in ("totals", "log"):
        tidy(warehouse / name)
    assert run(LAST_OF_TIDY).replays == 1
    assert tidied == ["5:0", "7:0"]
    for name, value in (("seen", "total"), ("seen before", "n")):
        seen = rows_of(warehouse / name, "txid", "k", value)
        sums = [("a", t, t - 1) for t in range(1, LAST_OF_TIDY + 1)]
        sums += [("b", t, sum(range(t))) for t in range(1, LAST_OF_TIDY + 1)]
        assert seen == sorted((t, k, total or None) for k, t, total in sums)


@pytest.mark.usefixtures("size")
def test_no_query_sees_the_rest_of_a_group_that_was_half_published(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path
) -> None:
    """After a crash in a group of which a table holds all, its txids are committed one by one: a
    query as of the committed one sees none of the open ones, and a chained topology gets each row
    once.
    """
    batches = [[("a", 1)] for _ in range(6)]
    staged: list[TransactionAttempt] = []

    def hold(attempt: TransactionAttempt) -> None:
        wait_for(lambda: len(staged) >= 4, what=lambda: str(staged))

    def crash(attempt: TransactionAttempt) -> None:
        if attempt.txid > 1:
            raise CrashedError

    def run(until: int | str, **config: Any) -> None:
        topology = Topology(warehouse.parent.name, TopologyConfig(**config))
        stream = topology.stream("s", MemoryTransactionalSpout(batches, SCHEMA))
        by_key = stream.group_by("k")
        totals = by_key.persistent_aggregate(
            StateTable(warehouse / "totals", "transactional"), total=Sum("v")
        )
        log = by_key.persistent_aggregate(
            StateTable(warehouse / "log", "transactional", "log"), n=Sum("v")
        )
        stream.partition_persist(AppendTable(warehouse / "rows", "transactional"))
        stream.state_query(totals, on="k").state_query(log, on="k").partition_persist(
            AppendTable(warehouse / "seen")
        )
        topology.run(spark, zookeeper=zookeeper.hosts, until=until)

    points = Points(before_publish=hold, after_staging=staged.append, between_publications=crash)
    with observing(points), pytest.raises(CrashedError):
        run("caught_up", max_processing_jobs=1, max_group_processing=1)
    assert read_log(warehouse / "totals")[-1].first == 2
    assert read_log(warehouse / "totals")[-1].txid > 3
    assert read_log(warehouse / "seen")[-1].txid == 1
    one_by_one = {"max_spout_pending": 1, "max_group_commit": 1}
    run(2, **one_by_one)
    chain(spark, zookeeper, warehouse)
    run("caught_up", **one_by_one)
    seen = rows_of(warehouse / "seen", "txid", "total", "n", key=str)
    # Each batch adds one, so a value is the txid that was read.
    assert [txid for txid, _, _ in seen] == list(range(1, 7))
    assert all((total or 0) < txid and (n or 0) < txid for txid, total, n in seen)
    chain(spark, zookeeper, warehouse)
    assert rows_of(warehouse / "chained", "k", "first") == [("a", txid) for txid in range(1, 7)]


def chain(spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path) -> None:
    """A topology that reads the other one's rows."""
    topology = Topology(f"{warehouse.parent.name}-chained")
    rows = topology.stream("rows", DeltaSpout(warehouse / "rows"))
    rows.transform(lambda df: df.selectExpr("k", "txid AS first")).partition_persist(
        AppendTable(warehouse / "chained")
    )
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")


# --- what is refused -------------------------------------------------------------------------


def test_a_query_that_may_differ_at_a_replay_is_refused_before_a_transactional_table(
    topology: Topology, warehouse: Path
) -> None:
    """A query as of the last committed txid makes a transactional stream opaque."""
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    totals = stream.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals", "transactional"), total=Sum("v")
    )
    with pytest.raises(TopologyError, match="last committed txid.*transactional semantics"):
        stream.state_query(totals, on="k").partition_persist(
            AppendTable(warehouse / "seen", "transactional")
        )
    stream.state_query(totals, on="k", as_of="txid-1").partition_persist(
        AppendTable(warehouse / "seen", "transactional")
    )


def test_new_values_of_a_table_that_applies_replays_again_are_non_transactional(
    topology: Topology, warehouse: Path
) -> None:
    """What an at-least-once table hands on promises no more than the table does."""
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    totals = stream.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals", "non_transactional"), total=Sum("v")
    )
    with pytest.raises(TopologyError, match="whose new values are used.*opaque semantics"):
        totals.new_values().partition_persist(AppendTable(warehouse / "seen", "opaque"))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"on": ()}, r"keys of table .* are \['k'\], but on= names \[\]"),
        ({"on": "v"}, r"keys of table .* are \['k'\], but on= names \['v'\]"),
        ({"on": "k", "as_of": "now"}, "as_of='now' is neither"),
    ],
)
def test_a_query_that_means_nothing_is_refused(
    topology: Topology, warehouse: Path, query: dict[str, Any], message: str
) -> None:
    """Keys that are not the state's and unknown moments are refused by name."""
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    totals = stream.group_by("k").persistent_aggregate(
        StateTable(warehouse / "totals"), total=Sum("v")
    )
    with pytest.raises(TopologyError, match=message):
        stream.state_query(totals, **query)


def test_queries_of_states_that_are_elsewhere_are_told_how(
    topology: Topology, warehouse: Path
) -> None:
    """Not a state; another topology's; this topology's by its path; a foreign state's txid - 1."""
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    other = Topology("other").stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    own, foreign = StateTable(warehouse / "own"), StateTable(warehouse / "foreign")
    kept = other.group_by("k").persistent_aggregate(foreign, n=Count())
    stream.group_by("k").persistent_aggregate(own, n=Count())
    with pytest.raises(TopologyError, match="not str"):
        stream.state_query("totals", on="k")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="kept by topology 'other'"):
        stream.state_query(kept, on="k")
    with pytest.raises(TopologyError, match="no txid of its own"):
        stream.state_query(foreign, on="k", as_of="txid-1")
    stream.state_query(StateTable(warehouse / "own"), on="k").partition_persist(
        AppendTable(warehouse / "seen")
    )
    with pytest.raises(TopologyError, match="a table of this topology"):
        topology.check_complete("caught_up")


def test_columns_of_a_query_are_checked_before_anything_runs(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """A value named like a column of the stream is refused at the start, and nothing is made.

    Trident row 42.
    """
    stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
    totals = stream.group_by("k").persistent_aggregate(StateTable(warehouse / "t"), v=Sum("v"))
    stream.state_query(totals, on="k").partition_persist(AppendTable(warehouse / "seen"))
    with pytest.raises(TopologyError, match="stream 's' would add a second column 'v'"):
        topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert not (warehouse / "seen").exists()


def test_a_transform_may_ask_for_the_attempt(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, topology: Topology, warehouse: Path
) -> None:
    """User code sees txid and attempt id, and can give up on a batch after so many attempts.

    Trident row 6.
    """
    calls: list[str] = []

    def picky(df: Any, attempt: TransactionAttempt) -> Any:
        calls.append(str(attempt))
        if attempt.txid == 2 and attempt.attempt_id < 2:
            raise FailedException("not yet")
        return df.limit(0) if attempt.txid == 2 else df

    topology.stream("s", MemoryTransactionalSpout(BATCHES[:3], SCHEMA)).transform(
        picky
    ).partition_persist(AppendTable(warehouse / "rows"))
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert {txid for (txid,) in rows_of(warehouse / "rows", "txid")} == {1, 3}
    assert [call for call in calls if call.startswith("2:")] == ["2:0", "2:1", "2:2"]


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("after", [True, False])
def test_a_stream_is_read_after_the_one_that_it_asks(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, kind: str, after: bool
) -> None:
    """A stream with after= is read once the streams before it have nothing left, across replays and
    runs.

    A query as of txid - 1 has every key that was there; without after= it has none.
    """
    batches = [[("a", 1)], [("b", 2)], [("c", 3)]]
    broken: set[int] = {2}

    def program() -> Topology:
        topology = Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))

        def rows(txid: int, attempt: int) -> Any:
            return batches[txid - 1] if txid <= len(batches) else None

        spout: Any = (
            MemoryTransactionalSpout(batches, SCHEMA)
            if kind == "transactional"
            else MemoryOpaqueSpout(rows, SCHEMA)
        )
        names = topology.stream("names", spout)

        def break_down(df: DataFrame, attempt: TransactionAttempt) -> DataFrame:
            if attempt.txid in broken:
                raise ValueError("a run that ends in the middle")
            return df

        known = (
            names.transform(break_down)
            .group_by("k")
            .persistent_aggregate(StateTable(warehouse / "names"), name=Sum("v"))
        )
        facts = MemoryTransactionalSpout([[("a", 10), ("b", 20), ("c", 30)]], SCHEMA)
        sales = topology.stream("sales", facts, after=[names] if after else [])
        sales.state_query(known, on="k", as_of="txid-1").partition_persist(
            AppendTable(warehouse / "seen")
        )
        return topology

    with (
        observing(fail_once("before_publish", "1:0")),
        pytest.raises(TxnError, match="in the middle"),
    ):
        program().run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    broken.clear()
    program().run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    seen = rows_of(warehouse / "seen", "k", "v", "name", "txid")
    if after:
        assert seen == [("a", 10, 1, 4), ("b", 20, 2, 4), ("c", 30, 3, 4)]
    else:
        assert [row[2] for row in seen] == [None] * 3
