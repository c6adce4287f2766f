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
from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication, Semantics
from txn.protocol.records import CommittedRecord
from txn.protocol.recovery import Newest
from txn.storage.locations import identity

__all__ = ["LateTables"]


class LateTables:
    """The tables of a topology that lack committed txids.

    Args:
        named: the tables to fill (`backfilled_tables`).
        committed: the newest committed txid, and the tables that have it.
        newest: the newest publication of each table.

    Raises:
        TopologyError: the rows of one depend on more than its sources.
        RecoveryRefusedError: no log records what the txids read.
    """

    def __init__(
        self,
        definition: Definition,
        named: Collection[str],
        committed: CommittedRecord,
        newest: Newest,
    ) -> None:
        self._definition = definition
        self._read: tuple[int, History] | None = None
        places = {identity(table) for table in named}
        known = {identity(table) for table in committed.tables}
        others = [e[1] for t, e in newest.items() if e and identity(t) not in places]

        def lacks(sink: Sink) -> bool:
            entry = newest[sink.name]
            if _last_txid(entry) < committed.txid:
                return True
            is_back = entry is not None and identity(sink.name) not in known
            return is_back and not _agrees(sink, entry, History(tuple(others)))

        self.sinks: tuple[Sink, ...] = tuple(
            s for s in definition.sinks if identity(s.name) in places and lacks(s)
        )
        self.first_txids: dict[str, int] = {}
        """Table that does not exist yet -> the first txid that it gets."""
        self.held: dict[str, int] = {}
        """Table -> the newest txid that it holds as the others do."""
        history = self._history(committed.txid) if self.sinks else History(())
        for sink in self.sinks:
            require_refillable(sink)
            self.held[sink.name] = last = _held(sink, newest[sink.name], history)
            own = self._readable(sink, history)
            if last + 1 < own.first or not own.first:
                may_lack = _accepts(definition.config, sink.name) and last == 0
                require_history(sink.name, own, committed.txid, may_lack=may_lack)
            if newest[sink.name] is None:
                self.first_txids[sink.name] = own.first

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
            after = self.held[sink.name]
            own = self._readable(sink, history)
            equipment.backfill(sink, own, after, committed, self._definition.config, leader)
            self.held[sink.name] = committed

    def _readable(self, sink: Sink, history: History) -> History:
        streams = [source.name for source in sink.parent.sources_read()]
        return history.readable(streams, self._definition.streams)

    def _history(self, committed: int) -> History:
        """Read the other tables' logs, once for each committed txid."""
        if self._read is not None and self._read[0] == committed:
            return self._read[1]
        donors = [s.committer for s in self._definition.sinks if s not in self.sinks]
        history = read_history(donors, committed, self._definition.renamed)
        self._read = committed, history
        return history


def _agrees(sink: Sink, newest: tuple[int, Publication] | None, history: History) -> bool:
    """True if a table's newest publication holds what was committed."""
    opaque = sink.committer.semantics is Semantics.OPAQUE
    return newest is None or history.agrees(newest[1], attempts=opaque)


def _held(sink: Sink, newest: tuple[int, Publication] | None, history: History) -> int:
    """Return the newest txid that a table holds as the others do; 0: none.

    Raises:
        RecoveryRefusedError: it holds a txid of an attempt that failed, and cannot take it back.
    """
    if newest is None:
        return 0
    publication = newest[1]
    if _agrees(sink, newest, history):
        return publication.last_txid
    if sink.committer.semantics is Semantics.OPAQUE:
        return publication.first_txid - 1  # the replay takes its rows back
    raise RecoveryRefusedError(
        f"Table '{sink.name}' holds txid {publication.last_txid} from attempt "
        f"{publication.attempt_id}, which failed after the table was left out: another attempt was "
        "committed. A table that is not opaque cannot take that back. Nothing was changed. Give "
        "the table a new path, and fill that.",
        number="TXN-804",
    )


def _accepts(config: TopologyConfig, table: str) -> bool:
    """Return whether the settings accept a table that lacks its first txids."""
    return identity(table) in {identity(name) for name in config.new_tables}


def _last_txid(entry: tuple[int, Publication] | None) -> int:
    return entry[1].last_txid if entry else 0
