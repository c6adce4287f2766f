"""The DataFrames of one attempt: each node of the graph is computed once, and may be shared.

One `Evaluation` is made per attempt, so that no result leaks into another attempt (Storm: a new
bolt instance per `TransactionAttempt`). It lives from the processing phase into the commit turn,
which computes the streams below a table's new values.

A stream that was never read has no rows and unknown columns. Some results are known nevertheless: a
left join keeps every row of its left side, and only the columns of the right one are missing
(`Rows.lacks`). Any other result is `Unknown`, never "no rows".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.dataflow.asked_keys import keys_of, rows_for
from txn.dataflow.expectations import Expectation, Judged, SetAside
from txn.dataflow.graph import (
    Aggregation,
    Dimension,
    FinalValues,
    Join,
    Merge,
    NewValues,
    Node,
    Ranking,
    Sink,
    Source,
    StateBefore,
    StateQuery,
    TableValues,
    Transform,
    explain,
)
from txn.dataflow.kept import Kept
from txn.dataflow.repeats import Repeats
from txn.dataflow.sessions import SessionRows, Sessions
from txn.dataflow.spans import Span
from txn.dataflow.time_joins import JoinInTime
from txn.delta.commits import TXID
from txn.errors import UserError
from txn.interfaces import StoredRows
from txn.spark.lazy import sf
from txn.text import placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Evaluation", "Lookup", "Rows", "Unknown", "consumers", "stream_called"]


@dataclass(frozen=True)
class Rows:
    """Every row of a node in one attempt, with the columns that are known."""

    frame: DataFrame
    streams: frozenset[str] = frozenset()
    """The streams from whose DataFrames of this attempt `frame` was built."""
    lacks: frozenset[str] = frozenset()
    """The streams whose unknown columns are missing; they are NULL in every row of `frame`."""
    empty: bool = False
    """True if it certainly has no rows; found without a job."""


@dataclass(frozen=True)
class Unknown:
    """A node whose rows cannot be computed, because columns are not known yet."""

    waits_for: frozenset[str]
    """The streams and tables whose columns would help."""
    empty: bool
    """True if it certainly has no rows nevertheless."""
    streams: frozenset[str] = frozenset()
    """The streams with something to read in this attempt that it would be computed from."""

    @property
    def idle(self) -> bool:
        """True if the attempt loses no rows by leaving it out."""
        return self.empty and not self.streams


Result = Rows | Unknown
Lookup = NewValues | StateQuery | StateBefore


def stream_called(name: str) -> str:
    """The name of a stream in `Rows.lacks` and `Unknown.waits_for`."""
    return f"stream '{name}'"


def _no_table(node: Lookup) -> Unknown:
    return Unknown(frozenset({node.label()}), empty=True)


def _nothing_kept(node: Node, side: int) -> Unknown:
    return Unknown(frozenset({f"table {side} of {node.operation}"}), empty=True)


def _no_dimension(node: Dimension) -> DataFrame:
    raise TypeError(f"nothing looks up rows of {node.name} here")


@dataclass
class Evaluation:
    """The DataFrames of one attempt.

    Args:
        inputs: stream name -> the batch's DataFrame, for the streams that are not idle.
        consumers: node -> number of nodes and sinks that read it.
        share: called with the DataFrame of a node that has several consumers, and its place.
        attempt: handed to transforms that ask for it.
        lookup: returns the rows of a table: its new values in this txid, or those of a query.
        reading: the context in which a job over the batch's rows runs.
        compute_shared: computes shared rows before a job reads them.
        idle: returns no rows with the columns of an idle stream; None if these are unknown.
        assumed: streams whose columns are those of earlier runs. A result that does not fit them
            is unknown, not wrong: the program may have changed since.
        rules: the rules of every stream that has any (`txn.dataflow.expectations.rules_by_stream`).
        dimension: returns the rows of a table that others maintain.
        recall: returns what a node keeps of earlier txids, in the table of that number.
        positions: stream name -> the batch's part of its source, for rows that are set aside.
        watermark: that of the txid, microseconds since 1970; None: no row is late.
        watermark_before: that of the txid before.
    """

    inputs: Mapping[str, DataFrame]
    consumers: Mapping[Node, int]
    share: Callable[[DataFrame, str], DataFrame]
    attempt: TransactionAttempt = field(default_factory=lambda: TransactionAttempt(1))
    lookup: Callable[[Lookup], StoredRows | Unknown] = _no_table
    dimension: Callable[[Dimension], DataFrame] = _no_dimension
    recall: Callable[[Node, int], StoredRows | Unknown] = _nothing_kept
    reading: Callable[[], AbstractContextManager[None]] = nullcontext
    compute_shared: Callable[[], None] = lambda: None
    idle: Callable[[str], DataFrame | None] = lambda _: None
    assumed: Collection[str] = frozenset()
    rules: Mapping[Node, Sequence[Expectation]] = field(default_factory=dict)
    positions: Mapping[str, str] = field(default_factory=dict)
    watermark: int | None = None
    watermark_before: int | None = None
    judged: dict[Node, Judged] = field(default_factory=dict)
    """Stream -> its rows with a verdict on each of its rules."""
    done: dict[Node, Result] = field(default_factory=dict)
    kept: set[Node] = field(default_factory=set)
    """Nodes with shared rows."""
    doubts: dict[str, UserError] = field(default_factory=dict)
    """Errors with the columns of earlier runs, by stream name of `Unknown.waits_for`."""

    def forget(self) -> None:
        """Let go of all DataFrames; nothing can be computed any more."""
        self.inputs = {}
        self.judged.clear()
        self.done.clear()

    def rows(self, node: Node) -> Result:
        """The rows of `node`; Unknown if columns for them are missing."""
        if node not in self.done:
            for parent in node.parents:
                self.rows(parent)
            result = self.fitting(node, lambda: self._compute(node))
            several = self.consumers.get(node, 0) > 1
            self.done[node] = result
            if isinstance(result, Rows) and several:
                self._share_rows(node)
        return self.done[node]

    def _share_rows(self, node: Node) -> Rows:
        """The rows of `node`, computed once for all readers."""
        rows = self.done[node]
        assert isinstance(rows, Rows)
        # Rows that rules judge are shared already.
        if node not in self.kept and not isinstance(node, Expectation):
            self.kept.add(node)
            frame = self.share(rows.frame, f"the rows of stream '{node.label()}'")
            rows = self.done[node] = replace(rows, frame=frame)
        return rows

    def fitting(self, node: Node, compute: Callable[[], Result]) -> Result:
        """The result of `compute`; Unknown if columns of earlier runs do not fit.

        Raises:
            UserError: columns that this run itself has seen do not fit.
        """
        try:
            return compute()
        except UserError as error:
            doubted = self.doubted(node, error)
            if doubted is None:
                raise
            return doubted

    def doubted(self, node: Node, error: UserError) -> Unknown | None:
        """`node` as unknown, if only columns of earlier runs may be wrong; else None.

        Records the error for the message of attempts that wait for the columns.
        """
        doubtful = {s.name for s in node.sources()} & set(self.assumed) - set(self.inputs)
        if not doubtful:
            return None
        live = self.live(node)
        waits_for = frozenset(map(stream_called, doubtful))
        for stream in waits_for:
            self.doubts.setdefault(stream, error)
        return Unknown(waits_for, empty=False, streams=frozenset(live))

    def live(self, node: Node) -> set[str]:
        """Return the streams behind a node that have something to read, also those behind tables.

        Without one, no table gets a row of the node: not even that of an aggregate without keys.
        Values become final in any txid, also in one that reads nothing for their table, and keys
        end in any.
        """
        if any(one.hands_on_later for one in node.ancestors()):
            return {source.name for source in node.sources()}
        return {source.name for source in node.sources()} & set(self.inputs)

    def _compute(self, node: Node) -> Result:
        if isinstance(node, Source):
            return self._source_rows(node)
        if isinstance(node, TableValues):
            return self._values_of(node)
        if isinstance(node, Merge):
            return _merge(node, [self.rows(parent) for parent in node.parents])
        if isinstance(node, Join):
            return _join(node, self.rows(node.left), self.rows(node.right))
        if isinstance(node, JoinInTime):
            return self._join_in_time(node)
        if isinstance(node, Sessions):
            return self._tell_sessions(node)
        if isinstance(node, Expectation):
            return self._keep_passing(node)
        if isinstance(node, SetAside):
            return self._collect_bad_rows(node)
        (parent,) = (self.rows(parent) for parent in node.parents)
        if isinstance(node, Aggregation):
            return _aggregate(node, parent)
        if isinstance(parent, Unknown):
            return replace(parent, empty=parent.empty and isinstance(node, StateQuery))
        if isinstance(node, StateQuery):
            return self._query_state(node, parent)
        return self._from_rows(node, parent)

    def _from_rows(self, node: Node, parent: Rows) -> Result:
        if isinstance(node, Dimension):
            return self._look_up(node, parent)
        if isinstance(node, Repeats):
            return self._mark_repeats(node, parent)
        if isinstance(node, Kept):
            return parent
        if isinstance(node, SessionRows):
            return replace(parent, frame=node.compute([parent.frame]))
        assert isinstance(node, Transform)
        if parent.lacks:
            # A function may use any column, and the number of columns.
            return _make_unknown([parent], empty=False)
        frame = explain(node, lambda: node.apply(parent.frame, self.attempt))
        return Rows(frame, parent.streams)

    def _keep_passing(self, rule: Expectation) -> Result:
        """The rows that keep a rule; its condition may use any column."""
        rows = self.rows(rule.base)
        if isinstance(rows, Unknown):
            return rows
        if rows.lacks:
            return _make_unknown([rows], empty=rows.empty)
        return replace(rows, frame=self._judge(rule.base, rows, rule).passing(rule))

    def _judge(self, base: Node, rows: Rows, rule: Expectation) -> Judged:
        """The verdicts on all rules of a stream, computed once for all readers."""
        if base not in self.judged:
            rules = self.rules.get(base, rule.chain)
            judged = Judged.of(rows.frame, rules, self.watermark)
            judged.counted = rows.empty or not self.live(base)
            if not judged.counted:
                judged.frame = self.share(judged.frame, f"the rules of stream '{rule.label()}'")
            self.judged[base] = judged
        return self.judged[base]

    def _collect_bad_rows(self, node: SetAside) -> Result:
        results = {rule: self.rows(rule) for rule in node.rules}
        computed = {rule: rows for rule, rows in results.items() if isinstance(rows, Rows)}
        if not computed or any(isinstance(r, Unknown) and not r.idle for r in results.values()):
            empty = all(rows.empty for rows in results.values())
            return _make_unknown(list(results.values()), empty=empty)
        # Rules of idle streams count only for the columns, if there are no others.
        live = [rule for rule in computed if self.live(rule.base)]
        frames = [
            self.judged[base].set_aside(node.rules, self._describe_position(base))
            for base in dict.fromkeys(rule.base for rule in live or computed)
        ]
        return Rows(
            functools.reduce(lambda one, other: one.unionAll(other), frames),
            frozenset().union(*(rows.streams for rows in computed.values())),
            empty=all(rows.empty for rows in computed.values()),
        )

    def _describe_position(self, node: Node) -> str | None:
        """Describe what the batch has read of the sources of a stream."""
        names = (source.name for source in node.sources_read())
        return "; ".join(self.positions[n] for n in names if n in self.positions) or None

    def _source_rows(self, node: Source) -> Result:
        if node.name in self.inputs:
            return Rows(self.inputs[node.name], frozenset({node.name}))
        frame = self.idle(node.name)
        if frame is None:
            return Unknown(frozenset({stream_called(node.name)}), empty=True)
        return Rows(frame, empty=True)

    def _values_of(self, node: TableValues) -> Result:
        assert isinstance(node, NewValues | StateBefore)
        values = self.lookup(node)
        if isinstance(values, Unknown):
            return values
        if isinstance(node, NewValues):
            return Rows(values.rows)
        if isinstance(node, Ranking):
            changes = self.rows(node.changes)
            if isinstance(changes, Unknown):
                return changes
            return Rows(explain(node, lambda: node.compute([values.rows, changes.frame])))
        assert isinstance(node, FinalValues)
        return Rows(explain(node, lambda: node.ended(values.rows, self._span)))

    @property
    def _span(self) -> Span:
        return Span(self.watermark_before, self.watermark)

    def _look_up(self, node: Dimension, rows: Rows) -> Result:
        if _may_lack(rows, node.on):
            return _make_unknown([rows], empty=rows.empty)
        table = self.dimension(node)
        return replace(rows, frame=explain(node, lambda: node.compute([rows.frame, table])))

    def _query_state(self, node: StateQuery, rows: Rows) -> Result:
        if _may_lack(rows, node.on):
            return _make_unknown([rows], empty=rows.empty)
        state = self.lookup(node)
        node.require_keys(rows.frame)
        if isinstance(state, Unknown):
            # The state does not exist yet, so every value of it is NULL.
            whole = node.with_nulls(rows.frame)
            if whole is None:
                return replace(rows, lacks=rows.lacks | state.waits_for)
            return replace(rows, frame=whole)
        rows, stored = self._narrowed(node.parent, node.on, rows, state, recalled=False)
        frame = explain(node, lambda: node.compute([rows.frame, stored]))
        return replace(rows, frame=frame)

    def _narrowed(
        self, asking: Node, on: Sequence[str], rows: Rows, state: StoredRows, *, recalled: bool
    ) -> tuple[Rows, DataFrame]:
        """(the rows of a stream, the stored rows: of a large state only those that it asks for).

        Args:
            recalled: `state` is what `RecallsRows` returns.
        """
        if state.of_keys is None or rows.empty:
            return rows, state.rows
        # Jobs run here; their errors are not those of the query.
        with self.reading(), placed(f"the rows of stream '{asking.label()}'"):
            rows = self._share_rows(asking)
            self.compute_shared()
            keys = explain(asking, lambda: keys_of(rows.frame, on))
            return rows, rows_for(keys, state.rows, state.of_keys, may_repeat=recalled)

    def _join_in_time(self, node: JoinInTime) -> Result:
        sides = [self.rows(parent) for parent in node.parents]
        if any(not s.idle if isinstance(s, Unknown) else s.lacks for s in sides):
            return _make_unknown(sides, empty=False)
        stored = [self.recall(node, side) for side in (0, 1)]
        kept = [None if isinstance(one, Unknown) else one for one in stored]
        asked: list[DataFrame | None] = [None, None]
        for side, one in enumerate(kept):
            other = sides[1 - side]
            if one is not None and isinstance(other, Rows) and not other.empty:
                # The rows of the other side are shared from now on.
                asking = node.parents[1 - side]
                sides[1 - side], asked[side] = self._narrowed(
                    asking, node.on, other, one, recalled=True
                )
        new: list[DataFrame] = []
        for rows, one in zip(sides, kept, strict=True):
            if isinstance(rows, Rows):
                new.append(rows.frame)
            elif one is not None:
                new.append(_empty_frame(one.rows.drop(TXID)))
            else:
                # A stream that never had a row has no columns for the result.
                return _make_unknown(sides, empty=not self.live(node))
        whole = [None if one is None else one.rows for one in kept]
        frame = explain(node, lambda: node.result(new, asked, whole, self._span))
        empty = all(side.empty for side in sides) and not node.hands_on_later
        return Rows(frame, frozenset().union(*(side.streams for side in sides)), empty=empty)

    def _tell_sessions(self, node: Sessions) -> Result:
        rows = self.rows(node.parent)
        if not rows.idle if isinstance(rows, Unknown) else rows.lacks:
            return _make_unknown([rows], empty=False)
        stored = self.recall(node, 0)
        kept = None if isinstance(stored, Unknown) else stored.rows
        if isinstance(rows, Rows):
            new = rows.frame
        elif kept is not None:
            new = _empty_frame(node.own_columns(kept))
        else:
            return _make_unknown([rows], empty=not self.live(node))
        frame = explain(node, lambda: node.result(new, kept, self._span))
        return Rows(frame, rows.streams)

    def _mark_repeats(self, node: Repeats, rows: Rows) -> Result:
        if rows.lacks:  # any column may tell which row is the first
            return _make_unknown([rows], empty=rows.empty)
        node.require_columns(rows.frame)
        state = self.recall(node, 0)
        if isinstance(state, Unknown):
            return replace(rows, frame=explain(node, lambda: node.marked(rows.frame)))
        rows, stored = self._narrowed(node.parent, node.keys, rows, state, recalled=True)
        whole = state.of_keys is not None and stored is state.rows
        kept = node.kept_keys(stored, self.watermark, rows.frame if whole else None)
        return replace(rows, frame=explain(node, lambda: node.marked(rows.frame, kept)))


def _may_lack(rows: Rows, names: Collection[str]) -> bool:
    return bool(rows.lacks) and not set(names) <= set(rows.frame.columns)


def _empty_frame(frame: DataFrame) -> DataFrame:
    """No rows, derived from a frame so that Spark knows without reading that they are empty."""
    return frame.where(sf.lit(False))


def _make_unknown(results: Sequence[Result], *, empty: bool) -> Unknown:
    waits = (r.waits_for if isinstance(r, Unknown) else r.lacks for r in results)
    return Unknown(
        frozenset().union(*waits), empty, frozenset().union(*(r.streams for r in results))
    )


def _aggregate(node: Aggregation, rows: Result) -> Result:
    # Without keys, no rows still give one row.
    empty = rows.empty and bool(node.keys)
    if isinstance(rows, Unknown) or _may_lack(rows, node.columns_read):
        return _make_unknown([rows], empty=empty)
    frame = explain(node, lambda: node.compute([rows.frame]))
    return Rows(frame, rows.streams, empty=empty)


def _merge(node: Merge, inputs: Sequence[Result]) -> Result:
    """The union; a side with unknown columns gets those of the others."""
    empty = all(rows.empty for rows in inputs)
    computed = [rows for rows in inputs if isinstance(rows, Rows)]
    if not computed or any(isinstance(rows, Unknown) and not rows.idle for rows in inputs):
        return _make_unknown(inputs, empty=empty)
    whole = next((rows.frame for rows in computed if not rows.lacks), None)
    if whole is not None:
        frames = [
            _add_missing_columns(rows.frame, whole) if rows.lacks else rows.frame
            for rows in computed
        ]
        lacks: frozenset[str] = frozenset()
    elif len(computed) == 1:
        frames, lacks = [computed[0].frame], computed[0].lacks
    else:
        return _make_unknown(computed, empty=empty)
    frame = explain(node, lambda: node.compute(frames))
    return Rows(frame, frozenset().union(*(rows.streams for rows in computed)), lacks, empty)


def _add_missing_columns(frame: DataFrame, whole: DataFrame) -> DataFrame:
    """`frame`, then the columns of `whole` that it lacks, all NULL."""
    missing = [field for field in whole.schema if field.name not in frame.columns]
    nulls = [sf.lit(None).cast(field.dataType).alias(field.name) for field in missing]
    return frame.select("*", *nulls)


def _join(node: Join, left: Result, right: Result) -> Result:
    """Join two results; docs/streams.md has a table of the kinds of join with an unknown side."""
    kind = node.kind
    empty = {
        "inner": left.empty or right.empty,
        "left": left.empty,
        "right": right.empty,
        "full": left.empty and right.empty,
        "semi": left.empty or right.empty,
        "anti": left.empty,
    }[kind]
    for side in (left, right):
        if not side.idle if isinstance(side, Unknown) else _may_lack(side, node.on):
            return _make_unknown([left, right], empty=empty)
    if isinstance(left, Rows) and isinstance(right, Rows):
        frame = explain(node, lambda: node.compute([left.frame, right.frame]))
        lacks = left.lacks if kind in ("semi", "anti") else left.lacks | right.lacks
        return Rows(frame, left.streams | right.streams, lacks, empty)
    if isinstance(left, Rows):
        assert isinstance(right, Unknown)
        node.require_on(left.frame, node.left)
        frame = left.frame if kind in ("left", "full", "anti") else _empty_frame(left.frame)
        lacks = left.lacks if kind in ("semi", "anti") else left.lacks | right.waits_for
        return Rows(frame, left.streams, lacks, empty)
    if isinstance(right, Rows):
        node.require_on(right.frame, node.right)
        frame = right.frame if kind in ("right", "full") else _empty_frame(right.frame)
        if kind in ("semi", "anti"):
            return Rows(frame.select(), right.streams, left.waits_for, empty=True)
        return Rows(frame, right.streams, right.lacks | left.waits_for, empty)
    return _make_unknown([left, right], empty=empty)


def consumers(sinks: Sequence[Sink]) -> dict[Node, int]:
    """The number of nodes and sinks that read each node.

    The rules of a stream read it once, including the rows that they set aside.
    """
    counts: dict[Node, int] = {}
    seen: set[Node] = set()
    ruled: set[Node] = set()
    stack = [sink.parent for sink in sinks if not isinstance(sink.parent, SetAside)]
    for node in stack:
        counts[node] = counts.get(node, 0) + 1
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        reads = node.parents
        if isinstance(node, Expectation):
            reads = () if node.base in ruled else (node.base,)
            ruled.add(node.base)
        for parent in reads:
            counts[parent] = counts.get(parent, 0) + 1
            stack.append(parent)
    return counts
