"""The committer of a state table: what a commit turn reads, joins and writes again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from committers.aggregates import quoted
from committers.aggregates.base import kept_in
from committers.expressions import bigint, no_rows
from committers.publishing.files import BUCKET, ActiveFile
from committers.publishing.rewritten import first_missing
from committers.publishing.spec import TableSpec
from committers.publishing.storable import storable_columns
from committers.reading import strict_reader
from committers.staging.area import SCRATCH, random_id
from committers.state.changes import refuse_taken_names
from committers.state.partials import columns_read, mergeable
from committers.state.removal import check_condition
from committers.state.shape import described
from committers.table_committer import TableCommitter, require_same_columns
from committers.upsert_layout.changes import (
    changes_schema,
    from_previous_values,
    from_replaced_rows,
)
from committers.upsert_layout.columns import StateLayout
from committers.upsert_layout.join import StateJoin
from committers.upsert_layout.shares import shared_out
from txn.attempts import TransactionAttempt
from txn.delta.commits import TXID
from txn.errors import StateError, TableRefusedError, TopologyError
from txn.interfaces import (
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
    StagedFile,
    StoredRows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StateCommitter"]

_VACUUMED = (
    "A crash came after this table published the txid and before everything downstream of its new "
    "values did. Restore the files from a backup, or start that part over under a new topology; "
    "keep VACUUM's retention and delta.logRetentionDuration longer than a run may stay down."
)


class StateCommitter(TableCommitter):
    """One state table with its keys and aggregates: the result of `StateTable.bind`."""

    layout = "upsert"
    """The table's layout, for `txn plan`."""

    def __init__(
        self,
        path: str,
        semantics: Semantics,
        layout: StateLayout,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(
            path,
            semantics,
            storage_options=storage_options,
            new_id=new_id,
            keys=layout.keys,
        )
        self._layout = replace(layout, aggregates=kept_in(self.name, layout.aggregates))
        self._partials_schema: StructType | None = None
        self._table_schema: StructType | None = None

    def _begin(self) -> None:
        super()._begin()
        self._told: Staged | None = None
        """The staged rows of the txid whose removals `changes` has handed on."""
        self._forget()

    def close(self) -> None:
        """Forget the Spark session; the table needs no closing."""
        super().close()
        self._forget()

    def _forget(self) -> None:
        """Expressions built for a session and a schema are built again when needed."""
        for name in ("_join", "_stored", "_scratch"):
            self.__dict__.pop(name, None)

    @property
    def groups(self) -> bool:
        """Whether partials of several txids may be merged before they meet stored values.

        Not where a key may be removed by one txid and come back with the next.
        """
        return self._layout.remove_where is None and all(
            map(mergeable, self._layout.aggregates.values())
        )

    def required_columns(self) -> Sequence[str]:
        """The keys and the columns that the aggregates read."""
        return columns_read(self._layout.keys, self._layout.aggregates)

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch; one row for a global aggregate, rows or not."""
        return self._layout.partials(batch, count_as)

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """The rows, if they have the keys and all that the aggregates read."""
        return batch if set(self.required_columns()) <= set(batch.columns) else None

    def _spec(self, schema: StructType) -> TableSpec:
        table_schema = self._layout.table_schema(self._spark, schema)
        if self._layout.remove_where is not None:
            shown = self._layout.shown_schema(self._spark, table_schema)
            # In the session that will evaluate it: functions of the user's own are not known there.
            check_condition(self._joining(), self._layout.remove_where, shown, self.name)
        self._partials_schema, self._table_schema = schema, table_schema
        self._forget()
        return TableSpec(
            self._opened.topology,
            "upsert",
            self.semantics,
            storable_columns(table_schema, self.name),
            self._layout.keys,
            tuple((name, *described(agg)) for name, agg in self._layout.aggregates.items()),
            self._layout.buckets,
            self._layout.remove_where,
        )

    def stage(self, partials: DataFrame, attempt: TransactionAttempt) -> Staged:
        """Write the partial aggregates, with their txid, by bucket into scratch."""
        rows = self._stamped(partials, attempt)
        return self._area.stage(rows, attempt, below=SCRATCH, partition_by=BUCKET)

    def stage_together(self, group: Sequence[tuple[DataFrame, TransactionAttempt]]) -> list[Staged]:
        """Write the partials of several attempts with one job, each in files of its own."""
        stamped = [(self._stamped(partials, attempt), attempt) for partials, attempt in group]
        return self._area.stage_together(stamped, below=SCRATCH, partition_by=BUCKET)

    def _stamped(self, partials: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        require_same_columns(self._known_schema(), partials.schema, self.name)
        return partials.withColumn(TXID, bigint(attempt.txid))

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        first, version = publication.first_txid, self._log.version
        files = self._log.files_now()
        reverts = self.semantics is Semantics.OPAQUE and self._unfinished(publication)
        buckets = {_bucket(file) for file in staged.files}
        if reverts:
            # Whatever the replay mentions: the dead attempt's keys go back in every bucket.
            buckets |= {f.bucket for f in files if f.may_hold(first)}
        old = tuple(file for file in files if file.bucket in buckets)
        if not old and not staged.files:
            return Prepared(staged, (), (), version)
        rows = self._next_rows(old, staged.files, publication, reverts)
        adds = self._area.write(rows, staged.attempt, partition_by=BUCKET)
        return Prepared(staged, adds, old, version)

    def _next_rows(
        self,
        old: Sequence[ActiveFile],
        new: Sequence[StagedFile],
        publication: Publication,
        reverts: bool,
    ) -> DataFrame:
        shares, hashed = shared_out(
            [(file.bucket, file.size) for file in old],
            [(_bucket(file), file.size) for file in new],
            self._spark.sparkContext.defaultParallelism,
        )
        pairs = []
        for share in shares:
            stored = self._read(self._stored, [f.path for f in old if f.bucket in share])
            if stored is not None and reverts:
                stored = self._layout.revert(stored, publication.first_txid)
            elif stored is not None:
                stored = self._layout.alive(stored)
            partials = self._read(self._scratch, [f.path for f in new if _bucket(f) in share])
            pairs.append((stored, partials))
        return self._join.rows(pairs, several=bool(publication.members), in_one_task=hashed)

    def _read(self, reader: DataFrameReader, paths: Sequence[str]) -> DataFrame | None:
        return reader.parquet(*map(self._storage.read_url, paths)) if paths else None

    @cached_property
    def _join(self) -> StateJoin:
        return StateJoin(self._layout, self._known_table_schema(), self._known_schema())

    @cached_property
    def _stored(self) -> DataFrameReader:
        """Reads the table's files."""
        return _reader(self._joining(), self._known_table_schema())

    @cached_property
    def _scratch(self) -> DataFrameReader:
        """Reads staged partials."""
        from pyspark.sql.types import LongType, StructType

        fields = self._known_schema().fields
        return _reader(self._joining(), StructType([*fields]).add(TXID, LongType()))

    def _joining(self) -> SparkSession:
        """The session of the commit turn's join."""
        buckets = str(self._layout.buckets)
        return self._session(
            {
                # Where a shuffle is needed, one partition per bucket, never merged.
                "spark.sql.shuffle.partitions": buckets,
                "spark.sql.adaptive.enabled": "false",
                # Each pair of the join stays in a task of its own.
                "spark.sql.unionOutputPartitioning": "false",
                # A task has one writer per bucket, instead of sorting all rows by bucket.
                "spark.sql.maxConcurrentOutputFileWriters": buckets,
                # The same code for each of the pairs.
                "spark.sql.codegen.useIdInClassName": "false",
                # A few hundred files are listed sooner than a Spark job is started for it.
                "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
            }
        )

    def _rows_of(
        self, session: SparkSession, paths: Sequence[str], schema: StructType
    ) -> DataFrame | None:
        """Rows of exactly these files, without the bucket: it follows from the keys."""
        return self._read(_reader(session, schema), paths)

    def _known_schema(self) -> StructType:
        if self._partials_schema is None:
            raise TopologyError(f"Table {self.name} is staged into before it was opened.")
        return self._partials_schema

    def _known_table_schema(self) -> StructType:
        if self._table_schema is None:
            raise TopologyError(f"Table {self.name} is written to before it was opened.")
        return self._table_schema

    # --- queries -----------------------------------------------------------------------------

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows:
        """Keys and values as of `txid`, the newest committed one, out of the newest files.

        An opaque table has the values before of all that was published since. Where another one
        holds `txid` in one version with later ones, it is read as of the txid before them.

        Raises:
            StateError: `exact`, and the table has no version for it.
            TableRefusedError: commit files that would tell were cleaned out of the log, or a file
                of that state was deleted.
            TableChangedError: a file is gone that the table's newest version still has.
        """
        return self._up_to_date(lambda: self._as_of(txid, exact=exact))

    def _as_of(self, txid: int, *, exact: bool) -> StoredRows:
        if self.semantics is Semantics.OPAQUE:
            files = self._log.files_now()
            reverts = any(file.may_hold(txid + 1) for file in files)
            paths = [file.path for file in files]
            return self._stored_rows(self._state_in(paths, txid + 1 if reverts else None), paths)
        newest, found = self._log.files_before(txid + 1)
        if exact and newest < txid <= self._newest_txid():
            raise StateError(
                f"Table {self.name} holds txids {newest + 1} to {self._newest_txid()} in one "
                f"version, so it cannot be read as of txid {txid} for a query as of txid - 1: a "
                "crash left a group of txids in this table only. Run the former program, which "
                f"groups txids without that query, until txid {self._newest_txid()} is committed."
            )
        paths = sorted(found)
        self._require_former(txid, found - {file.path for file in self._log.files_now()})
        return self._stored_rows(self._state_in(paths, None), paths)

    def _require_former(self, txid: int, paths: Collection[str]) -> None:
        """Refuse a state whose files VACUUM has deleted: later versions lack them too."""
        gone = first_missing(self._storage, sorted(paths))
        if gone is not None:
            raise TableRefusedError(
                f"Table {self.name} cannot be read as of txid {txid}: a crash left it at txid "
                f"{self._newest_txid()}, and VACUUM has deleted file {gone} of the state before. "
                "Nothing was written. Run the program without the query until txid "
                f"{self._newest_txid()} is committed, then with it. With semantics='opaque' the "
                "newest files also hold the state before, and VACUUM cannot delete it."
            )

    def _state_in(self, paths: Sequence[str], revert_from: int | None) -> DataFrame:
        """Keys and values in these files.

        Args:
            revert_from: as they were before this txid; None: as they are.
        """
        from pyspark.sql import functions as sf

        session, schema = self._reading(), self._stored_schema()
        rows = self._rows_of(session, paths, schema)
        if rows is None:
            rows = no_rows(session, schema)
        elif revert_from is not None:
            rows = self._layout.revert(rows, revert_from)
        else:
            rows = self._layout.alive(rows)
        keys = (sf.col(quoted(key)) for key in self._layout.keys)
        values = (
            self._layout.shown(name, sf.col(quoted(name))).alias(name)
            for name in self._layout.values
        )
        return rows.select(*keys, *values)

    def _newest_txid(self) -> int:
        last = self._log.last_publication()
        return last[1].last_txid if last else 0

    def _stored_schema(self) -> StructType:
        """Columns of the table, even before the first batch."""
        return self._table_schema or self._columns()

    # --- changes -----------------------------------------------------------------------------

    def require_changes(self) -> None:
        """Refuse a `prev_<value>` that is the name of a key or another value."""
        refuse_taken_names(self._layout.keys, self._layout.values, self.name)

    def changes_schema(self, partials: StructType) -> StructType:
        """Keys, values and `prev_<value>`, given the columns of the partials. Runs no job.

        Raises:
            TopologyError: a `prev_<value>` that is the name of a key or another value.
        """
        from pyspark.sql import SparkSession

        spark = self._spark if self._context else SparkSession.builder.getOrCreate()
        columns = self._layout.table_schema(spark, partials)
        return changes_schema(self._layout, spark, columns, self.name)

    def changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """The changes of this txid: one row per touched key, with `prev_<value>`.

        Lazy, in the session of the run. A key that was removed has NULL values; one that was
        removed by the txid that brought it is left out. Keys of a failed attempt that an opaque
        replay does not mention went back to what they were before, and are no change.

        Raises:
            TopologyError: the publication is of several txids.
            TableRefusedError: the txid was published before, and the files that it replaced then
                were vacuumed since.
        """
        txid = publication.last_txid
        if self._layout.remove_where is not None:
            self._told = prepared.staged
        if publication.members:
            raise TopologyError(
                f"The changes of one txid in table {self.name} cannot be read: txids "
                f"{publication.first_txid} to {txid} are published together. Run the topology "
                "with max_group_commit=1."
            )
        written = [file.path for file in prepared.adds]
        replaced = [file.path for file in prepared.removes if isinstance(file, ActiveFile)]
        if prepared.skipped and prepared.staged.files:
            written, replaced = self._held_files(prepared.read_version, publication)
        # In an opaque table a removed key is written, too: then files that only go tell nothing.
        tells = written or (replaced and not self._layout.keeps_previous)
        if not prepared.staged.files or not tells:
            return StoredRows(no_rows(self._spark, self._idle_schema()))
        schema = self._known_table_schema()
        staged = [file.path for file in prepared.staged.files]
        paths = (*written, *replaced, *staged)
        after = self._rows_of(self._spark, written, schema)
        if self._layout.keeps_previous and after is not None:
            return self._stored_rows(from_previous_values(self._layout, after, txid), paths)
        only = None
        if self.semantics is Semantics.NON_TRANSACTIONAL and self._unfinished(publication):
            # A failed attempt's rows have this txid as well, and nothing takes them back.
            only = self._rows_of(self._spark, staged, self._known_schema())
        before = self._rows_of(self._spark, replaced, schema)
        changed = from_replaced_rows(self._layout, after, before, txid, only)
        return self._stored_rows(changed, paths)

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Append the prepared version on condition that it is the next one; read it back.

        Not prepared again once others know which keys it removes: a condition that looks at a
        clock could then remove other keys.

        Raises:
            CommitConflictError: what it was computed from was rewritten (OPTIMIZE); a replay
                tells and publishes the same again.
        """
        if prepared.skipped or self._told != prepared.staged:
            return super().publish(prepared, publication)
        return self._publish(prepared, publication)

    def _idle_schema(self) -> StructType:
        """Columns of `changes` before anything is staged, perhaps from the table itself."""
        known = self._stored_schema() if self._log.version >= 0 else self._known_table_schema()
        return changes_schema(self._layout, self._spark, known, self.name)

    def _held_files(self, version: int, publication: Publication) -> tuple[list[str], list[str]]:
        """(files added, files removed) by the version that holds this txid already."""
        commit = self._log.read_commit(version)
        held = commit.publication if commit else None
        if commit is None or held is None:
            raise TableRefusedError(
                f"The changes of txid {publication.last_txid} in table {self.name} can no longer "
                f"be read: version {version}, which holds them, was cleaned out of the log. "
                f"{_VACUUMED}"
            )
        if not held.first_txid == held.last_txid == publication.last_txid:
            raise TableRefusedError(
                f"The changes of txid {publication.last_txid} in table {self.name} cannot be read: "
                f"version {version} holds txids {held.first_txid} to {held.last_txid}. {_VACUUMED}"
            )
        written, replaced = [file.path for file in commit.adds], sorted(commit.removes)
        paths = [*written, *replaced]
        for path, size in zip(paths, self._storage.sizes(paths), strict=True):
            if size is None:
                raise TableRefusedError(
                    f"The changes of txid {publication.last_txid} in table {self.name} can no "
                    f"longer be read: file {path} of version {version} was vacuumed. {_VACUUMED}"
                )
        return written, replaced


def _bucket(file: StagedFile) -> int:
    return int(file.partition[BUCKET] or 0)


def _reader(session: SparkSession, schema: StructType) -> DataFrameReader:
    """Reads files of these columns, but for the bucket."""
    from pyspark.sql.types import StructType

    return strict_reader(session, StructType([f for f in schema if f.name != BUCKET]))
