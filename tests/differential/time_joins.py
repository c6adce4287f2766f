"""Joins in time, and what two streams give together by the declaration alone.

Nothing is removed here: each row is compared with all rows of the other side that have come, so a
row that the product forgets too early shows. Only where late rows pass does it matter how long a
row is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.differential.columns import Columns
from tests.differential.declaration import Step
from tests.differential.values import group_key, order_key

__all__ = ["HANDS_ON_LATER", "TIME_JOINS", "JoinedInTime"]

Row = dict[str, Any]
Kept = tuple[int, Row]
"""A txid and a row of it."""
TIME_JOINS = ("inner", "left_semi", "left", "right", "full", "left_anti", "as_of")
HANDS_ON_LATER = TIME_JOINS[2:]
"""These hand rows on when their time is over, also in a txid that reads nothing."""


class JoinedInTime:
    """All rows that both sides of a join have had."""

    def __init__(self, step: Step, columns: tuple[Columns, Columns]) -> None:
        self._how, self._on, self._within = (step.args[n] for n in ("how", "on", "within"))
        self._times: Sequence[str] = step.args["times"]
        order = sorted if step.args["sorted"] else list
        self._order = order(columns[1])  # of right rows of one time the largest is the newest
        self._nulls = [dict.fromkeys(names) for names in columns]
        self._sides: tuple[list[Kept], list[Kept]] = ([], [])
        self._matched: set[int] = set()
        """Left rows of a semi join that had their match."""

    def rows(
        self, txid: int, left: list[Row], right: list[Row], mark: int | None, before: int | None
    ) -> list[Row]:
        """Return what a txid hands on.

        Args:
            mark: the watermark of the txid.
            before: that of the txid before.
        """
        for kept, rows in zip(self._sides, (left, right), strict=True):
            kept += [(txid, {**row}) for row in rows]  # each is a row of its own
        lefts, rights = self._sides
        if self._how == "as_of":
            return [self._as_of(one) for one in self._over(0, mark, before, 0)]
        pairs = [
            (one[1], other[1])
            for one in lefts
            for other in rights
            if max(one[0], other[0]) == txid and self._match(one, other, before)
        ]
        found = []
        if self._how == "left_semi":
            first = {id(row): row for row, _ in pairs if id(row) not in self._matched}
            self._matched |= first.keys()
            found += first.values()
        elif self._how != "left_anti":
            found += [self._shown(*pair) for pair in pairs]
        if self._how in ("left", "full", "left_anti"):
            alone = [
                row for row in self._over(0, mark, before, self._within) if self._alone(0, row)
            ]
            found += alone if self._how == "left_anti" else [self._shown(row, {}) for row in alone]
        if self._how in ("right", "full"):
            over = self._over(1, mark, before, self._within)
            found += [self._shown({}, row) for row in over if self._alone(1, row)]
        return found

    def _same(self, one: Row, other: Row) -> bool:
        """Tell whether a left and a right row match, whenever they come."""
        for name in self._on:
            if one[name] is None or group_key(one[name]) != group_key(other[name]):
                return False
        at, paid = one[self._times[0]], other[self._times[1]]
        return at is not None and paid is not None and abs(at - paid) <= self._within

    def _match(self, one: Kept, other: Kept, before: int | None) -> bool:
        """Tell whether rows match of which the later one has just come."""
        if not self._same(one[1], other[1]):
            return False
        if self._how in HANDS_ON_LATER or one[0] == other[0]:
            return True
        # How long a row is known; right rows of a semi join say whether there was a match before.
        longer = 2 if self._how == "left_semi" and other[0] < one[0] else 1
        side = 0 if one[0] < other[0] else 1
        time = (one, other)[side][1][self._times[side]]
        return before is None or time > before - longer * self._within

    def _over(self, side: int, mark: int | None, before: int | None, after: int) -> Iterator[Row]:
        """Yield the rows of a side whose time plus `after` is over in a txid first."""
        for _, row in self._sides[side]:
            time = row[self._times[side]]
            if mark is None or time is None or time + after > mark:
                continue
            if before is None or time + after > before:
                yield row

    def _alone(self, side: int, row: Row) -> bool:
        pairs = ((row, o) if side == 0 else (o, row) for _, o in self._sides[1 - side])
        return not any(self._same(*pair) for pair in pairs)

    def _as_of(self, row: Row) -> Row:
        at, paid = self._times
        fits = [o for _, o in self._sides[1] if self._same(row, o) and o[paid] <= row[at]]
        best = max(
            fits,
            key=lambda o: (o[paid], [order_key(o[name]) for name in self._order]),
            default={},
        )
        return self._shown(row, best)

    def _shown(self, one: Row, other: Row) -> Row:
        """Both rows in one; one of them may be missing."""
        keys = {name: (one or other)[name] for name in self._on}
        return {**self._nulls[0], **self._nulls[1], **other, **one, **keys}
