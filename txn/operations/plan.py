"""A topology's stages and guarantees, without running any of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txn.config import TopologyConfig
from txn.dataflow.expectations import Expectation
from txn.dataflow.graph import (
    Aggregation,
    Dimension,
    Join,
    Node,
    Promise,
    Sink,
    Source,
    StateBefore,
    StateQuery,
    TableValues,
    Transform,
)
from txn.dataflow.repeats import Repeats
from txn.dataflow.sessions import SessionRows, Sessions
from txn.dataflow.stages import operation_of, stage_ids
from txn.dataflow.time_joins import JoinInTime
from txn.interfaces import Aggregate, Semantics, SpoutKind
from txn.interfaces.spout_capabilities import TellsBatchSize
from txn.text import duration
from txn.topology import Topology

__all__ = ["SettingPlan", "StagePlan", "StreamPlan", "TablePlan", "TopologyPlan", "plan_topology"]


@dataclass(frozen=True)
class StreamPlan:
    """One spout."""

    id: str
    name: str
    spout: str
    """The spout's class."""
    kind: str
    """Value of a `SpoutKind`."""
    after: tuple[str, ...] = ()
    """The streams that are read before it."""
    batch: str = ""
    """How large a txid is, in words; empty: the spout does not tell."""


@dataclass(frozen=True)
class StagePlan:
    """One operation between spouts and tables."""

    id: str
    operation: str
    reads: tuple[str, ...]
    """Ids of stages and streams; a table's name for its new values."""
    phase: str
    """"processing", or "commit": in the commit turn of the txid."""
    detail: str
    """Columns, or the user's function and where it is written."""


@dataclass(frozen=True)
class TablePlan:
    """One committer, and the guarantee of its rows."""

    name: str
    committer: str
    """The committer's class."""
    layout: str | None
    """The table's layout; None if the committer does not name one."""
    semantics: str
    """Value of a `Semantics`."""
    reads: str
    """Id of the stage or stream that feeds it."""
    phase: str
    """Phase in which its rows are staged."""
    columns: tuple[str, ...]
    """Columns that it needs by name; empty: it takes any."""
    guarantee: str
    """"exactly once", "at least once" or "none"."""
    why: str
    """One sentence."""


@dataclass(frozen=True)
class SettingPlan:
    """One setting that the program, the environment or the command line has given."""

    name: str
    value: str
    """As Python writes it; a secret as asterisks."""
    place: str
    """The place that gives it."""


@dataclass(frozen=True)
class TopologyPlan:
    """The whole topology, in the order in which it was declared."""

    topology: str
    streams: tuple[StreamPlan, ...]
    stages: tuple[StagePlan, ...]
    tables: tuple[TablePlan, ...]
    settings: tuple[SettingPlan, ...]
    notes: tuple[str, ...] = ()
    """Surprises for a reader of the program, a sentence or two each."""


def plan_topology(topology: Topology) -> TopologyPlan:
    """Describe a topology. Reads no source and opens no table.

    Raises:
        TopologyError: `run` would refuse it at once, because a part of it leads nowhere.
    """
    topology.check_complete("caught_up")
    names = stage_ids(topology.sources, topology.sinks)
    streams = tuple(
        StreamPlan(
            names[s],
            s.name,
            type(s.spout).__name__,
            s.spout.kind.value,
            tuple(earlier.name for earlier in s.after),
            s.spout.batch_size_in_words() if isinstance(s.spout, TellsBatchSize) else "",
        )
        for s in topology.sources
    )
    stages = tuple(_stage(node, names) for node in names if not isinstance(node, Source))
    tables = tuple(_table(sink, names) for sink in topology.sinks)
    notes = tuple(filter(None, map(_unseen, names)))
    return TopologyPlan(topology.name, streams, stages, tables, _settings(topology.settings), notes)


def _unseen(node: Node) -> str | None:
    """Describe what a state query misses because other streams of the topology fill the state."""
    if not isinstance(node, StateQuery) or node.sink is None:
        return None
    asking = list(node.sources_read())
    filling = [source for source in node.sink.parent.sources() if source not in asking]
    late = [s.name for s in filling if not all(s in source.preceding() for source in asking)]
    rows = f"The rows of stream '{'+'.join(source.name for source in asking)}'"
    if late:
        return (
            f"{rows} get NULL from table '{node.sink.name}' for each key that stream "
            f"'{'+'.join(late)}' brings in the same txid or a later one: at the beginning for all "
            "that both bring with the first txids. To have it read before, declare it first, and "
            "pass it to the other as stream(..., after=[...])."
        )
    if filling and node.as_of == "committed":
        return (
            f"{rows} get NULL from table '{node.sink.name}' for each key that is not committed "
            "when their batch is processed. With as_of='txid-1' they see all that is read before."
        )
    return None


def _settings(config: TopologyConfig) -> tuple[SettingPlan, ...]:
    return tuple(
        SettingPlan(name, repr(getattr(config, name)), config.places.get(name, "the program"))
        for name in type(config).model_fields
        if name in config.model_fields_set
    )


def _stage(node: Node, names: Mapping[Node, str]) -> StagePlan:
    reads = tuple(names[parent] for parent in node.parents)
    if isinstance(node, TableValues) and not reads:
        reads = (node.sink.name,)
    return StagePlan(names[node], operation_of(node), reads, _phase(node), _detail(node))


def _phase(node: Node | Sink) -> str:
    return "commit" if node.in_commit_turn else "processing"


def _detail(node: Node) -> str:
    if isinstance(node, Transform):
        return _function(node.function)
    if isinstance(node, Expectation):
        return f"{node.name}: {node.condition_text}, else {node.on_violation.replace('_', ' ')}"
    if isinstance(node, Aggregation):
        by = f"by {', '.join(node.keys)}: " if node.keys else ""
        return by + _aggregates(node.aggregates)
    if isinstance(node, Join):
        return f"{node.how} on {', '.join(node.on)}"
    if isinstance(node, StateBefore):
        return node.detail
    if isinstance(node, Dimension):
        return f"{node.name} on {', '.join(node.on)}, at one version per txid"
    if isinstance(node, JoinInTime):
        apart = duration(node.within / 1_000_000)
        return f"{node.kind} on {', '.join(node.on)}, {' and '.join(node.times)} within {apart}"
    if isinstance(node, Repeats):
        kept = "for ever" if node.within is None else f"for {duration(node.within / 1_000_000)}"
        return f"by {', '.join(node.keys)}, kept {kept}"
    if isinstance(node, SessionRows):
        return "those that are over" if node.are_over else "those that are open"
    if isinstance(node, Sessions):
        gap = duration(node.gap / 1_000_000)
        return f"by {', '.join(node.keys)}, over after {gap} of {node.time} without a row"
    if isinstance(node, StateQuery):
        return f"{node.state.path} on {', '.join(node.on)}, as of {node.as_of}"
    return ""


def _aggregates(aggregates: Mapping[str, Aggregate]) -> str:
    return ", ".join(
        f"{name}={type(a).__name__}({', '.join(a.columns)})" for name, a in aggregates.items()
    )


def _function(function: Any) -> str:
    """Return name and place, without addresses, which differ between processes."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return str(name)
    file = Path(code.co_filename)
    if file.is_relative_to(Path.cwd()):
        file = file.relative_to(Path.cwd())
    return f"{name} ({file}:{code.co_firstlineno})"


def _table(sink: Sink, names: Mapping[Node, str]) -> TablePlan:
    committer = sink.committer
    guarantee, why = _guarantee(sink.promise, committer.semantics)
    layout = getattr(committer, "layout", None)
    return TablePlan(
        name=sink.name,
        committer=type(committer).__name__,
        layout=layout if isinstance(layout, str) else None,
        semantics=committer.semantics.value,
        reads=names[sink.parent],
        phase=_phase(sink),
        columns=tuple(committer.required_columns()),
        guarantee=guarantee,
        why=why,
    )


def _guarantee(promise: Promise, semantics: Semantics) -> tuple[str, str]:
    """Return the guarantee of a pair that `Sink.check_pairing` accepts, and the reason.

    Source: the matrix of Storm's docs/Trident-state.md.
    """
    if promise.kind is SpoutKind.NON_TRANSACTIONAL:
        return "none", (
            f"{promise.why}: a replay may leave out what was read before, or bring it again."
        )
    if semantics is Semantics.NON_TRANSACTIONAL:
        return "at least once", (
            "The table is non_transactional: a replay of a txid that it holds is applied again."
        )
    if promise.kind is SpoutKind.OPAQUE:
        return "exactly once", (
            f"{promise.why}; the table is opaque: it reverts what a dead attempt published before "
            "it applies the replay."
        )
    if semantics is Semantics.OPAQUE:
        return "exactly once", (
            "Every replay is identical; the table is opaque, and can also handle a different one."
        )
    return "exactly once", (
        "Every replay is identical; the table is transactional: it skips a txid that it holds."
    )
