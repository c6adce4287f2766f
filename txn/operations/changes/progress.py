"""Compare a program with the durable progress of its topology: the checks of a start, all of them.

A start raises the first refusal that it meets. Here each refusal becomes a `Change`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from txn.changes import Change, Verdict
from txn.dataflow.definition import Definition
from txn.engine.changed_code import list_changes, program_of
from txn.engine.work.spouts import parse_metadata
from txn.errors import ProgressUnreadableError, RecoveryRefusedError, TxnError
from txn.protocol.records import CommittedRecord, Progress
from txn.protocol.recovery import (
    Newest,
    Recovered,
    check_streams,
    newest_metadata,
    reconcile,
    require_tables,
    with_rows,
)
from txn.protocol.table_names import (
    by_todays_names,
    declared_and_read,
    filled_and_gone,
    recorded_ids,
)
from txn.storage.locations import identity

__all__ = ["ProgressComparison", "as_refused", "progress_in_tables", "unknown_names"]

_MOVED_OR_REPLACED = ("TXN-807", "TXN-808")


def as_refused(subject: str, error: TxnError, verdict: Verdict = Verdict.REFUSED) -> Change:
    """Return the change for an error with which a start refuses."""
    return Change(subject, str(error), verdict, allowed=False, number=error.number)


def progress_in_tables(newest: Newest) -> Progress:
    """Return the progress that the tables' logs show, where no ensemble is asked."""
    held = {table: entry for table, entry in newest.items() if entry is not None}
    txid = max((publication.last_txid for _, publication in held.values()), default=0)
    tables = {table: version for table, (version, _) in held.items()}
    return Progress(committed=CommittedRecord(txid=txid, tables=tables))


def unknown_names(definition: Definition) -> Iterator[Change]:
    """Yield the settings that name a table which the program does not have."""
    config = definition.config
    named = {
        "backfilled_tables": config.backfilled_tables,
        "new_tables": config.new_tables,
        "rebuilt_tables": config.rebuilt_tables,
        "dropped_columns": [entry.rpartition(":")[0] for entry in config.dropped_columns],
    }
    tables = [sink.name for sink in definition.sinks]
    places = set(map(identity, tables))
    for setting, names in named.items():
        for name in names:
            if identity(name) not in places:
                near = get_close_matches(name, tables, 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                what = f"{setting} names '{name}', which is no table of the program{hint}"
                yield Change(definition.name, what, Verdict.CARRIES_ON)


@dataclass(frozen=True)
class ProgressComparison:
    """A program beside the durable progress of its topology.

    Args:
        newest: table of the program -> its newest publication.
        unusable: tables of the program of which it is not known what they hold.
        ids: table of the program -> its own id.
    """

    definition: Definition
    progress: Progress
    newest: Newest
    unusable: Collection[str] = ()
    ids: Mapping[str, str] = field(default_factory=dict)

    # --- streams -----------------------------------------------------------------------------

    def streams(self) -> Iterator[Change]:
        """Yield streams that are gone, of another kind, or new."""
        definition, batches = self.definition, self.progress.batches
        recorded = set(self.progress.committed.spouts).union(*(b.spouts for b in batches))
        dropped = recorded.intersection(definition.config.dropped_streams)
        lost = recorded.difference(definition.streams)
        try:
            check_streams(
                definition.name,
                definition.streams,
                definition.opaque_streams,
                self.progress,
                definition.config.dropped_streams,
            )
        except RecoveryRefusedError as error:
            verdict = Verdict.CHOICE if lost else Verdict.REFUSED
            yield as_refused(", ".join(sorted(lost)) or definition.name, error, verdict)
        yield from self._other_spouts()
        for stream in sorted(dropped.difference(definition.streams)):
            yield Change(stream, "the stream goes away, its position stays", Verdict.CHOICE)
        for stream in definition.streams:
            if recorded and stream not in recorded:
                what = "the stream is new: it is read from its beginning"
                yield Change(stream, what, Verdict.FROM_NEXT)

    def _other_spouts(self) -> Iterator[Change]:
        """Yield streams whose position another kind of spout wrote."""
        newest = newest_metadata(self.progress)
        for source in self.definition.sources:
            try:
                if newest.get(source.name) is not None:
                    parse_metadata(self.definition.name, source, newest[source.name])
            except ProgressUnreadableError as error:
                yield as_refused(source.name, error, Verdict.CHOICE)

    # --- tables ------------------------------------------------------------------------------

    def tables(self) -> Iterator[Change]:
        """Yield tables that are gone, moved, or new."""
        config, refusals = self.definition.config, []
        try:
            committed = self._by_todays_names(config.new_tables, config.dropped_tables)
        except RecoveryRefusedError as error:
            if error.number in _MOVED_OR_REPLACED:
                # Two names may be one table: what is new or gone depends on that.
                yield as_refused(self.definition.name, error, Verdict.CHOICE)
                return
            refusals = [*self._refused_names()]
            yield from refusals
        else:
            yield from self._moved(committed)
        named = {change.subject for change in refusals}.union(self.unusable)
        committed_places = {identity(name) for name in self.progress.committed.tables}
        for table, entry in self.newest.items():
            if entry is None and table not in named and identity(table) not in committed_places:
                what = "the table is new: the first batch with rows for it makes it"
                yield Change(table, what, Verdict.FROM_NEXT)
        dropped = set(map(identity, config.dropped_tables)).difference(map(identity, self.newest))
        for table in self.progress.committed.tables:
            if identity(table) in dropped:
                what = "the table goes away: its rows stay, and no later txid is added"
                yield Change(table, what, Verdict.CHOICE)
        yield from unknown_names(self.definition)
        yield from self._unknown_drops()

    def _unknown_drops(self) -> Iterator[Change]:
        """Yield the settings that give up what is not recorded: misspelt, or left over."""
        progress, definition = self.progress, self.definition
        streams = {*progress.committed.spouts, *(s for b in progress.batches for s in b.spouts)}
        tables = {*progress.committed.tables, *(declared_and_read(progress)[0] or ()), *self.newest}
        places = {identity(name) for name in tables}
        unknown = {
            "dropped_tables": [
                (name, tables)
                for name in definition.config.dropped_tables
                if identity(name) not in places
            ],
            "dropped_streams": [
                (name, streams)
                for name in definition.config.dropped_streams
                if name not in streams.union(definition.streams)
            ],
        }
        for setting, names in unknown.items():
            for name, known in names:
                near = get_close_matches(name, sorted(known), 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                what = f"{setting} names '{name}', of which nothing is recorded{hint}"
                yield Change(definition.name, what, Verdict.CARRIES_ON)

    def _by_todays_names(self, new: Collection[str], dropped: Collection[str]) -> CommittedRecord:
        definition = self.definition
        return by_todays_names(
            definition.name,
            self.progress.committed,
            self.newest,
            identity,
            unborn=definition.unborn_tables(
                *with_rows(self.progress, self.newest),
                *declared_and_read(self.progress),
            ),
            new=(*new, *self.unusable),
            dropped=dropped,
            ids=self.ids,
            recorded=recorded_ids(self.progress),
            filled=filled_and_gone(
                self.progress, [s.name for s in definition.sinks], self.ids, identity
            ),
        )

    def _refused_names(self) -> Iterator[Change]:
        """Yield the refusal of all tables that are gone, then that of each new one."""
        config, committed = self.definition.config, tuple(self.progress.committed.tables)
        places = {identity(name) for name in (*self.newest, *config.dropped_tables)}
        gone = ", ".join(name for name in committed if identity(name) not in places)
        absent = [table for table, entry in self.newest.items() if entry is None]
        tries = [(gone, absent, config.dropped_tables)]
        for table in absent:
            others = [other for other in absent if other != table]
            tries.append((table, [*config.new_tables, *others], committed))
        for subject, new, dropped in tries:
            try:
                self._by_todays_names(new, dropped)
            except RecoveryRefusedError as refusal:
                yield as_refused(subject, refusal, Verdict.CHOICE)

    def _moved(self, committed: CommittedRecord) -> Iterator[Change]:
        before = {identity(name): name for name in self.progress.committed.tables}
        here = {identity(name) for name in self.newest}
        former = " or ".join(repr(name) for place, name in before.items() if place not in here)
        for name in committed.tables:
            if identity(name) not in before:
                yield Change(name, f"the table was {former} so far", Verdict.CARRIES_ON)

    # --- the beginning of the run ------------------------------------------------------------

    def beginning(self) -> tuple[Recovered | None, list[Change]]:
        """Decide by the tables where a run would begin, as a start does.

        Returns:
            None if a start would refuse; its refusals, table by table. No refusals beside those of
            `streams`, without which nothing can be decided.
        """
        changes: list[Change] = []
        if not all(change.allowed for change in self.streams()):
            return None, changes
        usable = {table: e for table, e in self.newest.items() if table not in self.unusable}
        progress, recovered = self._with_todays_names(), None
        for subject, newest in [*((t, {t: e}) for t, e in usable.items()), ("", usable)]:
            try:
                require_tables(self.definition.name, progress.committed, newest)
                recovered = self._reconcile(progress, newest)
            except RecoveryRefusedError as error:
                if subject or not changes:
                    changes.append(as_refused(subject or self.definition.name, error))
        return (None if changes else recovered), changes

    def _with_todays_names(self) -> Progress:
        config = self.definition.config
        try:
            committed = self._by_todays_names(config.new_tables, config.dropped_tables)
        except RecoveryRefusedError:
            return self.progress
        return self.progress.model_copy(update={"committed": committed})

    def _reconcile(self, progress: Progress, newest: Newest) -> Recovered:
        definition = self.definition
        return reconcile(
            definition.name,
            definition.streams,
            definition.opaque_streams,
            progress,
            newest,
            replays_differ=definition.replays_differ,
            skipping=definition.skipping_tables,
            dropped=definition.config.dropped_streams,
        )

    # --- the program -------------------------------------------------------------------------

    def program(self) -> Iterator[Change]:
        """Yield the stages that compute something else than in the last run."""
        before = self.progress.program
        if before is not None and (self.progress.committed.txid or self.progress.batches):
            for line in list_changes(before, program_of(self.definition)):
                yield Change(self.definition.name, line, Verdict.FROM_NEXT)
