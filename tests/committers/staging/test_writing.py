"""Files that are written outside of a log, by Delta's own writer and by a table of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from committers.staging.area import StagingArea
from committers.staging.writing import RowWriter, write_options
from txn.attempts import TransactionAttempt
from txn.spark.differences import all_settings
from txn.spark.file_writer import FileWriter, WrittenFile
from txn.spark.own_session import own_session
from txn.storage.storage import Storage

ROWS = "SELECT id AS k, timestamp_micros(id) AS t, named_struct('a', id) AS s, int(id % 2) AS b"


class WithoutJvm:
    """Rows of a session that has no JVM to ask, as with Spark Connect."""

    sparkSession = object()  # noqa: N815 - Spark's name

    def __init__(self, rows: DataFrame) -> None:
        self.write = rows.write


@pytest.fixture
def careless(spark: SparkSession) -> Iterator[SparkSession]:
    """A user's session whose settings would change the files of a new Delta table."""
    session = spark.newSession()
    for name, value in {
        "spark.databricks.delta.properties.defaults.columnMapping.mode": "name",
        "spark.databricks.delta.optimizeWrite.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "INT96",
    }.items():
        session.conf.set(name, value)
    yield session
    for name in all_settings(session):
        if name.startswith("spark.databricks.delta.properties.defaults."):
            session.conf.unset(name)


@pytest.mark.parametrize("way", ["writer", "table"])
def test_both_ways_write_the_same_files(careless: SparkSession, tmp_path: Path, way: str) -> None:
    """One file per partition, as its task told of it, whatever the user's session says of tables.

    Plain column names, INT64 timestamps, Snappy, any value NULL, no column of the partition.
    """
    storage = Storage(str(tmp_path))
    rows: Any = own_session(careless).sql(f"{ROWS} FROM range(0, 100, 1, 1)")
    if way == "table":
        rows = WithoutJvm(rows)
    own = FileWriter(storage.url(), {}).write(rows, "data/0-0-a")
    assert (own is None) == (way == "table")
    found = RowWriter(storage, write_options(storage, "k")).write(rows, "data/1-0-a", "b")
    assert [file.partition for file in found] == [{"b": "0"}, {"b": "1"}]
    assert storage.files("data/1-0-a") == sorted((file.path, file.size) for file in found)
    for file in found:
        metadata = parquet.read_metadata(tmp_path / file.path)
        assert metadata.num_rows == 50
        columns = [metadata.schema.column(n) for n in range(metadata.num_columns)]
        assert [(c.path, c.physical_type) for c in columns] == [
            *(("k", "INT64"), ("t", "INT64"), ("s.a", "INT64")),
        ]
        assert [c.max_definition_level for c in columns] == [1, 1, 2]
        assert metadata.row_group(0).column(0).compression == "SNAPPY"
    assert [*(tmp_path / "data" / "1-0-a").glob("_*")] == []


def test_what_was_written_is_what_tasks_told_and_not_what_lies_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file that somebody else left in a staging folder is not staged."""
    storage = Storage(str(tmp_path))
    writer = FileWriter(storage.url(), {})
    rows = own_session(spark).range(3).coalesce(1)
    first, second = (writer.write(rows, "data/1-0-a") for _ in range(2))
    assert first is not None
    assert second is not None
    assert len({file.path for file in [*first, *second]}) == 2
    assert len(storage.files("data/1-0-a")) == 2


def test_a_job_without_rows_stages_no_file(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is staged, and nothing lies there, for a batch without rows."""
    area = StagingArea(Storage(str(tmp_path)), session=lambda: own_session(spark))
    staged = area.stage(spark.range(0), TransactionAttempt(1))
    assert (staged.files, staged.rows) == ((), 0)
    assert [*tmp_path.rglob("*.parquet")] == []


def test_delta_remembers_nothing_of_what_is_staged(spark: SparkSession, tmp_path: Path) -> None:
    """Staging leaves the thread's session as it was, and no table in Delta's cache."""
    other = spark.newSession()
    writer = FileWriter(f"file:{tmp_path}", {})
    delta_log = getattr(spark._jvm.org.apache.spark.sql.delta, "DeltaLog$")
    delta_log = getattr(delta_log, "MODULE$")
    delta_log.clearCache()
    active = spark._jvm.org.apache.spark.sql.SparkSession.getActiveSession().get()
    for n in range(3):
        assert writer.write(other.range(3), f"data/{n}-0-a")
    assert delta_log.cacheSize() == 0
    now = spark._jvm.org.apache.spark.sql.SparkSession.getActiveSession().get()
    assert now.equals(active)


def test_statistics_are_told_where_a_session_collects_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A session's tasks collect statistics of all columns, or none at all."""
    session = own_session(spark)
    rows = session.range(5).coalesce(1)
    writer = FileWriter(f"file:{tmp_path}", {})
    (plain,) = writer.write(rows, "data/1-0-a") or ()
    assert plain.stats is None
    session.conf.set("spark.databricks.delta.stats.collect", "true")
    (told,) = writer.write(rows, "data/1-0-b") or ()
    assert isinstance(told, WrittenFile)
    assert '"numRecords":5' in str(told.stats)
    assert '"maxValues":{"id":4}' in str(told.stats)
