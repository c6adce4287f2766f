"""Delta's per-file statistics from a Parquet footer.

Readers skip files by these numbers, so a wrong one loses rows silently. All doubtful ones are left
out: floating point (NaN and -0.0), decimals, timestamps (rounding, time zones), binary, nested
columns. Source: Delta's PROTOCOL.md, "Per-file Statistics".
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import parquet

__all__ = ["MAX_STRING", "delta_stats"]

MAX_STRING = 32
"""Characters of a bound; Delta's own writers truncate here."""
_GREATEST = "\U0010ffff"
"""The character that sorts last."""


def delta_stats(metadata: parquet.FileMetaData) -> str:
    """numRecords, nullCount, minValues and maxValues of top-level columns, as JSON."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if "." in name:  # a field of a nested column
            continue
        chunks = [group.column(index) for group in groups]
        missing = _null_count(chunks)
        if missing is None:
            continue
        nulls[name] = missing
        bounds = _bounds(chunks)
        if bounds is not None:
            minimum[name], maximum[name] = bounds
    stats = {
        "numRecords": metadata.num_rows,
        "minValues": minimum,
        "maxValues": maximum,
        "nullCount": nulls,
    }
    # Not escaped: delta-rs reads the escaped surrogate pair of U+20000 as another character.
    return json.dumps(stats, ensure_ascii=False)


def _null_count(chunks: list[parquet.ColumnChunkMetaData]) -> int | None:
    total = 0
    for chunk in chunks:
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        total += statistics.null_count
    return total


def _bounds(chunks: list[parquet.ColumnChunkMetaData]) -> tuple[Any, Any] | None:
    """The least and greatest value over all row groups; None if one is uncertain."""
    pairs: list[tuple[Any, Any]] = []
    for chunk in chunks:
        statistics = chunk.statistics
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return None
        try:
            pair = _certain(statistics.min), _certain(statistics.max)
        except (OverflowError, ValueError):  # a date out of Python's range
            return None
        if None in pair:
            return None
        pairs.append(pair)
    if not pairs:
        return None
    low, high = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    if isinstance(low, dt.date):
        return low.isoformat(), high.isoformat()
    return (low, high) if isinstance(low, int) else _shortened(low, high)


def _shortened(low: str, high: str) -> tuple[str, str] | None:
    """Shorten the bounds of text, so that all values are still within them."""
    if len(high) > MAX_STRING:
        if high[MAX_STRING] == _GREATEST:
            return None
        high = high[:MAX_STRING] + _GREATEST
    return low[:MAX_STRING], high


def _certain(value: Any) -> Any | None:
    """The value if Delta's JSON holds it exactly, else None. Compares types: bool is an int."""
    return value if type(value) in (int, dt.date, str) else None
