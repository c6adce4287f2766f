"""The stages of a topology: an id for each, and a fingerprint of what it computes.

Stage ids are the same for the same program in every process (Storm: `TridentTopology.build` names
bolts `b-<n>-<names>` and spouts `spout-<txId>`): a spout is `spout-<stream>`, anything else
`<streams>/<operation>-<n>`, numbered within its streams and operation in the order in which the
tables were declared. So an operation added to one stream renames nothing in another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from txn.dataflow.expectations import Expectation, SetAside
from txn.dataflow.fingerprints import PYTHON, fingerprint
from txn.dataflow.graph import (
    Aggregation,
    Dimension,
    FinalValues,
    Join,
    NewValues,
    Node,
    Ranking,
    Sink,
    Source,
    StateQuery,
    Transform,
    called,
)
from txn.dataflow.repeats import NoRepeat, Repeats
from txn.dataflow.sessions import SessionRows, Sessions
from txn.dataflow.time_joins import JoinInTime

__all__ = [
    "OTHER_CODE",
    "Stage",
    "code_above",
    "is_other_code",
    "operation_of",
    "stage_ids",
    "stages",
]

_OPERATIONS: Mapping[type[Node], str] = {
    Aggregation: "aggregate",
    Dimension: "lookup",
    Expectation: "expect",
    FinalValues: "final_values",
    JoinInTime: "join_within",
    NewValues: "new_values",
    NoRepeat: "expect",
    Ranking: "top",
    Repeats: "drop_duplicates",
    SessionRows: "session_rows",
    Sessions: "session_windows",
    SetAside: "set_aside",
    StateQuery: "state_query",
}


@dataclass(frozen=True)
class Stage:
    """One operation that the user has written, between spouts and tables."""

    id: str
    told: str
    """Its description in words, with stream and place."""
    fingerprint: str | None
    """The fingerprint of its computation; None: unknown, and equal to no other."""


def operation_of(node: Node) -> str:
    """The operation of a node, as in its id."""
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
    """The operations that contain something written by the user, upstream first."""
    for node, name in stage_ids(sources, sinks).items():
        if (content := _content(node)) is not None:
            yield Stage(name, called(node), fingerprint(content))


def code_above(sink: Sink) -> str:
    """Identify the user's code between the sources and a table; empty if it is not known."""
    found = [stage.fingerprint for stage in stages([*sink.parent.sources()], [sink])]
    return "" if None in found else f"{PYTHON}: {fingerprint(found)}"


OTHER_CODE = "a transform, an aggregation, a join or a rule above the table was another one"
"""Why a table that another program has filled is refused."""


def is_other_code(filled_by: str, sink: Sink) -> bool:
    """Return whether other code than that above a table has filled it, as far as that is known."""
    own = code_above(sink)
    same_python = own.startswith(f"{PYTHON}: ") and filled_by.startswith(f"{PYTHON}: ")
    return same_python and own != filled_by


def _content(node: Node) -> object:
    """The values that determine the rows of a stage; None if it has nothing written by the user."""
    if isinstance(node, Transform):
        return node.function
    if isinstance(node, Expectation) and node.unparsed is None:
        return [node.name, node.condition, node.on_violation]
    if isinstance(node, Aggregation):
        return [node.keys, dict(node.aggregates)]
    if isinstance(node, Join):
        return [node.on, node.kind]
    if isinstance(node, FinalValues):
        return [node.sink.name, node.by]
    if isinstance(node, Ranking):
        return [node.sink.name, node.top, node.by, node.per]
    if isinstance(node, Dimension):
        return [node.name, node.on, node.columns]
    if isinstance(node, JoinInTime):
        return [node.on, node.kind, node.times, node.within]
    if isinstance(node, Repeats):
        return [node.keys, node.time, node.within]
    if isinstance(node, Sessions):
        return [node.keys, node.time, node.gap]
    if isinstance(node, StateQuery):
        return [node.state.path, node.on, node.as_of]
    return None
