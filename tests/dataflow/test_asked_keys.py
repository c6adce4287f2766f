"""What a batch reads of a large state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from committers.state import keys
from committers.state.keys import keys_reader
from txn.dataflow import asked_keys
from txn.dataflow.asked_keys import keys_of, rows_for
from txn.spark.keys import with_keys_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE: list[Any] = [("a", 1, 10), ("a", 2, 20), ("b", 1, 30), (None, 1, 40), ("c", None, 50)]


@pytest.fixture
def state(spark: SparkSession) -> DataFrame:
    """Of two keys and a value."""
    return spark.createDataFrame(STATE, "k string, n int, v long")


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ([("a", 1), ("a", 1), ("z", 1)], [10]),
        ([(None, 1), ("c", None)], [40, 50]),
        ([(None, None)], []),
        ([], []),
    ],
)
def test_only_rows_of_the_keys_of_a_batch_are_read(
    spark: SparkSession, state: DataFrame, batch: list[Any], found: list[int]
) -> None:
    """Each key is asked for once, and NULL is a key like any other."""
    asked: list[Any] = []

    def of_keys(wanted: DataFrame, has_null: bool) -> DataFrame:
        asked.append((sorted(map(tuple, wanted.collect()), key=str), has_null))
        return with_keys_of(state, wanted, ["k", "n"], has_null=has_null)

    rows = spark.createDataFrame(batch, "k string, n int")
    keys = keys_of(rows, ["k", "n"])
    seen = rows_for(keys, state, of_keys)
    assert sorted(row.v for row in seen.collect()) == found
    assert asked == [(sorted(set(batch), key=str), any(None in key for key in batch))]
    again = rows_for(keys, state, of_keys, may_repeat=True)
    assert sorted(row.v for row in again.collect()) == found
    assert asked[1][0] == sorted(batch, key=str)


def test_a_batch_of_many_keys_reads_all_of_a_state(
    spark: SparkSession, state: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond `MOST_KEYS` different keys no task is sent them; the same key twice is one."""
    monkeypatch.setattr(asked_keys, "MOST_KEYS", 2)

    def of_keys(wanted: DataFrame, has_null: bool) -> DataFrame:
        return state.limit(1)

    few = spark.createDataFrame([("a", 1)] * 5 + [("b", 1)], "k string, n int")
    many = spark.createDataFrame([("a", 1), ("b", 1), ("c", 1)], "k string, n int")
    assert rows_for(keys_of(few, ["k", "n"]), state, of_keys).count() == 1
    assert rows_for(keys_of(many, ["k", "n"]), state, of_keys).count() == len(STATE)


@pytest.mark.parametrize(("kind", "narrows"), [("bigint", True), ("string", False)])
def test_more_keys_of_a_few_bytes_are_asked_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str, narrows: bool
) -> None:
    """Up to `MOST_SHORT_KEYS` go to every executor; what the state has of them does not."""
    monkeypatch.setattr(asked_keys, "MOST_KEYS", 2)
    monkeypatch.setattr(asked_keys, "MOST_SHORT_KEYS", 3)
    state = spark.range(10).selectExpr(f"CAST(id AS {kind}) AS k", "id AS v")
    asked = state.where("v < 3").select("k")
    seen = rows_for(asked, state, lambda wanted, _: with_keys_of(state, wanted, ["k"]))
    assert seen.count() == (3 if narrows else 10)
    explained = seen.crossJoin(seen)._jdf.queryExecution().analyzed().toString()  # type: ignore[operator]
    assert ("broadcast" in explained) is narrows
    assert not explained.startswith("Join Cross, hint")
    more = state.where("v < 4").select("k")
    assert rows_for(more, state, lambda wanted, _: state.limit(0)).count() == 10


def test_a_query_without_keys_reads_all_of_a_state(spark: SparkSession, state: DataFrame) -> None:
    """There is nothing to look for."""
    assert rows_for(keys_of(state, []), state, lambda *_: state.limit(0)).count() == len(STATE)


@pytest.mark.parametrize(("kind", "is_sent"), [("long", True), ("array<long>", False)])
def test_only_rows_of_a_few_bytes_are_sent_to_every_task(
    spark: SparkSession, kind: str, is_sent: bool
) -> None:
    """A hundred thousand keys with a list each would not fit into the driver."""
    state = spark.createDataFrame([], f"k string, v {kind}")
    asked = spark.createDataFrame([("a",)], "k string")
    seen = rows_for(asked, state, lambda *_: state)
    explained = asked.join(seen, "k", "left")._jdf.queryExecution().analyzed().toString()  # type: ignore[operator]
    assert ("broadcast" in explained) is is_sent


@pytest.mark.parametrize(
    ("columns", "narrows"),
    [
        ("k string, n int", True),
        ("n int, k string", True),
        ("k string, n long", False),
        ("k string", False),
    ],
)
def test_keys_of_other_types_are_left_to_the_join(
    spark: SparkSession, state: DataFrame, columns: str, narrows: bool
) -> None:
    """A state is narrowed only by keys of its own columns and types: Spark compares others by the
    settings of the user's session.
    """
    large = keys.NARROWED_FROM_BYTES
    read = keys_reader(lambda: state, ["k", "n"], large, lambda rows: rows)
    assert read is not None
    asked = spark.createDataFrame([], columns)
    assert (read(asked, True) is not None) is narrows
    assert rows_for(asked, state, read).count() == (0 if narrows else len(STATE))
    plan = asked.crossJoin(rows_for(asked, state, read))._jdf.queryExecution().analyzed().toString()  # type: ignore[operator]
    assert ("broadcast" in plan) is narrows
    assert (
        keys_reader(lambda: state, ["k", "n"], keys.NARROWED_FROM_BYTES - 1, lambda rows: rows)
        is None
    )
    assert keys_reader(lambda: state, ["k", "n"], large - 1, lambda rows: rows) is None
    assert keys_reader(lambda: state, [], large, lambda rows: rows) is None
