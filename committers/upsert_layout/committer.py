"""The committer of a state table: rewrites buckets in a commit turn, and reports changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from committers.publishing.append import require_staged
from committers.publishing.files import BUCKET, ActiveFile
from committers.publishing.spec import TableSpec
from committers.publishing.storable import storable_columns
from committers.staging.area import random_id
from committers.staging.nearby import is_worth_it
from committers.state.partials import mergeable
from committers.state.removal import check_condition
from committers.state.shape import described
from committers.state_committer import StateCommitter
from committers.upsert_layout.changes import (
    changes_schema,
    files_of_held,
    from_previous_values,
    from_replaced_rows,
)
from committers.upsert_layout.columns import UpsertLayout
from committers.upsert_layout.reading import UpsertReader, bucket_reader
from committers.upsert_layout.rewriting import BucketRewrite, bucket_of_file, rewriting_conf
from txn.attempts import TransactionAttempt
from txn.delta.folders import SCRATCH
from txn.errors import TopologyError
from txn.interfaces import (
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
    StoredRows,
)
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["UpsertCommitter"]


class UpsertCommitter(StateCommitter[UpsertLayout]):
    """One state table with its keys and aggregates: the result of `StateTable.bind`."""

    layout = "upsert"
    """The table's layout, for `txn plan`."""

    def __init__(
        self,
        path: str,
        semantics: Semantics,
        layout: UpsertLayout,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(path, semantics, layout, storage_options=storage_options, new_id=new_id)
        self._stored_columns: StructType | None = None

    def _begin(self) -> None:
        super()._begin()
        self._reported: Staged | None = None
        """The staged rows of the txid whose removals `changes` has reported."""
        self._reader = UpsertReader(
            self._layout, self._storage, self._log, self._reading, self._stored_schema
        )
        self._cached_rewrite: BucketRewrite | None = None
        self._sent = frozenset[str]()
        """Paths of the files that `prepare` itself has sent to storage, without an executor."""

    def close(self) -> None:
        """Forget the Spark session; the table needs no closing."""
        super().close()
        self._cached_rewrite = None

    @property
    def groups(self) -> bool:
        """True if partials of several txids may be merged before they meet stored values.

        Not if one txid may remove a key that comes back with the next.
        """
        return self._layout.remove_where is None and all(
            map(mergeable, self._layout.aggregates.values())
        )

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch, with its hash bucket; one row for a global aggregate."""
        return self._layout.with_bucket(super().partials(batch, count_as))

    def _spec(self, schema: StructType) -> TableSpec:
        table_schema = self._layout.table_schema(self._spark, schema)
        if self._layout.remove_where is not None:
            shown = self._layout.shown_schema(self._spark, table_schema)
            # In the session that will evaluate it, where the user's own functions are unknown.
            check_condition(self._joining(), self._layout.remove_where, shown, self.name)
        self._staged_schema, self._stored_columns = schema, table_schema
        self._cached_rewrite = None
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
        """Write the partials of several attempts with one job, each in its own files."""
        stamped = [(self._stamped(partials, attempt), attempt) for partials, attempt in group]
        return self._area.stage_together(stamped, below=SCRATCH, partition_by=BUCKET)

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        first, version = publication.first_txid, self._log.version
        files = self._log.files_now()
        reverts = self.semantics is Semantics.OPAQUE and self._unfinished(publication)
        buckets = {bucket_of_file(file) for file in staged.files}
        if reverts:
            # The dead attempt's keys are reverted in every bucket, also those not in the replay.
            buckets |= {f.bucket for f in files if f.may_hold(first)}
        old = tuple(file for file in files if file.bucket in buckets)
        if not old and not staged.files:
            return Prepared(staged, (), (), version)
        near = self._area.nearby
        if near is not None:
            near.keep_only({file.path for file in files})
        sizes = [*(file.size for file in old), *(file.size for file in staged.files)]
        if near is not None and not is_worth_it(sizes):
            near = None
        on_disk = self._storage.is_local or near is not None
        with self._readable(old) as url_of:
            rows = self._rewrite.rows(old, staged.files, publication, reverts, url_of, on_disk)
            adds = self._area.write(rows, staged.attempt, partition_by=BUCKET, first=near)
        self._sent = frozenset[str]() if near is None else frozenset(file.path for file in adds)
        return Prepared(staged, adds, old, version)

    def _just_sent(self) -> Collection[str]:
        return self._sent

    def _check(self, publication: Publication, staged: Staged) -> None:
        if self._area.nearby is None:
            super()._check(publication, staged)
            return
        self._log.check(publication, ())
        sizes = self._area.scratch.sizes([file.path for file in staged.files])
        require_staged(staged.files, sizes, self.name)

    @contextmanager
    def _readable(self, files: Sequence[ActiveFile]) -> Iterator[Callable[[str], str] | None]:
        """Yield a function from path to URL for these files; see `BucketRewrite.rows`."""
        nearby = self._area.nearby
        if nearby is None:
            yield self._storage.read_url if self._storage.is_local else None
        else:
            with nearby.copies(self._storage, [(file.path, file.size) for file in files]) as url_of:
                yield url_of

    @property
    def _rewrite(self) -> BucketRewrite:
        """The rewrite, made once per session and schema: it takes hundreds of calls into Java."""
        rewrite = self._cached_rewrite
        if rewrite is None:
            table, partials = self._table_schema(), self._known_staged_schema()
            rewrite = BucketRewrite(
                self._layout, self._storage, self._area.scratch, self._joining, table, partials
            )
            self._cached_rewrite = rewrite
        return rewrite

    def _joining(self) -> SparkSession:
        """The session of the commit turn's join."""
        on_disk = self._storage.is_local or self._area.nearby is not None
        return self._session(rewriting_conf(self._layout, on_disk=on_disk))

    def _table_schema(self) -> StructType:
        if self._stored_columns is None:
            raise TopologyError(
                f"Table {self.name} is written to before it was opened.", number="TXN-116"
            )
        return self._stored_columns

    # --- queries -----------------------------------------------------------------------------

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows:
        """Keys and values as of `txid`, the newest committed one, from the newest files.

        An opaque table has the previous values of everything published since. If another table
        holds `txid` in one version with later ones, it is read as of the txid before them.

        Raises:
            StateError: `exact`, and the table has no version for it.
            TableRefusedError: the commit files needed were cleaned out of the log, or a file of
                that state was deleted.
            TableChangedError: a file of the table's newest version is gone.
        """
        return self._up_to_date(lambda: self._stored_rows(*self._reader.as_of(txid, exact=exact)))

    # --- changes -----------------------------------------------------------------------------

    def changes_schema(self, partials: StructType) -> StructType:
        """Keys, values and `prev_<value>`, given the columns of the partials. Runs no job.

        Raises:
            TopologyError: a `prev_<value>` is the name of a key or another value.
        """
        spark = self._any_session()
        columns = self._layout.table_schema(spark, partials)
        return changes_schema(self._layout, spark, columns, self.name)

    def changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """The changes of this txid: one row per touched key, with `prev_<value>`.

        Lazy, in the session of the run. A removed key has NULL values; a key that one txid both
        adds and removes is left out. Keys of a failed attempt that an opaque replay lacks are
        reverted, and are not a change.

        Raises:
            TopologyError: the publication has several txids.
            TableRefusedError: the txid was published before, and the files that it replaced then
                were vacuumed since.
        """
        txid = publication.last_txid
        if self._layout.remove_where is not None:
            self._reported = prepared.staged
        self._require_one_txid(publication)
        written = [file.path for file in prepared.adds]
        replaced = [file.path for file in prepared.removes if isinstance(file, ActiveFile)]
        if prepared.skipped and prepared.staged.files:
            written, replaced = files_of_held(
                prepared.read_version, publication, self._log, self._storage
            )
        # An opaque table writes removed keys, too: files that are only removed show no change.
        has_changes = written or (replaced and not self._layout.keeps_previous)
        if not prepared.staged.files or not has_changes:
            return StoredRows(no_rows(self._spark, self._idle_schema()))
        schema = self._table_schema()
        staged = [file.path for file in prepared.staged.files]
        paths = (*written, *replaced)
        after = self._rows_of(written, schema)
        if self._layout.keeps_previous and after is not None:
            return self._stored_rows(from_previous_values(self._layout, after, txid), paths)
        only = None
        if self.semantics is Semantics.NON_TRANSACTIONAL and self._unfinished(publication):
            # A failed attempt's rows have this txid as well, and nothing reverts them.
            only = self._rows_of(staged, self._known_staged_schema(), self._area.scratch)
        before = self._rows_of(replaced, schema)
        changed = from_replaced_rows(self._layout, after, before, txid, only)
        return self._stored_rows(changed, paths)

    def _idle_schema(self) -> StructType:
        """Columns of `changes` before anything is staged, from the table itself if it exists."""
        columns = self._stored_schema() if self._log.version >= 0 else self._table_schema()
        return changes_schema(self._layout, self._spark, columns, self.name)

    def _rows_of(
        self, paths: Sequence[str], schema: StructType, storage: Storage | None = None
    ) -> DataFrame | None:
        """Rows of exactly these files, in the session of the run; None without files."""
        if not paths:
            return None
        place = storage or self._storage
        reader = bucket_reader(self._spark, schema, place)
        return reader.parquet(*map(place.read_url, paths))

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Append the prepared version if it is the next one; read it back.

        Not prepared again once the removed keys have been reported: a condition that depends on a
        clock could then remove other keys.

        Raises:
            CommitConflictError: the files that it was computed from were rewritten (OPTIMIZE); a
                replay reports and publishes the same again.
        """
        if prepared.skipped or self._reported != prepared.staged:
            return super().publish(prepared, publication)
        return self._publish(prepared, publication)
