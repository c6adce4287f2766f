"""The oracle of a whole case: what every file, or every value, has to become."""

from __future__ import annotations

import io
import re
from typing import Any

import pyarrow.parquet as pq

from tests.differential.sources.declaration import Case, File
from tests.differential.sources.read_csv import (
    Dialect,
    csv_records,
    csv_value,
    header_of,
    is_unclear,
)
from tests.differential.sources.read_json import json_lines, json_value, json_whole, keys_of
from tests.differential.sources.records import (
    BAD,
    Bad,
    Expected,
    Field,
    FileExpected,
    Good,
    Outcome,
    row_of,
)

__all__ = ["expected_of", "expected_values"]

Columns = tuple[tuple[str, str], ...]
_LINE_END = re.compile(r"\r\n|\n|\r")


def dialect_of(case: Case) -> Dialect:
    """The reader's options for CSV."""
    return Dialect(
        sep=case.option("sep", ","),
        escape=case.option("escape", '"'),
        null=case.option("nullValue"),
        lines=not case.is_on("multiLine"),
    )


def text_of(case: Case, data: bytes) -> str:
    """The text of a file, without its byte order mark."""
    encoding = case.option("encoding", "utf-8")
    if case.form == "json" and case.is_on("multiLine") and data.startswith(b"\xff\xfe"):
        encoding = "utf-16"  # JSON tells its encoding by its first bytes (RFC 4627)
    return data.removeprefix(b"\xef\xbb\xbf").decode(encoding, "replace")


def expected_of(case: Case, file: File, columns: Columns) -> FileExpected:
    """What a file has to become, read with these columns."""
    refusal = _unreadable(file)
    if refusal:
        return FileExpected((), (refusal,), must=True)
    if case.form == "parquet" and not file.data:
        return FileExpected((), ("an empty file",))
    if case.form == "parquet":
        return _parquet(file, columns)
    text = text_of(case, file.data)
    told = "bytes that are not UTF-8" if "\ufffd" in text else ""
    if case.form == "text":
        lines = _LINE_END.split(text)
        lines = lines[:-1] if not lines[-1] else lines
        return FileExpected(tuple(row_of([_line(line)], line) for line in lines))
    if case.form == "json":
        whole = case.is_on("multiLine")
        read = json_whole if whole else json_lines
        keys = keys_of(text, lines=not whole)
        known = {name for name, _ in columns}
        if any(keys) and not any(one & known for one in keys):
            told = told or "no key is a column"
        refusals = ("UTF-16 or zeros",) if b"\x00" in file.data else ()
        return FileExpected(tuple(read(text, columns)), refusals, told=told)
    return _csv(case, text, columns, told)


def _by_line(text: str) -> Outcome:
    return tuple(Bad(part) for part in _LINE_END.split(text) if part)


def _line(line: str) -> Field:
    return BAD if "\ufffd" in line else Field((line,))


def _csv(case: Case, text: str, columns: Columns, told: str) -> FileExpected:
    dialect = dialect_of(case)
    header = case.is_on("header")
    if header and (names := header_of(text, dialect)) is not None:
        wanted = [name for name, _ in columns]
        if [name.lower() for name in names] != [name.lower() for name in wanted]:
            if "\x00" in text or is_unclear(text, dialect):
                lines = filter(None, _LINE_END.split(text))
                aside = [Expected((_by_line(line), ()), line) for line in lines]
                return FileExpected(tuple(aside), ("NULs",), told=told)
            return FileExpected((), (f"header {names}, not {wanted}",), must=True)
    records = csv_records(text, dialect, columns, header)
    spanning = any("\n" in one.what or "\r" in one.what for one in records)
    unclear = (
        "\x00" in text
        or is_unclear(text, dialect)
        or (spanning and len({*_LINE_END.findall(text)}) > 1)
    )
    if unclear:
        # Nobody can say which of the ends is that of a record; Spark's parser loses NULs.
        records = [Expected((*one.outcomes, _by_line(one.what)), one.what) for one in records]
    refusals = ("lines or NULs",) if unclear or (dialect.lines and spanning) else ()
    return FileExpected(tuple(records), refusals, told=told)


def expected_values(case: Case, columns: Columns) -> list[Expected]:
    """What every record of a topic has to become."""
    expected = []
    for value in case.files[0].values:
        if value is None:
            fields = tuple(Field((None,)) for _ in columns)
            expected.append(Expected(((Good(fields),),), "a tombstone"))
            continue
        text = value.encode("latin-1").decode("utf-8", "replace")
        if case.form == "csv":
            expected.append(csv_value(text, dialect_of(case), columns))
        else:
            expected.append(json_value(text, columns))
    return expected


def _unreadable(file: File) -> str:
    if file.packed == "cut":
        return "a gzip file that ends too early"
    if file.packed and not file.name.endswith((".gz", ".bz2")):
        return "gzip without its suffix"
    return ""


def _parquet(file: File, columns: Columns) -> FileExpected:
    try:
        table = pq.read_table(io.BytesIO(file.data))
    except Exception as error:  # noqa: BLE001 - whatever it is, no reader can read it
        return FileExpected((), (f"pyarrow: {error}",), must=True)
    names = {name.lower(): name for name in table.column_names}
    present = [names.get(name.lower()) for name, _ in columns]
    rows = table.to_pylist()
    records = []
    for place in range(len(rows)):
        fields = [
            _arrow_field(table, name, place, rows[place]) if name else Field((None,))
            for name in present
        ]
        records.append(Expected(((Good(tuple(fields)),),), str(rows[place])[:200]))
    told = "no column of the schema" if rows and not any(present) else ""
    return FileExpected(tuple(records), told=told)


def _arrow_field(table: Any, name: str, place: int, row: dict[str, Any]) -> Field:
    kind = table.schema.field(name).type
    if str(kind).startswith("timestamp"):
        return Field((table.column(name).cast("int64")[place].as_py(),))
    if str(kind).startswith("date32"):
        return Field((table.column(name).cast("int32")[place].as_py(),))
    return Field((_plain(row[name]),))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple(map(_plain, value.values()))
    return value
