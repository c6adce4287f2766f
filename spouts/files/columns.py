"""Read the columns of a file from its header, first record or footer, without Spark.

Reads only a few bytes, so the answer may be unknown.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from spouts.files.folder.listing import PACKED
from spouts.files.source_files import SourceFiles
from spouts.records.csv_dialect import Dialect
from spouts.records.options import lowered

__all__ = ["OVER_LINES", "beginning", "columns_of", "first_object", "goes_over_lines", "header_of"]

OVER_LINES = (
    "begins with an object or array that goes over several lines, and each line is read as a "
    "record. Say multiLine=True."
)
_BEGINNING = 64 * 1024
_LONGEST_HEADER = 16 * 1024
"""Characters of the beginning, if each has four bytes."""
_FOOTER = 1024 * 1024


def columns_of(files: SourceFiles, name: str) -> Mapping[str, Any] | None:
    """Return column -> its type in a Parquet file; None: unknown."""
    import pyarrow as pa
    from pyarrow import parquet

    end = files.listing.tail(name, _FOOTER)
    try:
        schema = parquet.read_schema(pa.BufferReader(end or b""))
    except (pa.ArrowException, OSError):
        return None
    return {field.name: field.type for field in schema}


def header_of(files: SourceFiles, name: str) -> list[str]:
    """Return the names in a CSV file's first line; empty: unknown."""
    dialect = Dialect.of(files.options)
    lines = beginning(files, name).replace("\r", "\n").split("\n")
    if len(lines) == 1 and len(lines[0]) >= _LONGEST_HEADER:
        return []
    comment = dialect.comment
    lines = [one for one in lines if one.strip() and not (comment and one.startswith(comment))]
    return dialect.fields(lines[0]) if lines else []


def goes_over_lines(files: SourceFiles, text: str) -> bool:
    """Return True if lines are JSON records, and the first value of a file has several lines."""
    if files.form != "json" or files.are("multiline") or "linesep" in lowered(files.options):
        return False
    text = text.strip()
    line = text.partition("\n")[0].rstrip()
    second = len(text) - len(text[len(line) :].lstrip())
    # The first line begins a value that goes on in the second line.
    return bool(line) and _reach(line) == len(line) < second < _reach(text)


def _reach(text: str) -> int:
    """Return the position at which a text stops being one JSON value."""
    try:
        return json.JSONDecoder().raw_decode(text)[1]
    except json.JSONDecodeError as error:
        return error.pos
    except RecursionError:
        return 0


def beginning(files: SourceFiles, name: str) -> str:
    """Read the first characters of a file; empty if its packing or encoding is unknown."""
    data = files.listing.beginning(name, _BEGINNING) or b""
    try:
        if name.endswith(".gz"):
            data = zlib.decompressobj(wbits=31).decompress(data, _BEGINNING)
        elif name.endswith(PACKED):
            return ""
        text = data.decode(files.encoding or json.detect_encoding(data), "replace")
    except (LookupError, zlib.error):
        return ""
    return text.lstrip("\ufeff")


def first_object(text: str) -> Mapping[str, Any] | None:
    """Return the first object: of a line, of an array, or after lines without an object."""
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        line = text.find("\n", start)
        start = text.find("{", line) if line >= 0 else -1
    return None
