"""The request of a program for a published table: columns, order, ranking, and the most lag."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.errors import TopologyError
from txn.spark.lazy import sf
from txn.spark.names import passing, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Pace", "Request"]

_ORDER = re.compile(r"(?P<name>.*?)(?:\s+(?P<way>asc|desc))?", re.IGNORECASE | re.DOTALL)
_RANK = passing("rank")


@dataclass(frozen=True)
class Pace:
    """The most that a published table may lag: in txids or in seconds, the other is None."""

    txids: int | None = None
    secs: float | None = None

    def is_due(self, txids_behind: int, secs_since: float) -> bool:
        """Return whether to publish.

        Args:
            secs_since: since the last time in this run, or its first txid.
        """
        if self.txids is not None:
            return txids_behind >= self.txids
        return secs_since >= (self.secs or 0)


@dataclass(frozen=True)
class Request:
    """The rows that a published table has.

    Args:
        keys: the state's key columns.
        columns: names in their order, all keys among them.
        order_by: columns, each with "asc" or "desc" behind it, in whose order rows lie in files.
        top: so many rows of each group; None: all.
        by: the order of the ranking, as `order_by`.
        per: the columns of a group; empty: one group.
        deletion_vectors: rows of files that stay may be marked as deleted.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    top: int | None = None
    by: tuple[str, ...] = ()
    per: tuple[str, ...] = ()
    deletion_vectors: bool = False

    @classmethod
    def of(
        cls,
        keys: Sequence[str],
        values: Sequence[str],
        *,
        table: str,
        columns: Sequence[str] | None,
        order_by: Sequence[str] | None,
        top: int | None,
        by: Sequence[str] | None,
        per: Sequence[str] | None,
        deletion_vectors: bool,
    ) -> Request:
        """Complete and check what the program asks for.

        Raises:
            TopologyError: an unknown or repeated column, a key left out, or half a ranking.
        """
        known = (*keys, *values)
        chosen = known if columns is None else tuple(columns)
        ranking, groups = tuple(by or ()), tuple(per or ())
        order = tuple(order_by or ()) or (*groups, *ranking) or tuple(keys) or chosen[:1]
        request = cls(tuple(keys), chosen, order, top, ranking, groups, deletion_vectors)
        for problem, is_one in request._problems(known).items():
            if is_one:
                raise TopologyError(f"publish() of table '{table}': {problem}", number="TXN-109")
        return request

    def _problems(self, known: Sequence[str]) -> dict[str, bool]:
        named = [*self.columns, *self.per, *map(_name_of, (*self.order_by, *self.by))]
        unknown = next((name for name in named if name not in known), None)
        absent = next((key for key in self.keys if key not in self.columns), None)
        outside = next((n for n in map(_name_of, self.order_by) if n not in self.columns), None)
        has = ", ".join(known)
        return {
            f"it has no column {unknown!r}. It has {has}.": unknown is not None,
            f"columns= names one twice ({', '.join(self.columns)}).": (
                len(set(self.columns)) < len(self.columns)
            ),
            f"columns= lacks key {absent!r}, by which rows are kept apart. Add it.": (
                absent is not None
            ),
            f"order_by= names {outside!r}, which is not among columns=. Add it there.": (
                outside is not None
            ),
            f"top={self.top!r} is not a number of rows above 0.": (
                self.top is not None and (isinstance(self.top, bool) or self.top < 1)
            ),
            "by= and per= are a ranking's, which needs top= and by=. Write for example top=10, "
            "by='spent desc'.": (self.top is None) == bool(self.by)
            or bool(self.per and self.top is None),
        }

    def of_state(self, rows: DataFrame) -> DataFrame:
        """Select the rows and columns from a state's keys and values."""
        if self.top is not None:
            rows = self._ranked(rows, self.top)
        return rows.select(*(sf.col(quoted(name)) for name in self.columns))

    def _ranked(self, rows: DataFrame, top: int) -> DataFrame:
        from pyspark.sql import Window

        # Keys last: rows of equal rank are told apart the same way at each time.
        order = [*map(_in_order, self.by), *(sf.col(quoted(key)) for key in self.keys)]
        if not self.per:
            return rows.orderBy(*order).limit(top)
        window = Window.partitionBy(*(sf.col(quoted(name)) for name in self.per)).orderBy(*order)
        ranked = rows.withColumn(_RANK, sf.row_number().over(window))
        return ranked.where(sf.col(quoted(_RANK)) <= top)

    def in_files(self, rows: DataFrame, files: int) -> DataFrame:
        """Lay the rows into about so many files, in their order, so that readers can skip some."""
        order = list(map(_in_order, self.order_by))
        parted = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *order)
        return parted.sortWithinPartitions(*order) if order else parted


def _parsed(order: str) -> tuple[str, bool]:
    """(column, whether it descends)."""
    match = _ORDER.fullmatch(order.strip())
    assert match is not None
    return match["name"], (match["way"] or "").lower() == "desc"


def _name_of(order: str) -> str:
    return _parsed(order)[0]


def _in_order(order: str) -> Column:
    name, descends = _parsed(order)
    column = sf.col(quoted(name))
    return column.desc() if descends else column.asc()
