"""What a table must hold after each version of its log, computed from the input. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.derived import DERIVED, changed, joined, queried
from tests.chaos.records import Row, Totals

__all__ = ["Expected", "Part", "Sums", "numbers_of", "sums_of"]

Sums = tuple[int, ...]
"""Of a txid's records: how many, the sum of their numbers, and of their squares; below a join, a
query or new values also the sum of what the rows have met, and of its products with the numbers."""


@dataclass(frozen=True)
class Part:
    """A partition or a file of the input: the record at `start + i` is `first + i * step`."""

    start: int
    first: int
    step: int
    count: int

    def numbers(self) -> range:
        """All of its records."""
        return range(self.first, self.first + self.count * self.step, self.step)

    def between(self, start: int, end: int | None) -> range | None:
        """The records at positions [start, end); None when it does not have all of them."""
        low = start - self.start
        high = self.count if end is None else end - self.start
        return self.numbers()[low:high] if 0 <= low <= high <= self.count else None


def numbers_of(parts: Mapping[str, Part], reads: Sequence[Sequence[Any]]) -> list[int] | None:
    """The records that a txid read, in the order of its parts; None: some were never there."""
    found: list[int] = []
    for name, start, end in sorted(reads):
        part = parts.get(name)
        numbers = None if part is None else part.between(start, end)
        if numbers is None:
            return None
        found.extend(numbers)
    return found


def sums_of(numbers: Sequence[int]) -> Sums:
    """What the reader computes of each txid of an append table."""
    return len(numbers), sum(numbers), sum(number * number for number in numbers)


def _sums_of_rows(rows: Sequence[tuple[int, int]]) -> Sums:
    met = (sum(x for _, x in rows), sum(number * x for number, x in rows))
    return *sums_of([number for number, _ in rows]), *met


class Expected:
    """One table, version by version.

    Attributes:
        standing: txid -> its records, of every txid that the table holds now.
        others: the same of the other stream that its rows depend on.
        rows: txid -> the table's rows, where they are not the records and follow from them.
        sums: the same as `sums_of`, of those that have records.
        totals: what a state table has now.
        last: the newest txid that it holds; 0: none.
        settled: up to this txid nothing may ever change again; the publication says so, as it
            begins with the txid behind the last committed one.
        settled_n: how many rows that are.
        reverts: how often an opaque replay has taken something back.
    """

    def __init__(
        self,
        semantics: str,
        stream: str,
        inputs: Mapping[str, Mapping[str, Part]],
        shape: str = "append",
        of: str = "",
    ) -> None:
        self.standing: dict[int, list[int]] = {}
        self.others: dict[int, list[int]] = {}
        self.rows: dict[int, list[tuple[int, int]]] = {}
        self.sums: dict[int, Sums] = {}
        self.totals = Totals()
        self.last = 0
        self.settled = 0
        self.settled_n = 0
        self.reverts = 0
        self._opaque = semantics == "opaque"
        self._stream = stream
        self._inputs = inputs
        self._shape = shape
        self._of = of
        self._other_totals = Totals()
        self._attempts: dict[int, tuple[int, int]] = {}
        self._before: dict[int, Mapping[str, Row | None]] = {}
        self._other_before: dict[int, Mapping[str, Row | None]] = {}

    def publish(self, publication: Mapping[str, Any], epoch: int) -> Iterator[tuple[str, str]]:
        """Take a publication in; (rule, what) of each thing that is wrong with it."""
        yield from self._order(publication, epoch)
        first = publication["first"]
        self._settle(first - 1)
        if self._opaque:
            self._take_back(first)
        for member in publication["members"]:
            txid = member["txid"]
            numbers, others = self._read(member, self._stream), self._read(member, self._of)
            if numbers is None or others is None:
                yield "altered", f"txid {txid} read what the input never had: {member['reads']}"
                numbers, others = numbers or [], others or []
            if txid in self.standing:
                # A transactional table, which skips what it holds: the replay must be the same.
                if self.standing[txid] != numbers:
                    yield "order", f"the replay of txid {txid} read other records than it holds"
                continue
            self._apply(txid, numbers, others)

    def _read(self, member: Mapping[str, Any], stream: str) -> list[int] | None:
        return numbers_of(self._inputs.get(stream, {}), member["reads"].get(stream) or ())

    def _order(self, publication: Mapping[str, Any], epoch: int) -> Iterator[tuple[str, str]]:
        first, last = publication["first"], publication["last"]
        txids = [member["txid"] for member in publication["members"]]
        if txids != list(range(first, last + 1)):
            yield "order", f"it says txids {first} to {last} and has {txids}"
        if first <= self.settled:
            yield "order", f"txid {first} is published again, and {self.settled} was committed"
        if self.last and first > self.last + 1:
            yield "order", f"txid {first} follows txid {self.last}"
        for member in publication["members"]:
            txid, attempt = member["txid"], (epoch, member["attempt"])
            known = self._attempts.get(txid)
            if known is not None and attempt <= known:
                yield "order", f"txid {txid} comes as (epoch, attempt) {attempt} after {known}"
            self._attempts[txid] = max(attempt, known or attempt)
        if last < self.last and not self._opaque:
            yield "order", f"txid {last} is published after txid {self.last}"

    def _settle(self, txid: int) -> None:
        for settled in range(self.settled + 1, txid + 1):
            rows = self.rows if self._shape in DERIVED else self.standing
            self.settled_n += len(rows.get(settled, ()))
            self._before.pop(settled, None)
            self._other_before.pop(settled, None)
        self.settled = max(self.settled, txid)

    def _take_back(self, first: int) -> None:
        gone = [txid for txid in self.standing if txid >= first]
        for txid in sorted(gone, reverse=True):
            del self.standing[txid]
            self.sums.pop(txid, None)
            self.rows.pop(txid, None)
            self.others.pop(txid, None)
            if txid in self._before:
                self.totals.restore(self._before.pop(txid))
            if txid in self._other_before:
                self._other_totals.restore(self._other_before.pop(txid))
        if gone:
            self.reverts += 1
            self.last = first - 1

    def _apply(self, txid: int, numbers: list[int], others: list[int]) -> None:
        self.standing[txid], self.others[txid] = numbers, others
        if numbers:
            self.sums[txid] = sums_of(numbers)
        before = self._before[txid] = self.totals.add(numbers)
        match self._shape:
            case "joined":
                self.rows[txid] = joined(numbers, others)
            case "queried":
                self.rows[txid] = queried(numbers, self._other_totals)
            case "changes":
                self.rows[txid] = changed(before, self.totals)
            case "seen":  # which txid the query saw is known in the end
                self.rows[txid] = [(number, 0) for number in numbers]
        if numbers and self._shape in DERIVED and self._shape != "seen":
            self.sums[txid] = _sums_of_rows(self.rows[txid])
        self._other_before[txid] = self._other_totals.add(others)
        self.last = max(self.last, txid)
