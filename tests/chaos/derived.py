"""What stands below a join, a query or new values: rows of each txid, from the input. Pure.

A row is (id, x): the number of a record and what it has met, or a key and what became of it. A
record that meets nothing has -1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tests.chaos.records import CHANGE, Row, Totals, key_of

__all__ = ["DERIVED", "States", "changed", "joined", "queried"]

DERIVED = ("joined", "seen", "queried", "changes")
"""Shapes of tables whose rows are not the input's."""
NOTHING = -1

Rows = list[tuple[int, int]]


def joined(numbers: Sequence[int], others: Sequence[int]) -> Rows:
    """Each record, and how many records of the other stream have its key in the same txid."""
    counts = Counter(map(key_of, others))
    return [(number, counts.get(key_of(number), NOTHING)) for number in numbers]


def queried(numbers: Sequence[int], state: Totals) -> Rows:
    """Each record, and how many records of the other stream its key had before this txid."""
    return [(number, state.rows.get(key_of(number), (NOTHING,))[0]) for number in numbers]


def changed(before: Mapping[str, Row | None], state: Totals) -> Rows:
    """Each key that a txid touched, with its count after and before it."""
    return [
        (int(key[1:]), state.rows[key][0] * CHANGE + (NOTHING if old is None else old[0]))
        for key, old in before.items()
    ]


class States:
    """How many records each key had as of any txid."""

    def __init__(self, by_txid: Mapping[int, Iterable[int]]) -> None:
        self._txids: dict[str, list[int]] = {}
        self._counts: dict[str, list[int]] = {}
        for txid in sorted(by_txid):
            for key, count in Counter(map(key_of, by_txid[txid])).items():
                counts = self._counts.setdefault(key, [])
                self._txids.setdefault(key, []).append(txid)
                counts.append(count + (counts[-1] if counts else 0))

    def rows(self, numbers: Iterable[int], txid: int) -> Rows:
        """Each record, and how many its key had as of a txid."""
        found = []
        for number in numbers:
            key = key_of(number)
            place = bisect_right(self._txids.get(key, ()), txid)
            found.append((number, self._counts[key][place - 1] if place else NOTHING))
        return found
