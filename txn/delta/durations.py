"""Intervals in the format of Delta's table properties."""

from __future__ import annotations

import re

__all__ = ["FILE_RETENTION", "LOG_RETENTION", "duration_secs", "file_retention_secs"]

LOG_RETENTION = "delta.logRetentionDuration"
"""How long commit files are kept."""
FILE_RETENTION = "delta.deletedFileRetentionDuration"
"""How long VACUUM keeps files that no version needs any longer."""

_DAY = 86_400.0
_UNITS = {
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": _DAY,
    "week": 7 * _DAY,
}


def duration_secs(text: str) -> float | None:
    """Seconds of Delta's "interval 2 weeks"; None if it is not an interval."""
    form = re.fullmatch(r"\s*(?:interval\s+)?((?:\d{1,9}\s+[a-z]+\s*)+)", text.lower())
    if form is None:
        return None
    total = 0.0
    for number, unit in re.findall(r"(\d+)\s+([a-z]+)", form[1]):
        if unit.removesuffix("s") not in _UNITS:
            return None
        total += int(number) * _UNITS[unit.removesuffix("s")]
    return total


def file_retention_secs(stated: str | None) -> float:
    """Seconds that a table keeps files that no version needs; a week without the property."""
    seconds = duration_secs(stated) if stated else None
    return 7 * _DAY if seconds is None else seconds
