"""Published tables: keys and final values alone, as of one committed txid, kept up by changes."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from deltalake import DeltaTable

from committers.aggregates import Avg, Count, CountDistinct, Sum
from committers.append_table import AppendTable
from committers.published.log import PublishedLog
from committers.published_table import PublishedTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.delta.published import record_in
from txn.delta.upkeep import carry_out, plan_optimize, plan_vacuum
from txn.errors import TableRefusedError, TopologyError
from txn.operations.tables.table_status import read_tables
from txn.storage.storage import Storage
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "k string, v int"
FIRST = ([("a", 1), ("b", 2), (None, 7)], [("a", 3), ("c", 1)])
LATER = ([("d", 9), ("a", 1)], [("b", -2), ("c", 5)], [("e", 4)])
VALUES: dict[str, Any] = {"n": Count(), "mean": Avg("v"), "kinds": CountDistinct("v")}


def expected(batches: Any) -> set[tuple[Any, ...]]:
    """Key, rows, mean and different values."""
    values: dict[Any, list[int]] = {}
    for key, value in (row for batch in batches for row in batch):
        values.setdefault(key, []).append(value)
    return {(k, len(v), sum(v) / len(v), len(set(v))) for k, v in values.items()}


def rows_of(path: Path, version: int | None = None) -> set[tuple[Any, ...]]:
    """The rows, as delta-rs reads them; each is there once."""
    rows = DeltaTable(str(path), version=version).to_pyarrow_table().to_pylist()
    found = [tuple(row.values()) for row in rows]
    assert len(set(found)) == len(found)
    return set(found)


def txids_of(path: Path) -> dict[int, int]:
    """Version -> the txid that its log names."""
    logs = sorted((path / "_delta_log").glob("*.json"))
    records = {int(log.stem): record_in(log.read_bytes()) for log in logs}
    return {version: record["txid"] for version, record in records.items() if record}


class Shop:
    """A topology that publishes a state, in one run after another."""

    def __init__(self, spark: SparkSession, warehouse: Path, **options: Any) -> None:
        self.spark, self.warehouse, self.nodes = spark, warehouse, MemoryNodes()
        self.options = options
        self.state: str | Path = warehouse / "state"

    def run(self, batches: Any, *, values: dict[str, Any] | None = None, **asked: Any) -> Topology:
        """Run until it is caught up; return the topology."""
        made = Topology("shop", TopologyConfig(max_spout_pending=1))
        stream = made.stream("sales", MemoryTransactionalSpout(batches, SCHEMA))
        state = StateTable(self.state, **self.options)
        kept = stream.group_by("k").persistent_aggregate(state, **(values or VALUES))
        assert kept.publish(self.path, **asked) is kept
        run_in_memory(made, self.spark, self.nodes)
        return made

    @property
    def path(self) -> Path:
        """The published table's folder."""
        return self.warehouse / "shown"


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_published_table_shows_keys_and_values_as_of_a_txid(
    spark: SparkSession, warehouse: Path, layout: str, semantics: str
) -> None:
    """Each version of a published table shows exactly the keys and values that its state had as of
    the committed txid that its log names. The last one has all of a run that ends by itself, and a
    later run goes on from what changed.
    """
    shop = Shop(spark, warehouse, layout=layout, semantics=semantics)
    shop.run(FIRST, every="1 txid")
    assert rows_of(shop.path) == expected(FIRST)
    names = [field.name for field in DeltaTable(str(shop.path)).schema().fields]
    assert names == ["k", "n", "mean", "kinds"]
    before = {file.name for file in shop.path.rglob("*.parquet")}
    shop.run((*FIRST, *LATER), every="1 txid")
    assert before < {file.name for file in shop.path.rglob("*.parquet")}
    assert max(txids_of(shop.path).values()) == len(FIRST) + len(LATER)
    for version, txid in txids_of(shop.path).items():
        assert rows_of(shop.path, version) == expected((*FIRST, *LATER)[:txid])


def test_only_touched_files_are_written_anew(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files without a key that changed stay, and rows lie in files in their order."""
    monkeypatch.setattr("committers.published.table._FILE_BYTES", 600)
    many = [(f"k{number:03}", number) for number in range(300)]
    shop = Shop(spark, warehouse, layout="log")
    shop.run((many,), order_by="k desc")
    files = set(DeltaTable(str(shop.path)).file_uris())
    assert len(files) > 3
    shop.run((many, [("k000", 5)]), order_by="k desc")
    kept = files & set(DeltaTable(str(shop.path)).file_uris())
    assert len(kept) == len(files) - 1
    assert rows_of(shop.path) == expected((many, [("k000", 5)]))
    bounds = [
        json.loads(action["add"]["stats"])
        for log in (shop.path / "_delta_log").glob("*.json")
        for action in map(json.loads, log.read_text().splitlines())
        if "add" in action
    ]
    spans = sorted((one["minValues"]["k"], one["maxValues"]["k"]) for one in bounds)
    assert spans[0][1] < spans[-1][0]


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_keys_that_are_removed_leave_the_published_table(
    spark: SparkSession, warehouse: Path, layout: str
) -> None:
    """A key that `remove_where` takes is gone with the next version; it may come back."""
    shop = Shop(spark, warehouse, layout=layout, remove_where="total = 0")
    values = {"total": Sum("v")}
    batches = ([("a", 1), ("b", 2)], [("a", -1)], [("c", 3), ("b", -2)], [("a", 8)])
    wanted = ({("a", 1), ("b", 2)}, {("b", 2)}, {("c", 3)}, {("c", 3), ("a", 8)})
    for number, rows in enumerate(wanted, 1):
        shop.run(batches[:number], values=values)
        assert rows_of(shop.path) == rows


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_a_ranking_has_the_first_rows(spark: SparkSession, warehouse: Path, layout: str) -> None:
    """`top` rows of all, or of each group, in the order of `by`; equal ones by their keys."""
    shop = Shop(spark, warehouse, layout=layout)
    asked: dict[str, Any] = {"top": 2, "by": "n desc", "columns": ["n", "k"]}
    shop.run(FIRST, **asked)
    assert rows_of(shop.path) == {(2, "a"), (1, None)}
    shop.run((*FIRST, *LATER), **asked)
    assert rows_of(shop.path) == {(3, "a"), (2, "b")}


def test_what_is_asked_may_change(spark: SparkSession, warehouse: Path) -> None:
    """Other columns, a value more, and a state that was rebuilt are shown with the next version."""
    shop = Shop(spark, warehouse)
    shop.run(FIRST, columns=["k", "n"])
    shop.run((*FIRST, *LATER[:1]), columns=["n", "k"])
    assert {(k, n) for n, k in rows_of(shop.path)} == {
        row[:2] for row in expected((*FIRST, *LATER[:1]))
    }
    shop.run((*FIRST, *LATER), values={**VALUES, "total": Sum("v")})
    assert {row[:4] for row in rows_of(shop.path)} == expected((*FIRST, *LATER))
    assert {row[0]: row[4] for row in rows_of(shop.path)}["e"] == 4


def test_what_others_do_to_it_is_made_good(spark: SparkSession, warehouse: Path) -> None:
    """After an OPTIMIZE it goes on; rows that another writer changed are as they should be."""
    shop = Shop(spark, warehouse)
    shop.run(FIRST)
    DeltaTable(str(shop.path)).optimize.compact()
    shop.run((*FIRST, *LATER[:1]))
    assert rows_of(shop.path) == expected((*FIRST, *LATER[:1]))
    DeltaTable(str(shop.path)).delete("n = 1")
    shop.run((*FIRST, *LATER))
    assert rows_of(shop.path) == expected((*FIRST, *LATER))


def test_what_cannot_be_published_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """Each refusal names the place and a way out."""
    made = Topology("shop")
    stream = made.stream("sales", MemoryTransactionalSpout(FIRST, SCHEMA))
    kept = stream.group_by("k").persistent_aggregate(StateTable(warehouse / "state"), n=Count())
    for asked, words in (
        ({"columns": ["n"]}, "columns= lacks key 'k'"),
        ({"columns": ["k", "m"]}, "no column 'm'. It has k, n"),
        ({"columns": ["k", "k"]}, "names one twice"),
        ({"columns": ["k"], "order_by": "n desc"}, "'n', which is not among columns="),
        ({"top": 0, "by": "n"}, "not a number of rows"),
        ({"top": 3}, "needs top= and by="),
        ({"per": "k"}, "needs top= and by="),
        ({"every": "often"}, "is no duration"),
    ):
        with pytest.raises(TopologyError, match=words):
            kept.publish(warehouse / "shown", **asked)
    for name, asked in (("_metadata", {}), ("_Change_Type", {"change_feed": True})):
        state = StateTable(warehouse / name)
        named = stream.group_by("k").persistent_aggregate(state, **{name: Count()})
        with pytest.raises(TopologyError, match="a name that Delta's readers need"):
            named.publish(warehouse / "named", **asked)
        named.publish(warehouse / f"{name}-shown", columns=["k"], **asked)
    with pytest.raises(TopologyError, match="has a committer for table"):
        kept.publish(warehouse / "state")
    with pytest.raises(TopologyError, match="lies in the folder"):
        kept.publish(warehouse / "state" / "shown")
    kept.publish(warehouse / "shown")
    with pytest.raises(TopologyError, match="has a committer for table"):
        stream.partition_persist(AppendTable(warehouse / "shown"))
    other = Shop(spark, warehouse / "other")
    DeltaTable.create(str(other.path), DeltaTable(_plain(warehouse)).schema())
    with pytest.raises(TableRefusedError, match=r"is none that publish\(\) has made"):
        other.run(FIRST)


def _plain(warehouse: Path) -> str:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(warehouse / "plain"), pa.table({"k": ["a"]}))
    return str(warehouse / "plain")


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_rows_may_be_marked_as_deleted_instead(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """With deletion vectors a file stays while few of its rows are gone, and every reader that
    knows them sees the same; a file with many is written anew, and small ones become one.
    """
    monkeypatch.setattr("committers.published.table._MOST_SMALL", 2)
    many = [(f"k{number:03}", number) for number in range(100)]
    batches = [many, *([(f"k{n:03}", n), (f"k{9 * n:03}", 1), (f"new{n}", n)] for n in range(5))]
    shop = Shop(spark, warehouse, layout=layout)
    counts = []
    for number in range(1, len(batches) + 1):
        shop.run(batches[:number], deletion_vectors=True)
        wanted = expected(batches[:number])
        shown = PublishedTable(shop.path)
        assert {tuple(row) for row in shown.read(spark).collect()} == wanted
        assert set(pl.read_delta(str(shop.path)).rows()) == wanted
        counts.append(len(DeltaTable(str(shop.path)).file_uris()))
    assert max(counts) > 2 > min(counts[2:])
    logs = sorted((shop.path / "_delta_log").glob("*.json"))
    assert sum("deletionVector" in log.read_text() for log in logs) > 1
    for txid in shown.txids():
        assert {tuple(row) for row in shown.read(spark, txid).collect()} == expected(batches[:txid])
    spark.sql(f"DELETE FROM delta.`{shop.path}` WHERE k = 'k050'")
    with pytest.raises(TableRefusedError, match="Another writer has marked rows"):
        shop.run(batches, deletion_vectors=True)
    shutil.rmtree(shop.path)
    shop.run([*batches, [("z", 1)]], deletion_vectors=True)
    assert {tuple(row) for row in shown.read(spark).collect()} == expected([*batches, [("z", 1)]])


def test_a_table_is_published_as_often_as_asked(spark: SparkSession, warehouse: Path) -> None:
    """By txids, and otherwise with the end of the run."""
    shop = Shop(spark, warehouse)
    shop.run((*FIRST, *LATER), every="2 txids")
    often = set(txids_of(shop.path).values())
    assert max(often) == 5
    assert all(
        one - other >= 2 for one, other in zip(sorted(often)[1:-1], sorted(often), strict=False)
    )
    other = Shop(spark, warehouse / "other")
    other.run((*FIRST, *LATER), every="1 hour")
    assert set(txids_of(other.path).values()) == {5}


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("vectors", [False, True])
def test_a_table_without_rows_and_a_total_without_keys_are_published(
    spark: SparkSession, warehouse: Path, layout: str, *, vectors: bool
) -> None:
    """A table whose keys are all gone gets new ones; one row over everything is one row."""
    shop = Shop(spark, warehouse, layout=layout, remove_where="total = 0")
    values, batches = {"total": Sum("v")}, ([("a", 1)], [("a", -1)], [("b", 2)])
    for number, rows in enumerate(({("a", 1)}, set(), {("b", 2)}), 1):
        shop.run(batches[:number], values=values, deletion_vectors=vectors)
        found = PublishedTable(shop.path).read(spark).collect()
        assert {tuple(row) for row in found} == rows
    made = Topology("one", TopologyConfig(max_spout_pending=1))
    stream = made.stream("sales", MemoryTransactionalSpout(batches, SCHEMA))
    one = stream.persistent_aggregate(StateTable(warehouse / "one", layout=layout), n=Count())
    one.publish(warehouse / "all", every="1 txid", deletion_vectors=vectors)
    run_in_memory(made, spark, MemoryNodes())
    shown = PublishedTable(warehouse / "all")
    for txid in shown.txids():
        assert [tuple(row) for row in shown.read(spark, txid).collect()] == [(txid,)]


def test_a_version_of_somebody_else_that_comes_first_is_no_harm(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that were written for it are deleted, and the next round publishes anew."""
    shop = Shop(spark, warehouse)
    shop.run(FIRST)
    files = set(shop.path.rglob("*.parquet"))
    append = PublishedLog.append

    def late(log: PublishedLog, version: int, text: bytes) -> None:
        noted = {"delta.logRetentionDuration": "interval 9 days"}
        DeltaTable(str(shop.path)).alter.set_table_properties(noted)
        append(log, version, text)

    with monkeypatch.context() as first:
        first.setattr(PublishedLog, "append", late)
        shop.run((*FIRST, *LATER), every="1 hour")
    assert rows_of(shop.path) == expected(FIRST)
    assert set(shop.path.rglob("*.parquet")) == files
    shop.run((*FIRST, *LATER))
    assert rows_of(shop.path) == expected((*FIRST, *LATER))


@pytest.mark.parametrize("vectors", [False, True])
def test_vacuum_frees_what_no_version_needs(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch, *, vectors: bool
) -> None:
    """VACUUM deletes replaced files and vectors, and keeps those of the newest version."""
    monkeypatch.setattr("txn.delta.upkeep.LONGEST_GROUP", 1)
    many = [(f"k{number:03}", number) for number in range(100)]
    batches = [many, *([(f"k{n:03}", n), (f"new{n}", n)] for n in range(4))]
    shop = Shop(spark, warehouse)
    for number in range(1, len(batches) + 1):
        shop.run(batches[:number], deletion_vectors=vectors)
    storage = Storage(str(shop.path), {})
    plan = carry_out(storage, plan_vacuum(storage, "shop", 0))
    gone = [path.rpartition(".")[2] for path in plan.paths]
    assert len(gone) > 2
    assert set(gone) == ({"bin"} if vectors else {"parquet"})
    assert all(not (shop.path / path).exists() for path in plan.paths)
    assert {tuple(row) for row in PublishedTable(shop.path).read(spark).collect()} == expected(
        batches
    )
    assert set(pl.read_delta(str(shop.path)).rows()) == expected(batches)
    assert plan_vacuum(storage, "shop", 0).chosen == 0
    assert "publish() keeps its files" in (plan_optimize(storage, "shop").skipped or "")
    shop.run([*batches, [("k000", 1)]], deletion_vectors=vectors)
    assert set(pl.read_delta(str(shop.path)).rows()) == expected([*batches, [("k000", 1)]])


def test_a_status_tells_what_a_published_table_shows(spark: SparkSession, warehouse: Path) -> None:
    """The txid of its newest version; or why it cannot be read."""
    shop = Shop(spark, warehouse)
    (sink,) = shop.run(FIRST).sinks
    published = {one.name: one for one in sink.published}
    read = partial(read_tables, "shop", [], 2, published=published)
    assert read().published == {str(shop.path): 2}
    shutil.rmtree(shop.path)
    assert read().published == {str(shop.path): 0}
    DeltaTable.create(str(shop.path), DeltaTable(_plain(warehouse)).schema())
    assert read().published == {str(shop.path): None}
    assert "is none that publish() has made" in read().unread[str(shop.path)]


def feed_of(spark: SparkSession, path: Path, version: int) -> list[tuple[Any, ...]]:
    """The changes of one version, as Spark reads the change data feed."""
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    feed = feed.option("startingVersion", version).option("endingVersion", version)
    rows = feed.load(str(path)).drop("_commit_version", "_commit_timestamp").collect()
    return sorted(map(tuple, rows), key=repr)


def differences(before: set[Any], after: set[Any], keys: int = 1) -> list[tuple[Any, ...]]:
    """The same in plain Python, from rows with their first columns as the key."""
    old, new = ({row[:keys]: row for row in rows} for rows in (before, after))
    found = [(*old[key], "delete") for key in old.keys() - new.keys()]
    found += [(*new[key], "insert") for key in new.keys() - old.keys()]
    for key in old.keys() & new.keys():
        if old[key] != new[key]:
            found += [(*old[key], "update_preimage"), (*new[key], "update_postimage")]
    return sorted(found, key=repr)


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("ranked", [False, True])
def test_a_published_table_has_a_change_feed(
    spark: SparkSession, warehouse: Path, *, vectors: bool, ranked: bool
) -> None:
    """Each version names exactly the rows that it changes, keys that go included, for Spark and
    delta-rs alike.
    """
    shop = Shop(spark, warehouse, remove_where="total < 0")
    asked: dict[str, Any] = {"deletion_vectors": vectors, "change_feed": True}
    asked |= {"top": 2, "by": "total desc"} if ranked else {}
    batches = (*FIRST, *LATER, [("d", -50), ("b", 0), ("b", 1), ("f", -1)], [("d", 2)])
    for number in range(1, len(batches) + 1):
        shop.run(batches[:number], values={"total": Sum("v"), "n": Count()}, **asked)
    versions = [version for version, txid in txids_of(shop.path).items() if txid]
    assert len(versions) == len(batches)
    before: set[Any] = set()
    shown = PublishedTable(shop.path)
    for version in versions:
        now = {tuple(row) for row in shown.read(spark, txids_of(shop.path)[version]).collect()}
        wanted = differences(before, now)
        assert feed_of(spark, shop.path, version) == wanted
        before = now
        if not vectors:
            by_others = DeltaTable(str(shop.path)).load_cdf(version, version).read_all()
            kinds = sorted(by_others["_change_type"].to_pylist())
            assert kinds == sorted(row[-1] for row in wanted)


def test_another_spelling_of_the_state_is_the_same_state(
    spark: SparkSession, warehouse: Path
) -> None:
    """As for the state itself, a path and its URI are one table."""
    shop = Shop(spark, warehouse)
    shop.run(FIRST)
    shop.state = f"file://{warehouse}/state"
    shop.run((*FIRST, *LATER))
    assert rows_of(shop.path) == expected((*FIRST, *LATER))


def test_what_only_a_new_table_can_get_is_refused(spark: SparkSession, warehouse: Path) -> None:
    """A table without the property stays as it is; the advice works."""
    shop = Shop(spark, warehouse)
    shop.run(FIRST)
    for name in ("change_feed", "deletion_vectors"):
        with pytest.raises(TableRefusedError, match="was made without delta.enable"):
            shop.run((*FIRST, *LATER), values=None, **{name: True})
    assert rows_of(shop.path) == expected(FIRST)
    shutil.rmtree(shop.path)
    shop.run((*FIRST, *LATER), change_feed=True, deletion_vectors=True)
    assert set(pl.read_delta(str(shop.path)).rows()) == expected((*FIRST, *LATER))
