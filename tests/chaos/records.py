"""The input, and what becomes of it: plain Python, no Spark, nothing of the product.

A record is a number. Its key and value follow from it, so that the history need not hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

__all__ = ["CHANGE", "KEYS", "Row", "Totals", "digest_of", "key_of", "line_of", "value_of"]

KEYS = 2000
"""So many that a batch never has all of them: a replay lacks keys that the dead attempt had."""

CHANGE = 4096
"""A key's count after a txid times this, and the one before it, are one number."""

Row = tuple[int, int, int]
"""Of a key: how many records, the sum of their values, the largest of them."""


def key_of(number: int) -> str:
    """The key of a record."""
    return f"k{number * 7919 % KEYS}"


def value_of(number: int) -> int:
    """The value of a record, -1000 to 1000."""
    return number * 2654435761 % 2001 - 1000


def line_of(number: int) -> str:
    """A record as it stands in a source."""
    return f"{number},{key_of(number)},{value_of(number)}"


def digest_of(key: str, row: Iterable[int]) -> int:
    """A fingerprint of one row of a state table; those of a table are added up, modulo 2**64."""
    words = "|".join((key, *map(str, row)))
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big")


class Totals:
    """What a state table must hold: the oracle.

    `n`, `total` and `digest` are over all rows; `digest` modulo 2**64.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.n = self.total = self.digest = 0

    def add(self, numbers: Iterable[int]) -> dict[str, Row | None]:
        """Count these records; the rows as they were before, for `restore`."""
        before: dict[str, Row | None] = {}
        for number in numbers:
            key, value = key_of(number), value_of(number)
            row = self.rows.get(key)
            before.setdefault(key, row)
            if row is None:
                self.rows[key] = (1, value, value)
            else:
                self.rows[key] = (row[0] + 1, row[1] + value, max(row[2], value))
        for key, old in before.items():
            self._account(key, old, self.rows[key])
        return before

    def restore(self, before: Mapping[str, Row | None]) -> None:
        """Take the last `add` back."""
        for key, old in before.items():
            self._account(key, self.rows[key], old)
            if old is None:
                del self.rows[key]
            else:
                self.rows[key] = old

    def _account(self, key: str, old: Row | None, new: Row | None) -> None:
        for sign, row in ((-1, old), (1, new)):
            if row is not None:
                self.n += sign * row[0]
                self.total += sign * row[1]
                self.digest = (self.digest + sign * digest_of(key, row)) % 2**64
