"""The columns that a file says it has: those of its header, first record or footer, without Spark.

A few bytes are read, so the answer may be that nobody knows.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

from spouts._listing import Listing
from spouts._options import encoding_of

__all__ = ["columns_of"]

_BEGINNING = 64 * 1024
_FOOTER = 1024 * 1024
_ZIPPED = (".gz", ".gzip")
_PACKED = (".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".zstd", ".xz")


def columns_of(
    listing: Listing, name: str, form: str, options: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Column -> its value in the first record (JSON) or its type (Parquet); None: nobody knows.

    Args:
        form: its format.
        options: of Spark's reader.

    Raises:
        StorageUnavailableError, StorageRefusedError: the storage does not answer.
    """
    given = {key.lower(): str(value) for key, value in options.items()}
    if form == "parquet":
        return _of_footer(listing.tail(name, _FOOTER))
    if name.endswith(_PACKED) or (form == "csv" and given.get("header", "").lower() != "true"):
        return None
    found = listing.beginning(name, _BEGINNING) or b""
    if name.endswith(_ZIPPED):
        try:
            found = zlib.decompressobj(wbits=31).decompress(found, _BEGINNING)
        except zlib.error:
            return None
    try:
        text = found.decode(encoding_of(options) or json.detect_encoding(found), "replace").lstrip(
            "\ufeff"
        )
    except LookupError:
        return None
    if form == "json":
        return _of_object(text)
    return _of_header(text, given, is_whole=len(found) < _BEGINNING) or None


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


def _of_header(text: str, given: Mapping[str, str], *, is_whole: bool) -> Mapping[str, Any] | None:
    separator = given.get("sep", given.get("delimiter", ",")).replace("\\t", "\t")
    comment, quote = given.get("comment"), given.get("quote", '"')
    if len(separator) != 1 or len(quote) != 1:
        return None
    *lines, last = io.StringIO(text, newline=None).read().split("\n")
    lines += [last] if is_whole else []
    lines = [one for one in lines if one.strip() and not (comment and one.startswith(comment))]
    return dict.fromkeys(next(csv.reader(lines[:1], delimiter=separator, quotechar=quote), ()))
