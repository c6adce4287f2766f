"""Which columns files have, and which the spout reads: headers, folders, types that Spark lacks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.types import StructType

from spouts.files import FileSpout
from txn.attempts import TransactionAttempt
from txn.errors import BatchError, TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = TransactionAttempt(1)
SCHEMA = StructType().add("id", "long").add("name", "string")


def folder_of(folder: Path, files: dict[str, str]) -> Path:
    """A folder with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def read(spark: SparkSession, spout: FileSpout) -> list[tuple[Any, ...]]:
    """The rows of all files, batch by batch, in the order of the schema that was said."""
    schema, rows, before = spout.open(spark, None), [], None
    while planned := spout.initialize_transaction(FIRST, before):
        frame = spout.emit_batch(spark, FIRST, planned)
        assert frame.columns == schema.fieldNames()
        rows += [tuple(row) for row in frame.collect()]
        before = planned
    return rows


# --- headers -----------------------------------------------------------------------------------

HEADERS = {
    "pandas": (",v", ["_c0", "v"], None),
    "twice": ("a,b,a", ["a0", "b", "a2"], None),
    "capitals": ("a,,A,", ["a0", "_c1", "A2", "_c3"], None),
    "given": (",v", ["_c0", "v"], "_C0 int, v int"),
    "numbers": ("x0,x1", ["x0", "x1"], None),
}


@pytest.mark.parametrize(("header", "names", "schema"), HEADERS.values(), ids=HEADERS.keys())
def test_a_header_without_a_name_or_with_one_twice_is_read(
    spark: SparkSession, tmp_path: Path, header: str, names: list[str], schema: str | None
) -> None:
    """The names that Spark makes up for such a header are what a file is compared with."""
    rows = [tuple(range(n, n + len(names))) for n in range(2)]
    lines = [",".join(map(str, row)) for row in rows]
    files = {"a.csv": f"{header}\n{lines[0]}\n", "b.csv": "", "c.csv": f"{header}\n{lines[1]}\n"}
    folder = folder_of(tmp_path / "in", files)
    spout = FileSpout(f"{folder}/*.csv", format="csv", header=True, schema=schema)
    assert read(spark, spout) == rows
    assert [name.lower() for name in spout.open(spark, None).names] == [n.lower() for n in names]


@pytest.mark.parametrize("other", ["v,", ",w", "v", ",v,"])
def test_another_header_than_the_one_that_was_inferred_is_refused(
    spark: SparkSession, tmp_path: Path, other: str
) -> None:
    """Columns are not taken by position where Spark does not compare them itself."""
    folder = folder_of(tmp_path / "in", {"a.csv": ",v\n0,1\n", "b.csv": f"{other}\n0,1\n"})
    spout = FileSpout(f"{folder}/*.csv", format="csv", header=True)
    with pytest.raises(BatchError, match=r"header of .*b\.csv, .* and the schema _c0, v\. Give"):
        read(spark, spout)


# --- folders that are columns ------------------------------------------------------------------

FOLDERS = {"in/k=1/a.json": '{"v":1}\n', "in/k=2/b.json": '{"v":2}\n'}


@pytest.mark.parametrize(
    ("base", "schema", "rows"),
    [
        ("in", None, [(1, 1), (2, 2)]),
        ("./in/", "k string, v int", [("1", 1), ("2", 2)]),
        ("{}/in", "v int", [(1,), (2,)]),
        ("file://{}", "v int, k int", [(1, 1), (2, 2)]),
    ],
)
def test_the_folders_below_the_base_path_are_columns(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: str,
    schema: str | None,
    rows: list[tuple[Any, ...]],
) -> None:
    """Relative as the pattern is; in the schema's order, and none that it does not have."""
    folder_of(tmp_path, FOLDERS)
    monkeypatch.chdir(tmp_path)
    base = base.format(tmp_path)
    spout = FileSpout("in/*/*.json", format="json", schema=schema, basePath=base)
    monkeypatch.chdir("/")
    assert read(spark, spout) == rows


@pytest.mark.parametrize("base", ["/nowhere", "in/k=1", "i", "s3://b/in"])
def test_a_base_path_that_is_not_above_the_files_is_refused(tmp_path: Path, base: str) -> None:
    """With the folder that they lie in, before anything runs."""
    pattern = os.path.relpath(tmp_path) + "/in/*/*.json"
    with pytest.raises(TopologyError, match=rf"basePath='{base}' is not above .*{tmp_path}/in\."):
        FileSpout(pattern, format="json", basePath=base)


def test_a_base_path_of_a_uri_is_spelled_for_spark() -> None:
    """As the files are: `s3a`, where the pattern says `s3`."""
    spout = FileSpout("s3://b/in/deep/*/*.json", format="json", basePath="s3://b/in")
    assert spout._options["basePath"] == "s3a://b/in"
    with pytest.raises(TopologyError, match="lie in s3://b/in/deep"):
        FileSpout("s3://b/in/deep/*/*.json", format="json", basePath="s3://b/i")


# --- nanoseconds -------------------------------------------------------------------------------


def test_nanoseconds_of_parquet_are_refused_by_name_and_read_as_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The message names file and column, and what it advises works."""
    instants = pa.array([1_700_000_000_000_000_001], pa.timestamp("ns"))
    parquet.write_table(pa.table({"i": [1]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"i": [1], "t": instants}), tmp_path / "b.parquet")
    pattern = f"{tmp_path}/*.parquet"
    with pytest.raises(TopologyError, match=r"column 't' of .*b\.parquet .*'t bigint'"):
        FileSpout(pattern, format="parquet").open(spark, None)
    spout = FileSpout(pattern, format="parquet", schema="i bigint, t bigint")
    assert read(spark, spout) == [(1, None), (1, 1_700_000_000_000_000_001)]


@pytest.mark.parametrize(
    ("type_", "values", "too_large"),
    [
        ("tinyint", pa.array([1, -128]), pa.array([300], pa.int32())),
        ("smallint", pa.array([1, -32768]), pa.array([70_000], pa.int32())),
        ("tinyint", pa.array([1, 127], pa.uint8()), pa.array([200], pa.uint8())),
        ("array<struct<x: tinyint>>", pa.array([[{"x": 1}], None]), pa.array([[{"x": 300}]])),
    ],
    ids=["tinyint", "smallint", "without sign", "nested"],
)
def test_numbers_of_parquet_that_do_not_fit_fail_the_batch(
    spark: SparkSession, tmp_path: Path, type_: str, values: Any, too_large: Any
) -> None:
    """Those that do are read, whatever the session says; of the others no part is stored."""

    def table(column: pa.Array) -> pa.Table:
        narrow = pa.list_(pa.struct([("x", pa.int32())])) if "x" in type_ else pa.int32()
        return pa.table({"a": column if column.type == pa.uint8() else column.cast(narrow)})

    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    parquet.write_table(table(values), tmp_path / "a.parquet")
    spout = FileSpout(
        f"{tmp_path}/*.parquet", format="parquet", schema=f"a {type_}, b smallint",
        bad_rows="set_aside", files_per_batch=2,
    )  # fmt: skip
    rows = [row[:2] for row in read(session, spout)]
    found = [[{"x": r.x} for r in a] if isinstance(a, list) else a for a, _ in rows]
    assert sorted(found, key=str) == sorted(values.to_pylist(), key=str)
    parquet.write_table(table(too_large), tmp_path / "b.parquet")
    with pytest.raises(Exception, match=f"{too_large.to_pylist()[0]}|300"):
        read(session, spout)


# --- columns that are in no table ----------------------------------------------------------------

OVER_LINES = "object or array that goes over several lines, .* Say multiLine=True\\.$"
UNREAD = {
    "capitals": (
        "json",
        '{"id": 1, "Name": "x"}',
        "columns .* lacks.*: Name\\. .*'Name', not 'name'",
    ),
    "more": ("json", '{"id": 1, "a": 2, "b": 3}', "so they reach no table: a, b\\.$"),
    "envelope": (
        "json",
        '{"data": [{"id": 1}], "n": 1}',
        "none of .* \\(id, name\\).* within 'data'",
    ),
    "array": ("json", '[{"ID": 1}, {"ID": 2}]', "none of .*It has ID\\. .*'ID', not 'id'"),
    "behind lines": ("json", '[]\n{]\n{"ID": 1}', "none of .*It has ID\\. .*'ID', not 'id'"),
    "indented": ("json", '{\n  "ident": 1\n}', OVER_LINES),
    "indented in an array": ("json", '[\r\n{"id": 1, "name": null},\r\n{}]', OVER_LINES),
    "indented in an envelope": ("json", '{"data": [\n' + '{"id": 1},\n' * 9000 + "0]}", OVER_LINES),
    "cut off": ("json", '{"id": 1,\n{"id": 1}', None),
    "behind a record": ("json", '{"id": 1}\n{\n"id": 1}', None),
    "parquet": ("parquet", {"ident": [1], "label": ["x"]}, "none of .*It has ident, label\\.$"),
    "one more": ("parquet", {"ID": [1], "label": ["x"]}, "so they reach no table: label\\.$"),
    "folders": ("csv", "1,x", "lies in y=1/z=a, .* say basePath='.*/in', and name them"),
    "all": ("json", '{"id": 1, "name": null}', None),
    "fewer": ("json", '{"id": 1}', None),
    "capitals of parquet": ("parquet", {"ID": [1], "Name": ["x"]}, None),
    "no object": ("json", "word", None),
    "none": ("json", "{}", None),
    "long": ("json", '{"id": "' + "x" * 70_000 + '", "b": 1}', None),
}


@pytest.mark.parametrize(("form", "content", "told"), UNREAD.values(), ids=UNREAD.keys())
def test_columns_that_are_in_no_table_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, content: Any, told: str | None
) -> None:
    """The spout names a file that it looks at, once per kind, if the first record has columns that
    the schema lacks, or none of the schema's columns.
    """
    below = "y=1/z=a/" if told and "basePath" in told else ""
    for name in ("a", "b", "c"):
        path = tmp_path / "in" / f"{below}{name}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "parquet":
            parquet.write_table(pa.table(content), path)
        else:
            path.write_text(f"{content}\n")
    pattern = f"{tmp_path}/in/**/*.{form}"
    spout = FileSpout(pattern, format=form, schema=SCHEMA, files_per_batch=2)  # type: ignore[arg-type]
    spout.open(cast("SparkSession", None), None)
    with caplog.at_level("WARNING"):
        first = spout.initialize_transaction(FIRST, None)
        assert spout.initialize_transaction(FIRST, first) is not None
    texts = [record.getMessage() for record in caplog.records]
    assert texts == spout.notices()
    assert len(texts) == (told is not None)
    assert told is None or (f"/a.{form} " in texts[0] and re.search(told, texts[0]))


def test_folders_that_are_columns_are_not_told(tmp_path: Path) -> None:
    """With a base path they are the schema's columns, and a file may have no other."""
    folder_of(tmp_path, FOLDERS)
    schema = StructType().add("k", "string").add("v", "integer")
    spout = FileSpout(f"{tmp_path}/in/*/*.json", format="json", schema=schema, basePath=tmp_path)
    spout.open(cast("SparkSession", None), None)
    assert spout.initialize_transaction(FIRST, None) is not None
    assert spout.notices() == []
