"""Tables that lack committed txids and get them: new ones, and such as were left out for a while.

The leader fills them before its first batch. `Topology.backfill` fills them beside a leader that
runs the former program, and so does not know them.
"""

from __future__ import annotations

from collections.abc import Collection

from txn.config import TopologyConfig
from txn.dataflow.definition import Definition
from txn.dataflow.graph import Sink
from txn.engine.loop.equipment import Equipment
from txn.engine.work.backfill import Leader, require_history, require_refillable
from txn.engine.work.history import History, read_history
from txn.interfaces import Publication
from txn.protocol.recovery import Newest
from txn.storage.locations import identity

__all__ = ["LateTables"]


class LateTables:
    """The tables of a topology that lack committed txids.

    Args:
        named: the tables to fill (`backfilled_tables`).
        committed: the newest committed txid.
        newest: the newest publication of each table.

    Raises:
        TopologyError: the rows of one depend on more than its sources.
        RecoveryRefusedError: no log records what the txids read.
    """

    def __init__(
        self, definition: Definition, named: Collection[str], committed: int, newest: Newest
    ) -> None:
        self._definition = definition
        places = {identity(table) for table in named}
        self.sinks: tuple[Sink, ...] = tuple(
            sink
            for sink in definition.sinks
            if identity(sink.name) in places and _last_txid(newest[sink.name]) < committed
        )
        self.first_txids: dict[str, int] = {}
        """Table that does not exist yet -> the first txid that it gets."""
        history = self._history(committed) if self.sinks else None
        for sink in self.sinks:
            require_refillable(sink)
            if history is None:
                continue
            last = _last_txid(newest[sink.name])
            if last + 1 < history.first or not history.first:
                may_lack = _accepts(definition.config, sink.name) and last == 0
                require_history(sink.name, history, committed, may_lack=may_lack)
            if newest[sink.name] is None:
                self.first_txids[sink.name] = history.first

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(sink.name for sink in self.sinks)

    def without(self, newest: Newest) -> Newest:
        """Return the newest publications of all other tables."""
        return {name: entry for name, entry in newest.items() if name not in self.names}

    def fill(self, equipment: Equipment, committed: int, leader: Leader) -> None:
        """Give each of them the txids that it lacks, up to `committed`.

        Raises:
            FencedError: a newer leader knows the table.
            RecoveryRefusedError: a log has lost what it recorded a moment ago.
        """
        if not self.sinks:
            return
        history = self._history(committed)
        for sink in self.sinks:
            equipment.backfill(sink, history, committed, self._definition.config, leader)

    def _history(self, committed: int) -> History:
        donors = [s.committer for s in self._definition.sinks if s not in self.sinks]
        return read_history(donors, committed, self._definition.renamed)


def _accepts(config: TopologyConfig, table: str) -> bool:
    """Return whether the settings accept a table that lacks its first txids."""
    return identity(table) in {identity(name) for name in config.new_tables}


def _last_txid(entry: tuple[int, Publication] | None) -> int:
    return entry[1].last_txid if entry else 0
