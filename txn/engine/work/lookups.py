"""Look up the rows that streams take from tables: new values, and states as of a txid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txn.dataflow.evaluation import Evaluation, Lookup, Unknown
from txn.dataflow.graph import NewValues, Node, Sink, StateBefore, StateQuery
from txn.dataflow.kept import Kept
from txn.engine.base.attempt import Emission, LiveAttempt, table_publication
from txn.engine.work.staging import Stager
from txn.engine.work.tables import Committed, Tables
from txn.errors import FailedException, StateError, TableAbsentError, TopologyError
from txn.interfaces import KeysReader, StoredRows
from txn.interfaces.committer_capabilities import (
    DescribesState,
    ReadsAsOf,
    RecallsRows,
    reporting_changes,
)
from txn.spark.names import quoted
from txn.spark.own_session import moved
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Lookups"]


class Lookups:
    """Looks up the rows of the nodes that read tables of states."""

    def __init__(self, spark: SparkSession, tables: Tables, stager: Stager) -> None:
        self._spark = spark
        self._tables = tables
        self._stager = stager

    def columns(self, node: Lookup, evaluation: Evaluation) -> StoredRows | Unknown:
        """Return no rows, with the columns that `node` takes from a table."""
        sink = node.sink
        if sink is None:
            assert isinstance(node, StateQuery)
            state = self._foreign_state(node)
            return state if isinstance(state, Unknown) else StoredRows(state.rows.limit(0))
        partials = self._stager.known_partials(sink, evaluation)
        if isinstance(partials, Unknown):
            return Unknown(partials.waits_for, empty=True)
        schema, committer = partials.frame.schema, sink.committer
        if not isinstance(node, NewValues) and isinstance(committer, DescribesState):
            empty = no_rows(self._spark, committer.values_schema(schema))
        else:
            empty = no_rows(self._spark, reporting_changes(committer).changes_schema(schema))
        if isinstance(node, NewValues):
            return StoredRows(empty)
        return StoredRows(empty.select(*map(quoted, (*node.on, *(node.aggregates or ())))))

    def find(self, node: Lookup, emission: Emission) -> StoredRows | Unknown:
        """Find the rows that a stream takes from a table."""
        return self._for_staging(self._find_rows(node, emission), emission)

    def _for_staging(
        self, stored: StoredRows | Unknown, emission: Emission
    ) -> StoredRows | Unknown:
        if isinstance(stored, Unknown):
            return stored
        emission.stored.append(stored)
        return StoredRows(
            moved(stored.rows, self._spark),
            # Only staging jobs may read rows that are counted as they leave a source.
            of_keys=None if emission.planned else self._moved_reader(stored.of_keys),
        )

    def _moved_reader(self, of_keys: KeysReader | None) -> KeysReader | None:
        if of_keys is None:
            return None

        def read(keys: DataFrame, has_null: bool) -> DataFrame | None:
            rows = of_keys(keys, has_null)
            return None if rows is None else moved(rows, self._spark)

        return read

    def _find_rows(self, node: Lookup, emission: Emission) -> StoredRows | Unknown:
        evaluation = emission.evaluation
        if not isinstance(node, NewValues):
            return self._query_state(node, evaluation)
        name, publication = node.sink.name, emission.publication
        if publication is None:
            raise TopologyError(
                f"The new values of table '{name}' are known in the commit turn only.",
                number="TXN-108",
            )
        prepared = emission.prepared[name]
        if prepared.read_version < 0 and not prepared.adds:
            return self.columns(node, evaluation)
        own = table_publication(publication, prepared.staged)
        return reporting_changes(node.sink.committer).changes(prepared, own)

    def _query_state(
        self, node: StateQuery | StateBefore, evaluation: Evaluation
    ) -> StoredRows | Unknown:
        """Read the rows of a state query: all as of one txid, whatever is published meanwhile."""
        if isinstance(node, StateQuery) and node.sink is None:
            return self._foreign_state(node)
        while True:
            committed = self._tables.committed
            rows = self._read_state(node, evaluation, committed)
            if committed is self._tables.committed:
                return rows
            # A later txid was committed meanwhile, and the rows may have a part of it.

    def _read_state(
        self,
        node: StateQuery | StateBefore,
        evaluation: Evaluation,
        committed: Committed,
    ) -> StoredRows | Unknown:
        attempt = evaluation.attempt
        exact = isinstance(node, StateBefore) or node.as_of == "txid-1"
        if exact and committed.txid != attempt.txid - 1:
            raise StateError(
                f"Attempt {attempt} has its commit turn while txid {committed.txid} is the newest "
                "committed one: the state as of txid - 1 cannot be read."
            )
        version = None if node.sink is None else committed.versions.get(node.sink.name)
        if node.sink is None or version is None:
            return self.columns(node, evaluation)
        committer, rows = node.sink.committer, None
        if isinstance(committer, ReadsAsOf):
            rows = committer.state_as_of(committed.txid, exact=exact)
        return rows or StoredRows(node.state.snapshot(self._spark, version, node.aggregates))

    # --- rows of earlier txids ---------------------------------------------------------------

    def recall(self, node: Node, side: int, emission: Emission) -> StoredRows | Unknown:
        """Find what a node keeps of all smaller txids, also of those not committed yet."""
        sink = next(
            sink
            for sink in self._tables.all
            if isinstance(sink.parent, Kept)
            and (sink.parent.owner, sink.parent.side) == (node, side)
        )
        return self._for_staging(self._rows_before(sink, emission), emission)

    def _rows_before(self, sink: Sink, emission: Emission) -> StoredRows | Unknown:
        committer = sink.committer
        assert isinstance(committer, RecallsRows)
        while True:
            committed = self._tables.committed
            before = self._staged_since(committed, emission, sink)
            staged = [live.staged[sink.name] for live in before]
            rows: StoredRows | Unknown = Unknown(frozenset({f"table '{sink.name}'"}), empty=True)
            if sink.name in committed.versions or any(one.files for one in staged):
                rows = committer.rows_as_of(committed.txid, staged)
            if committed is self._tables.committed:
                emission.built_on |= {live.attempt.txid: live.attempt for live in before}
                return rows
            # A later txid was committed meanwhile, and its files were read twice or not at all.

    @staticmethod
    def _staged_since(committed: Committed, emission: Emission, sink: Sink) -> list[LiveAttempt]:
        """The attempts between the newest committed txid and this one.

        Raises:
            FailedException: one is not staged.
        """
        own = emission.evaluation.attempt
        by_txid = {live.attempt.txid: live for live in emission.earlier if sink.name in live.staged}
        between = range(committed.txid + 1, own.txid)
        missing = next((txid for txid in between if txid not in by_txid), None)
        if missing is not None:
            raise FailedException(
                f"Attempt {own} compares its rows with those of txid {missing}, which is not "
                "staged any more: it is replayed itself.",
                number="TXN-501",
            )
        return [by_txid[txid] for txid in between]

    def _foreign_state(self, node: StateQuery) -> StoredRows | Unknown:
        try:
            return node.state.newest(self._spark, node.aggregates)
        except TableAbsentError:
            return Unknown(frozenset({f"table '{node.state.path}'"}), empty=True)
