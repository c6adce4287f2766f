"""Compare the tables that a program needs with what their logs describe. Reads no rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from txn.changes import Change, TableShape, Verdict, clauses, is_taken_back
from txn.dataflow.definition import Definition
from txn.dataflow.graph import Sink
from txn.dataflow.stages import OTHER_CODE, is_other_code
from txn.errors import TableRefusedError, TxnError
from txn.interfaces import Publication
from txn.interfaces.committer_capabilities import ChangesShape, KeepsOwnLog
from txn.storage.asking import in_parallel
from txn.storage.locations import identity
from txn.text import first_line

if TYPE_CHECKING:
    from txn.delta.commits import Commit
    from txn.delta.definition import TableDefinition
    from txn.delta.delta_rs import DeltaTable
    from txn.storage.storage import Storage

__all__ = ["Columns", "RebuildCost", "TableComparison", "compare_tables", "refuse_tables"]

Columns = Mapping[str, Any]
"""Column -> its type in the JSON of Delta and Spark."""

_ROWS_PER_SEC = 1_000_000
"""A third of what an upsert commit rewrites on two slow cores (docs/performance.md, (c)), because a
rebuild shuffles as well. Rough: more cores are faster, wide rows and object stores slower."""
_LEAST_SECS = 1.0
"""Seconds of Spark's jobs and of the log, whatever the rows."""


@dataclass(frozen=True)
class RebuildCost:
    """What it takes to write a table's rows anew."""

    rows: int
    """From the statistics in the log; files without them count as empty."""
    bytes: int
    """Bytes of the table's files, which are read once."""

    @property
    def seconds(self) -> float:
        """A rough estimate."""
        return _LEAST_SECS + self.rows / _ROWS_PER_SEC

    @classmethod
    def of(cls, table: DeltaTable) -> RebuildCost:
        """Read the cost of rebuilding a table from its log."""
        # Without pyarrow, which would import pandas to ask whether this is one of its frames.
        actions = table.get_add_actions()
        names = ("num_records", "size_bytes")
        return cls(*(sum(n or 0 for n in actions[name].to_pylist()) for name in names))


@dataclass(frozen=True)
class TableComparison:
    """One table of a program, and what its log says."""

    name: str
    exists: bool = True
    is_readable: bool = True
    """False: only its committer can say what it holds."""
    table_id: str | None = None
    """Delta's own id of the table; None: it does not exist, or has none."""
    newest: tuple[int, Publication] | None = None
    """(version, newest publication); None: nothing of the topology's."""
    changes: tuple[Change, ...] = ()
    refusal: TxnError | None = None
    """The error with which a start refuses the table; None: it does not."""
    cost: RebuildCost | None = None
    """The cost of the rebuild that the changes need; None: they need none."""
    takes_back: bool = False
    """True if the table may change over a half-published txid (`is_taken_back`)."""


def compare_tables(
    definition: Definition, columns: Mapping[str, Columns | None] | None = None
) -> tuple[TableComparison, ...]:
    """Compare each table of a topology with its log. Writes nothing.

    Args:
        columns: table -> the columns that a reader sees. Without them, types and the columns of
            append tables are not compared.
    """
    known = columns or {}
    return tuple(
        in_parallel(
            lambda sink: _compared(sink, definition, known.get(sink.name)),
            definition.sinks,
        )
    )


def refuse_tables(tables: Iterable[TableComparison]) -> None:
    """Refuse what the tables' `open` would refuse, all tables at once.

    Raises:
        TableRefusedError: with the text of each refused table, and the number of the first.
    """
    errors = [t.refusal for t in tables if isinstance(t.refusal, TableRefusedError)]
    if errors:
        raise TableRefusedError(" ".join(map(str, errors)), number=errors[0].number)


def _compared(sink: Sink, definition: Definition, columns: Columns | None) -> TableComparison:
    committer = sink.committer
    try:
        if isinstance(committer, KeepsOwnLog):
            return _of_own_log(committer.name, committer)
        if isinstance(committer, ChangesShape):
            return _DeltaTable(sink, definition).compared(committer.shape(), columns)
        return TableComparison(committer.name, exists=False, is_readable=False)
    except TxnError as error:
        return TableComparison(committer.name, refusal=error)
    except Exception as error:  # noqa: BLE001 - of delta-rs or a store's client
        text = f"Table {committer.name} cannot be read: {first_line(error)}."
        return TableComparison(committer.name, refusal=TxnError(text))


def _of_own_log(name: str, log: KeepsOwnLog) -> TableComparison:
    newest = next(log.publications(), None)
    if newest is None:
        return TableComparison(name, exists=False)
    return TableComparison(name, newest=(newest.version, newest.publication))


class _DeltaTable:
    """One Delta table of a program.

    Raises:
        TxnError, DeltaError, OSError: the table cannot be read.
    """

    def __init__(self, sink: Sink, definition: Definition) -> None:
        from txn.delta.loading import is_there, load_own
        from txn.delta.log import TableLog
        from txn.delta.topology_table import refuse_foreign_folder
        from txn.storage.storage import Storage

        self._sink, committer = sink, sink.committer
        self._name = committer.name
        self._topology, self._config = definition.name, definition.config
        self._options = committer.storage_options
        storage = Storage(committer.name, committer.storage_options)
        self._table = load_own(storage) if is_there(storage) else None
        self._log = TableLog(storage, self._table)
        self._foreign: list[Commit] = []
        """The versions by others since the topology's newest one that wrote metadata."""
        self._culprit: Commit | None = None
        """The newest one of them that changed what describes the table."""
        if self._table is None:
            refuse_foreign_folder(storage.entries(), self._name)

    def compared(self, shape: TableShape, columns: Columns | None) -> TableComparison:
        """Compare the table with the program."""
        if self._table is None:
            return TableComparison(self._name, exists=False)
        table_id = str(self._table.metadata().id)
        newest = self._newest(self._table)
        comparison = TableComparison(self._name, table_id=table_id, newest=newest)
        return self._with_changes(comparison, self._table, shape, columns)

    def _newest(self, table: DeltaTable) -> tuple[int, Publication] | None:
        from txn.delta.commits import txid_app

        own: Commit | None = None
        for commit in self._log.backwards(table.version()):
            if commit.is_ours:
                own = commit
                break
            if commit.metadata_change:
                self._foreign.insert(0, commit)
        self._culprit = self._log.foreign_definition(own, self._foreign)
        if own is not None:
            return own.last_publication
        txid = table.transaction_version(txid_app(self._topology))
        return None if txid is None else (table.version(), Publication.lost(self._topology, txid))

    def _with_changes(
        self,
        comparison: TableComparison,
        table: DeltaTable,
        shape: TableShape,
        columns: Columns | None,
    ) -> TableComparison:
        from txn.delta.definition import TableDefinition
        from txn.delta.topology_table import (
            ShapePolicy,
            refuse_differences,
            refuse_unusable,
            shape_changes,
            with_culprit,
        )

        name, definition = self._name, TableDefinition.of(table)
        policy = ShapePolicy.of(name, self._config.dropped_columns, self._config.rebuilt_tables)
        generation = self._generation(definition)
        taken = generation if self._is_backfilled else None
        policy = replace(policy, refilled=taken is not None)
        cost = RebuildCost.of(table)
        try:
            refuse_unusable(definition, name, self._topology, shape.kind, shape.semantics)
            shape = _with_columns(shape, definition, columns)
            changes = shape_changes(definition, name, shape, policy, is_empty=not cost.bytes)
            if taken is not None:
                changes = (*changes, _replacing(taken, self._sink, shape))
            elif generation is not None:
                changes = (*changes, _waiting(generation, name))
        except TableRefusedError as error:
            newest = self._foreign[-1] if self._foreign else None
            return replace(comparison, newest=None, refusal=with_culprit(error, newest))
        rebuilds = taken is not None or any(c.verdict is Verdict.REBUILD for c in changes)
        stored = definition.configuration.get("txn.semantics")
        comparison = replace(
            comparison,
            changes=self._blamed(changes),
            cost=cost if rebuilds and taken is None else None,
            takes_back=is_taken_back(stored, shape.semantics, rebuilds=rebuilds),
        )
        try:
            refuse_differences(name, changes, self._culprit)
        except TableRefusedError as error:
            return replace(comparison, refusal=error)
        return comparison

    def _generation(self, definition: TableDefinition) -> Storage | None:
        """The place of the table's next generation; None: it has none."""
        from txn.delta.folders import next_generation
        from txn.delta.loading import is_there
        from txn.storage.storage import Storage

        storage = Storage(next_generation(self._name, definition.configuration), self._options)
        return storage if is_there(storage) else None

    @property
    def _is_backfilled(self) -> bool:
        """True if the settings let the table's next generation take its place."""
        return identity(self._name) in map(identity, self._config.backfilled_tables)

    def _blamed(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Return the changes; refused if another writer may have made them."""
        from txn.delta.topology_table import changed_by

        if self._culprit is None:
            return changes
        return tuple(
            replace(
                change,
                verdict=Verdict.REFUSED,
                way_out=f"It was changed in {changed_by(self._culprit)}. Undo that.",
                allowed=False,
                number="TXN-304",
            )
            for change in changes
        )


def _replacing(generation: Storage, sink: Sink, shape: TableShape) -> Change:
    """Return the change in which a table's next generation takes its place, or its refusal."""
    from txn.delta.definition import TableDefinition
    from txn.delta.loading import load_own
    from txn.delta.topology_table import ShapePolicy, shape_changes

    table, loaded = sink.name, load_own(generation)
    place, definition = generation.location, TableDefinition.of(loaded)
    shape = replace(shape, was={})  # it was filled under the new names
    newest, why = _newest_of(generation, loaded), ""
    if changes := shape_changes(definition, place, shape, ShapePolicy(), is_empty=False):
        why = clauses(changes)
    elif newest is not None and is_other_code(newest.filled_by, sink):
        why = OTHER_CODE
    if why:
        what = f"its next generation was filled by another program: {why}"
        way_out = (
            f"End every `txn backfill` of the table, delete the folder {place}, and fill it again "
            "with `txn backfill`."
        )
        return Change(table, what, Verdict.REFUSED, way_out, allowed=False, number="TXN-304")
    txid = newest.last_txid if newest else 0
    what = f"its next generation, which is filled up to txid {txid}, takes its place"
    return Change(table, what, Verdict.FROM_NEXT)


def _waiting(generation: Storage, table: str) -> Change:
    """Return the notice of a next generation that no setting lets take its table's place."""
    newest = _newest_of(generation)
    txid = newest.last_txid if newest else 0
    what = (
        f"its next generation, which is filled up to txid {txid}, waits: "
        "backfilled_tables does not name the table. If it is not wanted, and no `txn backfill` "
        f"fills it any more, delete the folder {generation.location}"
    )
    return Change(table, what, Verdict.CARRIES_ON)


def _newest_of(storage: Storage, table: DeltaTable | None = None) -> Publication | None:
    """Return the newest publication of a table; None: it has none.

    Args:
        table: as for `TableLog`.
    """
    from txn.delta.log import TableLog

    newest = next(TableLog(storage, table).publications(), None)
    return None if newest is None else newest.publication


def _with_columns(shape: TableShape, table: TableDefinition, columns: Columns | None) -> TableShape:
    """Add the columns that a table stores as a reader sees them: keys, and an append table's."""
    from txn.delta.commits import TXID

    if columns is None:
        return shape
    if shape.is_state:
        columns = {key: columns[key] for key in shape.keys}
    else:
        columns = {**columns, TXID: "long"}
    # Types of nested columns are not compared: their parts are stored as nullable.
    stored = {field["name"]: field["type"] for field in table.fields}
    types = {n: t if isinstance(t, str) else stored.get(n, t) for n, t in columns.items()}
    return replace(shape, columns=types)
