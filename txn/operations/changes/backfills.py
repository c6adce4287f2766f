"""The tables that a run fills with the txids that they lack (`backfilled_tables`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txn.changes import Change, Verdict
from txn.dataflow.definition import Definition
from txn.dataflow.graph import Sink
from txn.errors import RecoveryRefusedError, TopologyError
from txn.operations.changes.progress import as_refused
from txn.protocol.records import Progress
from txn.protocol.recovery import Newest
from txn.storage.locations import identity

__all__ = ["backfills", "tables_to_fill", "without"]


def tables_to_fill(definition: Definition, committed: int, newest: Newest) -> list[Sink]:
    """Return the tables of `backfilled_tables` that lack committed txids."""
    named = {identity(table) for table in definition.config.backfilled_tables}
    return [
        sink
        for sink in definition.sinks
        if identity(sink.name) in named and _last_txid(newest, sink) < committed
    ]


def without(filling: Sequence[Sink], progress: Progress) -> Progress:
    """Return the progress of the other tables."""
    places = {identity(sink.name) for sink in filling}
    committed = progress.committed
    tables = {n: version for n, version in committed.tables.items() if identity(n) not in places}
    committed = committed.model_copy(update={"tables": tables})
    return progress.model_copy(update={"committed": committed})


def backfills(
    definition: Definition, filling: Sequence[Sink], committed: int, newest: Newest
) -> Iterator[Change]:
    """Yield for each table the txids that it gets, or the refusal of a start."""
    from txn.engine.work.backfill import require_history, require_refillable
    from txn.engine.work.history import read_history

    accepted = {identity(table) for table in definition.config.new_tables}
    donors = [s.committer for s in definition.sinks if s not in filling and newest[s.name]]
    # One log with all txids will do: reading one takes as long as it has versions.
    renamed = definition.renamed
    histories = (read_history([donor], committed, renamed) for donor in donors)
    history = next((h for h in histories if h.first == 1), None)
    history = history or read_history(donors, committed, renamed)
    for sink in filling:
        last = _last_txid(newest, sink)
        try:
            require_refillable(sink)
            streams = [source.name for source in sink.parent.sources_read()]
            own = history.readable(streams, definition.streams)
            if last + 1 < own.first or not own.first:
                may_lack = identity(sink.name) in accepted and newest[sink.name] is None
                require_history(sink.name, own, committed, may_lack=may_lack)
        except (TopologyError, RecoveryRefusedError) as error:
            yield as_refused(sink.name, error, Verdict.CHOICE)
            continue
        first = max(last + 1, own.first)
        what = f"it lacks txids {first} to {committed}: what they read is read anew for it"
        yield Change(sink.name, what, Verdict.REBUILD)


def _last_txid(newest: Newest, sink: Sink) -> int:
    entry = newest[sink.name]
    return 0 if entry is None else entry[1].last_txid
