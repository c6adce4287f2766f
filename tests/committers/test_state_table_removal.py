"""Removal of keys: `remove_where`, with replays that bring a key back (Trident: `multiRemove`)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Aggregate, Avg, Count, Sum
from committers.log_layout import compacted_rows
from committers.log_layout.committer import LogCommitter
from committers.log_layout.compaction import Compaction
from committers.state_table import StateTable
from tests.committers.conftest import publication
from txn.attempts import TransactionAttempt
from txn.errors import TableRefusedError, TopologyError
from txn.interfaces.committer_capabilities import MaintainsTable
from txn.spark.own_session import computing_session

SCHEMA = "k string, v bigint"
VALUES: dict[str, Aggregate] = {"n": Count(), "s": Sum("v")}


class Stock:
    """A state table that drops a key when its sum is 0; whole rows by delta-rs."""

    def __init__(
        self,
        driver: Any,
        make_publication: Any,
        path: Path,
        semantics: str,
        layout: str,
        buckets: int,
    ) -> None:
        self.driver, self.make_publication, self.path = driver, make_publication, path
        self.state = StateTable(
            path,
            semantics,
            layout,
            buckets=buckets,
            compact_files=2,
            compact_share=1,
            remove_where="s = 0 AND k IS NOT NULL",
        )
        self.epoch = 0
        self.reopen()

    def reopen(self) -> None:
        """A new process takes over."""
        self.epoch += 1
        self.committer = self.state.bind(["k"], VALUES)
        self.driver.open(self.committer, SCHEMA, self.epoch)

    def commit(self, txid: int, rows: Iterable[Sequence[Any]], attempt: int = 0) -> None:
        batch = self.driver.frame(rows, SCHEMA)
        self.driver.commit(self.committer, batch, txid, attempt, self.epoch)

    def compact(self, committed: int) -> bool:
        """Both halves of a compaction; whether there was anything to do."""
        if not isinstance(self.committer, MaintainsTable):
            return False
        publish = self.committer.maintain(committed)
        if publish is not None:
            publish()
        return publish is not None

    def changes(
        self, txid: int, rows: Iterable[Sequence[Any]], attempt: int = 0
    ) -> dict[Any, tuple[Any, ...]]:
        """Commit a batch; k -> (n, s, prev_n, prev_s), asked for between prepare and publish."""
        partials = self.committer.partials(self.driver.frame(rows, SCHEMA))
        staged = self.committer.stage(partials, TransactionAttempt(txid, attempt))
        own = self.make_publication(txid, attempt, self.epoch, staged.rows)
        prepared = self.committer.prepare(staged, own)
        changes = self.committer.changes(prepared, own).rows.collect()
        self.committer.publish(prepared, own)
        assert len(changes) == len({row[0] for row in changes})
        return {row[0]: tuple(row)[1:] for row in changes}

    def stored(self) -> dict[Any, dict[str, Any]]:
        rows = DeltaTable(str(self.path)).to_pyarrow_table().to_pylist()
        assert len(rows) == len({row["k"] for row in rows})
        return {row["k"]: row for row in rows}

    def read(self) -> dict[Any, tuple[Any, ...]]:
        """K -> (n, s) of the keys that are there, out of `stored`, or as readers see them."""
        if self.state.layout == "log":
            found = self.state.read(self.driver.spark).collect()
            assert len(found) == len({row["k"] for row in found})
            return {row["k"]: (row["n"], row["s"]) for row in found}
        rows = self.stored().values()
        return {row["k"]: (row["n"], row["s"]) for row in rows if not row.get("txn_removed")}


@pytest.fixture
def stock(driver: Any, make_publication: Any, warehouse: Path) -> Any:
    """A factory of `Stock`, by semantics."""

    def make(semantics: str = "opaque", layout: str = "upsert", buckets: int = 1) -> Stock:
        return Stock(driver, make_publication, warehouse / "stock", semantics, layout, buckets)

    return make


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_key_that_satisfies_the_condition_is_removed(
    stock: Any, semantics: str, layout: str
) -> None:
    """It is gone in the txid that made it so, told as a change, and starts afresh with new rows.

    Trident row 53.
    """
    table = stock(semantics, layout)
    table.commit(1, [("a", 3), ("b", 5), (None, 0)])
    said = table.changes(2, [("a", -3), ("b", 1), ("brief", 0)])
    assert said == {"a": (None, None, 1, 3), "b": (2, 6, 1, 5)}
    assert table.read() == {"b": (2, 6), None: (1, 0)}
    spark = table.driver.spark
    shown = table.state.read(spark).unionAll(table.state.get(spark, ["a", "b", None]))
    assert sorted(map(repr, shown.collect())) == [
        *["Row(k='b', n=2, s=6)"] * 2,
        *["Row(k=None, n=1, s=0)"] * 2,
    ]
    said = table.changes(3, [("a", 7)])
    assert said == {"a": (1, 7, None, None)}
    assert table.read() == {"a": (1, 7), "b": (2, 6), None: (1, 0)}


def test_only_keys_of_the_batch_are_looked_at(stock: Any, driver: Any) -> None:
    """A key that satisfies the condition for another reason stays until a batch touches it."""
    table = stock("transactional")
    table.commit(1, [("a", 3), ("b", 5)])
    driver.spark.sql(f"UPDATE delta.`{table.path}` SET s = 0 WHERE k = 'a'")
    stand = "ALTER TABLE delta.`{}` SET TBLPROPERTIES ('txn.accepted_version' = '2')"
    driver.spark.sql(stand.format(table.path))
    table.committer = table.state.bind(["k"], VALUES)
    driver.open(table.committer, SCHEMA)
    table.commit(2, [("b", 1)])
    assert table.read() == {"a": (1, 0), "b": (2, 6)}
    table.commit(3, [("a", 0)])
    assert table.read() == {"b": (2, 6)}


REPLAYS: dict[str, tuple[list[tuple[str, int]], dict[str, tuple[int, int]]]] = {
    "the key stays": ([("a", -2), ("e", 1)], {"a": (2, 1), "b": (1, 5), "e": (1, 1)}),
    "the key is not mentioned": ([("b", 1)], {"a": (1, 3), "b": (2, 6)}),
    "the key is removed again": ([("a", -1), ("a", -2)], {"b": (1, 5)}),
    "another key is removed": ([("b", -5)], {"a": (1, 3)}),
    "empty": ([], {"a": (1, 3), "b": (1, 5)}),
}


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize(("replay", "expected"), REPLAYS.values(), ids=REPLAYS.keys())
def test_an_opaque_replay_takes_a_removal_back(
    stock: Any, replay: list[tuple[str, int]], expected: dict[str, tuple[int, int]], layout: str
) -> None:
    """A key that a failed attempt removed returns with its values, unless the replay removes it
    too.

    After a compaction and a restart in between, too.
    """
    table = stock("opaque", layout)
    table.commit(1, [("a", 1), ("b", 5)])
    table.commit(2, [("a", 2), ("a", -1), ("a", 1)])
    expected = {k: (n + 3, s) if k == "a" else (n, s) for k, (n, s) in expected.items()}
    table.commit(3, [("a", -3), ("dead", 1)])
    assert table.compact(2) is (layout == "log")
    table.reopen()
    table.commit(3, replay, attempt=1)
    assert table.read() == expected


@pytest.mark.parametrize(("layout", "seed"), [("upsert", 12), ("log", 737)])
def test_a_random_history_agrees_with_plain_python(stock: Any, layout: str, seed: int) -> None:
    """Values and changes of every attempt are what a dictionary gives, removals and all, whatever
    is compacted, optimized and restarted between.
    """
    table = stock("opaque", layout, buckets=3)
    source = random.Random(seed)
    committed: dict[Any, tuple[int, int]] = {}
    removals = compactions = 0
    for txid in range(1, 9 if layout == "log" else 8):
        after = committed
        if layout == "log":
            compactions += source.random() < 0.6 and table.compact(txid - 1)
            if source.random() < 0.2:
                DeltaTable(str(table.path)).optimize.compact()
            if source.random() < 0.3:
                table.reopen()
        for attempt in range(source.choice([1, 1, 2, 3])):
            keys = [None, "a", "b", "c", "d"]
            rows = [
                (source.choice(keys), source.choice([-1, 1, 1])) for _ in range(source.randrange(5))
            ]
            after = dict(committed)
            for key, value in rows:
                n, s = after.get(key, (0, 0))
                after[key] = (n + 1, s + value)
            touched = {key for key, _ in rows}
            for key in touched - {None}:
                if after[key][1] == 0:
                    del after[key]
            nothing = (None, None)
            expected = {
                key: (*after.get(key, nothing), *committed.get(key, nothing))
                for key in touched
                if key in after or key in committed
            }
            removals += len(committed.keys() - after.keys())
            assert table.changes(txid, rows, attempt) == expected
            assert table.read() == after
        committed = after
        assert table.read() == committed
    assert removals > 3
    assert compactions > 2 or layout == "upsert"


def publish(committer: LogCommitter, compaction: Compaction) -> None:
    """Publish one compaction."""
    committer._compactor.publish(compaction, committer._log, committer._opened.epoch)


def test_a_compaction_leaves_out_what_was_removed_in_a_file_that_it_does_not_take(
    stock: Any,
) -> None:
    """A key's rows from before and after its removal are compacted, the file with the mark is not:
    the former do not come back, and the mark goes when no file has rows that it is for.
    """
    table = stock("opaque", "log")
    table.commit(1, [("a", 3), ("b", 5), ("c", 1)])
    table.commit(2, [("a", -3), ("c", 1)])
    table.commit(3, [("a", 7), ("b", 1)])
    expected = {"a": (1, 7), "b": (2, 6), "c": (2, 2)}
    assert table.read() == expected
    now = table.committer._log.files_now()
    some = tuple(file for file in now if file.txid_max != 2)
    publish(table.committer, table.committer._compact(some, now, 3))
    assert table.read() == expected
    assert table.compact(3)
    assert table.read() == expected
    rows = DeltaTable(str(table.path)).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["txn_removed"]) for row in rows) == [
        ("a", None),
        ("b", None),
        ("c", None),
    ]


def test_a_compaction_of_a_table_with_removal_writes_one_file(
    stock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for any other log table, also where so much is compacted that Spark joins the marks to it
    by a shuffle: with the marks that it has to keep, too. Above a size as many files as it takes.
    """
    table = stock("transactional", "log")
    table.committer._compacted._session = computing_session(
        table.driver.spark,
        {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"},
    )
    some = [(str(key), key) for key in range(50)]
    table.commit(1, some)
    table.commit(2, [("1", -1), *some[2:]])
    expected = {k: (2, 2 * v) for k, v in some if v > 1}
    compaction = table.committer._compact(now := table.committer._log.files_now(), now, 2)
    assert len(compaction.adds) == 1
    publish(table.committer, compaction)
    assert table.read() == expected
    table.commit(3, [("2", -4), ("3", 1)])
    table.commit(4, [("2", 5)])
    expected |= {"2": (1, 5), "3": (3, 7)}
    assert table.read() == expected
    now = table.committer._log.files_now()
    young = tuple(file for file in now if (file.txid_min or 0) > 2)
    compaction = table.committer._compact(young, now, 4)
    assert (len(young) > 2, len(compaction.adds)) == (True, 1)
    publish(table.committer, compaction)
    assert table.read() == expected
    now = table.committer._log.files_now()
    monkeypatch.setattr(compacted_rows, "ONE_TASK_BYTES", 1)
    monkeypatch.setattr(compacted_rows, "FILE_BYTES", sum(file.size for file in now) / 2.5)
    assert len(table.committer._compact(now, now, 4).adds) == 3


def test_names_like_those_of_passing_columns_can_be_used(driver: Any, warehouse: Path) -> None:
    """Columns that are needed for a moment only have names that no table can have, so that no key
    or value meets them: in commits with removal, changes, compaction, `read` and `get`.
    """
    keys = ["k", "txn_key"]
    names = ("txn_before", "TXN_FRESH", "txn_gone", "txn_key_k")
    schema = "k string, txn_key string, v bigint"
    for layout in ("upsert", "log"):
        condition = "txn_before < 0 AND TXN_FRESH < 0 AND txn_gone < 0 AND txn_key_k < 0"
        state = StateTable(
            warehouse / layout,
            layout=layout,
            buckets=1,
            compact_files=2,
            compact_share=1,
            remove_where=condition,
        )
        committer = state.bind(keys, {name: Sum("v") for name in names})
        driver.open(committer, schema)
        driver.commit(committer, driver.frame([("a", "x", 5), ("b", "x", 1)], schema), 1)
        staged = driver.stage(committer, driver.frame([("b", "x", -2), ("a", "x", 1)], schema), 2)
        own = publication(2, rows=staged.rows)
        prepared = committer.prepare(staged, own)
        told = committer.changes(prepared, own).rows.collect()
        assert sorted(map(tuple, told)) == [
            ("a", "x", 6, 6, 6, 6, 5, 5, 5, 5),
            ("b", "x", None, None, None, None, 1, 1, 1, 1),
        ]
        committer.publish(prepared, own)
        if layout == "log":
            committer.maintain(2)()
        spark = driver.spark
        for shown in (state.read(spark), state.get(spark, [("a", "x"), ("b", "x")])):
            assert [tuple(row) for row in shown.collect()] == [("a", "x", 6, 6, 6, 6)]


def test_a_tombstone_goes_with_the_next_txid(stock: Any) -> None:
    """An opaque table keeps a removed key's previous values for a replay, and no longer.

    A later txid that is replayed finds the removal final, too.
    """
    table = stock()
    table.commit(1, [("a", 3), ("b", 5)])
    table.commit(2, [("a", -3), ("brief", 0)])
    row = table.stored()["a"]
    names = ("n", "s", "txid", "prev_n", "prev_s", "prev_txid", "txn_removed")
    assert tuple(row[name] for name in names) == (None, None, 2, 1, 3, 1, True)
    assert sorted(table.stored()) == ["a", "b"]
    table.commit(3, [])
    table.commit(3, [("b", 1)], attempt=1)
    assert sorted(table.stored()) == ["b"]
    table.commit(4, [("b", -6)])
    assert table.stored()["b"]["txn_removed"] is True
    table.commit(5, [("c", 1)])
    assert sorted(table.stored()) == ["c"]


def test_a_key_that_came_back_can_be_taken_back(stock: Any) -> None:
    """A replay of the txid that started a removed key afresh leaves it removed, not revived."""
    table = stock()
    table.commit(1, [("a", 3), ("b", 5)])
    table.commit(2, [("a", -3)])
    table.commit(3, [("a", 4)])
    assert table.read() == {"a": (1, 4), "b": (1, 5)}
    table.commit(3, [("b", 1)], attempt=1)
    assert table.read() == {"b": (2, 6)}


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_key_that_is_brought_and_removed_at_once_is_no_change(
    stock: Any, semantics: str, layout: str
) -> None:
    """Nothing was there before and nothing after: with no other key, and beside a tombstone."""
    table = stock(semantics, layout)
    assert table.changes(1, [("brief", 0)]) == {}
    table.commit(2, [("a", 3)])
    table.commit(3, [("a", -3)])
    assert table.changes(4, [("brief", 0)]) == {}
    assert table.read() == {}


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_a_skipped_replay_tells_removals_as_well(stock: Any, layout: str) -> None:
    """An identical replay of a transactional txid that removed its only key says so again."""
    table = stock("transactional", layout)
    table.commit(1, [("a", 3)])
    assert table.changes(2, [("a", -3)]) == {"a": (None, None, 1, 3)}
    assert table.read() == {}
    table.reopen()
    assert table.changes(2, [("a", -3)], attempt=1) == {"a": (None, None, 1, 3)}


def test_the_condition_sees_what_readers_see(driver: Any, warehouse: Path) -> None:
    """For an aggregate that stores something else, its result is compared."""
    for layout in ("upsert", "log"):
        state = StateTable(warehouse / layout, layout=layout, buckets=1, remove_where="mean < 2")
        committer = state.bind(["k"], {"mean": Avg("v")})
        driver.open(committer, SCHEMA)
        driver.commit(committer, driver.frame([("a", 4), ("b", 1)], SCHEMA), 1)
        driver.commit(committer, driver.frame([("a", 1), ("c", 3)], SCHEMA), 2)
        found = state.read(driver.spark).collect()
        assert sorted(map(tuple, found)) == [("a", 2.5), ("c", 3.0)]


CONDITIONS = {
    "unknown column": ("flights = 0", "flights"),
    "bookkeeping": ("txid > 5", "txid"),
    "no condition": ("s + 1", "not an SQL condition over its keys and values \\(k, n, s\\)"),
    "no SQL": ("s = = 0", "PARSE_SYNTAX_ERROR"),
}


@pytest.mark.parametrize(("condition", "message"), CONDITIONS.values(), ids=CONDITIONS.keys())
def test_a_condition_that_means_nothing_is_refused(
    driver: Any, warehouse: Path, condition: str, message: str
) -> None:
    """The condition is checked when the table is opened, before it is made."""
    for layout in ("upsert", "log"):
        state = StateTable(warehouse / "t", layout=layout, remove_where=condition)
        with pytest.raises(TopologyError, match=message):
            driver.open(state.bind(["k"], VALUES), SCHEMA)
    assert not (warehouse / "t").exists()


def test_a_program_without_the_tables_condition_is_refused(stock: Any, driver: Any) -> None:
    """The condition is part of what the table is, like its keys and values."""
    table = stock("transactional")
    table.commit(1, [("a", 3)])
    other = StateTable(table.path, "transactional", buckets=1)
    with pytest.raises(TableRefusedError, match="remove_where changes from 's = 0 .*' to nothing"):
        driver.open(other.bind(["k"], VALUES), SCHEMA, 2)


def test_only_opaque_tables_with_removal_have_tombstones(driver: Any, warehouse: Path) -> None:
    """The column for removed keys is there only where it is needed; its name is always taken."""
    for semantics, condition, found in (
        ("opaque", None, False),
        ("transactional", "n = 0", False),
        ("opaque", "n = 0", True),
    ):
        path = warehouse / f"{semantics}-{condition}"
        state = StateTable(path, semantics, remove_where=condition)
        driver.open(state.bind(["k"], VALUES), SCHEMA)
        columns = [field.name for field in DeltaTable(str(path)).schema().fields]
        assert ("txn_removed" in columns) is found
    with pytest.raises(TopologyError, match="'txn_removed' as a key"):
        StateTable(warehouse / "t").bind(["txn_removed"], {"n": Count()})
