"""JSON as an independent reader reads it: `json.JSONDecoder`, one value a line, nothing behind."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from tests.differential.sources.records import (
    ANY,
    BAD,
    Bad,
    Expected,
    Field,
    Good,
    JsonText,
    Outcome,
    row_of,
)
from tests.differential.sources.texts import (
    decimal_field,
    float_field,
    integer_field,
    read_time,
)
from tests.differential.values import BOUNDS, element_of, fields_of, is_decimal

__all__ = ["json_lines", "json_value", "json_whole", "keys_of"]

BLANK = " \t\r\n"
Columns = tuple[tuple[str, str], ...]


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Constant(str):
    """NaN, Infinity or -Infinity, which JSON does not have and many writers write."""

    __slots__ = ()


_DECODER = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, parse_constant=_Constant, strict=True
)
_FAULT = object()


def _value(text: str) -> Any:
    """The one value that the text is; `_FAULT`: it is none, or more stands behind."""
    inner = text.strip(BLANK)
    try:
        value, end = _DECODER.raw_decode(inner)
    except (ValueError, RecursionError):
        return _FAULT
    return value if end == len(inner) else _FAULT


def json_lines(text: str, columns: Columns) -> list[Expected]:
    """The records of a file with one object a line."""
    lines = re.split(r"\r\n|\n|\r", text)
    return [one for line in lines for one in _line(line, columns)]


def _line(line: str, columns: Columns) -> list[Expected]:
    """A line that is an array is read as a file that is one: its objects are rows, or it is bad."""
    if isinstance(_value(line), list):
        return json_whole(line, columns)
    return [json_value(line, columns)] if line.strip(BLANK) else []


def json_value(line: str, columns: Columns) -> Expected:
    """The record of one line, or of one value of Kafka."""
    value = _value(line)
    bad: Outcome = (Bad(line),)
    if isinstance(value, dict):
        record = _record(value, line, columns)
        if "\ufffd" in line:  # bytes that are not UTF-8 are replaced, or the record is bad
            return Expected((*record.outcomes, bad), line)
        return record
    if "\x00" in line:  # perhaps UTF-16, which Spark's parser tells by its zeros
        return Expected((bad, (Good(tuple(Field((ANY,)) for _ in columns)),)), line)
    if value is _FAULT and re.search(r"'|Inf|INF", line):
        # Spark's parser takes single quotes, and other words for infinity.
        return Expected((bad, (Good(tuple(Field((ANY,)) for _ in columns)),)), line)
    return Expected((bad,), line)


def json_whole(text: str, columns: Columns) -> list[Expected]:
    """The records of a file that is one object, or one array of objects."""
    if not text.strip(BLANK):
        return []
    value = _value(text)
    whole: Outcome = (Bad(text),)
    replaced = "\ufffd" in text  # perhaps bytes that are not UTF-8, so that it may be bad
    if isinstance(value, dict):
        record = _record(value, text, columns)
        return [Expected((*record.outcomes, whole), text) if replaced else record]
    if not isinstance(value, list):
        return [Expected((whole,), text)]
    if not all(isinstance(one, dict) for one in value):
        return [Expected((whole,), text)]
    records = [_record(one, json.dumps(one), columns) for one in value]
    if not replaced and not any(record.may_be_bad for record in records):
        return records
    outcomes: tuple[Outcome, ...] = (whole,)
    if all(record.outcomes for record in records) and not any(
        record.must_be_bad for record in records
    ):
        outcomes += (tuple(record.outcomes[0][0] for record in records),)
    return [Expected(outcomes, text)]


def keys_of(text: str, *, lines: bool) -> list[set[str]]:
    """The keys of every object that is a record."""
    parts = re.split(r"\r\n|\n|\r", text) if lines else [text]
    values = [_value(part) for part in parts]
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return [set(one) for one in flat if isinstance(one, dict)]


def _record(value: dict[str, Any], text: str, columns: Columns) -> Expected:
    return row_of([_read(kind, value.get(name)) for name, kind in columns], text)


def _read(kind: str, value: Any) -> Field:
    if value is None:
        return Field((None,))
    if (element := element_of(kind)) is not None:
        return _array(element, value)
    if (fields := fields_of(kind)) is not None:
        return _struct(fields, value)
    if kind == "string":
        return _string(value)
    if kind in BOUNDS:
        whole = isinstance(value, _Number) and re.fullmatch("-?[0-9]+", value)
        return integer_field(kind, int(value)) if whole else BAD
    if is_decimal(kind):
        if isinstance(value, _Number):
            return decimal_field(kind, value)
        return Field((ANY,), True) if isinstance(value, str) else BAD
    if kind in ("double", "float"):
        return _float(kind, value)
    if kind == "boolean":
        return Field((value,)) if isinstance(value, bool) else BAD
    if isinstance(value, str) and not isinstance(value, _Number | _Constant):
        return read_time(kind, value)
    return Field((ANY,), True) if isinstance(value, _Number) else BAD


def _string(value: Any) -> Field:
    if isinstance(value, _Constant):
        return Field((str(value),), True)
    if isinstance(value, _Number):
        return Field((str(value), JsonText(json.loads(value))))
    if isinstance(value, str):
        lone = re.search("[\ud800-\udfff]", value)
        if lone:
            # Half a character: no text has it, so it is replaced, or the record is bad.
            return Field((value, re.sub("[\ud800-\udfff]", "?", value)), True)
        return Field((value,))
    if isinstance(value, bool):
        return Field((str(value).lower(),))
    return Field((JsonText(json.loads(json.dumps(_plain(value)))),))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return json.loads(value) if isinstance(value, _Number) else value


def _float(kind: str, value: Any) -> Field:
    if isinstance(value, _Constant):
        return Field((float(value),))
    if isinstance(value, _Number):
        return float_field(kind, value)
    if isinstance(value, str):
        words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
        if value in words:
            return Field((words[value],), True)
        return Field((ANY,), True) if value in ("INF", "+INF", "-INF", "Inf", "-Inf") else BAD
    return BAD


def _array(element: str, value: Any) -> Field:
    if not isinstance(value, list):
        return BAD
    parts = [_read(element, one) for one in value]
    if any(not part.values for part in parts):
        return BAD
    return Field((tuple(part.values[0] for part in parts),), any(part.bad for part in parts))


def _struct(fields: dict[str, str], value: Any) -> Field:
    if not isinstance(value, dict):
        return BAD
    parts = [_read(kind, value.get(name)) for name, kind in fields.items()]
    if any(not part.values for part in parts):
        return BAD
    return Field((tuple(part.values[0] for part in parts),), any(part.bad for part in parts))
