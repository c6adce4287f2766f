"""CSV as other writers have it: a record is stored as written, or reported; never in part."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import spouts.files.csv_files
from committers.append_table import AppendTable
from spouts.files import FileSpout
from spouts.records.csv_dialect import Dialect
from tests.faults.support import rows_of
from txn import Topology
from txn.attempts import TransactionAttempt
from txn.errors import BatchError
from txn.testing import run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = [
    'say "hi" ok', '"', '""', "a,b", "x\ny", "x\r\ny", "x\ry", 'a"\n"b', "\n", "end\\", '\\"',
    " s ", "ü", '5" x', "tab\tx;'", '"a"\r\n,"b', "'", "\r", "''\n''",
]  # fmt: skip
DIALECTS: list[dict[str, Any]] = [
    {},
    {"lineterminator": "\n", "quoting": csv.QUOTE_ALL},
    {"lineterminator": "\r", "quoting": csv.QUOTE_ALL},
    {"lineterminator": "\n", "delimiter": ";", "quoting": csv.QUOTE_ALL},
    {"quoting": csv.QUOTE_NONNUMERIC, "quotechar": "'", "delimiter": "\t"},
    {"doublequote": False, "escapechar": "\\", "quoting": csv.QUOTE_ALL},
]
SCHEMA = "k string, v int, t string"


def read(spark: SparkSession, pattern: Path, schema: str, **options: Any) -> list[tuple[Any, ...]]:
    """The rows of one batch of all files, in some order."""
    spout = FileSpout(str(pattern), format="csv", schema=schema, files_per_batch=99, **options)
    spout.open(spark, None)
    planned = spout.initialize_transaction(TransactionAttempt(1), None)
    assert planned is not None
    return [tuple(r) for r in spout.emit_batch(spark, TransactionAttempt(1), planned).collect()]


def stored(
    spark: SparkSession, warehouse: Path, folder: Path, schema: str, **options: Any
) -> tuple[list[Any], list[Any]]:
    """The rows of a table, and the texts that were set aside."""
    options = {"bad_rows": "set_aside", "files_per_batch": 9, **options}
    spout = FileSpout(f"{folder}/*", format="csv", schema=schema, **options)
    topology = Topology("read", bad_rows=AppendTable(warehouse / "bad", "transactional"))
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows", "transactional"))
    run_in_memory(topology, spark)
    names = [column.split()[0] for column in schema.split(", ")]
    bad = rows_of(warehouse / "bad", "row")
    rows = rows_of(warehouse / "rows", *names, key=str)
    return rows, sorted(text for (text,) in bad)


SIZES: list[dict[str, int]] = [{}, {"_HERE": 0}, {"_HERE": 0, "_SMALL": 0}]
"""A batch is looked at without Spark if it can be; a file by Spark as a whole; line by line."""


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_what_python_writes_comes_back(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dialect: dict[str, Any],
    sizes: dict[str, int],
) -> None:
    """A quoted CSV field is stored as it was written, with all its lines, and never in part.

    Quotes, separators and line ends are a part of the value, in every dialect.
    """
    for name, most in sizes.items():
        monkeypatch.setattr(spouts.files.csv_files, name, most)
    sep, quote = dialect.get("delimiter", ","), dialect.get("quotechar", '"')
    rows = [(str(i), value, "z") for i, value in enumerate(VALUES)]
    rows += [(str(i), "z", value) for i, value in enumerate(VALUES, len(VALUES))]
    text = io.StringIO(newline="")
    csv.writer(text, **dialect).writerows([("i", "s", "t"), *rows])
    content = text.getvalue().encode()
    (tmp_path / "1.csv").write_bytes(content)
    (tmp_path / "2 ü%41.csv").write_bytes(b"\xef\xbb\xbf" + content)
    (tmp_path / "3.csv.gz").write_bytes(gzip.compress(content))
    stray = f'plain{sep}5" x{sep}a{quote}'
    (tmp_path / "4.csv").write_text(sep.join("ist") + f"\n{stray}\n")
    options = {"header": True, "sep": sep, "quote": quote}
    if "escapechar" in dialect:
        options["escape"] = "\\"
    found = read(spark, tmp_path / "*.csv*", "i string, s string, t string", **options)
    assert sorted(found) == sorted([*rows, *rows, *rows, tuple(stray.split(sep))])


def test_a_quick_look_finds_no_more_files_to_be_read_by_line_than_spark(
    spark: SparkSession,
) -> None:
    """Nor does it miss a file with fields in quotes as RFC 4180 has them."""
    draw = random.Random(1)
    texts = [
        "".join(draw.choices('aab,\t\\"""\n\n\r\0\ufeff', k=draw.randint(0, 14)))
        for _ in range(9000)
    ]
    texts += ['"a","b""c"\r\n"",d\n', 'a\n"""b"""', "a,b\n"]
    rows = spark.createDataFrame([(text,) for text in texts], "value string")
    for options in ({}, {"sep": "\t"}, {"escape": "\\"}, {"quote": ""}, {"comment": "a"}):
        dialect = Dialect.of(options)
        fits = [
            row.fits for row in rows.select(dialect.is_by_line(rows.value).alias("fits")).collect()
        ]
        plain = [dialect.is_plain(text) for text in texts]
        assert [t for t, p, f in zip(texts, plain, fits, strict=True) if p and not f] == []
        assert len(options) or plain[-3:] == [True] * 3


UNCLEAR = {
    "text behind a quote, and a quote before it": b'k,1,"b """b a"\n',
    "text behind a quote, and one before a quote": b'k,1,"a ""b"" c"d\nl,2,c\n',
    "open at the end": b'k,1,a\nl,2,"half of',
    "open in the middle": b'k,1,"a\nb\nl,2,c\n',
    "two line ends": b'k,1,"a\nb"\nl,2,c\r\nm,3,d\r\n',
    "CR beside LF": b'k,1,"a\nb"\nl,2,c\rm,3,d\n',
    "closed by another field's quote": b'k,1,"a\nl,2,"b"\n',
    "open in the first of all lines": b'k,1,"a\nl,2,c\n',
}


@pytest.mark.parametrize("content", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_a_field_that_is_not_closed_is_never_stored_in_part(
    spark: SparkSession, warehouse: Path, tmp_path: Path, content: bytes
) -> None:
    """The batch fails with the file's name; or all lines of it are set aside, and others stored."""
    (folder := tmp_path / "in").mkdir()
    (folder / "1.csv").write_bytes(content)
    (folder / "2.csv").write_bytes(b'good,1,"two\nlines"\n')
    (folder / "3.csv").write_bytes(b"good,2,x\n")
    with pytest.raises(BatchError, match=r"cannot tell where the records end in .*/1.csv,") as told:
        read(spark, folder / "*.csv", SCHEMA)
    assert told.value.number == "TXN-422"
    rows, bad = stored(spark, warehouse, folder, SCHEMA)
    assert rows == [("good", 1, "two\nlines"), ("good", 2, "x")]
    assert bad == sorted(content.decode().splitlines())


def test_a_file_too_large_to_be_looked_at_as_a_whole_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one with a field over several lines is refused, by name; others have no limit."""
    for name, most in {"_HERE": 0, "_SMALL": 0, "_LARGEST": 15}.items():
        monkeypatch.setattr(spouts.files.csv_files, name, most)
    (tmp_path / "1.csv").write_bytes(b'k,1,"a"\nl,1,"b"\nm,1,c')
    assert len(read(spark, tmp_path / "*.csv", SCHEMA)) == 3
    (tmp_path / "2.csv").write_bytes(b'k,1,"ab\ncd,e"\nl,1,"b"\n')
    with pytest.raises(BatchError, match=r"cannot read .*/2.csv for .*Split the file") as told:
        read(spark, tmp_path / "*.csv", SCHEMA, bad_rows="set_aside")
    assert told.value.number == "TXN-422"


STRINGS = "a string, b string, c string"
RECORDS: dict[str, tuple[bytes, dict[str, Any], list[tuple[Any, ...]], list[str]]] = {
    "a field over lines that does not fit": (
        b'k,1,x\nl,"2\n3",y\n', {"schema": SCHEMA}, [("k", 1, "x")], ['l,"2\n3",y']),
    "more or fewer fields": (b"a,b\na,b,c\na,b,c,d\n", {}, [("a", "b", "c")], ["a,b", "a,b,c,d"]),
    "quotes in other places": (
        b'a,5" x,c\nd,"e"f,g\n', {}, [("a", '5" x', "c"), ("d", '"e"f', "g")], []),
    "doubled quotes beside an escape of one's own": (
        b'a,"""",c\nd,e,f\n', {"escape": "\\"}, [], ['a,"""",c', "d,e,f"]),
    "empty and quoted empty": (b'"",,x\n', {}, [(None, None, "x")], []),
    "nullValue": (b'NA,"",\n', {"nullValue": "NA"}, [(None, "", None)], []),
    "blank lines": (b"a,b,c\n\n   \n\t\n", {}, [("a", "b", "c")], []),
    "blanks between separators": (
        b"\t\t\na\t \tb\n\n", {"sep": "\t"}, [("a", " ", "b"), (None, None, None)], []),
    "line ends of all kinds": (
        b"a,b,c\r\nd,e,f\ng,h,i\rj,k,l", {},
        [("a", "b", "c"), ("d", "e", "f"), ("g", "h", "i"), ("j", "k", "l")], []),
    "comments with quotes": (b'#"\na,b,c\n', {"comment": "#"}, [("a", "b", "c")], []),
    "no quotes": (b'a,b","c\n', {"quote": ""}, [("a", 'b"', '"c')], []),
    "quotes behind blanks": (
        b'a, "b,\n" ,c\n', {"ignoreLeadingWhiteSpace": True}, [("a", "b,\n", "c")], []),
    "text behind a quote, beside several lines": (
        b'a,"b\n",c\nd,"e"f,g\n', {}, [("a", "b\n", "c"), ("d", '"e"f', "g")], []),
    "UTF-16": ('a,"b\nü",c\n'.encode("utf-16"), {"encoding": "UTF-16"}, [("a", "b\nü", "c")], []),
    "UTF-16, open": ('a,b,c\nd,e,"f\n'.encode("utf-16"), {"encoding": "UTF-16"}, [],
        ["a,b,c", 'd,e,"f']),
    "Latin-1": (b'a,"\xfc\n",c\n', {"encoding": "ISO-8859-1"}, [("a", "ü\n", "c")], []),
    "a NUL": (b"a,b,c\nd,e\0,f\n", {}, [], ["a,b,c", "d,e\0,f"]),
    "a NUL, nothing quoted": (b'a,",c\n\0,e,f\n', {"quote": ""}, [], ['a,",c', "\0,e,f"]),
    "a NUL, and lines of separators": (
        b"\xef\xbb\xbf\t\t\n\n #\n#\n\0\r\t\r\n", {"sep": "\t", "comment": "#"}, [],
        ["\t\t", " #", "\0", "\t"]),
    "only a BOM": (b"\xef\xbb\xbf", {"multiLine": True}, [], []),
    "a separator of two characters": (
        b'a||"b|\n||"||c\n', {"sep": "||"}, [("a", "b|\n||", "c")], []),
    "quotes at the end, behind a separator of two characters": (
        b'a||b||5"\nc"||d"e||"f"""\n', {"sep": "||"},
        [("a", "b", '5"'), ('c"', 'd"e', 'f"')], []),
    "such a quote at the end of the file": (
        b'a||b||c\na||b||5"', {"sep": "||"}, [], ["a||b||c", 'a||b||5"']),
    "a part of a separator behind a quote": (
        b'a||"b"||"c"|\n', {"sep": "||"}, [], ['a||"b"||"c"|']),
    "a line end of one's own": (
        b'a,"b\n;",c;d,e\n,f;', {"lineSep": ";"}, [("a", "b\n;", "c"), ("d", "e\n", "f")], []),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_a_record_of_csv(
    spark: SparkSession, warehouse: Path, tmp_path: Path, name: str
) -> None:
    """Each row of the table in docs/files.md: what is stored, and what is set aside."""
    content, options, rows, bad = RECORDS[name]
    (folder := tmp_path / "in").mkdir()
    (folder / "1.csv").write_bytes(content)
    more = "good,1,x\n".replace(",", options.get("sep", ",")).replace(
        "\n", options.get("lineSep", "\n")
    )
    (folder / "2.csv").write_bytes(more.encode(options.get("encoding", "utf-8")))
    options = {"schema": STRINGS, **options}
    good = ("good", 1, "x") if options["schema"] == SCHEMA else ("good", "1", "x")
    found = stored(spark, warehouse, folder, **options)
    assert found == (sorted([*rows, good], key=str), sorted(bad))


def test_columns_are_inferred_from_whole_records(spark: SparkSession, tmp_path: Path) -> None:
    """A field over several lines does not make a text of a column of numbers."""
    (tmp_path / "1.csv").write_bytes(b'n,s,m\n1,"a\nb,c",2\n')
    spout = FileSpout(f"{tmp_path}/*.csv", format="csv", header=True)
    assert spout.open(spark, None).simpleString() == "struct<n:int,s:string,m:int>"


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_bytes_that_are_not_utf8_are_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    """A sign stands for them in the rows, and a notice names the file, once."""
    for name, most in sizes.items():
        monkeypatch.setattr(spouts.files.csv_files, name, most)
    (tmp_path / "a.csv").write_bytes(b"caf\xe9,1\n")
    (tmp_path / "b.csv").write_bytes(b"caf\xc3\xa9,2\n")
    spout = FileSpout(
        f"{tmp_path}/*.csv", format="csv", schema="k string, v int", files_per_batch=2
    )
    spout.open(spark, None)
    planned = spout.initialize_transaction(TransactionAttempt(1), None)
    assert planned is not None
    for attempt in (0, 1):
        rows = spout.emit_batch(spark, TransactionAttempt(1, attempt), planned).collect()
        assert sorted(map(tuple, rows), key=str) == [("caf\xe9", 2), ("caf\ufffd", 1)]
    (notice,) = spout.notices()
    assert "a.csv. If they have another encoding, give the spout encoding=" in notice
    assert "b.csv" not in notice


@pytest.mark.parametrize("used", [["k"], []])
def test_columns_that_nobody_uses_are_parsed_all_the_same(
    spark: SparkSession, tmp_path: Path, used: list[str]
) -> None:
    """A record parses, or fails to, regardless of what the program does with it."""
    (tmp_path / "a.csv").write_text("a,1\nb,x\nc,3,4\nd\n")

    def rows(**options: Any) -> Any:
        spout = FileSpout(f"{tmp_path}/*.csv", format="csv", schema="k string, v int", **options)
        spout.open(spark, None)
        planned = spout.initialize_transaction(TransactionAttempt(1), None)
        assert planned is not None
        return spout.emit_batch(spark, TransactionAttempt(1), planned)

    aside = rows(bad_rows="drop")
    assert aside.where("txn_text IS NULL").select(*used).count() == 1
    with pytest.raises(Exception, match="MALFORMED"):
        rows().select(*used).write.format("noop").mode("overwrite").save()


def test_a_header_goes_only_as_the_header_of_an_unclear_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of a file whose lines are set aside, a first line that is no header is set aside as well."""
    (tmp_path / "1.csv").write_text('"K",v\na,"\n')
    (tmp_path / "2.csv").write_text('"k","w\n')
    options = {"header": True, "bad_rows": "set_aside"}
    rows = read(spark, tmp_path / "*.csv", "k string, v string", **options)
    assert sorted(row[2] for row in rows) == ['"k","w', 'a,"']
