"""A topology as declared: the input of a run, a plan and a recovery."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from txn.config import TopologyConfig
from txn.dataflow.expectations import Expectation, SetAside
from txn.dataflow.graph import Dimension, Sink, Source, StateQuery
from txn.dataflow.kept import Kept
from txn.dataflow.watermarks import Watermark
from txn.errors import TopologyError
from txn.interfaces import Semantics, SpoutKind
from txn.storage.locations import identity

__all__ = ["Definition", "Until"]

Until = Literal["forever", "caught_up"] | int
"""When a run ends by itself: never, once no spout has anything to read, or after a txid."""


@dataclass(frozen=True)
class Definition:
    """A topology as declared so far; `txn.Topology.definition` makes it."""

    name: str
    config: TopologyConfig
    sources: tuple[Source, ...]
    """The streams, in the order in which they were declared."""
    sinks: tuple[Sink, ...]
    """The committers with their streams, in the order in which they publish."""
    rules: tuple[Expectation, ...] = ()
    """The rules of its streams, in the order in which they were declared."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the streams."""
        return tuple(source.name for source in self.sources)

    @property
    def renamed(self) -> dict[str, str]:
        """Former name -> present name, of the streams that were renamed."""
        return {source.was: source.name for source in self.sources if source.was is not None}

    @property
    def watermarks(self) -> tuple[Watermark, ...]:
        """The rules with the event time of its streams."""
        return tuple(rule for rule in self.rules if isinstance(rule, Watermark))

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(stream, table) for each stream whose rows reach a table."""
        return tuple(
            (source.name, sink.name) for sink in self.sinks for source in sink.parent.sources()
        )

    @property
    def opaque_streams(self) -> frozenset[str]:
        """The streams that a replay plans anew: all that are not transactional."""
        identical = SpoutKind.TRANSACTIONAL
        return frozenset(s.name for s in self.sources if s.spout.kind is not identical)

    @property
    def skipping_tables(self) -> frozenset[str]:
        """The tables that skip a txid that they hold already."""
        return frozenset(
            sink.name for sink in self.sinks if sink.committer.semantics is Semantics.TRANSACTIONAL
        )

    def unborn_tables(
        self,
        holding: Iterable[str],
        seen: Iterable[str] = (),
        declared: Iterable[str] | None = None,
        read: Collection[str] = (),
    ) -> frozenset[str]:
        """The tables that may not exist yet although they were always declared.

        A batch creates each table that reads only streams whose rows it computed, even if no row
        is left for the table. The table of bad rows, and tables below a state of another topology,
        may be created at any time.

        Args:
            holding: the tables whose newest batch is committed and brought them rows.
            seen: the streams with rows that a committed batch has computed.
            declared: the tables that the former program named; None: not known. Any other one may
                only begin if nothing was `read` for it, or set aside.
            read: the streams of which committed txids have read something for a table.
        """
        streams_of = {sink.name: {s.name for s in sink.parent.sources()} for sink in self.sinks}
        computed = set(seen)
        for table in holding:
            # Of several streams, only one may have had rows.
            if len(streams_of[table]) == 1:
                computed |= streams_of[table]
        former = {identity(name) for name in (streams_of if declared is None else declared)}
        return frozenset(
            sink.name
            for sink in self.sinks
            if isinstance(sink.parent, SetAside)
            or (
                (identity(sink.name) in former or streams_of[sink.name].isdisjoint(read))
                and (not streams_of[sink.name] <= computed or _foreign_queries(sink))
            )
        )

    @property
    def replays_differ(self) -> bool:
        """True if a replay of a txid may bring other rows to some table."""
        return any(sink.promise.kind is not SpoutKind.TRANSACTIONAL for sink in self.sinks)

    def compares_attempts(self, sink: Sink) -> bool:
        """True if two attempts of a txid may leave other rows in a table: it was planned anew."""
        return self.replays_differ and sink.committer.semantics is Semantics.OPAQUE

    @property
    def can_group(self) -> bool:
        """True if every table can take several txids as one version.

        Tables staged in the commit turn cannot: they need the values of each txid by itself.
        """
        return all(sink.committer.groups and not sink.in_commit_turn for sink in self.sinks)

    def check_complete(self) -> None:
        """Refuse a topology with a part that leads nowhere, or with a query that may not be.

        Raises:
            TopologyError: no table, a stream or a rule that reaches none, or a query that bypasses
                a table of this topology.
        """
        sinks = [sink for sink in self.sinks if not isinstance(sink.parent, SetAside | Kept)]
        if not sinks:
            raise TopologyError(
                f"Topology '{self.name}' ends nowhere: no stream has a committer. Add "
                "persistent_aggregate(...) or partition_persist(...).",
                number="TXN-105",
            )
        used = {node for sink in sinks for node in sink.parent.ancestors()}
        for source in self.sources:
            if source not in used:
                raise TopologyError(
                    f"Stream '{source.name}' of topology '{self.name}' reaches no committer: its "
                    "records would be read and lost. Persist it, or do not declare it.",
                    number="TXN-105",
                )
        for rule in self.rules:
            if rule not in used:
                raise TopologyError(
                    f"Rule '{rule.name}' of stream '{rule.label()}' reaches no committer, so it "
                    f"would never be checked. {rule.method}() returns a new stream: use that one "
                    "from there on, or remove it.",
                    number="TXN-122",
                )
        self.check_queries()

    def check_queries(self) -> None:
        """Refuse a query that bypasses a table of this topology.

        Raises:
            TopologyError: there is one.
        """
        paths = {identity(sink.name) for sink in self.sinks}
        foreign = [query for sink in self.sinks for query in _foreign_queries(sink)]
        for query in foreign:
            if identity(query.state.path) in paths:
                raise TopologyError(
                    f"state_query() of stream '{query.label()}' reads '{query.state.path}', a "
                    "table of this topology. Pass what persistent_aggregate() returned; "
                    "otherwise the query could read a txid that may still be replayed.",
                    number="TXN-108",
                )
        for node in (n for sink in self.sinks for n in sink.parent.ancestors()):
            if isinstance(node, Dimension) and identity(node.name) in paths:
                raise TopologyError(
                    f"lookup() of stream '{node.label()}' reads '{node.name}', a table of this "
                    "topology, whose newest version may still be replayed. Use state_query().",
                    number="TXN-108",
                )


def _foreign_queries(sink: Sink) -> list[StateQuery]:
    """Return the queries that a table's rows come from and that read no state of this topology."""
    nodes = sink.parent.ancestors()
    return [node for node in nodes if isinstance(node, StateQuery) and node.sink is None]
