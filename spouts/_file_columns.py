"""The columns that a file says it has: those of its header, first record or footer, without Spark.

A few bytes are read, so the answer may be that nobody knows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from spouts._csv import Dialect
from spouts._listing import PACKED
from spouts._source_files import SourceFiles

__all__ = ["columns_of", "header_of"]

_BEGINNING = 64 * 1024
_LONGEST_HEADER = 16 * 1024
"""Characters of the beginning, if each has four bytes."""
_FOOTER = 1024 * 1024


def columns_of(files: SourceFiles, name: str) -> Mapping[str, Any] | None:
    """Column -> its value in the first record (JSON) or its type (Parquet); None: nobody knows.

    Raises:
        StorageUnavailableError, StorageRefusedError: the storage does not answer.
    """
    if files.form == "parquet":
        return _of_footer(files.listing.tail(name, _FOOTER))
    return _of_object(_beginning(files, name))


def header_of(files: SourceFiles, name: str) -> list[str]:
    """The names in the first line of a CSV file; empty: nobody knows. Raises as `columns_of`."""
    dialect = Dialect.of(files.options)
    lines = _beginning(files, name).replace("\r", "\n").split("\n")
    if len(lines) == 1 and len(lines[0]) >= _LONGEST_HEADER:
        return []
    comment = dialect.comment
    lines = [one for one in lines if one.strip() and not (comment and one.startswith(comment))]
    return dialect.fields(lines[0]) if lines else []


def _beginning(files: SourceFiles, name: str) -> str:
    """The first characters of a file; empty if its packing or encoding is not known."""
    found = files.listing.beginning(name, _BEGINNING) or b""
    try:
        if name.endswith(".gz"):
            found = zlib.decompressobj(wbits=31).decompress(found, _BEGINNING)
        elif name.endswith(PACKED):
            return ""
        text = found.decode(files.encoding or json.detect_encoding(found), "replace")
    except (LookupError, zlib.error):
        return ""
    return text.lstrip("\ufeff")


def _of_footer(end: bytes | None) -> Mapping[str, Any] | None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(pa.BufferReader(end or b""))
    except (pa.ArrowException, OSError):
        return None
    return {field.name: field.type for field in schema}


def _of_object(text: str) -> Mapping[str, Any] | None:
    """The first object: of a line, of an array, or behind lines that are none."""
    start = text.find("{")
    while start >= 0:
        try:
            found, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        line = text.find("\n", start)
        start = text.find("{", line) if line >= 0 else -1
    return None
