"""The committer of a state table: what a commit turn reads, joins and writes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from committers.log_actions import BUCKET, ActiveFile
from committers.staging import SCRATCH, random_id
from committers.state_changes import changes_schema, from_previous_values, from_replaced_rows
from committers.state_shape import described
from committers.table_committer import TableCommitter, read_table, require_same_columns
from committers.table_spec import TableSpec, storable_columns
from committers.upsert import StateLayout
from txn.attempts import TransactionAttempt
from txn.errors import TableRefusedError, TopologyError
from txn.interfaces import Prepared, Publication, Semantics, Staged, StagedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StateCommitter"]

HASHED_BYTES = 32 * 1024 * 1024
"""Largest staged (compressed) size of one bucket's partials that a task joins in memory."""

_VACUUMED = (
    "It is asked for because the txid was published before a crash, and something downstream of "
    "the table's new values was not. Restore the files from a backup, or start that part over "
    "under a new topology; keep VACUUM's retention and delta.logRetentionDuration longer than a "
    "run may stay down."
)


class StateCommitter(TableCommitter):
    """What `StateTable.bind` returns: one state table with its keys and aggregates."""

    layout = "upsert"
    """How rows lie in the table, for `txn plan`."""

    def __init__(
        self,
        path: str,
        semantics: Semantics,
        layout: StateLayout,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(path, semantics, storage_options=storage_options, new_id=new_id)
        self._layout = layout
        self._partials_schema: StructType | None = None
        self._table_schema: StructType | None = None

    def required_columns(self) -> Sequence[str]:
        """The keys and the columns that the aggregates read."""
        inputs = [name for agg in self._layout.aggregates.values() for name in agg.columns]
        return tuple(dict.fromkeys((*self._layout.keys, *inputs)))

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch; one row for a global aggregate, rows or not."""
        return self._layout.partials(batch, count_as)

    def _spec(self, schema: StructType) -> TableSpec:
        table_schema = self._layout.table_schema(self._spark, schema)
        if self._layout.remove_where is not None:
            shown = self._layout.shown_schema(self._spark, table_schema)
            # In the session that will evaluate it: functions of the user's own are not known there.
            _check_condition(self._joining(), self._layout.remove_where, shown, self.name)
        self._partials_schema, self._table_schema = schema, table_schema
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
        """Write the partial aggregates by bucket into scratch."""
        require_same_columns(self._known_schema(), partials.schema, self.name)
        return self._area.stage(partials, attempt, below=SCRATCH, partition_by=BUCKET)

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        first = publication.first_txid
        reverts = self.semantics is Semantics.OPAQUE and self._unfinished(publication)
        buckets = {int(file.partition[BUCKET] or 0) for file in staged.files}
        if reverts:
            # Whatever the replay mentions: the dead attempt's keys go back in every bucket.
            buckets |= {f.bucket for f in self._log.files.values() if f.may_hold(first)}
        old = tuple(file for file in self._log.files.values() if file.bucket in buckets)
        if not old and not staged.files:
            return Prepared(staged, (), (), self._log.version)
        rows = self._next_rows(old, staged.files, publication, reverts)
        adds = self._area.write(rows, staged.attempt, partition_by=BUCKET)
        return Prepared(staged, adds, old, self._log.version)

    def _next_rows(
        self,
        old: Sequence[ActiveFile],
        new: Sequence[StagedFile],
        publication: Publication,
        reverts: bool,
    ) -> DataFrame:
        partials_schema = self._known_schema()
        schema = self._known_table_schema()
        stored = self._read_files([file.path for file in old], schema)
        if stored is not None:
            first = publication.first_txid
            stored = self._layout.revert(stored, first) if reverts else self._layout.alive(stored)
        sizes: dict[str | None, int] = {}
        for file in new:
            bucket = file.partition[BUCKET]
            sizes[bucket] = sizes.get(bucket, 0) + file.size
        return self._layout.merge(
            stored,
            self._read_files([file.path for file in new], partials_schema),
            (schema, partials_schema),
            publication.last_txid,
            hash_partials=max(sizes.values(), default=0) <= HASHED_BYTES,
        )

    def _read_files(self, paths: Sequence[str], schema: StructType) -> DataFrame | None:
        return self._rows_of(self._joining(), paths, schema) if paths else None

    def _joining(self) -> SparkSession:
        """The session of the commit turn's join."""
        return self._session(
            {
                # One shuffle partition per bucket, never merged: each task writes one file.
                "spark.sql.shuffle.partitions": str(self._layout.buckets),
                "spark.sql.adaptive.enabled": "false",
            }
        )

    def _rows_of(
        self, session: SparkSession, paths: Sequence[str], schema: StructType
    ) -> DataFrame | None:
        """Rows of exactly these files, without the bucket: it follows from the keys."""
        from pyspark.sql.types import StructType

        if not paths:
            return None
        stored = StructType([field for field in schema if field.name != BUCKET])
        reader = session.read.schema(stored)
        for silent in ("ignoreMissingFiles", "ignoreCorruptFiles"):
            # Whatever the session says: a row that is passed over is a wrong total.
            reader = reader.option(silent, "false")
        return reader.parquet(*map(self._storage.read_url, paths))

    def _known_schema(self) -> StructType:
        if self._partials_schema is None:
            raise TopologyError(f"Table {self.name} is staged into before it was opened.")
        return self._partials_schema

    def _known_table_schema(self) -> StructType:
        if self._table_schema is None:
            raise TopologyError(f"Table {self.name} is written to before it was opened.")
        return self._table_schema

    # --- changes -----------------------------------------------------------------------------

    def changes_schema(self, partials: StructType) -> StructType:
        """Keys, values and `prev_<value>`, given the columns of the partials. Runs no job.

        Raises:
            TopologyError: a `prev_<value>` that is the name of a key or another value.
        """
        from pyspark.sql import SparkSession

        spark = self._spark if self._context else SparkSession.builder.getOrCreate()
        columns = self._layout.table_schema(spark, partials)
        return changes_schema(self._layout, spark, columns, self.name)

    def changes(self, prepared: Prepared, publication: Publication) -> DataFrame:
        """What this txid changes: one row per key that it touches, with `prev_<value>`.

        Lazy, in the session of the run. A key that was removed has NULL values; one that was
        removed by the txid that brought it is not told. Keys of a failed attempt that an opaque
        replay does not mention went back to what they were before, and are no change.

        Raises:
            TableRefusedError: the txid was published before, and the files that it replaced then
                were vacuumed since.
        """
        txid = publication.last_txid
        written = [file.path for file in prepared.adds]
        replaced = [file.path for file in prepared.removes if isinstance(file, ActiveFile)]
        if prepared.skipped and prepared.staged.files:
            written, replaced = self._held_files(prepared.read_version, publication)
        # In an opaque table a removed key is written, too: then files that only go tell nothing.
        tells = written or (replaced and not self._layout.keeps_previous)
        if not prepared.staged.files or not tells:
            return self._spark.createDataFrame([], self._idle_schema())
        schema = self._known_table_schema()
        after = self._rows_of(self._spark, written, schema)
        if self._layout.keeps_previous and after is not None:
            return from_previous_values(self._layout, after, txid)
        only = None
        if self.semantics is Semantics.NON_TRANSACTIONAL and self._unfinished(publication):
            # A failed attempt's rows have this txid as well, and nothing takes them back.
            staged = [file.path for file in prepared.staged.files]
            only = self._rows_of(self._spark, staged, self._known_schema())
        before = self._rows_of(self._spark, replaced, schema)
        return from_replaced_rows(self._layout, after, before, txid, only)

    def _idle_schema(self) -> StructType:
        """Columns of `changes` while nothing was staged: the table itself may have to say."""
        columns = self._table_schema
        if columns is None and self._log.version >= 0:
            columns = read_table(self._spark, self._storage, self._options)[0].schema
        columns = columns or self._known_table_schema()
        return changes_schema(self._layout, self._spark, columns, self.name)

    def _held_files(self, version: int, publication: Publication) -> tuple[list[str], list[str]]:
        """(files added, files removed) by the version that holds this txid already."""
        commit = self._log.read_commit(version)
        held = commit.publication if commit else None
        if commit is None or held is None:
            raise TableRefusedError(
                f"What txid {publication.last_txid} changed in table {self.name} cannot be told "
                f"any more: version {version}, which holds it, was cleaned out of the log. "
                f"{_VACUUMED}"
            )
        if not held.first_txid == held.last_txid == publication.last_txid:
            raise TableRefusedError(
                f"What txid {publication.last_txid} changed in table {self.name} cannot be told: "
                f"version {version} holds txids {held.first_txid} to {held.last_txid}. "
                f"{_VACUUMED}"
            )
        written, replaced = [file.path for file in commit.adds], sorted(commit.removes)
        paths = [*written, *replaced]
        for path, size in zip(paths, self._storage.sizes(paths), strict=True):
            if size is None:
                raise TableRefusedError(
                    f"What txid {publication.last_txid} changed in table {self.name} cannot be "
                    f"told any more: file {path} of version {version} was vacuumed. {_VACUUMED}"
                )
        return written, replaced


def _check_condition(spark: SparkSession, condition: str, shown: StructType, table: str) -> None:
    """Refuse a `remove_where` that is no condition over keys and values. Runs no job."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as sf

    nothing = spark.createDataFrame([], shown)
    try:
        # `where` alone says what is boolean; `select` is how it is evaluated: without subqueries.
        nothing.where(condition).select(sf.expr(condition))
    except (AnalysisException, ParseException) as error:
        raise TopologyError(
            f"remove_where={condition!r} of state table {table} is no SQL condition over its keys "
            f"and values ({', '.join(shown.fieldNames())}): {str(error).strip().splitlines()[0]}"
        ) from error
