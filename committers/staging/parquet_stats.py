"""Delta's per-file statistics out of a Parquet footer.

Readers skip files by these numbers, so a wrong one loses rows silently. Left out wherever there
is doubt: floating point (NaN and -0.0), decimals, timestamps (rounding, time zones), binary,
nested columns. Source: Delta's PROTOCOL.md, "Per-file Statistics".
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
"""No character sorts behind it."""


def delta_stats(metadata: parquet.FileMetaData) -> str:
    """numRecords, nullCount, minValues and maxValues as JSON, of top-level columns."""
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
    # Not escaped: delta-rs takes the two escaped halves of U+20000 for another character.
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
    """The least and greatest value over all row groups; None when one of them is not certain."""
    found: list[tuple[Any, Any]] = []
    for chunk in chunks:
        statistics = chunk.statistics
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return None
        try:
            pair = _certain(statistics.min), _certain(statistics.max)
        except (OverflowError, ValueError):  # a date that Python has not
            return None
        if None in pair:
            return None
        found.append(pair)
    if not found:
        return None
    low, high = min(pair[0] for pair in found), max(pair[1] for pair in found)
    if isinstance(low, dt.date):
        return low.isoformat(), high.isoformat()
    return (low, high) if isinstance(low, int) else _shortened(low, high)


def _shortened(low: str, high: str) -> tuple[str, str] | None:
    """Bounds that are no longer than they need be: what they stand for is still within them."""
    if len(high) > MAX_STRING:
        if high[MAX_STRING] == _GREATEST:
            return None
        high = high[:MAX_STRING] + _GREATEST
    return low[:MAX_STRING], high


def _certain(value: Any) -> Any | None:
    """The value when Delta's JSON holds it exactly, else None. Exact types: bool is an int."""
    return value if type(value) in (int, dt.date, str) else None
