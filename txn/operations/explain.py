"""Explain the number of an error: the entries of `txn/errors.md`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from txn.errors import UserError

__all__ = ["Explanation", "explanation", "explanations"]

_ENTRY = re.compile(r"^### (TXN-\d{3}): (.+)\n\n((?:.+\n)+)\n\*\*Remedy\.\*\* ((?:.+\n)+)", re.M)
_NUMBER = re.compile(r"\[?(?:TXN-?)?(\d{3})\]?", re.IGNORECASE)


class Explanation(NamedTuple):
    """The entry of a number."""

    number: str
    title: str
    """What was wrong, in one clause."""
    cause: str
    remedy: str


@cache
def explanations() -> dict[str, Explanation]:
    """Return every number with its entry, in order."""
    page = files("txn").joinpath("errors.md").read_text("utf-8")
    entries = (
        Explanation(number, title, " ".join(cause.split()), " ".join(remedy.split()))
        for number, title, cause, remedy in _ENTRY.findall(page)
    )
    return {entry.number: entry for entry in entries}


def explanation(number: str) -> Explanation:
    """Return the entry of a number, written `TXN-101`, `txn-101`, `[TXN-101]` or `101`.

    Raises:
        UserError: no error has this number.
    """
    digits = _NUMBER.fullmatch(number.strip())
    entry = explanations().get(f"TXN-{digits[1]}") if digits else None
    if entry is None:
        raise UserError(
            f"There is no error '{number}'. Numbers look like TXN-101 and stand behind the "
            "message of an error; `txn explain` without one lists them all."
        )
    return entry
