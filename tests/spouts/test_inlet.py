"""A FileSpout's inlet: corrected records as a further file that it reads once."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from spouts._schemas import as_struct
from spouts.files import FileSpout
from txn.attempts import TransactionAttempt
from txn.dataflow.expectations import Expectation, Judged
from txn.dataflow.graph import Source
from txn.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = {"i": "integer", "s": "string", "t": "string"}
EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
POSITION = {
    "read_schema": json.dumps({"fields": [{"name": n, "type": t} for n, t in TYPES.items()]})
}
VALUES = [
    *(
        "a",
        "a,b",
        'say "x"',
        "back\\slash",
        "end\\",
        '\\"',
        '"',
        " lead",
        "trail ",
        "\\\\",
        "a\\,b",
    ),
    *('x"y\\"z', "ü", "#c", "\t", "--", None, 'a\\"', "NULL", "\\n", "'", ",", ";", "|a|"),
]
"""What CSV has trouble with. An empty string is none of them: Spark reads it as NULL."""


def spout(pattern: Path | str, **options: Any) -> FileSpout:
    """One of CSV with a header, unless told otherwise."""
    given = {"format": "csv", "schema": "i int, s string, t string", "header": True, **options}
    if given["format"] == "json":
        del given["header"]
    return FileSpout(str(pattern), **given)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sep": ";", "quote": "'"},
        {"Delimiter": "||"},
        {"sep": "\\t"},
        {"escape": '"'},
        {"nullValue": "NA", "encoding": "ISO-8859-1"},
        {"quote": "|", "escape": "|", "comment": "#"},
        {"escape": '"', "sep": "\t", "header": False},
        {"escape": '"', "nullValue": "#,", "comment": "#", "header": False},
        {"quote": "'", "escape": "!", "ignoreLeadingWhiteSpace": True, "multiLine": True},
        {"lineSep": ";"},
        {"ignoreTrailingWhiteSpace": True, "escape": '"', "nullValue": "-"},
        {"format": "json", "header": False, "encoding": "UTF-16LE", "lineSep": "\n"},
    ],
    ids=str,
)
def test_rows_are_written_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Every value comes back as it was, under the spout's own options."""
    rows = [(i, s, t) for i, s in enumerate(VALUES) for t in ("z", s)]
    source = spout(tmp_path / "*", **options)
    texts = [json.dumps(dict(zip("ist", row, strict=True))) for row in rows]
    content = source.inlet().content([], texts, POSITION)
    source.inlet().check(content, POSITION)
    (tmp_path / "file").write_bytes(content)
    source.open(spark, None)
    planned = source.initialize_transaction(TransactionAttempt(1), None)
    assert planned is not None
    read = source.emit_batch(spark, TransactionAttempt(1), planned).collect()
    assert sorted(map(str, map(tuple, read))) == sorted(map(str, rows))


ALL_TYPES = {
    "boolean": ["true", "false"],
    "tinyint": ["-128"],
    "bigint": ["9223372036854775807"],
    "float": ["1.1", "NaN", "-Inf"],
    "double": ["4.9E-324", "Inf"],
    "decimal(38,18)": ["0.0000001", "-12345678901234567890.123456789012345678"],
    "date": ["1582-10-04", "0001-01-01", "-0044-03-15", "+12345-01-01"],
    "timestamp": [
        *("1890-07-07T07:07:07.777777Z", "0001-01-01T00:00:00Z", "-0044-03-15T12:00:00.5Z"),
        *("1930-01-01T00:00:00.000001Z", "2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"),
    ],
    "timestamp_ntz": ["1890-07-07T07:07:07.777777"],
    "string": ['say "x"', "end\\", "\\", 'a\\"'],
    "binary": ["plain", "ü日本", " x\\"],
    "interval year to month": ["INTERVAL '1-2' YEAR TO MONTH"],
    "interval day to second": ["INTERVAL '1 02:03:04.5' DAY TO SECOND"],
}
"""Type -> values as both CSV and JSON have them."""
NUMBERS = ("boolean", "tinyint", "bigint", "float", "double", "decimal(38,18)")
NESTED = "struct<b: binary, t: array<timestamp>, m: map<string, decimal(9,2)>>"


def original(form: str) -> str:
    """Each value in a record of its own, as Python's own writers have it."""
    records = [
        [value if here == there else None for here in ALL_TYPES]
        for there, values in ALL_TYPES.items()
        for value in values
    ]
    if form == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(records)
        return out.getvalue()
    lines = []
    inner = {"b": "YQ==", "t": ["1930-01-01T00:00:00.000001Z"], "m": {"x": 1.25}}
    for record in records:
        values = dict(zip(map(str, range(len(record))), record, strict=True))
        ((number, value),) = [(n, v) for n, v in values.items() if v is not None]
        type_ = [*ALL_TYPES][int(number)]
        if type_ == "binary":
            values[number] = base64.b64encode(value.encode()).decode()
        elif value.endswith("Inf"):
            values[number] = f"{value}inity"
        line = json.dumps({**values, "n": inner})
        if type_ in NUMBERS and value[-3:] not in ("NaN", "Inf"):
            line = line.replace(f'"{value}"', value)
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Amsterdam", "Asia/Kathmandu", "America/New_York"])
def test_a_row_comes_back_with_every_value(
    spark: SparkSession, tmp_path: Path, form: str, zone: str
) -> None:
    """A row that broke a rule is set aside, exported and read again as it was in the source.

    In every session zone, with every type that the format has, at its limits.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    columns = [f"`{n}` {type_}" for n, type_ in enumerate(ALL_TYPES)]
    schema = ", ".join([*columns, f"n {NESTED}"] if form == "json" else columns)
    options = {"escape": '"'} if form == "csv" else {}
    (tmp_path / "a.txt").write_text(original(form))
    source = spout(tmp_path / "*", format=form, schema=schema, header=False, **options)
    source.open(session, None)
    planned = source.initialize_transaction(TransactionAttempt(1), None)
    assert planned is not None
    first = source.emit_batch(session, TransactionAttempt(1), planned)
    rule = Expectation(Source("s", source), "no", "false", "set_aside")
    rows = [row.row for row in Judged.of(first, [rule]).set_aside([rule], None).collect()]
    content = source.inlet().content([], rows, json.loads(planned.model_dump_json()))
    (tmp_path / "b.txt").write_bytes(content)
    planned = source.initialize_transaction(TransactionAttempt(2), planned)
    assert planned is not None
    second = source.emit_batch(session, TransactionAttempt(2), planned)
    # As bits: NaN is not NaN, and timestamps of Python have no years before 1.
    exact = [sf.to_json(sf.struct(sf.col(f"`{c}`")), EXACT) for c in first.columns]
    found = [Counter(map(tuple, frame.select(*exact).collect())) for frame in (first, second)]
    assert found[0] == found[1]
    assert sum(found[0].values()) == sum(map(len, ALL_TYPES.values()))
    moments = [frame.select(sf.unix_micros(frame["7"])) for frame in (first, second)]
    assert sorted(map(str, moments[0].collect())) == sorted(map(str, moments[1].collect()))


@pytest.mark.usefixtures("spark")  # DDL is parsed by a running session
@pytest.mark.parametrize(
    ("form", "schema", "options", "named"),
    [
        ("csv", "a date", {"dateFormat": "yyyy-dd-MM"}, "dateformat"),
        ("csv", "a decimal(9,2)", {"locale": "de-DE"}, "locale"),
        ("csv", "a timestamp", {"TimestampFormat": "dd.MM.yyyy"}, "timestampformat"),
        (
            "json",
            "a array<timestamp_ntz>",
            {"timestampNTZFormat": "dd.MM.yy"},
            "timestampntzformat",
        ),
        ("json", "a struct<b: map<string, date>>", {"dateFormat": "dd.MM.yyyy"}, "dateformat"),
        ("csv", "a double", {"nanValue": "x", "positiveInf": "y"}, "nanvalue, positiveinf"),
        ("csv", "a string", {"emptyValue": "x"}, "emptyvalue"),
        ("csv", "a string", {"pathGlobFilter": "*.txt"}, "pathglobfilter"),
        ("csv", "a string", {"extra_options": {"of.a.codec": 1, "mine": 2}}, "mine"),
        ("csv", "a string, _corrupt_record string", {}, "a column _corrupt_record"),
        ("csv", "a int", {"locale": "de-DE", "dateFormat": "dd.MM.yyyy", "nanValue": "x"}, None),
        ("json", "a decimal(9,2), d date", {"locale": "de-DE", "allowComments": True}, None),
    ],
    ids=str,
)
def test_options_that_shape_what_is_read_are_not_forgotten(
    form: str, schema: str, options: dict[str, Any], named: str | None
) -> None:
    """What cannot be written as it is read is refused by name, if the records have that type."""
    source = spout("in/*", format=form, schema=schema, header=False, **options)
    fields = {"read_schema": as_struct(schema, "a test").json()}
    if named is None:
        assert source.inlet().content([], ['{"a":1}'], fields)
        return
    with pytest.raises(UserError, match=f"reads {form} with {named}, which `txn rows export`"):
        source.inlet().content([], ['{"a":1}'], fields)
    if "path" in named:
        with pytest.raises(UserError, match=f"reads with {named}, which may leave out the file"):
            source.inlet().check(b"a\n", fields)
    else:
        assert source.inlet().content(["raw"], [], fields) == b"raw\n"
        source.inlet().check(b"a\n", fields)


@pytest.mark.usefixtures("spark")  # DDL is parsed by a running session
@pytest.mark.parametrize(
    ("options", "row", "said"),
    [
        ({"escape": ""}, '{"a":"x,\\"y"}', "cannot have the value 'x,\"y' with its options"),
        ({"quote": "", "nullValue": "-"}, '{"a":""}', "cannot have the value ''"),
        ({"multiLine": True}, '{"a":"x\\ry"}', r"cannot have the value 'x\\ry'"),
        ({}, '{"a":"x\\u0000y"}', "cannot have the value"),
        ({"encoding": "US-ASCII"}, '{"a":"ü"}', "US-ASCII .*ü|US-ASCII .*xfc"),
        ({"encoding": "x-Mac"}, '{"a":"u"}', "x-Mac .*unknown encoding"),
        ({"sep": "\\u0000"}, '{"a":"u"}', "csv with sep"),
        ({"format": "json", "lineSep": "|"}, '{"a":"|"}', "which is in a record"),
    ],
)
def test_values_that_cannot_be_written_are_refused(
    options: dict[str, Any], row: str, said: str
) -> None:
    """A value that no file with the spout's options can have is not written as another one."""
    inlet = spout("in/*", **{"schema": "a string", "header": False, **options}).inlet()
    fields = {"read_schema": as_struct("a string", "a test").json()}
    with pytest.raises(UserError, match=said):
        inlet.content([], [row], fields)


def test_one_column_and_plain_text(spark: SparkSession, tmp_path: Path) -> None:
    """NULL in the only column is a record all the same, numbers keep their digits, text is text."""
    one = spout(tmp_path / "*", schema="i decimal(30,3)", header=False)
    rows = ['{"i":null}', '{"i":123456789012345678901234567.125}']
    fields = {"fields": [{"name": "i", "type": "decimal(30,3)"}]}
    content = one.inlet().content(["7"], rows, {"read_schema": json.dumps(fields)})
    (tmp_path / "file").write_bytes(content)
    assert content == b'7\n""\n123456789012345678901234567.125\n'
    frame = spark.read.format("csv").schema("i decimal(30,3)").load(str(tmp_path))
    assert sorted(str(row[0]) for row in frame.collect()) == [
        "123456789012345678901234567.125",
        "7.000",
        "None",
    ]
    plain = FileSpout(str(tmp_path / "*"), format="text").inlet()
    assert plain.content([], ['{"value":"a,b"}', '{"value":""}'], None) == b"a,b\n\n"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("in/*.csv", "in/txn-rows-s-1.csv"),
        ("in/**/*.csv", "in/txn-rows-s-1.csv"),
        ("in/part-*.csv", "in/part-txn-rows-s-1.csv"),
        ("in/*/*-*.csv", "in/txn-rows/txn-rows-s-1-.csv"),
        ("in/*/data.csv", "in/txn-rows-s-1/data.csv"),
        ("in/*", "in/txn-rows-s-1"),
        ("in/data.csv", None),
        ("in/????.csv", None),
        ("in/*.[ct]sv", None),
        ("in/_*.csv", None),
    ],
)
def test_the_new_file_has_a_name_that_the_pattern_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, name: str | None
) -> None:
    """The last star takes the name; a pattern that cannot match a new one is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for spelled in (pattern, str(tmp_path / pattern)):
        source = spout(spelled)
        inlet = source.inlet()
        if name is None:
            with pytest.raises(UserError, match="matches no file like 'txn-rows-s-1'"):
                inlet.name("txn-rows-s-1")
            continue
        made = inlet.name("txn-rows-s-1")
        assert inlet.place(made) == str(tmp_path / name)
        assert inlet.takes(str(tmp_path / name))
        assert not inlet.takes(str(tmp_path / "elsewhere/x.csv"))
        inlet.stage(made, b"i,s,t\n")
        assert source._listing.names() == ([] if spelled == pattern else [made])
        inlet.put(made, hashlib.sha256(b"i,s,t\n").hexdigest())
        assert source._listing.names() == [made]


def test_a_file_appears_whole_and_replaces_none(tmp_path: Path) -> None:
    """Put twice it is there once; a file that somebody else put there is left as it is."""
    inlet = spout(tmp_path / "*.csv").inlet()
    name = inlet.name("new")
    digest = hashlib.sha256(b"mine").hexdigest()
    for _ in range(2):
        inlet.stage(name, b"mine")
        inlet.put(name, digest)
        inlet.put(name, digest)
        assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]
    (tmp_path / "new.csv").write_bytes(b"theirs")
    inlet.stage(name, b"mine")
    with pytest.raises(UserError, match=r"There is a file '.*new\.csv' with other content"):
        inlet.put(name, digest)
    assert (tmp_path / "new.csv").read_bytes() == b"theirs"
    with pytest.raises(UserError, match=r"cannot be written: (Not a directory|File exists)"):
        inlet.stage(f"{name}/x.csv", b"mine")
    with pytest.raises(UserError, match="cannot be written: No such file"):
        inlet.put(str(tmp_path / "other.csv"), digest)


def test_other_users_can_read_the_file_and_its_name_may_be_long(tmp_path: Path) -> None:
    """The topology may run as another user than `txn rows replay`, whose umask is its own."""
    inlet = spout(tmp_path / "*.csv").inlet()
    name = inlet.name("x" * 240)
    before = os.umask(0o077)
    try:
        inlet.stage(name, b"mine")
    finally:
        os.umask(before)
    inlet.put(name, hashlib.sha256(b"mine").hexdigest())
    assert Path(name).stat().st_mode & 0o777 == 0o644
