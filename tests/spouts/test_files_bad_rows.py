"""Files with records that do not parse: each record is in a table or set aside, once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.append_table import AppendTable
from spouts.files import FileSpout
from tests.faults.support import rows_of
from txn import Topology
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError
from txn.spark.differences import is_utf8
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, v int"
GOOD = [("a", 1), ("b", -2), ("c", None), ("ü", 4)]
CSV = {
    "1 first.csv": ["a,1", "a,x", "b,-2"],
    "2.csv": ["a", "c,", "a,1,2", "-9,"],
    "3.csv": ["ü,4", "ü,4.5"],
}
JSON = {
    "1 first.json": ['{"k":"a","v":1}', '{"k":"a","v":"x"}', '{"k":"b","v":-2}'],
    "2.json": ['{"k":"a"', '{"k":"c"}', "word", '{"v":-9,"k":"-9"}'],
    "3.json": ['{"k":"ü","v":4}', '{"k":"ü","v":4.5}'],
}
BAD = {"a,x", "a", "a,1,2", "ü,4.5", '{"k":"a","v":"x"}', '{"k":"a"', "word", '{"k":"ü","v":4.5}'}
NO_MINUS = {"-9,": '{"k":"-9","v":null}', '{"v":-9,"k":"-9"}': '{"k":"-9","v":-9}'}
"""Records that parse, and break a rule: as text, and as they are set aside."""


def written(folder: Path, form: str) -> dict[str, list[str]]:
    """The files of a format, with a header if it has one."""
    files = CSV if form == "csv" else JSON
    for name, lines in files.items():
        header = ["k,v"] if form == "csv" else []
        (folder / name).write_text("\n".join([*header, *lines, ""]), encoding="utf-8")
    return files


@pytest.mark.parametrize("form", ["csv", "json"])
def test_records_that_do_not_parse_are_set_aside(
    spark: SparkSession, warehouse: Path, tmp_path: Path, form: Any
) -> None:
    """A record that does not parse is set aside once, with its file, its text and a reason.

    A rule after that is not asked about it; what it sets aside knows the file as well.
    """
    (folder := tmp_path / "in").mkdir()
    files = written(folder, form)
    options: Any = {"header": True} if form == "csv" else {}
    spout = FileSpout(
        f"{folder}/*.{form}", format=form, schema=SCHEMA, bad_rows="set_aside", **options
    )
    topology = Topology("read", bad_rows=AppendTable(warehouse / "bad", "transactional"))
    rows = topology.stream("s", spout).expect("no minus", "k NOT LIKE '-%'", "set_aside")
    rows.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    report = run_in_memory(topology, spark)
    found = rows_of(warehouse / "rows", "k", "v", key=str)
    assert found == sorted(GOOD, key=str)
    expected = sorted(
        (txid, "parses" if line in BAD else "no minus", name, NO_MINUS.get(line, line))
        for txid, (name, lines) in enumerate(files.items(), 1)
        for line in lines
        if line in BAD or line in NO_MINUS
    )
    aside = rows_of(warehouse / "bad", "txid", "rule", "position", "row", "reason")
    named = [(t, rule, Path(at).name.replace("%20", " "), row) for t, rule, at, row, _ in aside]
    assert sorted(named) == expected
    reasons = {(row, reason) for _, rule, _, row, reason in aside if rule == "parses"}
    wrong = "a,x" if form == "csv" else '{"k":"a","v":"x"}'
    assert (wrong, f"not {form} with the columns of the schema; no value for: v") in reasons
    more = "not csv with the columns of the schema; all have a value, so there is something beside"
    assert (form == "csv") == (("a,1,2", f"{more} them") in reasons)
    assert report.violations == {"s": {"parses": 4, "no minus": 1}}


def test_records_that_do_not_parse_are_dropped_or_fail(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """A run that failed goes on when they are dropped; the schema is inferred without its mark."""
    (folder := tmp_path / "in").mkdir()
    lines = [json.dumps({"k": "a", "v": 1}), "word", json.dumps({"k": "b", "v": -2})]
    (folder / "1.json").write_text("\n".join(lines))
    nodes = MemoryNodes()

    def run(**given: Any) -> Any:
        spout = FileSpout(f"{folder}/*.json", format="json", **given)
        topology = Topology("read")
        topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows"))
        return run_in_memory(topology, spark, nodes)

    with pytest.raises(Exception, match=r"1.json: word \(not json with the columns"):
        run(schema=SCHEMA)
    assert run(bad_rows="drop", schema=SCHEMA).violations == {"s": {"parses": 1}}
    assert rows_of(warehouse / "rows", "k", "v") == [("a", 1), ("b", -2)]
    spout = FileSpout(f"{folder}/*.json", format="json", bad_rows="drop")
    assert spout.open(spark, None).fieldNames() == ["k", "v", "txn_text", "txn_file", "txn_reason"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bad_rows": "skip"}, "bad_rows='skip' is none of 'fail', 'drop' and 'set_aside'"),
        ({"bad_rows": "drop", "Mode": "PERMISSIVE"}, "both bad_rows='drop' and Mode="),
    ],
)
def test_what_contradicts_bad_rows_is_refused(given: Any, said: str) -> None:
    """An unknown fate, a format without parsing, and Spark's own options for the same."""
    with pytest.raises(TopologyError) as caught:
        FileSpout("in/*.csv", **{"format": "csv", **given})
    assert said in str(caught.value)


def test_a_spout_that_sets_records_aside_needs_a_place_for_them() -> None:
    """The topology says where they go; the name of the stream is not taken by the refusal."""
    spout = FileSpout("in/*.csv", format="csv", schema=SCHEMA, bad_rows="set_aside")
    topology = Topology("read")
    with pytest.raises(TopologyError, match="Rule 'parses' of stream 's' sets rows aside, but"):
        topology.stream("s", spout)
    assert topology.sources == ()


NOT_ONE = "it is not one JSON object with nothing behind it"
TEXTS: list[tuple[str, list[tuple[str | None, int | None]] | str]] = [
    ('{"k":"a","v":1}{"k":"b","v":2}', NOT_ONE),
    ('{"k":"a"}x', NOT_ONE),
    ('{"k":"a"} {"k":"cut', NOT_ONE),
    ('{"k":"a"}}', NOT_ONE),
    ('{"k":"a"},"x":{}', NOT_ONE),
    ('{"k":"a"},{"k":"b"}', NOT_ONE),
    ('{"k":"a"}],[{"k":"b"}', NOT_ONE),
    ('{"k":"a"}},"q":{"z":1', NOT_ONE),
    ("null", NOT_ONE),
    ("7", NOT_ONE),
    ('{"k":"a\0"}', NOT_ONE),
    ('{"k":' + "[" * 1100 + "]" * 1100 + "}", NOT_ONE),
    ('{"k":"a","v":99999999999}', "no value for: v"),
    ('{"v":"x"}', "no value for: v"),
    ('[{"k":"a"},{"v":"x"}]', "it is an array, and not every element is an object that fits"),
    ('[{"k":"a"},null]', "it is an array, and not every element is an object that fits"),
    ('[{"k":"a"}][{"k":"b"}]', "it is an array, and not every element is an object that fits"),
    ('[{"k":"a"},{"k":"b"}]', [("a", None), ("b", None)]),
    ("[]", []),
    ('{"d":"20240102"}', "no value for: d"),
    ("", []),
    (" \t", []),
    ("\ufeff{'k':'a','v':1,'v':2} ", [("a", 2)]),
    ('{"x":{"k":1}}', [(None, None)]),
]
"""Texts, and their rows or what is wrong with them."""


def first_batch(spark: SparkSession, spout: FileSpout) -> DataFrame:
    """What a spout emits first."""
    spout.open(spark, None)
    planned = spout.initialize_transaction(TransactionAttempt(1), None)
    assert planned is not None
    return spout.emit_batch(spark, TransactionAttempt(1), planned)


def emitted(spark: SparkSession, spout: FileSpout) -> list[Any]:
    """All that the first batch of a spout holds, whose texts are UTF-8."""
    batch = first_batch(spark, spout)
    for name, kind in batch.dtypes:
        assert kind != "string" or batch.where(~is_utf8(name)).isEmpty()
    return batch.collect()


@pytest.mark.parametrize("whole", [False, True])
def test_every_byte_of_a_json_file_belongs_to_a_record(
    spark: SparkSession, tmp_path: Path, whole: bool
) -> None:
    """What is not one object, or an array of objects that all fit, is one bad record."""
    for number, (text, _) in enumerate(TEXTS):
        (tmp_path / f"{number:02}.json").write_text(text + "\n", encoding="utf-8")
    spout = FileSpout(
        f"{tmp_path}/*.json",
        format="json",
        schema=f"{SCHEMA}, d date",
        bad_rows="set_aside",
        files_per_batch=len(TEXTS),
        multiLine=whole,
    )
    rows = emitted(spark, spout)
    for number, (text, expected) in enumerate(TEXTS):
        here = [row for row in rows if row.txn_file.endswith(f"/{number:02}.json")]
        if isinstance(expected, str):
            (bad,) = here
            assert bad.txn_text.rstrip("\n") == text
            assert bad.txn_reason == f"not json with the columns of the schema; {expected}"
        else:
            assert [(row.k, row.v) for row in here] == expected, text
            assert all(row.txn_text is None and row.txn_reason is None for row in here)


@pytest.mark.parametrize(
    ("written_as", "options"),
    [
        ("utf-8", {}),
        ("utf-8-sig", {}),
        ("latin-1", {"encoding": "ISO-8859-1"}),
        ("utf-16-le", {"encoding": "UTF-16LE"}),
        ("utf-16", {"multiLine": True}),
        ("utf-16-be", {"multiLine": True}),
        ("utf-32", {"multiLine": True}),
    ],
)
def test_json_in_other_encodings(
    spark: SparkSession, tmp_path: Path, written_as: str, options: Any
) -> None:
    """As given; a whole file says by its first bytes which Unicode it is."""
    lines = ['{"k":"ü","v":1}', '{"k":"b","v":2}']
    text = "[" + ",".join(lines) + "]" if "multiLine" in options else "\r\n".join(lines)
    (tmp_path / "1.json").write_bytes(text.encode(written_as))
    rows = emitted(spark, FileSpout(f"{tmp_path}/*.json", format="json", schema=SCHEMA, **options))
    assert [(row.k, row.v) for row in rows] == [("ü", 1), ("b", 2)]


def test_numbers_that_are_none_are_values_of_json_unless_they_are_not_allowed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Quoted or not; with allowNonNumericNumbers=False such a record does not parse."""
    (tmp_path / "1.json").write_text('{"d": NaN}\n{"d": "NaN"}\n{"d": -Infinity}\n{"d": 1.5}\n')

    def read(**options: Any) -> list[Any]:
        spout = FileSpout(
            f"{tmp_path}/*.json", format="json", schema="d double", bad_rows="drop", **options
        )
        return [None if row.txn_text else str(row.d) for row in emitted(spark, spout)]

    assert read() == ["nan", "nan", "-inf", "1.5"]
    assert read(allowNonNumericNumbers=False) == [None, None, None, "1.5"]


def test_a_json_record_that_is_not_utf8_does_not_parse(spark: SparkSession, tmp_path: Path) -> None:
    """What is set aside of it is UTF-8, so that other readers take the table."""
    (tmp_path / "1.json").write_bytes(b'{"k":"a\xff"}\n{"k":"b"}\n')
    good, bad = sorted(
        emitted(
            spark,
            FileSpout(f"{tmp_path}/*.json", format="json", schema=SCHEMA, bad_rows="set_aside"),
        ),
        key=lambda row: row.txn_text or "",
    )
    assert (good.k, bad.txn_text) == ("b", '{"k":"a\ufffd"}')
    assert bad.txn_reason.endswith("not UTF-8")


def test_json_as_options_of_the_reader_have_it(spark: SparkSession, tmp_path: Path) -> None:
    """Compressed files, other ends of lines, folders as columns, a column for corrupt records."""
    lines = '{"k":"a","v":1};{"k":"b"}{;'
    (tmp_path / "day=07").mkdir()
    (tmp_path / "day=07" / "1.json.gz").write_bytes(gzip.compress(lines.encode()))
    options: dict[str, Any] = {
        "lineSep": ";",
        "basePath": str(tmp_path),
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "Broken",
    }
    given = f"{SCHEMA}, Broken string, day string"
    spout = FileSpout(f"{tmp_path}/*/*.json.gz", format="json", schema=given, **options)
    assert emitted(spark, spout) == [("a", 1, None, "07"), (None, None, '{"k":"b"}{', "07")]
    options["mode"] = "DROPMALFORMED"
    spout = FileSpout(f"{tmp_path}/*/*.json.gz", format="json", schema=given, **options)
    assert emitted(spark, spout) == [("a", 1, None, "07")]


def test_a_json_record_that_does_not_parse_fails_its_batch(
    spark: SparkSession, tmp_path: Path, warehouse: Path
) -> None:
    """The error names the spout, the file and the record, even if its bad column is not used."""
    (tmp_path / "1.json").write_text('{"k":"a","v":1}\n{"k":"' + "b" * 300 + '","v":"x"}\n')
    topology = Topology("t")
    stream = topology.stream("s", FileSpout(f"{tmp_path}/*.json", format="json", schema=SCHEMA))
    stream.transform(lambda df: df.select("k")).partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(Exception, match="TXN-508") as caught:
        run_in_memory(topology, spark, MemoryNodes())
    told = str(caught.value)
    assert "FileSpout" in told
    assert "/1.json" in told
    assert (
        '{"k":"' + "b" * 194 + " (not json with the columns of the schema; no value for: v)" in told
    )


@pytest.mark.parametrize("used", [["k"], []])
def test_columns_that_are_not_used_are_read_all_the_same(
    spark: SparkSession, tmp_path: Path, used: list[str]
) -> None:
    """A record is as bad as it is whatever becomes of it."""
    (tmp_path / "1.json").write_text('{"k":"a","v":1}\n{"k":"b","v":"x"}\n')
    spout = FileSpout(f"{tmp_path}/*.json", format="json", schema=SCHEMA)
    rows = first_batch(spark, spout).select(*used)
    with pytest.raises(Exception, match="no value for: v"):
        rows.write.format("noop").mode("overwrite").save() if used else rows.count()


def test_lines_of_text_are_utf8(spark: SparkSession, tmp_path: Path) -> None:
    """A line of other bytes fails the batch, or is set aside; with its encoding it is read."""
    (tmp_path / "1.txt").write_bytes(b"caf\xe9\nok\n")

    def read(**options: Any) -> list[Any]:
        return emitted(spark, FileSpout(f"{tmp_path}/*.txt", format="text", **options))

    with pytest.raises(Exception, match=r"not UTF-8, at .*1\.txt: caf\ufffd .*give the spout enc"):
        read()
    bad, good = read(bad_rows="set_aside")
    assert (bad.txn_text, good.txn_text, good.value) == ("caf\ufffd", None, "ok")
    assert bad.txn_reason.startswith("not UTF-8")
    assert bad.txn_file.endswith("/1.txt")
    assert [row.value for row in read(encoding="ISO-8859-1")] == ["caf\xe9", "ok"]


def test_every_line_of_text_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    """Empty lines, too, whatever ends them; only the mark of a whole file's encoding is none."""
    (tmp_path / "1.txt").write_bytes("\ufeffa\n\n\ufeffb\r\n \rc".encode())
    rows = emitted(spark, FileSpout(f"{tmp_path}/*.txt", format="text"))
    assert [row.value for row in rows] == ["a", "", "\ufeffb", " ", "c"]
    (tmp_path / "1.txt").write_bytes("\ufeffa\nb\n".encode("utf-16-le"))
    wide = FileSpout(f"{tmp_path}/*.txt", format="text", encoding="UTF-16LE")
    assert [row.value for row in emitted(spark, wide)] == ["a", "b"]
    for form in ("text", "json"):
        with pytest.raises(TopologyError, match="Say encoding='UTF-16LE' or 'UTF-16BE'"):
            FileSpout(f"{tmp_path}/*.txt", format=form, encoding="utf-16")
    with pytest.raises(TopologyError, match="as CP1252, only as ISO-8859-1, "):
        FileSpout(f"{tmp_path}/*.txt", format="text", encoding="cp1252")


def test_rows_that_a_rule_sets_aside_are_utf8(
    spark: SparkSession, tmp_path: Path, warehouse: Path
) -> None:
    """Whatever a transform makes of bytes, other readers take the table of bad rows."""
    (tmp_path / "1.txt").write_text("a\n")
    topology = Topology("t", bad_rows=AppendTable(warehouse / "bad"))
    stream = topology.stream("s", FileSpout(f"{tmp_path}/*.txt", format="text"))
    strange = stream.transform(lambda df: df.selectExpr("cast(unhex('61FF') AS string) AS value"))
    kept = strange.expect("never", "value IS NULL", "set_aside")
    kept.partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(topology, spark, MemoryNodes())
    (bad,) = DeltaTable(warehouse / "bad").to_pyarrow_table().to_pylist()
    assert bad["row"] == '{"value":"a\ufffd"}'
