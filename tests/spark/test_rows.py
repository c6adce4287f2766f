"""Rows that a program holds become the DataFrame that `createDataFrame` makes of them."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkTypeError, PySparkValueError

from txn.spark.differences import parse_ddl, slower_ways
from txn.spark.rows import local_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "t tinyint, b bigint, f float, d double, s string, x binary, o boolean,"
    "day date, at timestamp, wall timestamp_ntz, took interval day to second,"
    "a array<int>, m map<string,int>, r struct<i:int,at:timestamp>"
)
ROWS = [
    (
        *(-128, 2**63 - 1, 1.5, -0.0, "ä\0", b"\0x", True),
        *(date(1, 1, 1), datetime(2024, 7, 1, 1, 2, 3, 456789), datetime(1, 1, 1)),
        *(timedelta(days=1, microseconds=3), [1, None], {"a": 1}),
        (2, datetime(2024, 1, 1, tzinfo=timezone.utc)),
    ),
    (
        *(127, -(2**63), float("nan"), float("inf"), "", bytearray(b"q"), False),
        *(date(9999, 12, 31), datetime(1900, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
        *(timedelta(0), [], {}, {"i": 1, "at": None}),
    ),
    (None,) * 14,
]


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_values_of_every_type_are_those_of_create_data_frame(
    spark: SparkSession, zone: str
) -> None:
    """Every value of every type is as `createDataFrame` makes it, whatever the session's zone."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    schema = parse_ddl(COLUMNS)
    ours, theirs = local_frame(session, ROWS, schema), session.createDataFrame(ROWS, schema)
    assert ours.schema == theirs.schema
    assert repr(ours.collect()) == repr(theirs.collect())
    as_text = [f"cast({name} as string)" for name in schema.names]
    assert repr(ours.selectExpr(*as_text).collect()) == repr(theirs.selectExpr(*as_text).collect())


def test_a_job_over_the_rows_has_no_python_task(spark: SparkSession) -> None:
    """The rows, and no rows, are in the plan itself; unless `slower_ways` says otherwise."""
    is_slower = "rows of the program" in slower_ways()
    schema = parse_ddl(COLUMNS)
    for rows in (ROWS, []):
        plan = local_frame(spark, rows, schema)._jdf.queryExecution().toString()
        assert "Python" not in plan
        assert ("ExistingRDD[" in plan) == (bool(rows) and is_slower)
    assert local_frame(spark, [], schema).schema == schema


@pytest.mark.parametrize(
    ("ddl", "row", "error"),
    [
        ("v bigint", (1.5,), PySparkTypeError),
        ("v bigint", (True,), PySparkTypeError),
        ("v date", ("2020-01-01",), PySparkTypeError),
        ("v int", (2**31,), PySparkValueError),
        ("v bigint not null", (None,), PySparkValueError),
        ("v int, w int", (1,), PySparkValueError),
        ("v int", 1, PySparkTypeError),
    ],
)
def test_what_is_no_row_is_refused(
    spark: SparkSession, ddl: str, row: Any, error: type[Exception]
) -> None:
    """A value that is not of its column's type is refused, and never made to fit."""
    with pytest.raises(error):
        local_frame(spark, [row], parse_ddl(ddl))


def test_a_decimal_with_too_many_digits_is_rounded_as_spark_rounds(spark: SparkSession) -> None:
    """Half up, where PySpark's own way to Arrow rounds half to even."""
    schema = parse_ddl("v decimal(5,1)")
    assert local_frame(spark, [(Decimal("0.25"),)], schema).collect() == [(Decimal("0.3"),)]
