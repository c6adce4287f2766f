"""Rebuild a topology's state in ZooKeeper from its tables' logs: read, compare, write.

Three steps, so that a caller can show the second's answer before the third: `read_tables` needs
no ZooKeeper, `is_needed` changes nothing, `write` takes a new epoch and writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txn.dataflow.definition import Definition
from txn.errors import (
    LeaderExistsError,
    NewerFormatError,
    ProgressUnreadableError,
    RecoveryRefusedError,
    UserError,
)
from txn.interfaces import Publication
from txn.machine.liveness import is_alive
from txn.operations.loading import TargetError
from txn.operations.table_logs import recent_publications, table_log
from txn.protocol.backend import ProgressBackend
from txn.protocol.late_tables import is_late
from txn.protocol.rebuild import Publications, quarantined, rebuild, replayed
from txn.protocol.records import Progress
from txn.protocol.stream_names import rename_in_publication
from txn.storage.locations import identity

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["RecoveredProgress", "is_needed", "read_tables", "write"]


@dataclass(frozen=True)
class RecoveredProgress:
    """The state that the tables' logs record."""

    progress: Progress
    epoch: int
    """The newest epoch in any table."""
    incarnations: frozenset[int]
    """The incarnations that lead any table."""

    def to_json(self) -> dict[str, Any]:
        """Return the records to write into ZooKeeper."""
        batches = self.progress.batches
        return {
            "committed": self.progress.committed.model_dump(mode="json", exclude={"version"}),
            "batches": [batch.model_dump(mode="json", exclude={"version"}) for batch in batches],
        }


def read_tables(topology: Topology, new: Collection[str] = ()) -> RecoveredProgress:
    """Read the state out of the tables' logs. Changes nothing.

    Args:
        new: tables that hold nothing because they were never written to; they are left out.

    Raises:
        TargetError: the topology has no such table.
        RecoveryRefusedError: a table of `new` holds a txid, or the tables do not fit each other.
        UserError: the topology is not complete, or none of its tables exists.
    """
    topology.check_complete("caught_up")
    left_out = {identity(table): table for table in new}
    publications: dict[str, list[tuple[int, Publication]]] = {}
    epoch, missing, incarnations = 0, [], set()
    definition = topology.definition
    for sink in topology.sinks:
        entries: list[tuple[int, Publication]] = []
        try:
            log = table_log(sink.name, sink.committer)
        except UserError as error:
            missing.append(error)
        else:
            entries = [
                (version, rename_in_publication(definition.renamed, publication))
                for version, publication in recent_publications(log, topology.name)
            ]
            incarnations.add(log.incarnation(topology.name))
            epoch = max(epoch, log.epoch(topology.name), *(p.epoch for _, p in entries))
        if left_out.pop(identity(sink.name), None) is None:
            publications[sink.name] = entries
        elif entries:
            raise RecoveryRefusedError(
                f"Table '{sink.name}' holds txid {entries[0][1].last_txid}: it is not new. Nothing "
                "was changed. Leave --new out for it.",
                number="TXN-807",
            )
    for table in left_out.values():
        names = ", ".join(f"'{sink.name}'" for sink in topology.sinks)
        raise TargetError(
            f"Topology '{topology.name}' has no table {table!r}, but {names}.", number="TXN-117"
        )
    if len(missing) == len(topology.sinks):
        raise missing[0]
    progress = rebuild(
        topology.name,
        definition.opaque_streams,
        _without_late(definition, publications),
        skipping=definition.skipping_tables,
    )
    return RecoveredProgress(progress, epoch, frozenset(incarnations - {0}))


def _without_late(definition: Definition, publications: Publications) -> Publications:
    """Leave out tables that may be filled with their history, and are late."""
    places = {identity(table) for table in definition.config.backfilled_tables}
    named = {sink.name: sink for sink in definition.sinks if identity(sink.name) in places}
    newest = {table: entries[0][1] if entries else None for table, entries in publications.items()}
    # The last word counts: the newest attempt's, and never that of a table that skips a replay.
    told = sorted(publications.keys() - named.keys())
    told.sort(key=lambda table: table not in definition.skipping_tables)
    others = [p for table in told for _, p in reversed(publications[table])]
    # A table of a run lacks at most its newest publication.
    least = max((p.first_txid for p in newest.values() if p is not None), default=1) - 1
    late = {
        table
        for table, sink in named.items()
        if table in newest
        and (
            newest[table] is None
            or is_late(newest[table], least, others, attempts=definition.compares_attempts(sink))
        )
    }
    return {table: entries for table, entries in publications.items() if table not in late}


def is_needed(backend: ProgressBackend, topology: Topology, recovered: RecoveredProgress) -> bool:
    """Return True if ZooKeeper is behind the tables, follows others, or is unreadable.

    Changes nothing.

    Raises:
        LeaderExistsError: the topology runs.
        RecoveryRefusedError: ZooKeeper is ahead of the tables.
        NewerFormatError: a newer release wrote it.
        ProgressUnavailableError: ZooKeeper did not answer.
    """
    if topology.name not in backend.topologies():
        return True
    try:
        status = backend.status(topology.name)
    except NewerFormatError:
        raise
    except ProgressUnreadableError:
        return True
    if status.leader is not None and is_alive(status.leader):
        raise LeaderExistsError(
            f"Topology '{topology.name}' is led by {status.leader}. A running leader's state "
            "cannot be rebuilt: stop that process first."
        )
    committed, held = status.progress.committed.txid, recovered.progress.committed.txid
    if committed > held:
        raise RecoveryRefusedError(
            f"ZooKeeper says that txid {committed} of topology '{topology.name}' is committed, but "
            f"the tables only hold up to txid {held}: tables were replaced or restored to older "
            "versions. Nothing was changed. Restore the tables, or give the topology a new name "
            "and new tables.",
            number="TXN-804",
        )
    incarnation = status.incarnation
    foreign = recovered.incarnations - ({incarnation.id} if incarnation else set())
    if foreign - set(incarnation.takes_over if incarnation else ()):
        return True
    # The tables would fence an epoch below theirs: its node was wiped or reset. An epoch in which
    # another incarnation led them fences nobody.
    return committed < held or status.epoch < recovered.epoch + bool(foreign)


def write(backend: ProgressBackend, topology: Topology, recovered: RecoveredProgress) -> int:
    """Write the tables' state into ZooKeeper, under a new epoch above any known; returns it.

    Raises:
        LeaderExistsError: the topology runs.
        ProgressUnreadableError, ProgressUnavailableError: as `ProgressStore.rebuild`.
    """
    progress = recovered.progress
    store = backend.open(topology.name)
    try:
        epoch = store.rebuild(
            progress.committed, at_least=recovered.epoch + 1, takes_over=recovered.incarnations
        )
        store.load()
        quarantine = backend.status(topology.name).quarantine
        committed = progress.committed.model_copy(update={"epoch": epoch})
        publications = tuple(_publications(topology))
        for txid, replay in replayed(quarantine, publications).items():
            if replay <= committed.txid:
                store.persist_committed(committed, replay_of=txid)
        quarantined_txids = {record.txid for record in quarantine}
        for record in quarantined(publications, committed.txid):
            if record.txid not in quarantined_txids:
                store.persist_committed(committed, quarantine=record)
        for batch in progress.batches:
            store.persist_start(batch.model_copy(update={"epoch": epoch}))
    finally:
        store.close()
    return epoch


def _publications(topology: Topology) -> Iterator[Publication]:
    """Yield every publication in the tables' logs, as far back as commit files are kept."""
    renamed = topology.definition.renamed
    for sink in topology.sinks:
        with contextlib.suppress(UserError):  # a table that does not exist yet
            for entry in table_log(sink.name, sink.committer).publications():
                yield rename_in_publication(renamed, entry.publication)
