"""The dataflow of one topology: a DAG of streams that ends in committers.

Nodes are plain values; only the DataFrames that pass through `compute` touch Spark.
`txn.dataflow.evaluation` computes them, once per attempt.

A stream is computed in the processing phase, unless it lies below a table's new values or a query
of the state as of txid - 1: those are known in the commit turn only, and are computed there
(Storm: a bolt below a committer finishes in the commit phase, without a second commit).
"""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from txn.attempts import TransactionAttempt
from txn.dataflow.spans import Span
from txn.errors import FailedException, TopologyError, TransformError, TxnError
from txn.interfaces import Aggregate, Committer, Semantics, Spout, SpoutKind, State, partials_over
from txn.interfaces.published import Publishes
from txn.spark.causes import in_one_line, is_of_spark
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.spark.origins import noted
from txn.spark.ranking import touched_rankings
from txn.storage.catalog_names import Catalog, located
from txn.text import first_line, placed, users_line

_POSITION = re.compile(r"[.;]?\s*line 1 pos \d+;?$")

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "Aggregation",
    "AsOf",
    "Derived",
    "Dimension",
    "FinalValues",
    "Join",
    "Merge",
    "NewValues",
    "Node",
    "Place",
    "Promise",
    "Ranking",
    "Sink",
    "Source",
    "StateBefore",
    "StateQuery",
    "TableValues",
    "Transform",
    "Transformation",
    "called",
    "check_join",
    "explain",
    "promise_of",
    "require_columns",
    "takes_attempt",
]

Transformation = (
    Callable[["DataFrame"], "DataFrame"] | Callable[["DataFrame", TransactionAttempt], "DataFrame"]
)
AsOf = Literal["committed", "txid-1"]

JOIN_KINDS = {
    "inner": "inner",
    "cross": "inner",  # over columns, Spark's cross join is its inner one
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}
"""Spark's names of join types, without underscores -> the kind of join for rows without a match."""

STRENGTH = {SpoutKind.NON_TRANSACTIONAL: 0, SpoutKind.OPAQUE: 1, SpoutKind.TRANSACTIONAL: 2}
NEEDED = {Semantics.NON_TRANSACTIONAL: 0, Semantics.OPAQUE: 1, Semantics.TRANSACTIONAL: 2}


@dataclass(frozen=True, eq=False)
class Node:
    """One stream of the DAG. Compared by identity: two equal-looking streams are two streams."""

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return type(self).__name__.lower()

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return ()

    @property
    def upstream(self) -> tuple[Node, ...]:
        """The streams that this one depends on, also through a table's commit."""
        return self.parents

    @property
    def brings_late_rows(self) -> bool:
        """True if it hands on rows whose event time is over, though none of its parents does."""
        return self.hands_on_later

    @property
    def hands_on_later(self) -> bool:
        """True if rows come out when their time is over, also in a txid that reads nothing."""
        return False

    @property
    def in_commit_turn(self) -> bool:
        """True if its rows are known in the commit turn only."""
        return any(parent.in_commit_turn for parent in self.parents)

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """Compute this stream's rows from its parents' rows."""
        raise TypeError(f"{type(self).__name__} has no inputs to compute from")

    def ancestors(self, *, through_tables: bool = True) -> Iterator[Node]:
        """This stream and all that it depends on, each once, in the order of the DAG."""
        seen: set[Node] = set()
        stack: list[Node] = [self]
        while stack:
            node = stack.pop(0)
            if node not in seen:
                seen.add(node)
                yield node
                stack.extend(node.upstream if through_tables else node.parents)

    def sources(self) -> Iterator[Source]:
        """Every source that this stream descends from, each once, in the order of the DAG."""
        return (node for node in self.ancestors() if isinstance(node, Source))

    def sources_read(self) -> Iterator[Source]:
        """The sources whose rows become rows of this stream: not those behind a table."""
        nodes = self.ancestors(through_tables=False)
        return (node for node in nodes if isinstance(node, Source))

    def label(self) -> str:
        """The stream names that this node descends from, for messages."""
        return "+".join(source.name for source in self.sources())


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A spout's stream, unchanged."""

    name: str
    spout: Spout[Any]
    after: tuple[Source, ...] = ()
    """The streams to read to their end before this one is first read."""
    was: str | None = None
    """Its former name, if it was renamed."""

    def preceding(self) -> Iterator[Source]:
        """The streams of `after`, those of their `after`, and so on."""
        for source in self.after:
            yield source
            yield from source.preceding()


@dataclass(frozen=True, eq=False)
class Derived(Node):
    """A stream that is computed from one other."""

    parent: Node

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return (self.parent,)


@dataclass(frozen=True, eq=False)
class Transform(Derived):
    """A user's function from DataFrame to DataFrame."""

    function: Transformation

    def apply(self, rows: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        """Apply the user's function to the batch."""
        from pyspark.sql import DataFrame

        function: Any = self.function
        with noted():
            result = function(rows, attempt) if takes_attempt(function) else function(rows)
        if not isinstance(result, DataFrame):
            raise TopologyError(
                f"A transform of stream '{self.label()}' returned {_kind(result)}, not a DataFrame "
                f"of Spark. Return the transformed DataFrame from {_name(self.function)}.",
                number="TXN-103",
            )
        return result


@dataclass(frozen=True, eq=False)
class Aggregation(Derived):
    """Per-batch aggregation: one row per group of the batch (Trident's `aggregate`)."""

    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The columns of the stream that the keys and the aggregates name."""
        return (*self.keys, *(name for a in self.aggregates.values() for name in a.columns))

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """One row per group of the batch."""
        require_columns(inputs[0], self.columns_read, self.label())
        columns = _results(inputs[0], self.aggregates)
        keys = [sf.col(quoted(key)) for key in self.keys]
        return inputs[0].groupBy(*keys).agg(*columns)


@dataclass(frozen=True, eq=False)
class Merge(Node):
    """The rows of several streams of one batch, columns matched by name (Trident's `merge`)."""

    inputs: tuple[Node, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return self.inputs

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The rows of all parents."""
        merged = inputs[0]
        for other in inputs[1:]:
            if set(other.columns) != set(merged.columns):
                raise TopologyError(
                    f"Streams '{self.label()}' cannot be merged: one has columns "
                    f"{sorted(merged.columns)}, another {sorted(other.columns)}. Select the same "
                    "columns before merge().",
                    number="TXN-107",
                )
            merged = merged.unionByName(other)
        return merged


@dataclass(frozen=True, eq=False)
class Join(Node):
    """Rows of two streams of the same batch that match (Trident's `join`)."""

    left: Node
    right: Node
    on: tuple[str, ...]
    how: str

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return (self.left, self.right)

    @property
    def kind(self) -> str:
        """The treatment of rows without a match: a value of `JOIN_KINDS`."""
        return JOIN_KINDS[_normalized(self.how)]

    def require_on(self, frame: DataFrame, side: Node) -> None:
        """Refuse a side that lacks a column to join on."""
        require_columns(frame, self.on, side.label())

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The rows that match."""
        self.require_on(inputs[0], self.left)
        self.require_on(inputs[1], self.right)
        return inputs[0].join(inputs[1], on=list(self.on), how=self.how)


@dataclass(frozen=True, eq=False)
class TableValues(Node):
    """Values of a table, which follow from it as of txid - 1: they are known in the commit turn."""

    sink: Sink

    @property
    def upstream(self) -> tuple[Node, ...]:
        """The stream that feeds the table."""
        return (self.sink.parent,)

    @property
    def in_commit_turn(self) -> bool:
        """Always True: the values depend on the table as of txid - 1."""
        return True


@dataclass(frozen=True, eq=False)
class NewValues(TableValues):
    """The changes of a table's commit, in the same txid (Trident's `newValuesStream`)."""

    @property
    def hands_on_later(self) -> bool:
        """True if keys of the table end, which is a change."""
        return self.sink.committer.changes_without_rows


@dataclass(frozen=True, eq=False)
class StateQuery(Derived):
    """Rows with the values that a state holds for their keys (Trident's `stateQuery`).

    Args:
        state: the state to read.
        sink: the committer that keeps it in this topology; None: another topology keeps it.
        aggregates: the aggregates of the values; None: the table has their names.
        on: columns of the stream with the names of the state's keys.
    """

    state: State
    sink: Sink | None
    aggregates: Mapping[str, Aggregate] | None
    on: tuple[str, ...]
    as_of: AsOf

    @property
    def in_commit_turn(self) -> bool:
        """True for a query as of txid - 1, which must be committed first."""
        return self.as_of == "txid-1" or self.parent.in_commit_turn

    def require_keys(self, rows: DataFrame) -> None:
        """Refuse a stream that lacks a column to look up."""
        require_columns(rows, self.on, self.label())

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """Every row once, with NULL values if the state lacks its key."""
        rows, state = inputs
        self.require_keys(rows)
        keys = [name for name in state.columns if name in self.on]
        values = [name for name in state.columns if name not in self.on]
        for name in self.on:
            if name not in keys:
                raise TopologyError(
                    f"state_query() of stream '{self.label()}': the state has no key '{name}'. "
                    f"Its columns are {', '.join(state.columns)}.",
                    number="TXN-108",
                )
        self._refuse_taken(rows, values)
        # NULL is a key like any other in a state table, so the comparison is null-safe.
        renamed = state.select(
            *(sf.col(quoted(name)).alias(f"txn_key_{name}") for name in keys),
            *(sf.col(quoted(name)) for name in values),
        )
        # By reference, because the stream may have a column of that name.
        own = {name: renamed[quoted(f"txn_key_{name}")] for name in keys}
        condition = sf.lit(True)
        for name in keys:
            condition &= rows[quoted(name)].eqNullSafe(own[name])
        return rows.join(renamed, condition, "left").drop(*own.values())

    def with_nulls(self, rows: DataFrame) -> DataFrame | None:
        """Every row, with NULL for the values of a state that is not written yet.

        None if their types depend on unknown columns. The type of a count depends on none.
        """
        from pyspark.errors import AnalysisException

        if not self.aggregates or any(a.columns for a in self.aggregates.values()):
            return None
        self._refuse_taken(rows, tuple(self.aggregates))
        shown = _results(rows, self.aggregates)
        try:
            types = rows.sparkSession.range(0).agg(*shown).schema
        except AnalysisException:
            return None  # a user's own aggregate that does not declare its columns
        return rows.select("*", *(sf.lit(None).cast(f.dataType).alias(f.name) for f in types))

    def _refuse_taken(self, rows: DataFrame, values: Sequence[str]) -> None:
        taken = [name for name in values if name in rows.columns]
        if taken:
            raise TopologyError(
                f"state_query() of stream '{self.label()}' would add a second column "
                f"'{taken[0]}'. Rename the stream's own in a transform before the query.",
                number="TXN-108",
            )


def _results(rows: DataFrame, aggregates: Mapping[str, Aggregate]) -> list[Column]:
    partials = partials_over(rows, aggregates)
    return [a.result(a.initial(partials[name])).alias(name) for name, a in aggregates.items()]


@dataclass(frozen=True, eq=False)
class StateBefore(TableValues):
    """A stream that is computed from a state as of the txid before.

    Args:
        sink: the committer that keeps the state.
        state: the state to read.
        aggregates: the aggregates of the values.
        on: the state's keys.
    """

    state: State
    aggregates: Mapping[str, Aggregate]
    on: tuple[str, ...]

    @property
    @abstractmethod
    def detail(self) -> str:
        """What it does, in words."""


@dataclass(frozen=True, eq=False)
class Ranking(StateBefore):
    """The first rows of each group that a txid changes (Trident: `FirstN`, over a whole state).

    The groups are told from the changes, so it is computed behind them.

    Args:
        changes: the changes of the txid.
        top: so many rows of each group.
        by: the order, as of `txn.spark.ranking`.
        per: the columns of a group; empty: one group.
    """

    changes: NewValues
    top: int
    by: tuple[str, ...]
    per: tuple[str, ...]

    @property
    def detail(self) -> str:
        """For example "10 by spent desc per day"."""
        per = f" per {', '.join(self.per)}" if self.per else ""
        return f"{self.top} by {', '.join(self.by)}{per}"

    @property
    def parents(self) -> tuple[Node, ...]:
        """The changes."""
        return (self.changes,)

    @property
    def upstream(self) -> tuple[Node, ...]:
        """The changes, whose table feeds it."""
        return self.parents

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The rankings after the changes, from the values before and the changes."""
        before, changed = inputs
        return touched_rankings(before, changed, self.top, self.by, self.per, self.on)


@dataclass(frozen=True, eq=False)
class FinalValues(StateBefore):
    """The values of a state whose time is over in a txid, each once.

    Rows that are not late cannot change them any more, so they are those as of the txid before.
    Source: Structured Streaming's append mode.

    Args:
        by: the key with the time: a window, whose end counts, or a timestamp.
    """

    by: str

    @property
    def detail(self) -> str:
        """For example "by window"."""
        return f"by {self.by}"

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return "final_values"

    @property
    def hands_on_later(self) -> bool:
        """Always True."""
        return True

    def ended(self, values: DataFrame, span: Span) -> DataFrame:
        """The values whose time is over at a watermark, and was not at the one before."""
        kind = values.schema[self.by].dataType
        end = sf.col(quoted(self.by))
        if kind.simpleString() == "struct<start:timestamp,end:timestamp>":
            end = end.getField("end")
        elif kind.simpleString() != "timestamp":
            raise TopologyError(
                f"final_values() of table '{self.sink.name}' needs a key that is a window of "
                f"timestamps or a timestamp, and '{self.by}' is {kind.simpleString()}.",
                number="TXN-123",
            )
        return values.where(sf.lit(False) if span.is_empty else span.ends(end))


@dataclass
class Place:
    """Where a table is that others maintain."""

    location: str

    def find(self, catalog: Catalog) -> None:
        """Find the folder of a name."""
        self.location = located(self.location, catalog)


@dataclass(frozen=True, eq=False)
class Dimension(Derived):
    """Rows with what a table that others maintain has for them, at one version per txid.

    Source: Flink's lookup joins, and Structured Streaming's joins with a table, both of which read
    whatever the table holds at the moment.
    """

    place: Place
    on: tuple[str, ...]
    columns: tuple[str, ...] | None
    """The columns to add; None: all others."""
    storage_options: Mapping[str, str]

    @property
    def name(self) -> str:
        """The table's path, as the program has it; for a name of Spark's catalog, its folder."""
        return self.place.location

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return f"lookup in '{self.name}'"

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """Every row, once for each row of the table with its keys, or once with NULLs."""
        rows, table = inputs
        require_columns(rows, self.on, self.label())
        wanted = (*self.on, *(self.columns or ()))
        for name in wanted:
            if name not in table.columns:
                raise TopologyError(
                    f"lookup() of stream '{self.label()}': table '{self.name}' has no column "
                    f"'{name}'. Its columns are {', '.join(table.columns)}.",
                    number="TXN-108",
                )
        if self.columns is not None:
            table = table.select(*map(quoted, wanted))
        for name in table.columns:
            if name in rows.columns and name not in self.on:
                raise TopologyError(
                    f"lookup() of stream '{self.label()}' would add a second column '{name}' of "
                    f"table '{self.name}'. Name the columns to add (columns=), or rename the "
                    "stream's own in a transform before.",
                    number="TXN-108",
                )
        return rows.join(table, on=list(self.on), how="left")


@dataclass(frozen=True)
class Promise:
    """A stream's promise about replays, and the reason for it."""

    kind: SpoutKind
    why: str


def promise_of(node: Node) -> Promise:
    """The weakest promise among everything that `node` depends on.

    Source: the matrix of Storm's docs/Trident-state.md, which has spouts only. A query as of
    "the last committed txid" may find another txid at a replay; the new values of a table that
    applies replays again differ at each.
    """
    weakest = Promise(SpoutKind.TRANSACTIONAL, "")
    for promise in (_own_promise(ancestor) for ancestor in node.ancestors()):
        if STRENGTH[promise.kind] < STRENGTH[weakest.kind] or not weakest.why:
            weakest = promise
    return weakest


def _own_promise(node: Node) -> Promise:
    if isinstance(node, Source):
        kind = node.spout.kind
        article = "an" if kind is SpoutKind.OPAQUE else "a"
        return Promise(kind, f"Stream '{node.name}' has {article} {kind.value} spout")
    if isinstance(node, StateQuery) and node.as_of == "committed":
        return Promise(
            SpoutKind.OPAQUE,
            f"Stream '{node.label()}' queries a state as of the last committed txid, which makes "
            "it opaque (as_of='txid-1' would not)",
        )
    if isinstance(node, TableValues) and (
        node.sink.committer.semantics is Semantics.NON_TRANSACTIONAL
    ):
        what = "final" if isinstance(node, FinalValues) else "new"
        return Promise(
            SpoutKind.NON_TRANSACTIONAL,
            f"Table '{node.sink.name}', whose {what} values are used, has non_transactional "
            "semantics",
        )
    return Promise(SpoutKind.TRANSACTIONAL, "")


@dataclass(frozen=True, eq=False)
class Sink:
    """The end of a stream: a committer, and the stream that feeds it."""

    parent: Node
    committer: Committer
    published: list[Publishes] = field(default_factory=list)
    """Tables that show this one's keys and values."""

    @property
    def name(self) -> str:
        """The committer's name: unique in the topology, and its identity in ZooKeeper."""
        return self.committer.name

    @property
    def in_commit_turn(self) -> bool:
        """True if it is staged in the commit turn, not in the processing phase."""
        return self.parent.in_commit_turn

    @property
    def promise(self) -> Promise:
        """Its stream's promise about replays."""
        return promise_of(self.parent)

    def check_pairing(self) -> None:
        """Refuse a stream that promises less about replays than the table relies on.

        Source: the matrix of Storm's docs/Trident-state.md; Trident never checked it.
        """
        promise = self.promise
        if STRENGTH[promise.kind] < NEEDED[self.committer.semantics]:
            raise TopologyError(
                f"{promise.why}, so its replays may differ, but table '{self.name}' has "
                f"{self.committer.semantics.value} semantics, which needs more than that. Give "
                f"the table semantics='{promise.kind.value}' or use a stronger source.",
                number="TXN-106",
            )


def check_join(how: str, label: str) -> None:
    """Refuse a join type that Spark does not know.

    Raises:
        TopologyError: an unknown type; the error lists the types that Spark knows.
    """
    if _normalized(how) not in JOIN_KINDS:
        raise TopologyError(
            f"join() of stream '{label}' cannot be how={how!r}. Use 'inner', 'left', 'right', "
            "'full', 'left_semi', 'left_anti' or 'cross'.",
            number="TXN-107",
        )


def _normalized(how: str) -> str:
    return how.lower().replace("_", "")


def require_columns(frame: DataFrame, needed: Sequence[str], stream: str) -> None:
    """Refuse a column that the stream lacks, before Spark does; the error names both."""
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise TopologyError(
            f"Stream '{stream}' has no column '{missing[0]}'. It has: "
            f"{', '.join(frame.columns) or 'no columns'}. Correct the name, or add the column "
            "in a transform before it is used.",
            number="TXN-101",
        )


def explain(node: Node, compute: Callable[[], DataFrame]) -> DataFrame:
    """Run user code that builds a DataFrame; name the stream if Spark refuses it."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        with placed(called(node)) if isinstance(node, Transform) else nullcontext():
            return compute()
    except (FailedException, TxnError):
        raise
    except (AnalysisException, ParseException) as error:
        reason = _sentence(in_one_line(str(error)))
        where = _place(node, error)
        raise TopologyError(
            f"Stream '{node.label()}' cannot be computed in {where}: {reason} Correct the column "
            "or the expression; nothing was run.",
            number="TXN-102",
        ) from error
    except Exception as error:
        if is_of_spark(error) or not isinstance(node, Transform):
            raise
        raise TransformError(
            f"A transform of stream '{node.label()}' raised {first_line(error)} in "
            f"{_place(node, error)}. Correct it; nothing was run."
        ) from error


def _sentence(reason: str) -> str:
    """The first line of Spark's message without a position in the text, with one full stop."""
    return f"{_POSITION.sub('', reason).rstrip(' .;')}."


def takes_attempt(function: Callable[..., Any]) -> bool:
    """Return whether a transform takes the attempt: two positional parameters without default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(needed) == 2


def called(node: Node) -> str:
    """Describe a node for messages: its operation, its line in the program, its stream."""
    what = node.operation
    if isinstance(node, Transform):
        what = f"transform {_name(node.function)}"
    return f"{what} of stream '{node.label()}'"


def _place(node: Node, error: BaseException) -> str:
    """The user's line that failed, or the function around it."""
    if not isinstance(node, Transform):
        return node.operation
    return users_line(error) or _name(node.function)


def _kind(value: object) -> str:
    """The type of a value with its library, because pandas has DataFrames as well."""
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    return kind.__name__ if library == "builtins" else f"{library}.{kind.__name__}"


def _name(function: object) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else str(name)
