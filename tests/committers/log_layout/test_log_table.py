"""State tables with `layout="log"`: partial aggregates, put together by readers and compaction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import Column
from pyspark.sql import functions as sf

from committers.aggregates import Aggregate, Avg, Count, CountDistinct, Fold, Last, Max, Sum
from committers.log_layout import compacted_rows
from committers.staging.writing import ROW_GROUPS
from committers.state_table import StateTable
from txn.errors import FencedError, RecoveryRefusedError, TableRefusedError, TopologyError
from txn.interfaces import Committer, Member, Publication, Staged

SCHEMA = "k string, v bigint"
A, B, C = ("a", 1), ("b", 10), (None, 100)


class Log:
    """A log table of (k -> n, s), compacted as soon as there are two files."""

    def __init__(self, driver: Any, path: Path, semantics: str = "opaque") -> None:
        self.driver = driver
        self.path = path
        self.state = StateTable(path, semantics, "log", compact_files=2, compact_share=1)
        self.committer = self.reopen(1)

    def reopen(self, epoch: int) -> Committer:
        """A new process's committer on the same table."""
        self.epoch = epoch
        self.committer = self.state.bind(["k"], {"n": Count(), "s": Sum("v")})
        self.driver.open(self.committer, SCHEMA, epoch)
        return self.committer

    def commit(self, txid: int, rows: list[Any], attempt: int = 0) -> Any:
        """Stage and publish rows."""
        batch = self.driver.frame(rows, SCHEMA)
        return self.driver.commit(self.committer, batch, txid, attempt, self.epoch)

    def commit_together(self, first: int, *batches: list[Any], attempt: int = 0) -> Any:
        """Stage some txids and publish them as one version."""
        driver = self.driver
        members = [
            driver.stage(self.committer, driver.frame(rows, SCHEMA), txid, attempt)
            for txid, rows in enumerate(batches, start=first)
        ]
        staged = Staged.together(members)
        own = Publication(
            topology="tests",
            epoch=self.epoch,
            first_txid=first,
            last_txid=first + len(batches) - 1,
            attempt_id=attempt,
            rows=staged.rows,
            members=tuple(
                Member(txid=m.attempt.txid, attempt_id=attempt, rows=m.rows, digest=m.digest)
                for m in members
            ),
        )
        return self.committer.publish(self.committer.prepare(staged, own), own)

    def compact(self, committed: int) -> None:
        """Both halves of a compaction, which must have something to do."""
        publish = self.committer.maintain(committed)
        assert publish is not None
        publish()

    def read(self) -> dict[Any, tuple[int, int]]:
        """K -> (n, s), added up out of the files without Spark."""
        totals: dict[Any, tuple[int, int]] = {}
        for row in self.rows():
            n, s = totals.get(row["k"], (0, 0))
            totals[row["k"]] = n + row["n"], s + row["s"]
        return totals

    def shown(self, **how: Any) -> dict[Any, tuple[int, int]]:
        """K -> (n, s), as readers see it."""
        found = self.state.read(self.driver.spark, **how).collect()
        totals = {row["k"]: (row["n"], row["s"]) for row in found}
        assert len(totals) == len(found)
        return totals

    def files(self) -> list[str]:
        """Folders of the active files, below `data/`."""
        table = DeltaTable(str(self.path))
        return sorted(Path(uri).parent.name for uri in table.file_uris())

    def rows(self) -> list[dict[str, Any]]:
        """Whole rows, without Spark."""
        found: list[dict[str, Any]] = DeltaTable(str(self.path)).to_pyarrow_table().to_pylist()
        return found


@pytest.fixture
def log(driver: Any, warehouse: Path) -> Any:
    """A factory of `Log`, by semantics."""
    return lambda semantics="opaque": Log(driver, warehouse / "totals", semantics)


def test_a_commit_adds_the_partials_as_they_were_staged(log: Any) -> None:
    """One version, which adds what the processing phase wrote and removes nothing; readers see one
    row per key, and none of the bookkeeping.
    """
    table = log()
    table.commit(1, [A, A, B])
    staged = table.driver.stage(table.committer, table.driver.frame([A, C], SCHEMA), 2)
    assert table.driver.turn(table.committer, staged).files == staged.files
    assert len(table.rows()) == 4
    assert table.shown() == {"a": (3, 3), "b": (1, 10), None: (1, 100)}
    assert table.state.read(table.driver.spark).columns == ["k", "n", "s"]


AGGREGATES: dict[str, Aggregate] = {
    "n": Count(),
    "mean": Avg("v"),
    "most": Max("v"),
    "users": CountDistinct("k"),
    "last": Last("k", "v"),
}


@pytest.mark.parametrize("keys", [["k"], []], ids=["by key", "global"])
def test_readers_see_the_same_in_both_layouts(
    driver: Any, warehouse: Path, keys: list[str]
) -> None:
    """The same batches read the same from an upsert and from a log table, compacted or not."""
    seen = {}
    for layout in ("upsert", "log"):
        state = StateTable(warehouse / layout, "opaque", layout, compact_files=2, compact_share=1)
        committer = driver.open(state.bind(keys, AGGREGATES), SCHEMA)
        assert state.read(driver.spark).collect() == []
        for txid, rows in enumerate([[A, B, B], [], [A, C, ("b", None)]], start=1):
            driver.commit(committer, driver.frame(rows, SCHEMA), txid)
        before = sorted(state.read(driver.spark).collect(), key=str)
        publish = committer.maintain(3)
        if publish is not None:
            publish()
        assert (publish is not None) == (layout == "log")
        assert sorted(state.read(driver.spark).collect(), key=str) == before
        seen[layout] = before
    assert seen["log"] == seen["upsert"]


@pytest.mark.parametrize("somebody", [True, False], ids=["OPTIMIZE", "compaction"])
def test_an_opaque_replay_after_files_were_put_together(log: Any, somebody: bool) -> None:
    """Whether somebody's OPTIMIZE mixed the dead txid with older ones, or our compaction merged the
    older ones only: the dead txid's partials go, and nothing else.
    """
    table = log()
    for txid in (1, 2, 3):
        table.commit(txid, [A, B])
    if somebody:
        DeltaTable(str(table.path)).optimize.compact()
    else:
        table.compact(committed=2)
    assert len(table.files()) == (1 if somebody else 2)
    table.reopen(2)
    table.commit(3, [A], attempt=1)
    assert table.read() == {"a": (3, 3), "b": (2, 20)}


def test_a_group_is_one_version_with_the_files_of_all(log: Any) -> None:
    """Txids that are published together keep rows of their own, which are merged when they are
    committed; an opaque replay of the first of them takes all of them back.
    """
    table = log()
    table.commit(1, [B])
    table.commit_together(2, [A], [A, C])
    assert table.read() == {"a": (2, 2), "b": (1, 10), None: (1, 100)}
    assert sorted(row["txid"] for row in table.rows()) == [1, 2, 3, 3]
    table.reopen(2)
    table.commit(2, [B], attempt=1)
    assert table.read() == {"b": (2, 20)}
    table.commit_together(3, [A], [A])
    table.compact(committed=3)
    assert [name.split("-")[0] for name in table.files()] == ["4", "compaction"]
    assert table.read() == {"a": (2, 2), "b": (2, 20)}


# --- compaction --------------------------------------------------------------------------------


def test_compaction_is_one_version_that_changes_no_row(log: Any) -> None:
    """Files of committed txids become one, with the greatest txid of each key; nothing else goes,
    nobody who follows the log is told of new rows, and older versions are still there.
    """
    table = log()
    for txid, rows in enumerate([[A, B], [A, C], [A]], start=1):
        table.commit(txid, rows)
    before, started = table.read(), table.state.read(table.driver.spark)
    table.compact(committed=2)
    assert [name.split("-")[0] for name in table.files()] == ["3", "compaction"]
    rows = {(row["k"], row["txid"]): (row["n"], row["s"]) for row in table.rows()}
    assert rows == {("b", 1): (1, 10), ("a", 2): (2, 2), (None, 2): (1, 100), ("a", 3): (1, 1)}
    assert table.read() == before
    assert {row["k"]: (row["n"], row["s"]) for row in started.collect()} == before
    assert table.shown(txid=1) == {"a": (1, 1), "b": (1, 10)}
    version = DeltaTable(str(table.path)).version()
    text = (table.path / f"_delta_log/{version:020}.json").read_text()
    actions = [json.loads(line) for line in text.splitlines()]
    changes = [a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a]
    assert changes == [False] * 3
    assert actions[0]["commitInfo"]["txn_compaction"]["txids"] == [1, 2]


def test_several_tasks_can_read_what_one_has_compacted(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction is cut into row groups: Spark gives one to a task at least, however large."""
    monkeypatch.setitem(ROW_GROUPS, "parquet.block.size", str(8 * 1024))
    table = log()
    for txid in (1, 2):
        table.commit(txid, [(f"k{n * 7919 % 10_007}", n) for n in range(txid, 9_000)])
    table.compact(committed=2)
    (name,) = DeltaTable(str(table.path)).file_uris()
    assert parquet.ParquetFile(name).num_row_groups > 3


def test_what_was_published_last_is_found_behind_a_compaction(log: Any) -> None:
    """The version of a compaction says what was published last and what is final, as a fence
    does: a new process that finds it as the newest version knows both.
    """
    table = log()
    table.commit(1, [A])
    table.commit(2, [A])
    table.committer.settle(2)
    table.compact(committed=2)
    committer = table.reopen(2)
    assert committer.last_publication()[1].last_txid == 2
    with pytest.raises(RecoveryRefusedError, match="final"):
        table.commit(2, [A], attempt=1)


def test_a_compaction_goes_on_while_batches_are_published(log: Any) -> None:
    """Commit turns between the two halves of a compaction take nothing from it."""
    table = log()
    table.commit(1, [A])
    table.commit(2, [A])
    staged = table.driver.stage(table.committer, table.driver.frame([B], SCHEMA), 3)
    publish = table.committer.maintain(2)
    table.driver.turn(table.committer, staged)
    publish()
    assert table.read() == {"a": (2, 2), "b": (1, 10)}
    assert [name.split("-")[0] for name in table.files()] == ["3", "compaction"]


def test_a_compaction_between_the_two_halves_of_a_commit(log: Any, make_publication: Any) -> None:
    """A version computed before a compaction is published after it without being computed anew."""
    table = log()
    for txid in (1, 2, 3):
        table.commit(txid, [A])
    table.reopen(2)
    staged = table.driver.stage(table.committer, table.driver.frame([B], SCHEMA), 3, 1)
    own = make_publication(3, 1, epoch=2, rows=staged.rows)
    prepared = table.committer.prepare(staged, own)
    table.compact(committed=2)
    assert table.committer.publish(prepared, own).prepared is prepared
    assert table.read() == {"a": (2, 2), "b": (1, 10)}


def test_a_compaction_whose_files_were_rewritten_is_dropped(log: Any) -> None:
    """Somebody's OPTIMIZE wins, and the result of the compaction is deleted."""
    table = log()
    table.commit(1, [A])
    table.commit(2, [A])
    publish = table.committer.maintain(2)
    DeltaTable(str(table.path)).optimize.compact()
    version = DeltaTable(str(table.path)).version()
    publish()
    assert table.committer.maintain(2) is None
    assert DeltaTable(str(table.path)).version() == version
    assert list(table.path.glob("data/compaction-*")) == []


def test_a_compaction_of_a_replaced_leader_is_refused(log: Any) -> None:
    """A process that was replaced while it compacted publishes nothing, and deletes the result."""
    table = log()
    table.commit(1, [A])
    table.commit(2, [A])
    old, publish = table.committer, table.committer.maintain(2)
    table.reopen(2)
    with pytest.raises(FencedError, match="epoch 2"):
        publish()
    old.close()
    assert list(table.path.glob("data/compaction-*")) == []
    assert table.read() == {"a": (2, 2)}


def test_a_compaction_that_is_not_published_is_deleted_at_the_end(log: Any) -> None:
    """What was compacted when a run ends goes with it."""
    table = log()
    table.commit(1, [A])
    table.commit(2, [A])
    assert table.committer.maintain(2) is not None
    table.committer.close()
    assert [*table.path.glob("data/compaction-*"), *table.path.glob("_txn/*")] == []


def test_a_failed_compaction_leaves_nothing(log: Any) -> None:
    """When a file cannot be read the error is told, and no half a result stays."""
    table = log()
    table.commit(1, [A])
    lost = next(table.path.glob("data/1-*/*.parquet"))
    table.commit(2, [A])
    lost.unlink()
    with pytest.raises(Exception, match=lost.name):
        table.committer.maintain(2)
    assert [*table.path.glob("data/compaction-*"), *table.path.glob("_txn/*")] == []


def test_a_large_compaction_is_split(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a size the work is many tasks', the result several files, each with keys of its own;
    they are one for the next compaction.
    """
    monkeypatch.setattr(compacted_rows, "ONE_TASK_BYTES", 1)
    monkeypatch.setattr(compacted_rows, "FILE_BYTES", 2000)
    table = log()
    rows = [(str(key), key) for key in range(50)]
    table.commit(1, rows)
    table.commit(2, rows)
    table.compact(committed=2)
    assert len(table.files()) > 1
    assert len(table.rows()) == 50
    assert table.read() == {k: (2, 2 * v) for k, v in rows}
    assert table.committer.maintain(2) is None


def test_vacuum(log: Any) -> None:
    """VACUUM takes what was compacted, and nothing that the newest version needs, or a reader as of
    the newest txid.
    """
    table = log()
    for txid in (1, 2, 3):
        table.commit(txid, [A])
    table.compact(committed=2)
    DeltaTable(str(table.path)).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    assert sorted(p.parent.name.split("-")[0] for p in table.path.rglob("data/*/*.parquet")) == [
        "3",
        "compaction",
    ]
    assert table.read() == table.shown(txid=3) == {"a": (3, 3)}


# --- readers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_a_view_shows_the_newest_state(driver: Any, warehouse: Path, layout: str) -> None:
    """A SQL view sees what was committed after it was made, at each query anew."""
    state = StateTable(warehouse / "t", layout=layout)
    with pytest.raises(TableRefusedError, match="no table"):
        state.create_view(driver.spark, "totals")
    committer = driver.open(state.bind(["k"], {"n": Count(), "mean": Avg("v")}), SCHEMA)
    state.create_view(driver.spark, "totals")
    for txid in (1, 2):
        driver.commit(committer, driver.frame([A, B] if txid == 1 else [A], SCHEMA), txid)
        found = driver.spark.sql("SELECT * FROM totals WHERE k = 'a'").collect()
        assert [tuple(row) for row in found] == [("a", txid, 1.0)]


def test_some_keys(log: Any) -> None:
    """`get` puts together the partials of the given keys, NULL being one."""
    table = log()
    table.commit(1, [A, B, C])
    table.commit(2, [A])
    found = table.state.get(table.driver.spark, ["a", None, "x"]).collect()
    assert {tuple(row) for row in found} == {("a", 2, 2), (None, 1, 100)}


class Longest(Aggregate):
    """An aggregate of the user's own, with nothing but what must be there."""

    def __init__(self, column: str) -> None:
        self.column: str = column

    def partial(self) -> Column:
        return sf.max(sf.length(self.column))

    def combine(self, stored: Column, partial: Column) -> Column:
        return sf.greatest(stored, partial)

    def zero(self) -> Column:
        return sf.lit(None)


def test_an_aggregate_of_ones_own(driver: Any, warehouse: Path) -> None:
    """Its partials are combined along the txids; readers must hand it in, as nothing that a table
    says is run.
    """
    state = StateTable(warehouse / "t", layout="log", compact_files=2, compact_share=1)
    committer = driver.open(state.bind(["v"], {"longest": Longest("k")}), SCHEMA)
    for txid, key in enumerate(["abc", "a", "ab"], start=1):
        driver.commit(committer, driver.frame([(key, 1)], SCHEMA), txid)
    with pytest.raises(TableRefusedError, match="aggregates="):
        state.read(driver.spark)
    committer.maintain(2)()
    own: dict[str, Aggregate] = {"longest": Longest("k")}
    assert [tuple(r) for r in state.read(driver.spark, aggregates=own).collect()] == [(1, 3)]


def test_columns_for_a_state_query(log: Any) -> None:
    """The committer knows what readers will see before there is a row."""
    table = log()
    committer = table.committer
    partials = committer.partials(table.driver.frame([], SCHEMA)).schema
    assert committer.values_schema(partials).simpleString() == "struct<k:string,n:bigint,s:bigint>"


# --- refusals ----------------------------------------------------------------------------------


def test_what_a_log_cannot_do_is_refused(warehouse: Path) -> None:
    """Each refusal names the table and the layout that can."""
    removing = StateTable(warehouse, "non_transactional", "log", remove_where="n = 0")
    with pytest.raises(TopologyError, match='layout="upsert" for remove_where'):
        removing.bind(["k"], {"n": Count()})
    fold = Fold("0L", "acc + row.v", "v")
    with pytest.raises(TopologyError, match=r"'f' .* Fold\(.* layout=\"upsert\""):
        StateTable(warehouse, layout="log").bind(["k"], {"f": fold})
    with pytest.raises(TopologyError, match="'txid' as a key"):
        StateTable(warehouse, layout="log").bind(["txid"], {"n": Count()})


def test_wrong_arguments(warehouse: Path) -> None:
    """An unknown layout, and a number of files that would be compacted for ever."""
    with pytest.raises(TopologyError, match='"upsert" or "log"'):
        StateTable(warehouse, layout="tree")
    with pytest.raises(TopologyError, match="compact_files=1"):
        StateTable(warehouse, layout="log", compact_files=1)
    with pytest.raises(TopologyError, match="compact_share=0"):
        StateTable(warehouse, layout="log", compact_share=0)
