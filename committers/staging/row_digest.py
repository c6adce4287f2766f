"""A fingerprint of staged rows from their files' Parquet footers, which are read anyway.

Per column: the nulls, the least and the greatest value over all files, hashed with the number of
rows; so it depends neither on the order of the rows nor on their distribution over files. It
detects most replays with other rows, but not all: other values between the same bounds look the
same. A checksum of the rows would detect them, at the price of a pass over the rows.

It leaves out columns that may differ between two identical replays: floating point (sums depend on
the order of addition), nested columns (so do their contents), binary (sketches), and columns for
which some file has no bounds. So only columns in both fingerprints are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import parquet

__all__ = ["Summary", "differing_columns", "row_digest", "summarize"]

Summary = Mapping[str, "tuple[int, Any, Any] | None"]
"""Column -> (nulls, least, greatest) of one file, bounds None without values; None if unknown."""

_DIGEST_BYTES = 4
_COMPARED_TYPES = frozenset(["BOOLEAN", "INT32", "INT64", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"])
_LONGEST = 1024
"""Bytes of a bound; Parquet's writers drop bounds that are too long, file by file."""


def summarize(metadata: parquet.FileMetaData) -> Summary:
    """Nulls and bounds of the comparable columns of one file."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    summary: dict[str, tuple[int, Any, Any] | None] = {}
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if _is_compared(column):
            summary[column.path] = _summary([group.column(index) for group in groups], column)
    return summary


def row_digest(summaries: Iterable[Summary], rows: int) -> str:
    """`column=hash` of every compared column, by name; "" without rows.

    Args:
        summaries: one for each file with at least one row.
        rows: the number of rows of all files together.
    """
    files = list(summaries)
    names = sorted(set().union(*files)) if rows else []
    parts = []
    for name in names:
        merged = _merge(file.get(name) for file in files)
        if merged is not None:
            text = repr((rows, *merged)).encode("utf-8", "surrogateescape")
            parts.append(f"{name}={blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()}")
    return ",".join(parts)


def differing_columns(one: str, other: str) -> list[str]:
    """Columns whose hashes differ, among those in both fingerprints."""
    left, right = _parsed(one), _parsed(other)
    return [name for name, value in left.items() if right.get(name, value) != value]


def _parsed(digest: str) -> dict[str, str]:
    parts = (part.rpartition("=") for part in digest.split(",") if part)
    return {name: value for name, _, value in parts}


def _is_compared(column: parquet.ColumnSchema) -> bool:
    if column.max_repetition_level or "." in column.path or column.max_definition_level > 1:
        return False
    if column.physical_type not in _COMPARED_TYPES:
        return False
    is_bytes = column.physical_type == "BYTE_ARRAY"
    return not is_bytes or column.logical_type.type in ("STRING", "DECIMAL")


def _summary(
    chunks: list[parquet.ColumnChunkMetaData], column: parquet.ColumnSchema
) -> tuple[int, Any, Any] | None:
    nulls, low, high = 0, None, None
    for chunk in chunks:
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        nulls += statistics.null_count
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return None
        first, last = (_plain(v, column) for v in (statistics.min_raw, statistics.max_raw))
        if first is None or last is None:
            return None
        low, high = _least(low, first), _greatest(high, last)
    return nulls, low, high


def _plain(value: Any, column: parquet.ColumnSchema) -> Any:
    """The stored bound in comparable form: numbers as such, text as bytes; None if too long."""
    if not isinstance(value, bytes | str):
        return value
    raw = value.encode() if isinstance(value, str) else value
    if column.logical_type.type == "DECIMAL":
        return int.from_bytes(raw, "big", signed=True)
    return raw if len(raw) <= _LONGEST else None


def _merge(summaries: Iterable[tuple[int, Any, Any] | None]) -> tuple[int, Any, Any] | None:
    nulls, low, high = 0, None, None
    for one in summaries:
        if one is None:
            return None
        nulls, low, high = nulls + one[0], _least(low, one[1]), _greatest(high, one[2])
    return nulls, low, high


def _least(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)


def _greatest(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else max(one, other)
