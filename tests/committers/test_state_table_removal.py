"""Removal of keys: `remove_where`, with replays that bring a key back (Trident: `multiRemove`)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Aggregate, Avg, Count, Sum
from committers.state_table import StateTable
from txn.attempts import TransactionAttempt
from txn.errors import TableRefusedError, TopologyError

SCHEMA = "k string, v bigint"
VALUES: dict[str, Aggregate] = {"n": Count(), "s": Sum("v")}


class Stock:
    """A state table that drops a key when its sum is 0; whole rows by delta-rs."""

    def __init__(
        self, driver: Any, make_publication: Any, path: Path, semantics: str, buckets: int
    ) -> None:
        self.driver, self.make_publication, self.path = driver, make_publication, path
        condition = "s = 0 AND k IS NOT NULL"
        self.state = StateTable(path, semantics, buckets=buckets, remove_where=condition)
        self.committer = self.state.bind(["k"], VALUES)
        driver.open(self.committer, SCHEMA)

    def commit(self, txid: int, rows: Iterable[Sequence[Any]], attempt: int = 0) -> None:
        batch = self.driver.frame(rows, SCHEMA)
        self.driver.commit(self.committer, batch, txid, attempt)

    def changes(
        self, txid: int, rows: Iterable[Sequence[Any]], attempt: int = 0
    ) -> dict[Any, tuple[Any, ...]]:
        """Commit a batch; k -> (n, s, prev_n, prev_s), asked for between prepare and publish."""
        partials = self.committer.partials(self.driver.frame(rows, SCHEMA))
        staged = self.committer.stage(partials, TransactionAttempt(txid, attempt))
        own = self.make_publication(txid, attempt, rows=staged.rows)
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
        """K -> (n, s) of the keys that are there, out of `stored`."""
        rows = self.stored().values()
        return {row["k"]: (row["n"], row["s"]) for row in rows if not row.get("txn_removed")}


@pytest.fixture
def stock(driver: Any, make_publication: Any, warehouse: Path) -> Any:
    """A factory of `Stock`, by semantics."""

    def make(semantics: str = "opaque", buckets: int = 1) -> Stock:
        return Stock(driver, make_publication, warehouse / "stock", semantics, buckets)

    return make


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_key_that_satisfies_the_condition_is_removed(stock: Any, semantics: str) -> None:
    """It is gone in the txid that made it so, told as a change, and starts afresh with new rows.

    Trident row 53.
    """
    table = stock(semantics)
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


@pytest.mark.parametrize(("replay", "expected"), REPLAYS.values(), ids=REPLAYS.keys())
def test_an_opaque_replay_takes_a_removal_back(
    stock: Any, replay: list[tuple[str, int]], expected: dict[str, tuple[int, int]]
) -> None:
    """A key that a failed attempt removed is back, values and all, unless the replay removes it."""
    table = stock()
    table.commit(1, [("a", 3), ("b", 5)])
    table.commit(2, [("a", -3), ("dead", 1)])
    table.commit(2, replay, attempt=1)
    assert table.read() == expected


def test_a_random_history_agrees_with_plain_python(stock: Any) -> None:
    """Values and changes of every attempt are what a dictionary gives, removals and all."""
    table = stock(buckets=3)
    source = random.Random(12)
    committed: dict[Any, tuple[int, int]] = {}
    removals = 0
    for txid in range(1, 8):
        after = committed
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
    assert removals > 3


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


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_key_that_is_brought_and_removed_at_once_is_no_change(stock: Any, semantics: str) -> None:
    """Nothing was there before and nothing after: with no other key, and beside a tombstone."""
    table = stock(semantics)
    assert table.changes(1, [("brief", 0)]) == {}
    table.commit(2, [("a", 3)])
    table.commit(3, [("a", -3)])
    assert table.changes(4, [("brief", 0)]) == {}
    assert table.stored() == {}


def test_a_skipped_replay_tells_removals_as_well(stock: Any) -> None:
    """An identical replay of a transactional txid that removed its only key says so again."""
    table = stock("transactional")
    table.commit(1, [("a", 3)])
    assert table.changes(2, [("a", -3)]) == {"a": (None, None, 1, 3)}
    assert table.stored() == {}
    assert table.changes(2, [("a", -3)], attempt=1) == {"a": (None, None, 1, 3)}


def test_the_condition_sees_what_readers_see(driver: Any, warehouse: Path) -> None:
    """For an aggregate that stores something else, its result is compared."""
    state = StateTable(warehouse / "t", buckets=1, remove_where="mean < 2")
    committer = state.bind(["k"], {"mean": Avg("v")})
    driver.open(committer, SCHEMA)
    driver.commit(committer, driver.frame([("a", 4), ("b", 1)], SCHEMA), 1)
    driver.commit(committer, driver.frame([("a", 1), ("c", 3)], SCHEMA), 2)
    found = state.read(driver.spark).collect()
    assert sorted(map(tuple, found)) == [("a", 2.5), ("c", 3.0)]


CONDITIONS = {
    "unknown column": ("flights = 0", "flights"),
    "bookkeeping": ("txid > 5", "txid"),
    "no condition": ("s + 1", "no SQL condition over its keys and values \\(k, n, s\\)"),
    "no SQL": ("s = = 0", "PARSE_SYNTAX_ERROR"),
}


@pytest.mark.parametrize(("condition", "message"), CONDITIONS.values(), ids=CONDITIONS.keys())
def test_a_condition_that_means_nothing_is_refused(
    driver: Any, warehouse: Path, condition: str, message: str
) -> None:
    """The condition is checked when the table is opened, before it is made."""
    committer = StateTable(warehouse / "t", remove_where=condition).bind(["k"], VALUES)
    with pytest.raises(TopologyError, match=message):
        driver.open(committer, SCHEMA)
    assert not (warehouse / "t").exists()


@pytest.mark.parametrize("condition", [None, "s <= 0"])
def test_another_condition_than_the_tables_is_refused(
    stock: Any, driver: Any, condition: str | None
) -> None:
    """The condition is part of what the table is, like its keys and values."""
    path = stock("transactional").path
    other = StateTable(path, "transactional", buckets=1, remove_where=condition)
    with pytest.raises(TableRefusedError, match="made with txn.remove_where = s = 0 AND k IS"):
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
