"""The DataFrames of one attempt: each node of the graph computed once, shared results kept.

One `Evaluation` is made per attempt, so that no result leaks into another attempt (Storm: a new
bolt instance per `TransactionAttempt`). It lives from the processing phase into the commit turn,
where what hangs below a table's new values is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.graph import Merge, NewValues, Node, Sink, Source, StateQuery, Transform, explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Evaluation", "consumers", "empty_frame"]


def _nothing(_: NewValues | StateQuery) -> DataFrame | None:
    return None


@dataclass
class Evaluation:
    """The DataFrames of one attempt.

    Args:
        inputs: stream name -> the batch's DataFrame; a name that is absent is an idle stream of
            unknown columns, and everything that needs it alone is absent too.
        share: called on the DataFrame of a node with several consumers.
        attempt: handed to transforms that ask for it.
        lookup: the rows of a table: its new values in this txid, or what a query reads; None when
            the columns are not known yet.
    """

    inputs: Mapping[str, DataFrame]
    consumers: Mapping[Node, int]
    share: Callable[[DataFrame], DataFrame]
    attempt: TransactionAttempt = field(default_factory=lambda: TransactionAttempt(1))
    lookup: Callable[[NewValues | StateQuery], DataFrame | None] = _nothing
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
        if isinstance(node, NewValues):
            return self.lookup(node)
        inputs = [self.rows(parent) for parent in node.parents]
        if isinstance(node, StateQuery):
            inputs.append(self.lookup(node))
        present = [frame for frame in inputs if frame is not None]
        if not present or (len(present) < len(inputs) and not isinstance(node, Merge)):
            return None
        if isinstance(node, Transform):
            return explain(node, lambda: node.apply(present[0], self.attempt))
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


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows, known as such to Spark's optimizer; `createDataFrame([])` would run Python tasks."""
    from pyspark.sql import functions as sf

    columns = [sf.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    return spark.range(0).select(*columns)
