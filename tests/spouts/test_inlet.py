"""A FileSpout's inlet: corrected records as a further file that it reads once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts.files import FileSpout
from txn.attempts import TransactionAttempt
from txn.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSITION = {"read_schema": json.dumps({"fields": [{"name": name} for name in "ist"]})}
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


def test_one_column_and_plain_text(spark: SparkSession, tmp_path: Path) -> None:
    """NULL in the only column is a record all the same, numbers keep their digits, text is text."""
    one = spout(tmp_path / "*", schema="i decimal(30,3)", header=False)
    rows = ['{"i":null}', '{"i":123456789012345678901234567.125}']
    content = one.inlet().content(["7"], rows, None)
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
