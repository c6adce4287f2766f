"""Two streams in time: rows that match although they come in different txids.

Both sides are kept until their time is over (`Kept`). A txid brings the matches of its own rows
with each other and with those kept. Rows without a match come out in the txid whose watermark
passes the last moment at which one could have come: no row of a later txid can contradict them.

Source: Structured Streaming's stream-stream joins, Flink's interval joins and temporal joins.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.dataflow.graph import Node, require_columns
from txn.dataflow.kept import Kept, in_name, own_table, require_replays
from txn.dataflow.spans import Span
from txn.dataflow.watermarks import (
    Duration,
    microseconds,
    require_event_column,
    require_event_time,
    require_guarded,
)
from txn.errors import TopologyError
from txn.spark.event_times import is_left, moment
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.spark.ordering import orderable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["JoinInTime"]

_RIGHT = "txn_right_"
"""What the columns of the right side begin with, while both sides are joined."""
_KEY, _PLACE, _TIME, _ONE, _OTHER = "txn_key_", "txn_place_", "txn_time", "txn_one", "txn_other"
"""Columns of `_newest`: keys, the order of right rows of one time, the time, a row of a side."""


@dataclass(frozen=True, eq=False)
class JoinInTime(Node):
    """Rows of two streams with the same keys and event times at most `within` apart."""

    left: Node
    right: Node
    on: tuple[str, ...]
    kind: str
    """A value of `JOIN_KINDS`, or "newest": each left row with the newest right row before it."""
    times: tuple[str, str]
    """The event time of each side."""
    within: int
    """Microseconds."""

    @classmethod
    def of(
        cls, left: Node, right: Node, on: tuple[str, ...], kind: str, within: Duration
    ) -> JoinInTime:
        """Make the node from what a method of `Stream` was given.

        Raises:
            TopologyError: no duration; a side without a watermark, with the same name for its event
                time as the other, or with late rows where rows without a match come out.
        """
        method = "join_as_of" if kind == "newest" else "join"
        where = f"{method}() of stream '{left.label()}'"
        micros = microseconds(within, f"{where}: within")
        times = []
        for node in (left, right):
            times.append(require_event_column(node, where, f"within={within!r}"))
            if kind in ("inner", "semi"):
                harm = "what its rows match may be forgotten when they come"
                require_guarded(node, where, harm, late_too=False)
            else:
                harm = "a late row could match one that has come out without a match"
                require_guarded(node, where, harm)
            require_replays(node, where)
        if times[0] == times[1]:
            raise TopologyError(
                f"{where}: both sides call their event time '{times[0]}'. Rename one of them in a "
                "transform before its watermark.",
                number="TXN-107",
            )
        return cls(left, right, on, kind, (times[0], times[1]), micros)

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return (self.left, self.right)

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return "join_as_of" if self.kind == "newest" else "join within"

    @property
    def brings_late_rows(self) -> bool:
        """True: a match has the times of both rows, and the older one may be over."""
        return True

    @property
    def hands_on_later(self) -> bool:
        """True for kinds that show rows without a match, or with their newest one."""
        return self.kind not in ("inner", "semi")

    @property
    def after(self) -> int:
        """Microseconds behind the watermark, up to which rows are kept.

        A row is over `within` after its time, and what it was compared with is up to `within`
        older.
        """
        return 2 * self.within if self.kind not in ("inner", "newest") else self.within

    def kept(self) -> tuple[Kept, Kept]:
        """The rows of both sides that later txids look up."""
        # With another `within`, rows that were forgotten, or came out, would be due: other tables.
        how = f"{self.kind}_{'_'.join(self.on)}_{in_name(self.within)}"
        return (
            self._kept(0, self.left, f"{own_table(self)}_left_{how}"),
            self._kept(1, self.right, f"{own_table(self)}_right_{how}"),
        )

    def _kept(self, side: int, node: Node, name: str) -> Kept:
        return Kept(node, self, side, name, self.on, self.times[side], self.after, whole=True)

    def _require_columns(self, left: DataFrame, right: DataFrame) -> None:
        """Refuse sides that lack a column, or have the same one besides those to join on."""
        for frame, node, time in zip((left, right), self.parents, self.times, strict=True):
            require_columns(frame, (*self.on, time), node.label())
            require_event_time(self, frame, time)
        for key in self.on:
            kinds = [frame.schema[key].dataType.simpleString() for frame in (left, right)]
            if kinds[0] != kinds[1]:
                raise TopologyError(
                    f"{self.operation} of streams '{self.label()}': column '{key}' is {kinds[0]} "
                    f"on one side and {kinds[1]} on the other. Cast one of them in a transform "
                    "before.",
                    number="TXN-107",
                )
        if self.kind in ("semi", "anti"):
            return
        own = {name.lower() for name in left.columns}
        names = [name for name in right.columns if name not in self.on and name.lower() in own]
        if names:
            raise TopologyError(
                f"{self.operation} of streams '{self.label()}' would have two columns '{names[0]}'."
                " Rename one of them in a transform before.",
                number="TXN-107",
            )

    # --- the rows of a txid ------------------------------------------------------------------

    def result(
        self,
        new: Sequence[DataFrame],
        asked: Sequence[DataFrame | None],
        kept: Sequence[DataFrame | None],
        span: Span,
    ) -> DataFrame:
        """The rows that a txid hands on.

        Args:
            new: the rows of the txid, of each side.
            asked: rows of earlier txids of each side, at least those with keys of the other one's
                new rows; None: none match.
            kept: all rows of earlier txids of each side; None: there are none.
        """
        left, right = new
        self._require_columns(left, right)
        alive = self._alive(new, kept, span)
        found = []
        if self.kind not in ("anti", "newest"):
            found += self._matches(left, right, self._alive(new, asked, span), alive, span)
        if self.hands_on_later and not span.is_empty:
            found += self._over(left, right, span, *alive)
        if not found:
            nothing = left.where(sf.lit(False))
            if self.kind == "anti":
                return nothing
            found = [self._shown(self._joined(nothing, right, "left"), left, right)]
        # Matches come first: they have all columns, and rows without one have NULL for the rest.
        return functools.reduce(lambda one, more: one.unionByName(more, True), found)

    def _alive(
        self, new: Sequence[DataFrame], stored: Sequence[DataFrame | None], span: Span
    ) -> list[DataFrame | None]:
        """The rows of earlier txids that a txid may need, with the columns of its own."""
        found: list[DataFrame | None] = []
        for own, rows, time in zip(new, stored, self.times, strict=True):
            if rows is not None:
                rows = rows.select(*(sf.col(quoted(name)) for name in own.columns))
            if rows is not None and span.before is not None:
                rows = rows.where(is_left(sf.col(quoted(time)), moment(span.before - self.after)))
            found.append(rows)
        return found

    def _matches(
        self,
        left: DataFrame,
        right: DataFrame,
        asked: Sequence[DataFrame | None],
        kept: Sequence[DataFrame | None],
        span: Span,
    ) -> list[DataFrame]:
        """The matches that the rows of a txid bring, with each other and with earlier ones."""
        old_left, old_right = asked
        all_right = right if old_right is None else right.unionByName(old_right)
        if self.kind != "semi":
            found = [self._joined(left, all_right, "inner")]
            if old_left is not None:
                found.append(self._joined(old_left, right, "inner"))
            return [self._shown(rows, left, right) for rows in found]
        found = [self._joined(left, all_right, "left_semi")]
        if old_left is not None:
            if span.before is not None:  # the first match of an older row may be forgotten
                time = sf.col(quoted(self.times[0]))
                old_left = old_left.where(is_left(time, moment(span.before - self.within)))
            matched = self._joined(old_left, right, "left_semi")
            if kept[1] is not None:  # these have had their match before
                matched = self._joined(matched, kept[1], "left_anti")
            found.append(matched)
        return found

    def _over(
        self,
        left: DataFrame,
        right: DataFrame,
        span: Span,
        old_left: DataFrame | None,
        old_right: DataFrame | None,
    ) -> list[DataFrame]:
        """The rows whose time is over in a txid: those without a match, or with their newest one.

        Args:
            left: gives the columns of its side.
            right: likewise.
        """
        found = []
        if self.kind == "newest" and old_left is not None:
            ended = old_left.where(span.ends(sf.col(quoted(self.times[0]))))
            others = right.where(sf.lit(False)) if old_right is None else old_right
            found.append(self._shown(self._newest(ended, others), left, right))
        if self.kind in ("left", "full", "anti") and old_left is not None:
            found.append(self._unmatched(0, old_left, old_right, span))
        if self.kind in ("right", "full") and old_right is not None:
            found.append(self._unmatched(1, old_right, old_left, span))
        return found

    def _unmatched(
        self, side: int, rows: DataFrame, others: DataFrame | None, span: Span
    ) -> DataFrame:
        ended = rows.where(span.ends(sf.col(quoted(self.times[side])), self.within))
        if others is None:
            return ended
        return self._joined(ended, others, "left_anti", side)

    def _newest(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """Each left row once, with the newest right row at or before it; of several the largest.

        One pass over both in the order of time.
        """
        from pyspark.sql import Window

        keys = [sf.col(quoted(key)).alias(f"{_KEY}{n}") for n, key in enumerate(self.on)]
        places = [orderable(field).alias(f"{_PLACE}{n}") for n, field in enumerate(right.schema)]
        times = [sf.col(quoted(time)).alias(_TIME) for time in self.times]
        ones = left.select(*keys, times[0], sf.struct("*").alias(_ONE))
        others = right.select(*keys, times[1], sf.struct("*").alias(_OTHER), *places)
        both = ones.unionByName(others, allowMissingColumns=True)
        names = [
            [f"{kind}{n}" for n in range(len(of))] for kind, of in ((_KEY, keys), (_PLACE, places))
        ]
        order = (sf.col(_TIME), sf.col(_ONE).isNotNull(), *map(sf.col, names[1]))
        before = Window.partitionBy(*names[0]).orderBy(*order)
        before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        found = both.withColumn(_OTHER, sf.last(_OTHER, ignorenulls=True).over(before))
        age = sf.unix_micros(_TIME) - sf.unix_micros(sf.col(_OTHER).getField(self.times[1]))
        fits = [age <= self.within, *(sf.col(name).isNotNull() for name in names[0])]
        newest = sf.when(functools.reduce(operator.and_, fits), sf.col(_OTHER))
        return found.where(sf.col(_ONE).isNotNull()).select(
            f"{_ONE}.*",
            *(newest.getField(name).alias(f"{_RIGHT}{name}") for name in right.columns),
        )

    def _joined(self, one: DataFrame, other: DataFrame, how: str, side: int = 0) -> DataFrame:
        """Join rows of a side with those of the other one, whose columns get names of their own."""
        renamed = other.select(
            *(sf.col(quoted(name)).alias(f"{_RIGHT}{name}") for name in other.columns)
        )
        same = [one[quoted(key)] == renamed[quoted(f"{_RIGHT}{key}")] for key in self.on]
        own = one[quoted(self.times[side])]
        others = renamed[quoted(f"{_RIGHT}{self.times[1 - side]}")]
        apart = sf.unix_micros(own) - sf.unix_micros(others)
        near = sf.abs(apart) <= self.within
        return one.join(renamed, functools.reduce(operator.and_, (*same, near)), how)

    def _shown(self, joined: DataFrame, left: DataFrame, right: DataFrame) -> DataFrame:
        """The columns of a result: those to join on, the other ones of the left, of the right."""
        others = [name for name in left.columns if name not in self.on]
        return joined.select(
            *(sf.col(quoted(name)) for name in (*self.on, *others)),
            *(
                sf.col(quoted(f"{_RIGHT}{name}")).alias(name)
                for name in right.columns
                if name not in self.on
            ),
        )
