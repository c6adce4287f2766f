"""The committer of a state table with `layout="log"`: partial aggregates, added and never changed.

Every txid adds its partials as they were staged, so that a commit costs the same whatever the size
of the state; readers put the partials of a key together. Compaction
(`committers.log_layout.compaction`) does so in the background for what is committed, so that there
is never much to put together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from committers.aggregates import quoted
from committers.aggregates.base import kept_in
from committers.append_table import AppendingCommitter
from committers.expressions import bigint, no_rows
from committers.log_layout.changes import from_partials, removed_keys
from committers.log_layout.compaction import Compaction, Pace
from committers.log_layout.compactor import Compactor
from committers.log_layout.folding import Folding, folding_session
from committers.publishing.files import ActiveFile
from committers.publishing.spec import LOG_WITH_REMOVAL, TableSpec
from committers.publishing.storable import storable_columns
from committers.reading import strict_reader
from committers.staging.area import random_id
from committers.state.changes import refuse_taken_names
from committers.state.fold import marks_of, touched, without_removed
from committers.state.partials import columns_read, nullable, partial_rows
from committers.state.removal import REMOVED, check_condition
from committers.state.shape import StateShape, described
from txn.delta.commits import TXID
from txn.errors import (
    TopologyError,
)
from txn.interfaces import (
    Aggregate,
    Prepared,
    Publication,
    Semantics,
    Staged,
    StagedFile,
    StoredRows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["LogCommitter"]


class LogCommitter(AppendingCommitter):
    """The result of `StateTable.bind` for `layout="log"`.

    Args:
        keys: grouping columns; empty for one global row.
        aggregates: value column -> aggregate.
        compact_files: files of about one size that are folded into one; None: never.
        compact_share: share of the time that folding may take.
        remove_where: SQL condition over keys and values, as readers see them: a key of the batch
            that satisfies it after the update is removed; None: keys stay.
        clock: seconds that never go back.
    """

    layout = "log"
    """The table's layout, for `txn plan`."""

    def __init__(
        self,
        path: str,
        semantics: Semantics,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        compact_files: int | None,
        compact_share: float,
        remove_where: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(
            path,
            semantics,
            storage_options=storage_options,
            new_id=new_id,
            keys=keys,
        )
        self._remove_where = remove_where
        removes = remove_where is not None
        self._aggregates: Mapping[str, Aggregate] = kept_in(self.name, aggregates)
        self._shape = StateShape(tuple(keys), self._aggregates, 0, removes, self.layout)
        self._folding_session: SparkSession | None = None
        self._compactor = Compactor(
            self._storage, compact_files, Pace(compact_share, clock), new_id
        )

    def _begin(self) -> None:
        super()._begin()
        self._decided: tuple[Staged, tuple[StagedFile, ...]] | None = None
        """The staged rows, and the files that name the keys to remove. A second prepare (OPTIMIZE)
        keeps the decision: others may have acted on it already."""

    @property
    def groups(self) -> bool:
        """Whether one version may hold several txids.

        Not where a key may be removed by one txid and come back with the next.
        """
        return self._remove_where is None

    def required_columns(self) -> Sequence[str]:
        """The keys and the columns that the aggregates read."""
        return columns_read(self._shape.keys, self._aggregates)

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch; one row for a global aggregate, rows or not."""
        return partial_rows(batch, self._shape.keys, self._aggregates, count_as)

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """The rows, if they have the keys and all that the aggregates read."""
        return batch if set(self.required_columns()) <= set(batch.columns) else None

    def _spec(self, schema: StructType) -> TableSpec:
        self._rows_schema = schema
        if self._remove_where is not None:
            shown = self.values_schema(schema)
            # In the session that will evaluate it: functions of the user's own are not known there.
            check_condition(self._session({}), self._remove_where, shown, self.name)
        return TableSpec(
            self._opened.topology,
            self.layout if self._remove_where is None else LOG_WITH_REMOVAL,
            self.semantics,
            storable_columns(self._table_schema(), self.name),
            self._shape.keys,
            tuple((name, *described(agg, always=True)) for name, agg in self._aggregates.items()),
            remove_where=self._remove_where,
        )

    def _table_schema(self) -> StructType:
        from pyspark.sql.types import BooleanType

        schema = super()._table_schema()
        return schema if self._remove_where is None else schema.add(REMOVED, BooleanType())

    def values_schema(self, partials: StructType) -> StructType:
        """Keys and values as readers see them. Runs no job."""
        from pyspark.sql import SparkSession
        from pyspark.sql.types import BooleanType, LongType, StructType

        spark = self._spark if self._context else SparkSession.builder.getOrCreate()
        stored = StructType([*partials.fields]).add(TXID, LongType()).add(REMOVED, BooleanType())
        return self._shape.shown(no_rows(spark, stored)).schema

    # --- queries -----------------------------------------------------------------------------

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows:
        """Keys and values as of `txid`, the newest committed one: its rows and those before it.

        Compaction folds committed txids only, so no row has a part of a later one.

        Raises:
            TableChangedError: a file is gone that the table's newest version still has.
        """
        return self._up_to_date(lambda: self._as_of(txid))

    def _as_of(self, txid: int) -> StoredRows:
        rows, paths = self._rows_before(txid + 1, self._reading())
        return self._stored_rows(self._shown(rows), paths)

    def _shown(self, rows: DataFrame) -> DataFrame:
        """Keys and values as readers see them."""
        return self._shape.shown(rows)

    def _rows_before(self, txid: int | None, session: SparkSession) -> tuple[DataFrame, list[str]]:
        """The table's rows of txids before this one (None: all), and the files that have them."""
        files = self._log.files_now()
        if txid is None:
            paths = [file.path for file in files]
            return self._rows_in(paths, None, session), paths
        files = tuple(file for file in files if not file.holds_only(txid))
        paths = [file.path for file in files]
        mixed = any(file.may_hold(txid) for file in files)
        return self._rows_in(paths, txid if mixed else None, session), paths

    def _rows_in(self, paths: Sequence[str], below: int | None, session: SparkSession) -> DataFrame:
        """The rows of these files; only those of txids before `below`, unless it is None."""
        from pyspark.sql import functions as sf

        schema = self._stored_schema()
        if not paths:
            return no_rows(session, schema)
        rows = strict_reader(session, schema).parquet(*map(self._storage.read_url, paths))
        if below is None:
            return rows
        return rows.where((sf.col(TXID) < below) | sf.col(TXID).isNull())

    def _stored_schema(self) -> StructType:
        """Columns of the table, even before the first batch."""
        if self._rows_schema is not None:
            return self._table_schema()
        return self._columns()

    # --- changes -----------------------------------------------------------------------------

    def require_changes(self) -> None:
        """Refuse a `prev_<value>` that is the name of a key or another value."""
        refuse_taken_names(self._shape.keys, tuple(self._aggregates), self.name)

    def changes_schema(self, partials: StructType) -> StructType:
        """Keys, values and `prev_<value>`, given the columns of the partials. Runs no job.

        Raises:
            TopologyError: a `prev_<value>` that is the name of a key or another value.
        """
        from pyspark.sql.types import StructField, StructType

        self.require_changes()
        shown = {field.name: nullable(field.dataType) for field in self.values_schema(partials)}
        previous = {f"prev_{name}": shown[name] for name in self._aggregates}
        return StructType([StructField(*column) for column in (shown | previous).items()])

    def changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """The changes of this txid: one row per touched key, with `prev_<value>`.

        Lazy, in the session of the run: the touched keys' partials of all txids before are read,
        whatever the table holds of this one already. So a replay tells the same, also after a
        compaction, OPTIMIZE or VACUUM.

        Raises:
            TopologyError: the publication is of several txids.
        """
        if publication.members:
            raise TopologyError(
                f"The changes of one txid in table {self.name} cannot be read: txids "
                f"{publication.first_txid} to {publication.last_txid} are published together. "
                "Run the topology with max_group_commit=1."
            )
        if not prepared.staged.files:
            schema = self._stored_schema()
            fields = [field for field in schema if field.name not in (TXID, REMOVED)]
            return StoredRows(no_rows(self._spark, self.changes_schema(type(schema)(fields))))
        return self._up_to_date(lambda: self._changes(prepared, publication))

    def _changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        rows, paths = self._touched(self._spark, self._reading(), prepared.staged, publication)
        marked = self._marked(prepared, publication)
        removed = self._removed_by(publication.last_txid, marked) if marked else None
        changed = from_partials(rows, self._shape.keys, self._aggregates, removed)
        return self._stored_rows(changed, [*paths, *marked])

    def _marked(self, prepared: Prepared, publication: Publication) -> list[str]:
        """The files that may have marks of a txid: those prepared, or those that hold it."""
        if self._remove_where is None:
            return []
        if prepared.skipped:
            files = self._log.files_now()
            return [file.path for file in files if file.may_hold(publication.last_txid)]
        own = {file.path for file in prepared.staged.files}
        return [file.path for file in prepared.adds if file.path not in own]

    def _removed_by(self, txid: int, paths: Sequence[str]) -> DataFrame:
        """The keys that a txid removes, as its commit turn decided.

        The condition is not evaluated again: it may look at a clock, and here in another session.
        """
        from pyspark.sql import functions as sf

        rows = self._rows_in(paths, None, self._reading())
        marks = rows.where(sf.col(REMOVED) & (sf.col(TXID) == txid))
        return marks.select(*(sf.col(quoted(key)) for key in self._shape.keys))

    def _touched(
        self,
        session: SparkSession,
        reading: SparkSession,
        staged: Staged,
        publication: Publication,
    ) -> tuple[DataFrame, list[str]]:
        """The keys of a txid with their partials after and before it, and the files read.

        Args:
            session: that the result belongs to.
            reading: in which the table's own files are read.
        """
        # A table that applies replays again still has what a failed attempt brought.
        applies_again = self.semantics is Semantics.NON_TRANSACTIONAL
        first = None if applies_again else publication.first_txid
        before, paths = self._rows_before(first, reading)
        keys = self._shape.keys
        if self._remove_where is not None:
            before = without_removed(before, keys, marks_of(before, keys))
        own = [file.path for file in staged.files]
        new = strict_reader(session, self._stored_schema()).parquet(
            *map(self._storage.read_url, own)
        )
        return touched(new, before, keys, self._aggregates), [*paths, *own]

    # --- removal -----------------------------------------------------------------------------

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        prepared = super()._prepare(staged, publication)
        if self._remove_where is None or not staged.files:
            return prepared
        if self._decided is None or self._decided[0] != staged:
            rows = self._marks(staged, publication)
            self._decided = (staged, self._area.write(rows, staged.attempt))
        return replace(prepared, adds=(*prepared.adds, *self._decided[1]))

    def _marks(self, staged: Staged, publication: Publication) -> DataFrame:
        """Rows that make void what the keys had that this txid removes."""
        from pyspark.sql import functions as sf

        session, keys = self._session({}), self._shape.keys
        rows, _ = self._touched(session, session, staged, publication)
        gone = removed_keys(rows, keys, self._aggregates, self._remove_where or "false")
        given = {TXID: bigint(publication.last_txid), REMOVED: sf.lit(True)}
        columns = [
            sf.col(quoted(field.name))
            if field.name in keys
            else given.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name)
            for field in self._table_schema()
        ]
        return gone.select(*columns)

    # --- compaction --------------------------------------------------------------------------

    def maintain(self, committed: int) -> Callable[[], None] | None:
        """Fold files of committed txids, if there are many; what is returned publishes the result.

        Raises:
            Exception: the Spark job failed; nothing is left of it.
        """
        self._compactor.clean_up()
        if self._log.version < 0 or self._rows_schema is None:
            return None
        now = self._log.files_now()
        files = self._compactor.choose(now, committed)
        if not files:
            return None
        compaction = self._fold(files, now, committed)
        return lambda: self._compactor.publish(compaction, self._log, self._opened.epoch)

    def _fold(
        self, files: tuple[ActiveFile, ...], now: Sequence[ActiveFile], committed: int
    ) -> Compaction:
        return self._compactor.write(
            lambda: self._folded(files, now, committed), files, self._area, self._log.version
        )

    def _folded(
        self, files: Sequence[ActiveFile], now: Sequence[ActiveFile], committed: int
    ) -> DataFrame:
        """The rows of `files`, one per key; `now`: all files of the table."""
        if self._folding_session is None:
            self._folding_session = folding_session(self._spark)
        folding = Folding(
            self._folding_session,
            self._storage,
            self._shape.keys,
            self._aggregates,
            removes=self._remove_where is not None,
        )
        return folding.rows(files, now, committed, self._table_schema())

    def _sweep(self, found: Sequence[str]) -> None:
        self._compactor.sweep(found, self._log)
        super()._sweep(found)

    def close(self) -> None:
        """Delete what was folded and not published; forget the Spark sessions."""
        super().close()
        self._folding_session = None
        self._compactor.close()
