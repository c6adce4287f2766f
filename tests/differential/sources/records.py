"""What the oracle says of a record: every outcome that keeps the promises."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["ANY", "BAD", "Bad", "Expected", "Field", "FileExpected", "Good", "JsonText", "same"]

ANY = object()
"""A value of which the specification says nothing."""


@dataclass(frozen=True)
class Field:
    """What a field may become: one of these values, or its record is bad.

    Args:
        values: as `run.py` collects them.
        bad: whether the record may be bad for it.
    """

    values: tuple[Any, ...] = ()
    bad: bool = False


BAD = Field((), True)


@dataclass(frozen=True)
class Good:
    """A row of the table; for every column the values that are right."""

    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Bad:
    """A record that is set aside with this text."""

    text: str


Outcome = tuple[Good | Bad, ...]


@dataclass(frozen=True)
class Expected:
    """A record, or several that cannot be told apart, and all right outcomes."""

    outcomes: tuple[Outcome, ...]
    what: str = ""

    @property
    def must_be_bad(self) -> bool:
        """Whether in every outcome something is set aside."""
        return all(any(isinstance(item, Bad) for item in one) for one in self.outcomes)

    @property
    def may_be_bad(self) -> bool:
        """Whether in some outcome something is set aside."""
        return any(any(isinstance(item, Bad) for item in one) for one in self.outcomes)


@dataclass(frozen=True)
class FileExpected:
    """A whole file.

    Args:
        refusals: why the file may be refused by name; none: it must be read.
        must: whether it must be refused, or set aside as a whole.
        told: whether something about it has to be told by name if it is not refused.
    """

    records: tuple[Expected, ...] = ()
    refusals: tuple[str, ...] = ()
    must: bool = False
    told: str = ""


@dataclass(frozen=True)
class JsonText:
    """Text that is JSON for this value."""

    value: Any


def row_of(fields: list[Field], text: str, more: tuple[Outcome, ...] = ()) -> Expected:
    """The record of these fields: a row, or set aside with its text."""
    outcomes: tuple[Outcome, ...] = ()
    if all(field.values for field in fields):
        outcomes += ((Good(tuple(fields)),),)
    if any(field.bad for field in fields):
        outcomes += ((Bad(text),),)
    return Expected(outcomes + more, text)


def same(expected: Any, found: Any) -> bool:
    """Whether a value that was found is the expected one."""
    if expected is ANY:
        return True
    if isinstance(expected, JsonText):
        return isinstance(found, str) and _is_json(found, expected.value)
    if isinstance(expected, str) and isinstance(found, str):
        return plain(expected) == plain(found)
    if isinstance(expected, float) and isinstance(found, float):
        return expected == found or (math.isnan(expected) and math.isnan(found))
    if isinstance(expected, tuple) and isinstance(found, tuple):
        return len(expected) == len(found) and all(map(same, expected, found))
    return type(expected) is type(found) and expected == found


def plain(text: str) -> str:
    """Text in which it does not matter how many signs stand for some invalid bytes."""
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return re.sub("\ufffd+", "\ufffd", text)


def _is_json(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False
