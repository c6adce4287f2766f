"""The request of a program for a published table: columns, order, ranking, and the most lag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.errors import TopologyError
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.spark.ranking import first_rows, in_order, name_of, ranking_problems

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CHANGE_FEED", "DELETION_VECTORS", "Pace", "Request"]

DELETION_VECTORS, CHANGE_FEED = "delta.enableDeletionVectors", "delta.enableChangeDataFeed"
_OF_FILES = frozenset({"_metadata"})
_OF_FEED = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


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
        change_feed: each version names the rows that it changes, as Delta's change data feed.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    top: int | None = None
    by: tuple[str, ...] = ()
    per: tuple[str, ...] = ()
    deletion_vectors: bool = False
    change_feed: bool = False

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
        change_feed: bool,
    ) -> Request:
        """Complete and check what the program asks for.

        Raises:
            TopologyError: an unknown or repeated column, a key left out, or half a ranking.
        """
        known = (*keys, *values)
        chosen = known if columns is None else tuple(columns)
        ranking, groups = tuple(by or ()), tuple(per or ())
        order = tuple(order_by or ()) or (*groups, *ranking) or tuple(keys) or chosen[:1]
        request = cls(
            tuple(keys), chosen, order, top, ranking, groups, deletion_vectors, change_feed
        )
        for problem in request._problems(known):
            raise TopologyError(f"publish() of table '{table}': {problem}", number="TXN-109")
        return request

    def _problems(self, known: Sequence[str]) -> Iterator[str]:
        named = [*self.columns, *map(name_of, self.order_by)]
        if unknown := [name for name in named if name not in known]:
            yield f"it has no column {unknown[0]!r}. It has {', '.join(known)}."
        if len(set(self.columns)) < len(self.columns):
            yield f"columns= names one twice ({', '.join(self.columns)})."
        taken = _OF_FILES | (_OF_FEED if self.change_feed else frozenset())
        if clash := sorted(taken & {name.lower() for name in self.columns}):
            yield (
                f"column {clash[0]!r} has a name that Delta's readers need themselves. Rename it, "
                "or leave it out by columns=."
            )
        if absent := [key for key in self.keys if key not in self.columns]:
            yield f"columns= lacks key {absent[0]!r}, by which rows are kept apart. Add it."
        if outside := [n for n in map(name_of, self.order_by) if n not in self.columns]:
            yield f"order_by= names {outside[0]!r}, which is not among columns=. Add it there."
        yield from ranking_problems(known, self.top, self.by, self.per)

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the table needs from its first version on."""
        asked = {DELETION_VECTORS: self.deletion_vectors, CHANGE_FEED: self.change_feed}
        return {name: "true" for name, is_asked in asked.items() if is_asked}

    def of_state(self, rows: DataFrame) -> DataFrame:
        """Select the rows and columns from a state's keys and values."""
        if self.top is not None:
            rows = first_rows(rows, self.top, self.by, self.per, self.keys)
        return rows.select(*(sf.col(quoted(name)) for name in self.columns))

    def in_files(self, rows: DataFrame, files: int) -> DataFrame:
        """Lay the rows into about so many files, in their order, so that readers can skip some."""
        order = list(map(in_order, self.order_by))
        parted = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *order)
        return parted.sortWithinPartitions(*order) if order else parted
