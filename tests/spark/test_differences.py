"""What Sparks do in different ways has one result; `make test-matrix` runs this on each."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, LongType

from txn.spark.causes import causes
from txn.spark.differences import (
    as_utf8,
    collect_distinct,
    condition_of,
    first_rows,
    is_utf8,
    try_cast,
    utf8_sql,
    validated_utf8,
)
from txn.spark.jvm import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_text_that_is_not_utf8(spark: SparkSession) -> None:
    """It is recognised, replaced and refused; and so is it by the SQL that users are given."""
    rows = spark.sql(
        "SELECT cast(b AS string) AS s FROM VALUES (X'63E9'), (X'63C3A9'), (NULL) v(b)"
    )
    replaced, is_valid = map(sf.expr, utf8_sql("s"))
    found = rows.select(is_utf8("s"), as_utf8("s"), is_valid, replaced).collect()
    assert list(map(tuple, found)) == [
        (False, "c\ufffd", False, "c\ufffd"),
        (True, "cé", True, "cé"),
        (None, None, None, None),
    ]
    assert rows.offset(1).select(validated_utf8(sf.col("s"))).count() == 2
    with pytest.raises(Exception, match="INVALID_UTF8_STRING"):
        rows.select(validated_utf8(sf.col("s"))).collect()


def test_aggregates_of_several_values(spark: SparkSession) -> None:
    """NaN is one value; the first rows come in order, and NULL is none of them."""
    rows = spark.createDataFrame(
        [(math.nan, 2), (1.0, None), (math.nan, 1), (1.0, 3)], "d double, n int"
    )
    row = rows.agg(
        sf.sort_array(collect_distinct(sf.col("d"))),
        first_rows(sf.col("n"), 2, descending=False),
        first_rows(sf.col("n"), 2, descending=True),
    ).first()
    assert row is not None
    assert (repr(row[0]), row[1], row[2]) == ("[1.0, nan]", [1, 2], [3, 2])


def test_a_value_that_does_not_fit_is_null(spark: SparkSession) -> None:
    """`try_cast` raises nothing, in whatever mode the session is."""
    rows = spark.createDataFrame([("1",), ("x",), (f"{2**31}",)], "s string")
    found = rows.select(try_cast(sf.col("s"), IntegerType())).collect()
    assert [row[0] for row in found] == [1, None, None]


@pytest.mark.parametrize("kind", ["avro.datetime", "parquet.datetime", "parquet.int96"])
def test_dates_of_old_are_read_as_they_are(spark: SparkSession, kind: str) -> None:
    """Also in files that do not name their writer: by `delta_session` on every Spark."""
    assert spark.conf.get(f"spark.sql.{kind}RebaseModeInRead") == "CORRECTED"


def fails(value: int) -> int:
    """A function of the user's."""
    raise ValueError(value)


def test_conditions_of_errors(spark: SparkSession) -> None:
    """They have the names of the newest Spark, and the errors of Python functions have theirs."""
    rows = spark.range(1)
    wrong = {
        "USER_RAISED_EXCEPTION": sf.raise_error(sf.lit("no")),
        "PYTHON_EXCEPTION": sf.udf(fails, LongType(), useArrow=False)("id"),
        "DIVIDE_BY_ZERO": sf.expr("1 div id"),
    }
    for condition, column in wrong.items():
        assert condition in conditions_of(rows.select(column.alias("n")))


def test_a_file_that_ends_too_early_could_not_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """Also after its first rows, and whatever format fails in it."""
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,1\n" * 5000)[:60])
    rows = spark.read.csv(str(tmp_path)).groupBy().count()
    assert "FAILED_READ_FILE.NO_HINT" in conditions_of(rows)


def conditions_of(rows: DataFrame) -> list[str]:
    """The conditions of the error with which a job ends."""
    with pytest.raises(Exception, match=r".") as caught:
        rows.collect()
    return [cause.condition for cause in causes(caught.value)]


@pytest.mark.parametrize("mode", ["CODEGEN_ONLY", "NO_CODEGEN"])
def test_only_what_sql_raises_is_named_so(spark: SparkSession, mode: str) -> None:
    """`raise_error` is recognised in code that Spark generates and in code that it interprets;
    Java's own exception is not.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.factoryMode", mode)
    rows = session.range(1).select(sf.raise_error(sf.lit("Failed to get broadcast_0")).alias("n"))
    assert "USER_RAISED_EXCEPTION" in conditions_of(rows)
    jvm = jvm_of(spark)
    assert jvm is not None
    assert condition_of(jvm.java.lang.RuntimeException("Failed to get broadcast_0")) is None
