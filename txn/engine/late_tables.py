"""Tables that lack committed txids and get them: new ones, and such as were left out for a while.

The next generation of a table is one of them, until it takes the table's place. The leader fills
them before its first batch. `Topology.backfill` fills them beside a leader that runs the former
program, and so does not know them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from txn.config import TopologyConfig
from txn.dataflow.definition import Definition
from txn.dataflow.graph import Sink
from txn.engine.loop.equipment import Equipment
from txn.engine.work.backfill import Leader, require_history, require_refillable
from txn.engine.work.derived import StoredStream, require_derivable
from txn.engine.work.history import History, read_history
from txn.errors import RecoveryRefusedError
from txn.interfaces import NOTICES, Publication, Semantics
from txn.interfaces.committer_capabilities import HoldsRows, KeepsGenerations
from txn.protocol.records import CommittedRecord
from txn.protocol.recovery import Newest
from txn.storage.locations import identity

notices = logging.getLogger(NOTICES)

__all__ = ["LateTables"]


class LateTables:
    """The tables of a topology that lack committed txids.

    Args:
        named: the tables to fill (`backfilled_tables`).
        committed: the newest committed txid, and the tables that have it.
        newest: the newest publication of each table.
        begin: also begin the next generation of a named table that lacks nothing.
        copied: the tables whose rows others get at first: a table's next generation its own ones,
            any other table those of an append table.

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
        *,
        begin: bool = False,
        copied: Collection[str] = (),
    ) -> None:
        self._definition = definition
        self._committed = committed.txid
        self._read: tuple[int, History] | None = None
        places = {identity(table) for table in named}
        known = {identity(table) for table in committed.tables}
        others = [e[1] for t, e in newest.items() if e and identity(t) not in places]

        def lacks(sink: Sink) -> bool:
            entry = newest[sink.name]
            if not committed.tables:
                return False  # what was committed has brought no table anything
            if _last_txid(entry) < committed.txid:
                return True
            return identity(sink.name) not in known and not _agrees(
                sink, entry, History(tuple(others))
            )

        self.generations: dict[str, Sink] = {}
        """Table -> its next generation."""
        sinks: list[Sink] = []
        for sink in definition.sinks:
            if identity(sink.name) not in places:
                continue
            if lacks(sink):
                sinks.append(sink)
            elif identity(sink.name) in known and (one := _generation(sink, begin=begin)):
                self.generations[sink.name] = one
                newest = {**newest, one.name: one.committer.last_publication()}
        self.sinks: tuple[Sink, ...] = (*sinks, *self.generations.values())
        self.held: dict[str, int] = {}
        """Table -> the newest txid that it holds as the others do."""
        self.first_txids: dict[str, int] = {}
        """Table that does not exist yet -> the first txid that it gets."""
        self._copies: list[Callable[[Equipment, int], None]] = []
        """Each gives one table the rows that it gets at first."""
        self._plan_copies({identity(table) for table in copied}, newest, committed.txid)
        self._require_history(newest, committed.txid)

    def _plan_copies(self, copied: Collection[str], newest: Newest, committed: int) -> None:
        """Decide which of the tables that have nothing yet get rows of others at first."""
        owners = {sink.name: table for table, sink in self.generations.items()}
        for sink in self.sinks if copied else ():
            if newest[sink.name] is not None:
                continue
            table = owners.get(sink.name, sink.name)
            if sink.name in owners and identity(table) in copied:
                self._copy(table, sink, committed)
                continue
            for stored in self._definition.sinks:
                if identity(stored.name) in copied and sink.name not in self.held:
                    self._derive(sink, stored, committed)

    def _require_history(self, newest: Newest, committed: int) -> None:
        """Find what each table holds already, and refuse one that cannot get the rest."""
        history = self._history(committed) if self.sinks else History(())
        for sink in self.sinks:
            require_refillable(sink)
            if sink.name in self.held:
                continue
            self.held[sink.name] = last = _held(sink, newest[sink.name], history)
            own = self._readable(sink, history)
            if last + 1 < own.first or not own.first:
                if sink in self.generations.values():
                    self._refuse_short(sink, (own.first or committed + 1) - 1)
                may_lack = _accepts(self._definition.config, sink.name) and last == 0
                require_history(sink.name, own, committed, may_lack=may_lack)
            if newest[sink.name] is None:
                self.first_txids[sink.name] = own.first

    def look_again(self) -> None:
        """See what the tables hold now that they are fenced: a filling beside has ended by then."""
        for sink in self.sinks:
            history = self._history(self._committed)
            self.held[sink.name] = _held(sink, sink.committer.last_publication(), history)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(sink.name for sink in self.sinks)

    @property
    def tables(self) -> dict[str, int]:
        """Table -> the newest txid that it, or its next generation, holds."""
        names = {sink.name: table for table, sink in self.generations.items()}
        return {names.get(name, name): txid for name, txid in self.held.items()}

    def lacking(self, committed: int) -> int:
        """Return how many txids the table behind all others lacks."""
        return committed - min(self.held.values(), default=committed)

    def _copy(self, table: str, generation: Sink, committed: int) -> None:
        """Let a generation begin with the rows that the table has as of a committed txid."""
        keeper = next(s.committer for s in self._definition.sinks if s.name == table)
        assert isinstance(keeper, KeepsGenerations)
        newest = keeper.newest_before(committed)
        if newest is not None:
            self.held[generation.name] = last = newest[1].last_txid
            self.first_txids[generation.name] = last + 1
            self._copies.append(lambda *_: keeper.fill_generation(*newest))
            notices.warning("Table %s: its rows as of txid %s are written anew.", table, last)

    def _derive(self, sink: Sink, stored: Sink, committed: int) -> None:
        """Let a state table begin with the rows that an append table has of its stream."""
        require_derivable(sink, stored)
        keeper = stored.committer
        assert isinstance(keeper, HoldsRows)
        newest = keeper.newest_before(committed)
        if newest is None:
            return
        if (first := keeper.first_txid()) > 1:
            raise RecoveryRefusedError(
                f"Table '{sink.name}' cannot be filled from the rows of table '{stored.name}', "
                f"which begins with txid {first}. Nothing was changed. Leave --from out.",
                number="TXN-809",
            )
        self.held[sink.name] = newest[1].last_txid
        is_generation = sink in self.generations.values()
        self.first_txids[sink.name] = 1 if is_generation else newest[1].last_txid
        stream = StoredStream(stored, *newest)
        self._copies.append(lambda equipment, epoch: equipment.fill_from(stream, sink, epoch))

    def copy_rows(self, equipment: Equipment, epoch: int) -> None:
        """Give the tables the rows that they get at first; they are open.

        Raises:
            TableRefusedError: the rows do not fit.
            TopologyError: they lack a column.
        """
        for copy in self._copies:
            copy(equipment, epoch)

    def _refuse_short(self, generation: Sink, last: int) -> None:
        """Refuse a generation whose history is not whole: the table has rows of all txids."""
        table = next(t for t, sink in self.generations.items() if sink is generation)
        raise RecoveryRefusedError(
            f"Table '{table}' cannot be filled anew from its sources: what txids 1 to {last} read "
            "was cleaned out of the logs of all tables, or a stream that they read is not in the "
            "program any more. Nothing was changed. Let it begin with its own rows: txn backfill "
            f"--table {table} --from {table}. Values that are new then begin now.",
            number="TXN-809",
        )

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


def _generation(sink: Sink, *, begin: bool) -> Sink | None:
    """Return a table's next generation as a table of its own; None if there is none."""
    keeper = sink.committer
    if not isinstance(keeper, KeepsGenerations):
        return None
    committer = keeper.generation(begin=begin)
    return None if committer is None else Sink(sink.parent, committer)


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
