"""The generator of rows: what is in a batch, when it is due, where it ends."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from spouts.rate import RateSpan, RateSpout
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError
from txn.interfaces import Lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def spans(spout: RateSpout, count: int, previous: RateSpan | None = None) -> list[Any]:
    """So many plannings one after the other, as (start, end)."""
    found: list[Any] = []
    for txid in range(1, count + 1):
        answer = spout.initialize_transaction(TransactionAttempt(txid), previous)
        found.append(None if answer is None else (answer.start, answer.end))
        previous = answer or previous
    return found


def test_batches_follow_each_other_up_to_the_total() -> None:
    """Batches have the values in order; the last one of a total may be shorter, then it is None."""
    assert spans(RateSpout(4, total=10), 4) == [(0, 4), (4, 8), (8, 10), None]
    assert spans(RateSpout(4), 3) == [(0, 4), (4, 8), (8, 12)]
    assert spans(RateSpout(4, total=0), 1) == [None]


def test_rows_are_a_function_of_the_value(spark: SparkSession) -> None:
    """Another object, with other settings, emits the same rows for the stored metadata."""
    metadata = RateSpan.model_validate_json(
        RateSpan(start=1_000_000, end=1_000_003, interval_us=500).model_dump_json()
    )
    for spout in (RateSpout(3, interval_us=500, partitions=2), RateSpout(9, partitions=1)):
        frame = spout.emit_batch(spark, TransactionAttempt(1), metadata)
        rows = frame.selectExpr("value", "unix_micros(timestamp)").collect()
        assert sorted(map(tuple, rows)) == [
            (1_000_000, 500_000_000),
            (1_000_001, 500_000_500),
            (1_000_002, 500_001_000),
        ]
        assert spout.planned_rows(metadata) == frame.count()


def test_the_schema_is_that_of_the_rows(spark: SparkSession) -> None:
    """`open` says names and types of what is emitted; the first value has the epoch as its time."""
    spout = RateSpout(1, partitions=1)
    frame = spout.emit_batch(
        spark, TransactionAttempt(1), RateSpan(start=0, end=1, interval_us=1000)
    )
    assert spout.open(spark, None).simpleString() == "struct<value:bigint,timestamp:timestamp>"
    assert frame.schema.simpleString() == "struct<value:bigint,timestamp:timestamp>"
    text = frame.selectExpr("value", "to_utc_timestamp(timestamp, current_timezone())").collect()
    assert [tuple(row) for row in text] == [(0, datetime(1970, 1, 1))]


def test_partitions_are_those_that_were_asked_for(spark: SparkSession) -> None:
    """`partitions` is the number of Spark partitions, whatever the size of a batch."""
    metadata = RateSpan(start=0, end=100, interval_us=1)
    frame = RateSpout(100, partitions=5).emit_batch(spark, TransactionAttempt(1), metadata)
    assert frame.selectExpr("spark_partition_id() AS p").distinct().count() == 5


def test_a_paced_batch_is_due_when_its_time_has_come(spark: SparkSession) -> None:
    """A batch is planned once the pace allows all of it, and lateness is made up for."""
    clock = Clock()
    spout = RateSpout(10, rows_per_second=5, total=35, clock=clock)
    spout.open(spark, None)
    clock.now += 1.9
    assert spans(spout, 1) == [None]
    clock.now += 0.1
    assert spans(spout, 2) == [(0, 10), None]
    clock.now += 4.0
    assert spans(spout, 4) == [(0, 10), (10, 20), (20, 30), None]
    clock.now += 1.0
    assert spans(spout, 1, RateSpan(start=20, end=30, interval_us=1)) == [(30, 35)]


def test_lag_is_what_is_due_and_for_how_long(spark: SparkSession) -> None:
    """A part of a batch is not due. Without a pace, lag is what is left of `total`; without both
    there is no end to count to.
    """
    clock = Clock()
    spout = RateSpout(10, rows_per_second=5, total=35, clock=clock)
    spout.open(spark, None)
    clock.now += 3
    assert spout.lag(RateSpan(start=0, end=10, interval_us=1)) == Lag(records=5, seconds=0.0)
    clock.now += 1.5
    assert spout.lag(RateSpan(start=0, end=10, interval_us=1)) == Lag(records=12, seconds=0.5)
    clock.now += 100
    assert spout.lag(RateSpan(start=20, end=30, interval_us=1)) == Lag(records=5, seconds=97.5)
    assert spout.lag(RateSpan(start=30, end=35, interval_us=1)) == Lag(records=0, seconds=0.0)
    assert RateSpout(10, total=35).lag(None) == Lag(records=35)
    assert RateSpout(10).lag(None) is None


def test_a_new_run_keeps_the_pace_from_where_the_last_one_stood(spark: SparkSession) -> None:
    """The time between two runs does not pile up as a backlog."""
    clock = Clock()
    spout = RateSpout(10, rows_per_second=5, clock=clock)
    stood = RateSpan(start=90, end=100, interval_us=1000)
    clock.now += 3600
    spout.open(spark, stood)
    assert spans(spout, 1, stood) == [None]
    clock.now += 2
    assert spans(spout, 2, stood) == [(100, 110), None]


@pytest.mark.parametrize(
    "settings",
    [
        {"rows_per_batch": 1, "total": -1},
        {"rows_per_batch": 1, "rows_per_second": 0},
        {"rows_per_batch": 1, "rows_per_second": float("inf")},
        {"rows_per_batch": 1, "interval_us": -1},
        {"rows_per_batch": 1, "partitions": 0},
    ],
    ids=lambda settings: list(settings)[-1],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    """A number that is too small is refused by its name."""
    name, value = list(settings.items())[-1]
    with pytest.raises(TopologyError, match=f"{name}={value}"):
        RateSpout(**settings)
