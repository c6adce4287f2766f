"""Everything that differs between a topology's program and what is durable, in one list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from txn.backends import open_backend
from txn.changes import Change, Verdict, half_published
from txn.config.location import at_home, resolve
from txn.dataflow.definition import Definition
from txn.embedded.service import running_server
from txn.errors import ProgressUnavailableError, RecoveryRefusedError, SetupError
from txn.machine.liveness import is_alive
from txn.operations.changes.progress import (
    ProgressComparison,
    as_refused,
    progress_in_tables,
)
from txn.operations.changes.tables import Columns, RebuildCost, TableComparison, compare_tables
from txn.protocol.backend import ProgressBackend
from txn.protocol.records import Progress
from txn.protocol.stream_names import check_renamed, rename_in_newest, rename_in_progress

if TYPE_CHECKING:
    from txn.engine.late_tables import LateTables
    from txn.topology import Topology

__all__ = ["PlannedChange", "TopologyChanges", "compare_topology", "refuse_changes"]


_UNASKED = "no embedded ZooKeeper of it runs; --zookeeper SPEC names or starts one"


@dataclass(frozen=True)
class PlannedChange:
    """One difference, and what it costs."""

    change: Change
    from_txid: int | None = None
    """The first txid of the new meaning, if the change has one and it is known."""
    cost: RebuildCost | None = None
    """The cost of the table's rebuild, at the first change that needs it."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        change, cost = self.change, self.cost
        return {
            "subject": change.subject,
            "what": change.what,
            "verdict": change.verdict.value,
            "allowed": change.allowed,
            "way_out": change.way_out,
            "number": change.number or None,
            "from_txid": self.from_txid,
            "rows": None if cost is None else cost.rows,
            "bytes": None if cost is None else cost.bytes,
            "seconds": None if cost is None else round(cost.seconds, 1),
        }


@dataclass(frozen=True)
class TopologyChanges:
    """The differences between a program and what is durable."""

    changes: tuple[PlannedChange, ...] = ()
    committed: int | None = None
    """The newest committed txid; None: no ensemble was asked, and only the tables were read."""
    unasked: str | None = None
    """Why no ensemble was asked."""
    begun: tuple[int, ...] = ()
    """Txids that are begun and not committed: the next run processes them anew."""
    leader: str | None = None
    """The process that leads the topology now; a run waits for its end, or is refused."""
    is_new: bool = False
    """True: nothing is durable yet."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as `txn plan --json` names them."""
        return {
            "changes": [planned.to_json() for planned in self.changes],
            "committed_txid": self.committed,
            "begun_txids": list(self.begun),
            "led_by": self.leader,
            "unasked": self.unasked,
        }

    @property
    def is_refused(self) -> bool:
        """True if a run would be refused."""
        return not all(planned.change.allowed for planned in self.changes)


def compare_topology(
    topology: Topology,
    zookeeper: str | ProgressBackend | None = None,
    columns: Mapping[str, Columns | None] | None = None,
) -> TopologyChanges:
    """Compare a program with its tables' logs, and with its progress. Writes nothing.

    Args:
        zookeeper: as for `Topology.run`, or a backend; None: the embedded server of the
            topology's home, if it runs. The tables' logs alone are compared if it does not answer.
        columns: as for `compare_tables`.

    Raises:
        TxnError: the durable progress cannot be read.
    """
    if zookeeper is None and not _runs_at(topology):
        return replace(_compared(topology, None, columns), unasked=_UNASKED)
    try:
        store = at_home(zookeeper or "embedded", topology)
        with open_backend(store, topology.settings) as backend:
            return _compared(topology, backend, columns)
    except (SetupError, ProgressUnavailableError) as error:
        return replace(_compared(topology, None, columns), unasked=str(error))


def refuse_changes(topology: Topology, zookeeper: str) -> None:
    """Refuse what a start would refuse, without Spark.

    Says nothing while another process leads: a start has to wait for that one, or ends.

    Raises:
        RecoveryRefusedError: with the text of each refusal, and the number of the first.
    """
    changes = compare_topology(topology, zookeeper)
    refused = [one.change for one in changes.changes if not one.change.allowed]
    if refused and refused[0].number and changes.leader is None:
        raise RecoveryRefusedError(
            " ".join(change.what for change in refused), number=refused[0].number
        )


def _runs_at(topology: Topology) -> bool:
    """Return whether the embedded server of a topology's home runs."""
    folder = resolve(at_home("embedded", topology)).folder
    assert folder is not None
    return (folder / "lock").exists() and running_server(folder) is not None


def _compared(
    topology: Topology,
    backend: ProgressBackend | None,
    columns: Mapping[str, Columns | None] | None,
) -> TopologyChanges:
    from txn.engine.late_tables import LateTables

    definition = topology.definition
    # Read before the tables: a leader that commits meanwhile brings only the tables further.
    progress, leader = (None, None) if backend is None else _progress(definition.name, backend)
    renamed = definition.renamed
    changes = _renamed(definition, progress) if progress else []
    progress = progress and rename_in_progress(renamed, progress)
    tables = compare_tables(definition, columns)
    if progress in (None, Progress()) and not any(table.exists for table in tables):
        return TopologyChanges(committed=None if progress is None else 0, is_new=True)
    newest = rename_in_newest(renamed, {table.name: table.newest for table in tables})
    known = progress or progress_in_tables(newest)
    late = LateTables(definition, definition.config.backfilled_tables, known.committed, newest)
    comparison = ProgressComparison(
        definition,
        known.model_copy(update={"committed": late.without_committed(known.committed)}),
        late.without(newest),
        [t.name for t in tables if not t.is_readable or (t.refusal and not t.changes)],
        {t.name: t.table_id for t in tables if t.table_id and t.name not in late.names},
    )
    changes += comparison.tables()
    changes += _backfills(late, known.committed.txid)
    if progress is None:
        return TopologyChanges((*_of_tables(tables, None), *_planned(changes, None)))
    return _with_progress(comparison, tables, changes, leader)


def _backfills(late: LateTables, committed: int) -> Iterator[Change]:
    """Yield the txids that each table gets, or why it cannot have them."""
    for table, held in late.held.items():
        if table not in late.refusals:
            first = late.first_txids.get(table, held + 1)
            what = f"it lacks txids {first} to {committed}: what they read is read anew for it"
            yield Change(table, what, Verdict.REBUILD)
    for table, error in late.refusals.items():
        yield as_refused(table, error, Verdict.CHOICE)


def _renamed(definition: Definition, progress: Progress) -> list[Change]:
    """Compare the former names of the streams with the durable ones."""
    try:
        check_renamed(definition.name, definition.renamed, progress.committed)
    except RecoveryRefusedError as error:
        return [as_refused(definition.name, error)]
    return [
        Change(name, f"the stream was '{former}' so far", Verdict.CARRIES_ON)
        for former, name in definition.renamed.items()
        if former in progress.committed.spouts
    ]


def _with_progress(
    comparison: ProgressComparison,
    tables: Sequence[TableComparison],
    changes: list[Change],
    leader: str | None,
) -> TopologyChanges:
    """Add what the progress alone shows."""
    committed, batches = comparison.progress.committed, comparison.progress.batches
    changes = [*changes, *comparison.streams(), *comparison.program()]
    if leader is None:
        recovered, refusals = comparison.beginning()
        changes += refusals
        if recovered is not None:
            committed, batches = recovered.committed, recovered.batches
            tables = [_while_open(committed.txid, table) for table in tables]
    first = committed.txid + 1 if leader is None else None
    return TopologyChanges(
        (*_of_tables(tables, first), *_planned(changes, first)),
        committed.txid,
        begun=tuple(sorted(batch.txid for batch in batches)),
        leader=leader,
    )


def _planned(changes: Iterable[Change], first: int | None) -> Iterator[PlannedChange]:
    return (PlannedChange(change, _from(change, first)) for change in changes)


def _progress(topology: str, backend: ProgressBackend) -> tuple[Progress, str | None]:
    """The durable progress, and the process that leads."""
    if topology not in backend.topologies():
        return Progress(), None
    status = backend.status(topology)
    leader = status.leader if status.leader and is_alive(status.leader) else None
    return status.progress, None if leader is None else str(leader)


def _while_open(committed: int, table: TableComparison) -> TableComparison:
    """Refuse to change a table that holds a txid which other tables may lack."""
    ahead = table.newest is not None and table.newest[1].last_txid > committed
    if not ahead or table.takes_back or not table.changes:
        return table
    return replace(table, changes=(*table.changes, half_published(table.name, committed + 1)))


def _of_tables(tables: Iterable[TableComparison], first: int | None) -> Iterator[PlannedChange]:
    for table in tables:
        if table.refusal is not None and not table.changes:
            yield PlannedChange(as_refused(table.name, table.refusal))
        cost = table.cost
        for change in table.changes:
            rebuilds = change.verdict is Verdict.REBUILD
            yield PlannedChange(change, _from(change, first), cost if rebuilds else None)
            cost = None if rebuilds else cost


def _from(change: Change, first: int | None) -> int | None:
    """The first txid with the change, if the start makes it."""
    return first if change.allowed and change.verdict is not Verdict.CARRIES_ON else None
