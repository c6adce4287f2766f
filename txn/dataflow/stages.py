"""The stages of a topology: an id for each, and a fingerprint of what it computes.

Stage ids are the same for the same program in every process (Storm: `TridentTopology.build` names
bolts `b-<n>-<names>` and spouts `spout-<txId>`): a spout is `spout-<stream>`, anything else
`<streams>/<operation>-<n>`, numbered within its streams and operation in the order in which the
tables were declared. So an operation that is added to one stream renames nothing in another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from txn.dataflow.expectations import Expectation, SetAside
from txn.dataflow.fingerprints import fingerprint
from txn.dataflow.graph import (
    Aggregation,
    Join,
    Merge,
    NewValues,
    Node,
    Sink,
    Source,
    StateQuery,
    Transform,
    called,
)

__all__ = ["Stage", "operation_of", "stage_ids", "stages"]

_OPERATIONS: Mapping[type[Node], str] = {
    Aggregation: "aggregate",
    Expectation: "expect",
    Join: "join",
    Merge: "merge",
    NewValues: "new_values",
    SetAside: "set_aside",
    StateQuery: "state_query",
    Transform: "transform",
}


@dataclass(frozen=True)
class Stage:
    """One operation that the user has written, between spouts and tables."""

    id: str
    told: str
    """In words, with stream and place."""
    fingerprint: str | None
    """Of what it computes; None: unknown, and equal to nothing."""


def operation_of(node: Node) -> str:
    """What a node does, as in its id."""
    return _OPERATIONS.get(type(node), type(node).__name__.lower())


def stage_ids(sources: Sequence[Source], sinks: Sequence[Sink]) -> dict[Node, str]:
    """Every node that leads to a table, upstream first, with its id."""
    ids: dict[Node, str] = {source: f"spout-{source.name}" for source in sources}
    counts: dict[str, int] = {}
    for sink in sinks:
        path = [sink.parent]
        while path:
            if (above := next((n for n in path[-1].upstream if n not in ids), None)) is not None:
                path.append(above)
            elif (node := path.pop()) not in ids:
                origins = set(node.sources())
                label = "+".join(source.name for source in sources if source in origins)
                stem = f"{label}/{operation_of(node)}"
                counts[stem] = counts.get(stem, 0) + 1
                ids[node] = f"{stem}-{counts[stem]}"
    return ids


def stages(sources: Sequence[Source], sinks: Sequence[Sink]) -> Iterator[Stage]:
    """The operations that have something of the user's in them, upstream first."""
    for node, name in stage_ids(sources, sinks).items():
        if (content := _content(node)) is not None:
            yield Stage(name, called(node), fingerprint(content))


def _content(node: Node) -> object:
    """What decides on the rows of a stage; None: it has nothing of the user's."""
    if isinstance(node, Transform):
        return node.function
    if isinstance(node, Expectation) and node.unparsed is None:
        return [node.name, node.condition, node.on_violation]
    if isinstance(node, Aggregation):
        return [node.keys, dict(node.aggregates)]
    if isinstance(node, Join):
        return [node.on, node.kind]
    if isinstance(node, StateQuery):
        return [node.state.path, node.on, node.as_of]
    return None
