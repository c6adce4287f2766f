"""Reading Parquet files that are known already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import types
from pyspark.sql.types import StructType

from spouts._uris import plain
from tests.stores.proxy import Proxy
from tests.stores.s3 import S3Server, storage_options
from txn.spark import file_reader, jvm
from txn.spark.file_reader import KnownFile, known_parquet
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("id", "long").add("k", "string")


def written(spark: SparkSession, folder: Path, name: str, count: int) -> KnownFile:
    """One Parquet file of `SCHEMA` below a folder."""
    rows = spark.range(0, count, 1, 1).selectExpr("id", f"'{count}' AS k")
    rows.write.parquet(f"{folder}/made")
    (made,) = folder.glob("made/*.parquet")
    file = made.rename(folder / name)
    return KnownFile(f"file:{file}", file.stat().st_size, int(file.stat().st_mtime * 1000))


def test_known_files_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """As by Spark's own reader: rows, columns and metadata; odd characters are no pattern."""
    names = ("plain.parquet", "k=1 50%[x]{y}*.parquet")
    files = []
    for number, name in enumerate(names):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        files.append(written(spark, folder, name, 3 + number))
    own = known_parquet(spark, SCHEMA, files, {})
    assert own is not None
    theirs = spark.read.schema(SCHEMA).parquet(str(tmp_path / "0"), str(tmp_path / "1"))
    assert own.schema == theirs.schema
    shown = [sorted(map(plain, frame.inputFiles())) for frame in (own, theirs)]
    assert shown[0] == shown[1]
    named = ("id", "k", "_metadata.file_path", "_metadata.file_size")
    rows = [sorted(map(tuple, frame.select(*named).collect())) for frame in (own, theirs)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 7


def test_a_known_file_that_is_gone_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    """No row is missing in silence, whatever the session says."""
    file = written(spark, tmp_path, "a.parquet", 3)
    rows = known_parquet(spark, SCHEMA, [file], {"ignoreMissingFiles": "false"})
    assert rows is not None
    Path(file.url.removeprefix("file:")).unlink()
    with pytest.raises(Exception, match=r"a\.parquet"):
        rows.count()


def test_columns_that_parquet_has_not_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """As by Spark's own reader: before anything is read."""
    file = KnownFile(f"file:{tmp_path}/a.parquet", 1)
    kind = getattr(types, "CalendarIntervalType", types.NullType)()  # new in Spark 4.0
    with pytest.raises(AnalysisException, match="INTERVAL|VOID"):
        known_parquet(spark, StructType().add("v", kind), [file], {})


def test_a_session_without_a_jvm_cannot(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor one whose Spark has other classes: the caller is told so, and the user once."""
    file = written(spark, tmp_path, "a.parquet", 3)
    elsewhere = cast("Any", spark._jvm).org.nowhere
    monkeypatch.setattr(file_reader, "jvm_of", lambda _: elsewhere)
    monkeypatch.setattr(jvm, "_slower", set())
    for _ in range(2):
        assert known_parquet(spark, SCHEMA, [file], {}) is None
    (message,) = caplog.messages
    assert "Every Parquet file is looked at before it is read" in message
    monkeypatch.setattr(file_reader, "jvm_of", lambda _: None)
    assert known_parquet(spark, SCHEMA, [file], {}) is None


def test_nothing_is_listed_or_looked_at(
    spark: SparkSession, s3: S3Server, tmp_path: Path, request: Any
) -> None:
    """Of a file on S3 nothing is asked but its content."""
    bucket = s3.bucket(request.node.name)
    file = written(spark, tmp_path, "a.parquet", 3)
    with Proxy(s3.url) as proxy:
        storage = Storage(f"s3://{bucket}/in", storage_options(proxy.url))
        storage.write("a.parquet", (tmp_path / "a.parquet").read_bytes())
        proxy.forget()
        known = KnownFile(storage.url("a.parquet"), file.size)
        rows = known_parquet(spark, SCHEMA, [known], storage.hadoop)
        assert rows is not None
        assert proxy.log == []
        assert rows.count() == 3
        assert {entry.operation for entry in proxy.log} <= {"GET", "HEAD"}
