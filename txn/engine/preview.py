"""Preview the rows of the first batch for each table: computed as in a run, written nowhere.

One batch is planned from the beginning of every source, as txid 1 of a topology that has committed
nothing: states are empty, and a query of a state that another topology keeps reads that state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.dataflow.columns import StreamColumns
from txn.dataflow.definition import Definition
from txn.dataflow.evaluation import Evaluation, Lookup, Rows, Unknown
from txn.dataflow.graph import Sink, StateBefore, StateQuery
from txn.engine.base.attempt import Emission
from txn.engine.loop.ending_errors import not_previewed
from txn.engine.work.dimensions import Dimensions
from txn.engine.work.emission import Emissions
from txn.engine.work.lookups import Lookups
from txn.engine.work.spouts import Spouts
from txn.engine.work.staging import Stager
from txn.engine.work.table_keeper import TableKeeper
from txn.engine.work.tables import Tables
from txn.engine.work.violations import count_violations
from txn.errors import TopologyError, TxnError
from txn.interfaces import Committer, StoredRows
from txn.interfaces.committer_capabilities import ShowsPartials, reporting_changes
from txn.protocol.events import Metadata, Plan
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.spark.own_session import moved, own_session
from txn.spark.rows import local_frame
from txn.text import placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Preview", "columns", "preview"]


@dataclass(frozen=True)
class Preview:
    """The rows that the first batch of a topology would put into its tables."""

    tables: Mapping[str, DataFrame]
    """Table -> some of the rows that it would get, held by the driver; those of a state as its
    readers would see them. A table is missing if its columns are not known yet."""
    waiting: Mapping[str, Sequence[str]]
    """Table that is missing -> the streams and tables whose columns would help."""
    read: Metadata
    """Stream -> metadata of its part of the batch; None: it has nothing to read."""
    violations: Mapping[str, Mapping[str, int]]
    """Stream -> rule -> rows of the whole batch that broke it."""


def preview(definition: Definition, spark: SparkSession, rows: int = 20) -> Preview:
    """Plan one batch, compute each table's rows of it, and write nothing anywhere.

    Args:
        rows: how many rows of each table are computed and held.

    Raises:
        TxnError: as a run would raise it: columns, rules, a source that is away.
        TopologyError: the user's code or Spark failed on the rows; or `rows` is not positive.
    """
    if type(rows) is not int or rows < 1:
        raise TopologyError(f"A preview has rows=1 or more, not {rows!r}.", number="TXN-109")
    definition.check_complete()
    read: dict[str, object] = {}
    rehearsal = _Rehearsal(definition, spark)
    try:
        read.update(rehearsal.plan())
        return rehearsal.computed(read, rows)
    except TxnError:
        raise
    except Exception as error:
        raise not_previewed(definition.name, read, error) from error
    finally:
        rehearsal.close()


def columns(definition: Definition, spark: SparkSession) -> dict[str, StructType | None]:
    """The columns that each table would have, if they are known before anything is read.

    Returns:
        Table -> keys and values of a state, or the columns of an append table; None: they are
        unknown until its streams are read.

    Raises:
        TxnError: as a start would raise it: a column, an expression, a source that is away.
    """
    definition.check_complete()
    rehearsal = _Rehearsal(definition, spark)
    try:
        return rehearsal.columns()
    finally:
        rehearsal.close()


class _Rehearsal:
    """The equipment of a run that never opens a table."""

    def __init__(self, definition: Definition, spark: SparkSession) -> None:
        self._definition = definition
        self._spark = spark
        self._own = own = own_session(spark)
        self._columns = StreamColumns(lambda *_: None)
        self._spouts = Spouts(definition.name, definition.sources)
        tables = Tables(own, definition.sinks)
        self._stager = Stager(own, tables, verify_rows=False)
        self._lookups = Lookups(spark, tables, self._stager)
        self._dimensions = Dimensions(spark, definition.sinks)
        self._emissions = Emissions(
            spark,
            own,
            self._spouts,
            definition.sinks,
            self._lookups,
            self._columns,
            self._dimensions,
            verify_rows=False,
        )

    def _open(self) -> None:
        keeper = TableKeeper(self._definition.name, [])
        self._spouts.open(self._spark, {}, keeper, self._columns)

    def columns(self) -> dict[str, StructType | None]:
        """The columns of each table; None for those that are unknown."""
        self._open()
        nothing = self._emissions.nothing()
        results = {sink.name: self._reader_rows(sink, nothing) for sink in self._definition.sinks}
        return {
            n: one.frame.schema if isinstance(one, Rows) else None for n, one in results.items()
        }

    def plan(self) -> Metadata:
        """Plan the first batch with every spout."""
        self._open()
        first = Plan(TransactionAttempt(1), self._definition.streams, {})
        return self._spouts.plan(first, window_full=False)

    def computed(self, read: Metadata, rows: int) -> Preview:
        """Compute the rows that each table would get of the planned batch."""
        versions = self._dimensions.versions()
        emission = self._emissions.emit(TransactionAttempt(1), read, dimensions=versions)
        emission.evaluation.lookup = lambda node: self._table_rows(node, emission)
        results = {
            sink: self._reader_rows(sink, emission.evaluation) for sink in self._definition.sinks
        }
        count_violations([emission], self._own)
        return Preview(
            {
                s.name: self._hold_rows(s, one, rows)
                for s, one in results.items()
                if isinstance(one, Rows)
            },
            {s.name: sorted(u.waits_for) for s, u in results.items() if isinstance(u, Unknown)},
            read,
            emission.violations,
        )

    def _reader_rows(self, sink: Sink, evaluation: Evaluation) -> Rows | Unknown:
        """The rows of a table as its readers would see them, not computed yet."""
        partials = self._stager.known_partials(sink, evaluation)
        if isinstance(partials, Unknown):
            return partials
        return Rows(_shown(sink.committer, partials.frame))

    def _table_rows(self, node: Lookup, emission: Emission) -> StoredRows | Unknown:
        if isinstance(node, StateQuery):
            return self._lookups.find(node, emission)
        if isinstance(node, StateBefore):
            return self._lookups.columns(node, emission.evaluation)
        return self._new_values(node.sink, emission.evaluation)

    def _new_values(self, sink: Sink, evaluation: Evaluation) -> StoredRows | Unknown:
        """The values of an empty state after the batch."""
        partials = self._stager.known_partials(sink, evaluation)
        if isinstance(partials, Unknown):
            return partials
        seen = _shown(sink.committer, partials.frame)
        columns = [
            (sf.col(quoted(field.name)) if field.name in seen.columns else sf.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in reporting_changes(sink.committer).changes_schema(partials.frame.schema)
        ]
        return StoredRows(seen.select(*columns))

    def _hold_rows(self, sink: Sink, result: Rows, rows: int) -> DataFrame:
        """Compute the first rows of a table, so that they outlive the batch."""
        with placed(f"the rows of stream '{sink.parent.label()}' for table '{sink.name}'"):
            held = moved(result.frame, self._own).limit(rows).collect()
        return local_frame(self._spark, held, result.frame.schema)

    def close(self) -> None:
        """Let go of the batch, and close the spouts."""
        self._emissions.release_all()
        self._spouts.close()


def _shown(committer: Committer, partials: DataFrame) -> DataFrame:
    return committer.shown(partials) if isinstance(committer, ShowsPartials) else partials
