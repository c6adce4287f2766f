"""One difference between a program and what is durable, and its verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Change", "Verdict", "clauses", "describe_refused", "refused"]


class Verdict(str, Enum):
    """What becomes of a difference when the topology starts."""

    CARRIES_ON = "carries on"
    """Nothing has to be done."""
    FROM_NEXT = "from the next txid"
    """The table takes it at once; what was committed before stays as it is."""
    CHOICE = "needs a choice"
    """Something is given up, or may be meant in two ways: the program has to say so."""
    REBUILD = "needs a rebuild"
    """The table's rows are written anew in the other shape: a setting has to say so."""
    REFUSED = "refused"
    """It cannot be done to this table."""


@dataclass(frozen=True)
class Change:
    """One difference.

    Args:
        subject: the path of the table, or the name of the stream.
        what: what differs, as a clause: "value 'total' is new".
        verdict: what becomes of it.
        way_out: what to do if it is not allowed; a sentence or two.
        allowed: True if the start makes it, or if there is nothing to make.
        number: the number of the error with which a start refuses it; empty if it is allowed.
    """

    subject: str
    what: str
    verdict: Verdict
    way_out: str = ""
    allowed: bool = True
    number: str = ""


def refused(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the changes that a start refuses."""
    return tuple(change for change in changes if not change.allowed)


def clauses(changes: Iterable[Change]) -> str:
    """Describe changes in one line."""
    return "; ".join(change.what for change in changes)


def describe_refused(changes: Iterable[Change]) -> str:
    """Describe refused changes in one paragraph, each way out once.

    Beside a change that no setting allows, settings for the others would not help.
    """
    listed = list(changes)
    hard = [change for change in listed if change.verdict is Verdict.REFUSED]
    ways = dict.fromkeys(change.way_out for change in hard or listed if change.way_out)
    return " ".join([f"{clauses(listed)}.", *ways])
