"""The findings of `txn doctor`: one per check, with its meaning and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Level", "error", "note", "ok", "warning"]

Level = Literal["ok", "note", "warning", "error"]
"""From good to bad. A note could not be checked, or is worth knowing but needs no action."""


@dataclass(frozen=True)
class Finding:
    """The finding of one check."""

    area: str
    """The area of the check, for example "java" or "table warehouse/delays"."""
    check: str
    """The check, for example "session timeout"."""
    level: Level
    found: str
    """The observation."""
    means: str = ""
    """Its meaning; empty if it is obvious."""
    do: str = ""
    """The advice; empty: nothing to do, or `found` is the text of an error with its way out."""


def ok(area: str, check: str, found: str) -> Finding:
    """As it should be."""
    return Finding(area, check, "ok", found)


def note(area: str, check: str, found: str, means: str = "", do: str = "") -> Finding:
    """Could not be checked, or is worth knowing."""
    return Finding(area, check, "note", found, means, do)


def warning(area: str, check: str, found: str, means: str, do: str) -> Finding:
    """Works now; fails or slows down later."""
    return Finding(area, check, "warning", found, means, do)


def error(area: str, check: str, found: str, means: str, do: str = "") -> Finding:
    """Does not work, or is not safe."""
    return Finding(area, check, "error", found, means, do)
