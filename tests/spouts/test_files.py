"""The spout over files: every file in exactly one batch, and the same bytes on every replay."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version
from pydantic import ValidationError

from spouts.files import FileBatch, FileSpout, PlannedFile
from spouts.files.folder.listing import Listing
from txn.attempts import TransactionAttempt
from txn.errors import SourceChangedError, StorageUnavailableError, TopologyError
from txn.interfaces import Lag
from txn.spark.differences import parse_ddl
from txn.spark.versions import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, v int"
READ = '{"type": "struct", "fields": []}'
FIRST = TransactionAttempt(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for the source's files."""
    made = tmp_path / "source"
    made.mkdir()
    return made


def csv(path: Path, *rows: tuple[str, int], header: str = "k,v") -> Path:
    """A CSV file with a header, moved in atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name("." + path.name)
    unfinished.write_text("\n".join([header, *(f"{k},{v}" for k, v in rows)]) + "\n", "utf-8")
    return unfinished.rename(path)


def opened(
    spark: SparkSession, pattern: Path | str, previous: FileBatch | None = None, **options: Any
) -> FileSpout:
    """A CSV spout with header and schema, opened."""
    spout = FileSpout(str(pattern), **{"format": "csv", "schema": SCHEMA, "header": True} | options)
    spout.open(spark, previous)
    return spout


def drain(spout: FileSpout, previous: FileBatch | None = None) -> Iterator[FileBatch]:
    """Plan until there is nothing to read; each metadata goes through JSON, as it does for real."""
    txid = 1
    while planned := spout.initialize_transaction(TransactionAttempt(txid), previous):
        assert txid < 100, "the same files again and again"
        previous = FileBatch.model_validate_json(planned.model_dump_json())
        assert previous == planned
        yield previous
        txid += 1


def names(batch: FileBatch) -> list[str]:
    return [Path(f.path).name for f in batch.files]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


# --- planning --------------------------------------------------------------------------------


def test_files_come_in_name_order(spark: SparkSession, folder: Path) -> None:
    """Within one look at the folder, files are taken by name, `files_per_batch` at a time."""
    for month in (3, 1, 5, 2, 4):
        csv(folder / f"month-{month:02}.csv", ("a", month))
    spout = opened(spark, folder / "*.csv", files_per_batch=2)
    expected = [
        ["month-01.csv", "month-02.csv"],
        ["month-03.csv", "month-04.csv"],
        ["month-05.csv"],
    ]
    assert [names(batch) for batch in drain(spout)] == expected


def test_a_late_file_with_smaller_name_and_older_time_is_read(
    spark: SparkSession, folder: Path
) -> None:
    """There is no watermark: whatever was not taken yet is taken, whenever and however it comes."""
    csv(folder / "m.csv", ("a", 1))
    spout = opened(spark, folder / "*.csv")
    (taken,) = drain(spout)
    late = csv(folder / "a.csv", ("late", 1))
    os.utime(late, (1, 1))
    assert [names(batch) for batch in drain(spout, taken)] == [["a.csv"]]


def test_the_newest_metadata_is_enough_after_a_restart(spark: SparkSession, folder: Path) -> None:
    """A new process, with nothing but the previous metadata, takes every other file once."""
    for n in range(5):
        csv(folder / f"{n}.csv", ("a", n))
    batches = drain(opened(spark, folder / "*.csv", files_per_batch=2))
    before = [next(batches), next(batches)]
    csv(folder / "0-late.csv", ("late", 1))
    restarted = opened(spark, folder / "*.csv", before[-1], files_per_batch=2)
    after = list(drain(restarted, before[-1]))
    taken = [name for batch in before + after for name in names(batch)]
    assert taken == ["0.csv", "1.csv", "2.csv", "3.csv", "0-late.csv", "4.csv"]


def test_hidden_and_unfinished_names_are_passed_over(spark: SparkSession, folder: Path) -> None:
    """What Spark itself would not read, and `.tmp`, is no file of the source."""
    for name in (".a.csv", "_b.csv", "c.csv.tmp", "d.csv._COPYING_", "_temporary/e.csv", "f.csv"):
        csv(folder / name, ("a", 1))
    (folder / "g.csv").mkdir()
    assert [names(b) for b in drain(opened(spark, folder / "**"))] == [["f.csv"]]


def test_two_stars_reach_every_folder_below(spark: SparkSession, folder: Path) -> None:
    """`**` is any number of folders, also none."""
    for name in ("a.csv", "x/b.csv", "x/y/c.csv"):
        csv(folder / name, ("a", 1))
    found = [n for b in drain(opened(spark, folder / "**" / "*.csv")) for n in names(b)]
    assert found == ["a.csv", "b.csv", "c.csv"]


def test_nothing_there_is_nothing_to_read(spark: SparkSession, folder: Path) -> None:
    """With a schema given, a pattern that matches nothing yet waits for files."""
    spout = opened(spark, folder / "*.csv")
    assert spout.initialize_transaction(FIRST, None) is None
    csv(folder / "a.csv", ("a", 1))
    assert [names(b) for b in drain(spout)] == [["a.csv"]]


def test_a_file_that_vanishes_and_returns_is_not_read_twice(
    spark: SparkSession, folder: Path
) -> None:
    """A folder that is out of reach for a while does not make its files new."""
    path = csv(folder / "a.csv", ("a", 1))
    spout = opened(spark, folder / "*.csv")
    (first,) = drain(spout)
    away = path.rename(folder.parent / "a.csv")
    csv(folder / "b.csv", ("b", 1))
    (second,) = drain(spout, first)
    away.rename(path)
    assert list(drain(spout, second)) == []


def test_forget_missing_keeps_the_metadata_small(spark: SparkSession, folder: Path) -> None:
    """With `forget_missing`, what is known is what is in the folder, and no more."""
    spout = opened(spark, folder / "*.csv", forget_missing=True)
    previous = None
    for n in range(4):
        path = csv(folder / f"{n}.csv", ("a", n))
        (previous,) = drain(spout, previous)
        path.unlink()
    assert previous is not None
    assert len(previous.seen) == 12  # one digest of eight bytes


def test_relative_paths_survive_a_move_of_the_project(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project that is moved together with its data goes on where it was."""
    csv(tmp_path / "old" / "data" / "a.csv", ("a", 1))
    monkeypatch.chdir(tmp_path / "old")
    (first,) = drain(opened(spark, "data/*.csv"))
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    moved = opened(spark, "./data/*.csv", first)
    assert list(drain(moved, first)) == []
    assert rows(moved.emit_batch(spark, FIRST, first)) == [("a", 1)]


def test_paths_spelled_otherwise_are_refused(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An absolute pattern in place of a relative one would read every file again: refused."""
    csv(folder / "a.csv", ("a", 1))
    monkeypatch.chdir(folder)
    (first,) = drain(opened(spark, "*.csv"))
    with pytest.raises(TopologyError, match="relative then, absolute now"):
        opened(spark, folder / "*.csv", first)


def test_lag_is_the_files_that_are_in_no_batch(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their bytes, unless they are too many to look at; a URI's listing has them."""
    for name in "abcd":
        csv(folder / f"{name}.csv", *[(name, number) for number in range(ord(name) - 96)])
    size = {name: (folder / f"{name}.csv").stat().st_size for name in "cd"}
    spout = opened(spark, folder / "*.csv", files_per_batch=2)
    seen = [spout.lag(batch) for batch in drain(spout)]
    assert seen == [Lag(files=2, bytes=size["c"] + size["d"]), Lag(files=0, bytes=0)]
    seen_before = [seen[0], Lag(files=1, bytes=size["d"]), seen[1]]
    spout = opened(spark, f"file://{folder}/*.csv", files_per_batch=1)
    assert [spout.lag(batch) for batch in drain(spout)][1:] == seen_before
    with monkeypatch.context() as patched:
        patched.setattr("spouts.files.folder.backlog._SIZED", 1)
        spout = opened(spark, folder / "*.csv", files_per_batch=1)
        seen = [spout.lag(batch) for batch in drain(spout)]
    last = [Lag(files=1, bytes=size["d"]), Lag(files=0, bytes=0)]
    assert seen == [Lag(files=3), Lag(files=2), *last]
    monkeypatch.setattr("spouts.files.spout._LOOK", 2)  # c and d are beyond, until it looks again
    spout = opened(spark, folder / "*.csv", files_per_batch=1)
    seen = [spout.lag(batch) for batch in drain(spout)]
    assert seen == [Lag(files=3), Lag(files=2), *last]


def test_a_uri_pattern_is_listed_and_read(spark: SparkSession, folder: Path) -> None:
    """A pattern with a scheme goes through Arrow's file systems, and reads the same rows."""
    csv(folder / "x" / "a b.csv", ("a", 1))
    csv(folder / "c%20d.csv", ("c", 2))
    csv(folder / "_no" / "e.csv", ("e", 3))
    spout = opened(spark, f"file://{folder}/**/*.csv", files_per_batch=9)
    (batch,) = drain(spout)
    assert names(batch) == ["c%20d.csv", "a b.csv"]
    stored = [folder / "x" / "a b.csv", folder / "c%20d.csv"]
    assert spout.planned_bytes(batch) == sum(file.stat().st_size for file in stored)
    frame = spout.emit_batch(spark, FIRST, batch)
    assert rows(frame) == [("a", 1), ("c", 2)]
    assert spout.parts_read(frame, batch) == sorted(spout.planned_parts(batch))


# --- reading ---------------------------------------------------------------------------------


def test_a_batch_is_its_files_rows(spark: SparkSession, folder: Path) -> None:
    """Every row of every planned file, duplicates included, and nothing else."""
    csv(folder / "a.csv", ("a", 1), ("a", 1))
    csv(folder / "b.csv")
    csv(folder / "c.csv", ("c", 3))
    spout = opened(spark, folder / "*.csv", files_per_batch=3)
    (batch,) = drain(spout)
    csv(folder / "d.csv", ("d", 4))
    frame = spout.emit_batch(spark, FIRST, batch)
    assert rows(frame) == [("a", 1), ("a", 1), ("c", 3)]
    assert frame.schema == spout.open(spark, batch)


ODD_NAMES = ["a b", "a%20b", "a+b", "ü", "a[1]", "{x,y}", "q?", "star*", "a#b&c", "back\\slash"]


def test_odd_names_are_read_and_found_again(spark: SparkSession, folder: Path) -> None:
    """Blanks, percent signs, unicode and pattern characters in names are only names."""
    for n, name in enumerate(ODD_NAMES):
        csv(folder / f"{name}.csv", (str(n), n))
    spout = opened(spark, folder / "*.csv", files_per_batch=99)
    (batch,) = drain(spout)
    frame = spout.emit_batch(spark, FIRST, batch)
    assert rows(frame) == sorted((str(n), n) for n in range(len(ODD_NAMES)))
    assert spout.parts_read(frame, batch) == spout.planned_parts(batch)
    assert sorted(names(batch)) == sorted(f"{name}.csv" for name in ODD_NAMES)


def test_a_colon_in_a_local_name_is_refused(spark: SparkSession, folder: Path) -> None:
    """Hadoop cannot open such a file: better said at planning than by a stack trace."""
    csv(folder / "12:00.csv", ("a", 1))
    with pytest.raises(TopologyError, match=r"12:00\.csv.*Rename the file"):
        list(drain(opened(spark, folder / "*.csv")))


def test_parts_read_tells_a_file_too_few(spark: SparkSession, folder: Path) -> None:
    """What a batch really reads comes from Spark's plan, not from the metadata."""
    csv(folder / "a.csv", ("a", 1))
    csv(folder / "b.csv", ("b", 2))
    spout = opened(spark, folder / "*.csv", files_per_batch=2)
    (batch,) = drain(spout)
    less = batch.model_copy(update={"files": batch.files[:1]})
    frame = spout.emit_batch(spark, FIRST, less)
    assert spout.parts_read(frame, batch) == [str(folder / "a.csv")]


@pytest.mark.parametrize("format_", ["json", "parquet", "text"])
def test_other_formats(spark: SparkSession, folder: Path, format_: str) -> None:
    """JSON, Parquet and text files are read as CSV ones are."""
    frame = spark.createDataFrame([("x", 1), ("y", 2)], SCHEMA)
    source = frame.select("k").toDF("value") if format_ == "text" else frame
    source.coalesce(1).write.format(format_).save(str(folder / "out"))
    schema = None if format_ == "text" else SCHEMA
    spout = FileSpout(str(folder / "out" / "part-*"), format=format_, schema=schema)  # type: ignore[arg-type]
    spout.open(spark, None)
    (batch,) = drain(spout)
    emitted = rows(spout.emit_batch(spark, FIRST, batch))
    assert emitted == rows(source)


# --- what must not pass silently -------------------------------------------------------------


def test_a_file_that_is_gone_is_named(spark: SparkSession, folder: Path) -> None:
    """A planned file that is not there any more stops the batch, with file and attempt."""
    path = csv(folder / "a.csv", ("a", 1))
    spout = opened(spark, folder / "*.csv")
    (batch,) = drain(spout)
    path.unlink()
    with pytest.raises(SourceChangedError, match=r"a\.csv .*for 7:2: it had 8 bytes.*it is gone"):
        spout.emit_batch(spark, TransactionAttempt(7, 2), batch)


def test_a_file_of_another_size_is_refused(spark: SparkSession, folder: Path) -> None:
    """The message has both sizes."""
    path = csv(folder / "a.csv", ("a", 1))
    spout = opened(spark, folder / "*.csv")
    (batch,) = drain(spout)
    csv(path, ("a", 1), ("b", 2))
    with pytest.raises(SourceChangedError, match="it had 8 bytes.* now it has 12 bytes"):
        spout.emit_batch(spark, FIRST, batch)


def test_a_file_of_another_time_is_refused(spark: SparkSession, folder: Path) -> None:
    """Other content of the same size shows by its time; the command in the message mends it."""
    path = csv(folder / "a 1.csv", ("a", 1))
    spout = opened(spark, folder / "*.csv")
    (batch,) = drain(spout)
    csv(path, ("a", 2))
    os.utime(path, ns=(5, 5))
    with pytest.raises(SourceChangedError) as told:
        spout.emit_batch(spark, FIRST, batch)
    assert "has 8 bytes, last changed at 1970-01-01 00:00:00.000000005 UTC" in str(told.value)
    csv(path, ("a", 1))
    command = re.search(r"touch -d '@\d+\.\d{9}' '[^']+'", str(told.value))
    assert command
    subprocess.run(shlex.split(command[0]), check=True)
    assert sorted(spout.emit_batch(spark, FIRST, batch).collect()) == [("a", 1)]


def test_a_bad_record_is_loud_and_named(spark: SparkSession, folder: Path) -> None:
    """A record that does not fit the schema fails the job. Spark's message has the record, and
    since Spark 4.0 the file.
    """
    csv(folder / "bad.csv", ("a", 1), ("b", "x"))  # type: ignore[arg-type]
    spout = opened(spark, folder / "*.csv")
    (batch,) = drain(spout)
    with pytest.raises(Exception, match=r"\[b,null\]") as raised:
        spout.emit_batch(spark, FIRST, batch).collect()
    causes = str(getattr(raised.value, "java_exception", None) or raised.value)
    assert ("bad.csv" in causes) == (Version(pyspark_version()) >= Version("4.0"))


def test_the_user_may_ask_for_tolerance(spark: SparkSession, folder: Path) -> None:
    """Reader options are Spark's own: `mode="DROPMALFORMED"` drops what does not fit."""
    csv(folder / "bad.csv", ("a", 1), ("b", "x"))  # type: ignore[arg-type]
    spout = opened(spark, folder / "*.csv", MODE="DROPMALFORMED")
    (batch,) = drain(spout)
    assert rows(spout.emit_batch(spark, FIRST, batch)) == [("a", 1)]


def test_a_header_in_another_order_is_loud(spark: SparkSession, folder: Path) -> None:
    """Columns are not taken by position against what the header says."""
    csv(folder / "a.csv", ("1", "a"), header="v,k")  # type: ignore[arg-type]
    spout = opened(spark, folder / "*.csv", schema="k string, v string")
    (batch,) = drain(spout)
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        spout.emit_batch(spark, FIRST, batch).collect()


def test_a_batch_waits_for_storage_that_does_not_answer(spark: SparkSession, folder: Path) -> None:
    """An error of the storage makes the batch wait: asked again, nothing skipped."""
    path = csv(folder / "a" / "a.csv", ("a", 1))
    spout = opened(spark, folder / "a" / "*.csv")
    (batch,) = drain(spout)
    path.unlink()
    path.symlink_to(path)  # ELOOP, for every user
    with pytest.raises(StorageUnavailableError, match=r"could not look at .*a\.csv within"):
        spout.emit_batch(spark, FIRST, batch)


# --- schemas ---------------------------------------------------------------------------------


def test_a_schema_is_inferred_once_and_kept(spark: SparkSession, folder: Path) -> None:
    """What Spark makes of the first files holds for all later ones, restarts included."""
    csv(folder / "a.csv", ("a", 1))
    (first,) = drain(opened(spark, folder / "*.csv", schema=None))
    assert (
        opened(spark, folder / "*.csv", first, schema=None).open(spark, first).simpleString()
        == "struct<k:string,v:int>"
    )
    (folder / "a.csv").unlink()
    csv(folder / "0.csv", ("b", "text"))  # type: ignore[arg-type]
    restarted = FileSpout(str(folder / "*.csv"), format="csv", header=True)
    assert restarted.open(spark, first).simpleString() == "struct<k:string,v:int>"


def test_nothing_to_infer_from_is_refused(spark: SparkSession, folder: Path) -> None:
    """Without a schema and without a file, the user is told to give a schema."""
    with pytest.raises(TopologyError, match="Give a schema"):
        opened(spark, folder / "*.csv", schema=None)


_OTHER_HEADER = ["", "k,v\na,1\n", "k,v\nb,2.5\n", "v,k\n1,a\n"]


@pytest.mark.parametrize(
    ("form", "options", "texts", "inferred"),
    [
        ("csv", {"header": True}, _OTHER_HEADER, "struct<k:string,v:double>"),
        (
            "csv",
            {"header": "TRUE", "EnforceSchema": "false", "Mode": "failfast"},
            _OTHER_HEADER,
            "struct<k:string,v:double>",
        ),
        (
            "json",
            {},
            ["", "[]\n", "{}\n", '{"k":"a"}\nword\n', '{"v":1}\n'],
            "struct<k:string,v:bigint>",
        ),
    ],
)
def test_a_schema_is_inferred_from_several_files(
    spark: SparkSession,
    folder: Path,
    form: str,
    options: dict[str, Any],
    texts: list[str],
    inferred: str,
) -> None:
    """Empty files, other headers and records that do not parse have no say."""
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.{form}").write_text(text)
    spout = FileSpout(str(folder / f"*.{form}"), format=form, **options)
    assert spout.open(spark, None).simpleString() == inferred


@pytest.mark.parametrize(
    ("text", "schema"),
    [("[]\n{}\n", None), ("", None), ('{"v":1}\n', ""), ("word\n", None), ("{\n}", None)],
)
def test_a_schema_without_columns_is_refused(
    spark: SparkSession, folder: Path, text: str, schema: str | None
) -> None:
    """Neither one that is given nor one that is inferred may leave only a txid of each record."""
    folder.mkdir(exist_ok=True)
    (folder / "1.json").write_text(text)
    with pytest.raises(
        TopologyError, match="no columns|no record with a column|no file has any content"
    ) as caught:
        FileSpout(str(folder / "*.json"), format="json", schema=schema).open(spark, None)
    assert ("Say multiLine=True" in str(caught.value)) == (text == "{\n}")


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ("k string, v long", "field 2 was `v` int .* and is `v` bigint now"),
        ("k string", "field 2 was `v` int .* and is absent now"),
        ("k string, w int", "field 2 was `v` int .* and is `w` int now"),
        ("k string, v int, x int", "field 3 was absent .* and is `x` int now"),
    ],
)
def test_a_changed_schema_is_refused(
    spark: SparkSession, folder: Path, now: str, message: str
) -> None:
    """A schema other than that of the batches read so far is refused, with the first field."""
    csv(folder / "a.csv", ("a", 1))
    (first,) = drain(opened(spark, folder / "*.csv"))
    with pytest.raises(TopologyError, match=message):
        opened(spark, folder / "*.csv", first, schema=now)


def test_a_schema_may_be_a_struct_type(spark: SparkSession, folder: Path) -> None:
    """DDL and StructType say the same; what a file gives is nullable whatever either says."""
    from pyspark.sql.types import StructType

    struct = parse_ddl("k string not null, v array<int>")
    assert isinstance(struct, StructType)
    assert not struct["k"].nullable
    spout = FileSpout(str(folder / "*.json"), format="json", schema=struct)
    (folder / "a.json").write_text('{"k": "x", "v": [1]}\n', "utf-8")
    told = spout.open(spark, None)
    (batch,) = drain(spout)
    assert spout.emit_batch(spark, FIRST, batch).schema == told


def test_text_has_one_column(spark: SparkSession, folder: Path) -> None:
    """A schema given for text must be the one that text has."""
    spout = FileSpout(str(folder / "*"), format="text", schema="line string")
    with pytest.raises(TopologyError, match="value string"):
        spout.open(spark, None)


# --- refused when made -----------------------------------------------------------------------


def test_an_unknown_format_is_refused() -> None:
    """The message lists the formats that there are."""
    with pytest.raises(TopologyError, match="'orc'.*csv, json, parquet, text"):
        FileSpout("*.orc", format="orc")  # type: ignore[arg-type]


def test_less_than_one_file_per_batch_is_refused() -> None:
    """A batch has at least one file."""
    with pytest.raises(TopologyError, match="files_per_batch of 1 or more, not 0"):
        FileSpout("*.csv", format="csv", files_per_batch=0)


def test_a_folder_is_refused(spark: SparkSession, folder: Path) -> None:
    """A folder in place of a pattern would match nothing for ever."""
    with pytest.raises(TopologyError, match=r"names a folder.*/source/\*\.csv"):
        opened(spark, folder)


def test_metadata_refuses_unknown_fields(spark: SparkSession, folder: Path) -> None:
    """Metadata of another version is not half understood."""
    csv(folder / "a.csv", ("a", 1))
    (batch,) = drain(opened(spark, folder / "*.csv"))
    stored = json.loads(batch.model_dump_json()) | {"offset": 1}
    with pytest.raises(ValueError, match="offset"):
        FileBatch.model_validate_json(json.dumps(stored))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.csv", "in/../../secret.csv", "other/a.csv", "in/a\0.csv"]
)
def test_metadata_cannot_make_it_read_elsewhere(tmp_path: Path, path: str) -> None:
    """A planned file that lies where the pattern never looks is refused, and not looked at."""
    spout = FileSpout("in/*.csv", format="csv", schema="a int")
    looked: list[object] = []
    spout._listing.stats = looked.append  # type: ignore[method-assign,assignment]
    planned = PlannedFile(path=path, size=1, mtime_ns=1)
    batch = FileBatch(files=(planned,), spelling="relative", read_schema=READ, seen="")
    nothing: Any = None
    with pytest.raises(TopologyError, match="pattern does not reach"):
        spout.emit_batch(nothing, TransactionAttempt(1, 0), batch)
    assert looked == []


@pytest.mark.parametrize(
    "changed", [{"seen": "A"}, {"seen": "AAAA"}, {"read_schema": "{"}, {"read_schema": "[]"}]
)
def test_metadata_that_is_cut_off_is_refused(changed: dict[str, str]) -> None:
    """What was read would be read again, or with other columns."""
    whole = {"files": [], "spelling": "relative", "seen": "AAAAAAAAAAA="}
    whole["read_schema"] = '{"type":"struct","fields":[]}'
    FileBatch.model_validate(whole)
    with pytest.raises(ValidationError):
        FileBatch.model_validate({**whole, **changed})


def test_a_scheme_with_one_slash_is_a_path_or_refused(tmp_path: Path) -> None:
    """`file:/x` is the path, and `dbfs:/x` no folder of that name below the working directory."""
    (tmp_path / "a.csv").write_text("1")
    assert Listing(f"file:{tmp_path}/*.csv").names() == [f"{tmp_path}/a.csv"]
    with pytest.raises(TopologyError, match="'dbfs:/x/\\*.csv' has one slash after 'dbfs:'"):
        FileSpout("dbfs:/x/*.csv", format="csv", schema="n int")
