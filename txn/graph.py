"""The dataflow of one topology: a DAG of streams that ends in committers.

Nodes are plain values; nothing here touches Spark but the DataFrames that pass through
`Evaluation`. One `Evaluation` is made per attempt, so that no result leaks into another attempt
(Storm: a new bolt instance per `TransactionAttempt`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txn.errors import FailedException, TopologyError, TxnError
from txn.interfaces import Aggregate, Committer, Semantics, Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Aggregation",
    "Evaluation",
    "Join",
    "Merge",
    "Node",
    "Sink",
    "Source",
    "Transform",
    "consumers",
    "explain",
    "require_columns",
]

Transformation = Callable[["DataFrame"], "DataFrame"]

STRENGTH = {SpoutKind.NON_TRANSACTIONAL: 0, SpoutKind.OPAQUE: 1, SpoutKind.TRANSACTIONAL: 2}
NEEDED = {Semantics.NON_TRANSACTIONAL: 0, Semantics.OPAQUE: 1, Semantics.TRANSACTIONAL: 2}


@dataclass(frozen=True, eq=False)
class Node:
    """One stream of the DAG. Compared by identity: two equal-looking streams are two streams."""

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return ()

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """This stream's rows out of its parents' rows."""
        raise TypeError(f"{type(self).__name__} has no inputs to compute from")

    def sources(self) -> Iterator[Source]:
        """Every source that this stream descends from, each once, in the order of the DAG."""
        seen: set[Node] = set()
        stack: list[Node] = [self]
        while stack:
            node = stack.pop(0)
            if node not in seen:
                seen.add(node)
                if isinstance(node, Source):
                    yield node
                stack.extend(node.parents)

    def label(self) -> str:
        """The stream names that this node descends from, for messages."""
        return "+".join(source.name for source in self.sources())


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A spout's stream, as it comes."""

    name: str
    spout: Spout[Any]


@dataclass(frozen=True, eq=False)
class Transform(Node):
    """A user's function from DataFrame to DataFrame."""

    parent: Node
    function: Transformation

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return (self.parent,)

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The user's function of the batch."""
        from pyspark.sql import DataFrame

        result = self.function(inputs[0])
        if not isinstance(result, DataFrame):
            raise TopologyError(
                f"A transform of stream '{self.label()}' returned {type(result).__name__}, not a "
                f"DataFrame. Return the transformed DataFrame from {_name(self.function)}."
            )
        return result


@dataclass(frozen=True, eq=False)
class Aggregation(Node):
    """Per-batch aggregation: one row per group of the batch (Trident's `aggregate`)."""

    parent: Node
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return (self.parent,)

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """One row per group of the batch."""
        needed = [*self.keys, *(a.column for a in self.aggregates.values() if a.column)]
        require_columns(inputs[0], needed, self.label())
        columns = [a.partial().alias(name) for name, a in self.aggregates.items()]
        return inputs[0].groupBy(*self.keys).agg(*columns)


@dataclass(frozen=True, eq=False)
class Merge(Node):
    """The rows of several streams of one batch, columns matched by name (Trident's `merge`)."""

    inputs: tuple[Node, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams that this one is computed from."""
        return self.inputs

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The rows of all of them."""
        merged = inputs[0]
        for other in inputs[1:]:
            if set(other.columns) != set(merged.columns):
                raise TopologyError(
                    f"Streams '{self.label()}' cannot be merged: one has columns "
                    f"{sorted(merged.columns)}, another {sorted(other.columns)}. Select the same "
                    "columns before merge()."
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

    def compute(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """The rows that match."""
        require_columns(inputs[0], self.on, self.left.label())
        require_columns(inputs[1], self.on, self.right.label())
        return inputs[0].join(inputs[1], on=list(self.on), how=self.how)


@dataclass(frozen=True, eq=False)
class Sink:
    """The end of a stream: a committer, and what feeds it."""

    parent: Node
    committer: Committer

    @property
    def name(self) -> str:
        """The committer's name: unique in the topology, and its identity in ZooKeeper."""
        return self.committer.name

    def check_pairing(self) -> None:
        """Refuse a spout that promises less about replays than the table relies on.

        Source: the matrix of docs/Trident-state.md; Trident never checked it.
        """
        for source in self.parent.sources():
            if STRENGTH[source.spout.kind] < NEEDED[self.committer.semantics]:
                raise TopologyError(
                    f"Stream '{source.name}' has a {source.spout.kind.value} spout, whose replays "
                    f"may differ, but table '{self.name}' has {self.committer.semantics.value} "
                    "semantics, which relies on more. Give the table "
                    f"semantics='{source.spout.kind.value}' or use a stronger spout."
                )


@dataclass
class Evaluation:
    """The DataFrames of one attempt: each node computed once, shared results kept.

    Args:
        inputs: stream name -> the batch's DataFrame; a name that is absent is an idle stream of
            unknown columns, and everything that needs it alone is absent too.
        share: called on the DataFrame of a node with several consumers.
    """

    inputs: Mapping[str, DataFrame]
    consumers: Mapping[Node, int]
    share: Callable[[DataFrame], DataFrame]
    read: set[str] = field(default_factory=set)
    """Names of the streams whose rows were really asked for."""
    done: dict[Node, DataFrame | None] = field(default_factory=dict)

    def rows(self, node: Node) -> DataFrame | None:
        """The rows of `node`, or None when they are known to be none at all."""
        if node not in self.done:
            frame = self._compute(node)
            shared = frame is not None and self.consumers.get(node, 0) > 1
            self.done[node] = self.share(frame) if frame is not None and shared else frame
        return self.done[node]

    def streams_read(self, node: Node) -> set[str]:
        """Names of the streams that the rows of `node` were computed from in this attempt."""
        if node not in self.done:
            return set()
        if isinstance(node, Source):
            return {node.name}
        return set().union(*(self.streams_read(parent) for parent in node.parents))

    def _compute(self, node: Node) -> DataFrame | None:
        if isinstance(node, Source):
            return self.inputs.get(node.name)
        inputs = [self.rows(parent) for parent in node.parents]
        present = [frame for frame in inputs if frame is not None]
        if not present or (len(present) < len(inputs) and not isinstance(node, Merge)):
            return None
        return explain(node, lambda: node.compute(present))


def consumers(sinks: Sequence[Sink]) -> dict[Node, int]:
    """How many nodes and sinks read each node."""
    counts: dict[Node, int] = {}
    seen: set[Node] = set()
    stack = [sink.parent for sink in sinks]
    for node in stack:
        counts[node] = counts.get(node, 0) + 1
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for parent in node.parents:
            counts[parent] = counts.get(parent, 0) + 1
            stack.append(parent)
    return counts


def require_columns(frame: DataFrame, needed: Sequence[str], stream: str) -> None:
    """Refuse a name that the stream does not have, before Spark does, naming both."""
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise TopologyError(
            f"Stream '{stream}' has no column '{missing[0]}'. It has: "
            f"{', '.join(frame.columns) or 'no columns'}. Correct the name, or add the column "
            "in a transform before it is used."
        )


def explain(node: Node, compute: Callable[[], DataFrame]) -> DataFrame:
    """Run user code that builds a DataFrame; say which stream a refusal by Spark belongs to."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        return compute()
    except (FailedException, TxnError):
        raise
    except (AnalysisException, ParseException) as error:
        reason = str(error).splitlines()[0]
        where = _name(node.function) if isinstance(node, Transform) else type(node).__name__.lower()
        raise TopologyError(
            f"Stream '{node.label()}' cannot be computed in {where}: {reason} Correct the column "
            "or the expression; nothing was run."
        ) from error


def _name(function: object) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else str(name)
