"""Tables that lack committed txids and get them: new ones, and such as were left out for a while.

The next generation of a table is one of them, until it takes the table's place. The leader fills
them before its first batch. `Topology.backfill` fills them beside a leader that runs the former
program, and so does not know them. `txn plan` asks which there are, without Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NoReturn

from txn.config import TopologyConfig
from txn.dataflow.definition import Definition
from txn.dataflow.graph import Sink
from txn.dataflow.stages import OTHER_CODE, is_other_code
from txn.engine.loop.equipment import Equipment
from txn.engine.work.backfill import Leader, require_history, require_refillable
from txn.engine.work.derived import StoredStream, require_derivable
from txn.engine.work.history import History, read_history
from txn.errors import RecoveryRefusedError, TopologyError, TxnError
from txn.interfaces import NOTICES, Committer, Publication, Semantics
from txn.interfaces.committer_capabilities import HoldsRows, KeepsGenerations
from txn.protocol.late_tables import agrees, is_late
from txn.protocol.records import CommittedRecord
from txn.protocol.recovery import Newest
from txn.storage.locations import identity

notices = logging.getLogger(NOTICES)

__all__ = ["LateTables"]


class LateTables:
    """The tables of a topology that lack committed txids.

    Args:
        named: the tables that may be filled (`backfilled_tables`).
        committed: the newest committed txid, and the tables that have it.
        newest: the newest publication of each table.
        beside: a leader may run meanwhile, and changes the tables that it knows: only their next
            generations are filled, and begun if there are none yet.
        declared: the tables of its program; of those, the ones that no batch has needed yet lack
            nothing.
        copied: the tables whose rows others get at first: a table's next generation its own ones,
            any other table those of an append table.
    """

    def __init__(
        self,
        definition: Definition,
        named: Collection[str],
        committed: CommittedRecord,
        newest: Newest,
        *,
        beside: bool = False,
        declared: Collection[str] = (),
        copied: Collection[str] = (),
    ) -> None:
        self._definition = definition
        self._read: tuple[CommittedRecord, History] | None = None
        self._donors: list[Committer] = []
        """Of the tables that hold what was committed."""
        self.refusals: dict[str, TxnError] = {}
        """Table -> why it cannot have what it lacks."""
        self.generations: dict[str, Sink] = {}
        """Table -> its next generation."""
        self.held: dict[str, int] = {}
        """Table -> the newest txid that it holds as the others do."""
        self.first_txids: dict[str, int] = {}
        """Table that does not exist yet -> the first txid that it gets."""
        self._places = {identity(table) for table in named}
        self._copies: list[Callable[[Equipment, int], None]] = []
        """Each gives one table the rows that it gets at first."""
        known = {identity(table) for table in committed.tables}
        # Without any, what was committed has brought no table anything.
        led = known | {identity(table) for table in declared} if beside else frozenset()
        sinks = self._late(known, committed, newest, led) if known else []
        for sink in definition.sinks:
            may_begin = identity(sink.name) in self._places & known and sink not in sinks
            if may_begin and (one := _generation(sink, begin=beside)):
                self.generations[sink.name] = one
                newest = {**newest, one.name: one.committer.last_publication()}
        self.sinks: tuple[Sink, ...] = (*sinks, *self.generations.values())
        copied = {identity(table) for table in copied}
        owners = {sink.name: table for table, sink in self.generations.items()}
        for sink in self.sinks:
            table = owners.get(sink.name, sink.name)
            try:
                if copied and newest[sink.name] is None:
                    self._plan_copy(table, sink, copied, committed.txid)
                self._require_history(table, sink, _publication(newest[sink.name]), committed)
            except (TopologyError, RecoveryRefusedError) as error:
                self.refusals[table] = error

    def _late(
        self,
        known: Collection[str],
        committed: CommittedRecord,
        newest: Newest,
        led: Collection[str],
    ) -> list[Sink]:
        """Return the named tables that are late; find those that hold what was committed.

        Args:
            known: where the tables lie that have the newest committed txid.
            led: where the tables lie that a leader changes meanwhile.
        """
        late: list[Sink] = []
        # Those that the leader knows come first: they show what was committed.
        for sink in sorted(self._definition.sinks, key=lambda s: identity(s.name) not in known):
            own = _publication(newest[sink.name])
            if identity(sink.name) in led:
                # It may seem to lack txids if its log was listed a moment too early.
                self._donors += [sink.committer] if own else []
                continue
            others: Iterable[Publication] = ()
            if own and identity(sink.name) not in known:
                if is_other_code(own.filled_by, sink):
                    self.refusals[sink.name] = _other_code(f"Table '{sink.name}'", sink)
                    continue
                others = self._committed_since(own.first_txid, committed)
            attempts = self._definition.compares_attempts(sink)
            if not is_late(own, committed.txid, others, attempts=attempts):
                self._donors += [sink.committer] if own else []
            elif identity(sink.name) in self._places:
                late.append(sink)
            elif own and own.last_txid >= committed.txid:
                self.refusals[sink.name] = _not_committed(sink, own)
        return late

    def _plan_copy(self, table: str, sink: Sink, copied: Collection[str], committed: int) -> None:
        """Decide whether a table that has nothing yet gets rows of others at first."""
        if sink.name != table and identity(table) in copied:
            self._copy(table, sink, committed)
            return
        for stored in self._definition.sinks:
            # A table that is named itself gives its rows to its own next generation.
            is_source = identity(stored.name) in set(copied) - self._places
            if is_source and sink.name not in self.held:
                self._derive(sink, stored, committed)

    def _require_history(
        self, table: str, sink: Sink, newest: Publication | None, committed: CommittedRecord
    ) -> None:
        """Find what a table holds already, and refuse one that cannot get the rest."""
        require_refillable(sink)
        if newest is not None and sink.name != table and is_other_code(newest.filled_by, sink):
            raise _other_code(f"The next generation of table '{table}'", sink)
        if sink.name in self.held:
            return
        history = self._history(committed)
        self.held[sink.name] = last = self._held(sink, newest, history)
        own = self._readable(sink, history)
        if last + 1 < own.first or not own.first:
            if sink.name != table:
                missing = last + 1, (own.first or committed.txid + 1) - 1
                _refuse_short(table, missing, sink.name if newest else "")
            accepted = _accepts(self._definition.config, sink.name)
            require_history(sink.name, own, last, committed.txid, may_lack=accepted)
        if newest is None:
            self.first_txids[sink.name] = own.first

    def _held(self, sink: Sink, publication: Publication | None, history: History) -> int:
        """Return the newest txid that a table holds as the others do; 0: none."""
        if publication is None:
            return 0
        attempts = self._definition.compares_attempts(sink)
        if agrees(publication, history.publications, attempts=attempts):
            return publication.last_txid
        if sink.committer.semantics is Semantics.OPAQUE:
            return publication.first_txid - 1  # the replay takes its rows back
        raise _not_committed(sink, publication)

    def refuse(self) -> None:
        """Refuse to go on if a table cannot have what it lacks.

        Raises:
            TopologyError: the rows of one depend on more than its sources.
            RecoveryRefusedError: no log records what the txids read, or a table holds a txid of an
                attempt that failed.
        """
        errors = list(self.refusals.values())
        if errors:
            raise type(errors[0])(" ".join(map(str, errors)), number=errors[0].number)

    def look_again(self, committed: CommittedRecord) -> None:
        """See what the tables hold now that they are fenced: a filling beside has ended by then."""
        for sink in self.sinks:
            newest = _publication(sink.committer.last_publication())
            held = self._held(sink, newest, self._history(committed))
            # What is not committed may still be taken back.
            self.held[sink.name] = min(held, committed.txid)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(sink.name for sink in self.sinks)

    @property
    def tables(self) -> dict[str, int]:
        """Table -> the newest txid that it, or its next generation, holds."""
        names = {sink.name: table for table, sink in self.generations.items()}
        return {names.get(name, name): txid for name, txid in self.held.items()}

    @property
    def versions(self) -> dict[str, int]:
        """Table -> the version with its newest txid; without next generations."""
        generations = self.generations.values()
        own = [sink for sink in self.sinks if sink not in generations]
        newest = {sink.name: sink.committer.last_publication() for sink in own}
        return {name: entry[0] for name, entry in newest.items() if entry is not None}

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

    def without(self, newest: Newest) -> Newest:
        """Return the newest publications of all other tables."""
        return {name: entry for name, entry in newest.items() if name not in self.names}

    def without_committed(self, committed: CommittedRecord) -> CommittedRecord:
        """Return the committed record of all other tables."""
        left = set(map(identity, self.names))
        tables = {name: v for name, v in committed.tables.items() if identity(name) not in left}
        return committed.model_copy(update={"tables": tables})

    def with_held(self, committed: CommittedRecord) -> CommittedRecord:
        """Return the committed record with those that hold its txid, and only seemed to lack it."""
        held = {n: v for n, v in self.versions.items() if self.held.get(n) == committed.txid}
        return committed.model_copy(update={"tables": {**committed.tables, **held}})

    def fill(self, equipment: Equipment, committed: CommittedRecord, leader: Leader) -> None:
        """Give each of them the txids that it lacks, up to the committed one.

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
            equipment.backfill(sink, own, after, committed.txid, self._definition.config, leader)
            self.held[sink.name] = committed.txid

    def _readable(self, sink: Sink, history: History) -> History:
        streams = [source.name for source in sink.parent.sources_read()]
        return history.readable(streams, self._definition.streams)

    def _history(self, committed: CommittedRecord) -> History:
        """Read the other tables' logs, once for each committed txid."""
        if self._read is None or self._read[0] != committed:
            self._read = committed, self._read_logs(committed)
        return self._read[1]

    def _committed_since(self, txid: int, committed: CommittedRecord) -> Iterator[Publication]:
        """Yield what other tables hold from a txid up to the committed one; reads when asked."""
        if txid <= committed.txid:
            yield from self._read_logs(committed, since=txid).publications

    def _read_logs(self, committed: CommittedRecord, since: int = 1) -> History:
        definition = self._definition
        streams = definition.opaque_streams
        return read_history(self._donors, committed, definition.renamed, streams, since=since)


def _generation(sink: Sink, *, begin: bool) -> Sink | None:
    """Return a table's next generation as a table of its own; None if there is none."""
    keeper = sink.committer
    if not isinstance(keeper, KeepsGenerations):
        return None
    committer = keeper.generation(begin=begin)
    return None if committer is None else Sink(sink.parent, committer)


def _refuse_short(table: str, missing: tuple[int, int], begun: str) -> NoReturn:
    """Refuse a generation whose history is not whole: the table has rows of all txids.

    Args:
        missing: the first and the last txid that it cannot get.
        begun: its folder, if it holds txids already.
    """
    first, last = missing
    end = f"End every other `txn backfill` of the table, delete the folder {begun}, and let"
    delete = end if begun else "Let"
    raise RecoveryRefusedError(
        f"Table '{table}' cannot be filled anew from its sources: what txids {first} to {last} "
        "read was cleaned out of the logs of all tables, or a stream that they read is not in the "
        f"program any more. Nothing was changed. {delete} it begin with its own rows: txn backfill "
        f"--table {table} --from {table}. Values that are new then begin now.",
        number="TXN-809",
    )


def _other_code(subject: str, sink: Sink) -> RecoveryRefusedError:
    """Return the refusal of what a program with other transforms, or rules, has filled."""
    return RecoveryRefusedError(
        f"{subject} was filled by a program that computes other rows for it: {OTHER_CODE}. "
        "Nothing was changed. "
        f"End every other `txn backfill` of the table, delete the folder {sink.name}, and fill it "
        "again with `txn backfill`; or run the program that has filled it.",
        number="TXN-809",
    )


def _not_committed(sink: Sink, publication: Publication) -> RecoveryRefusedError:
    """Return the refusal of a table that holds a txid of an attempt that failed."""
    way_out = (
        "A table that is not opaque cannot take that back. Nothing was changed. Give the table a "
        "new path, and fill that."
    )
    if sink.committer.semantics is Semantics.OPAQUE:
        way_out = (
            f"Nothing was changed. Set TopologyConfig(backfilled_tables=({sink.name!r},)), or "
            f"--set backfilled_tables={sink.name}: the table takes that back, and gets what was "
            "committed."
        )
    return RecoveryRefusedError(
        f"Table '{sink.name}' holds txid {publication.last_txid} from attempt "
        f"{publication.attempt_id}, which failed after the table was left out: another attempt was "
        f"committed. {way_out}",
        number="TXN-804",
    )


def _accepts(config: TopologyConfig, table: str) -> bool:
    """Return whether the settings accept a table that lacks its first txids."""
    return identity(table) in {identity(name) for name in config.new_tables}


def _publication(entry: tuple[int, Publication] | None) -> Publication | None:
    return None if entry is None else entry[1]
