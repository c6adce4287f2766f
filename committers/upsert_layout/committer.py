"""The committer of a state table: rewrites buckets in a commit turn, and reports changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from committers.publishing.append import require_staged
from committers.publishing.files import BUCKET, ActiveFile
from committers.publishing.spec import TableSpec
from committers.staging.nearby import is_worth_it
from committers.state.changes import (
    files_of_held,
    from_previous_values,
    from_replaced_rows,
)
from committers.state.layouts import UpsertLayout
from committers.state.reading import UpsertReader, bucket_reader
from committers.state_committer import StateCommitter
from committers.upsert_layout.rewriting import BucketRewrite, bucket_of_file, rewriting_conf
from txn.attempts import TransactionAttempt
from txn.delta.folders import SCRATCH
from txn.interfaces import (
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
    StagedFile,
    StoredRows,
)
from txn.spark.names import quoted
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["UpsertCommitter"]


class UpsertCommitter(StateCommitter[UpsertLayout]):
    """One state table with its keys and aggregates: the result of `StateTable.bind`."""

    layout = "upsert"
    """The table's layout, for `txn plan`."""

    def _begin(self) -> None:
        super()._begin()
        self._reported: Staged | None = None
        """The staged rows of the txid whose removals `changes` has reported."""
        self._reader = UpsertReader(self._layout, self._storage, self._log, self._stored_schema)
        self._cached_rewrite: BucketRewrite | None = None
        self._sent = frozenset[str]()
        """Paths of the files that `prepare` itself has sent to storage, without an executor."""

    def close(self) -> None:
        """Forget the Spark session; the table needs no closing."""
        super().close()
        self._cached_rewrite = None

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch, with its hash bucket; one row for a global aggregate."""
        return self._layout.with_bucket(super().partials(batch, count_as))

    def _spec(self, schema: StructType) -> TableSpec:
        self._cached_rewrite = None
        if self._owner is None and not self._policy().rebuilt:
            if self._log.version < 0:
                self._log.attach(self._opened.topology)
            held = self._logged_schema().fieldNames() if self._log.version >= 0 else ()
            self._layout = self._layout.as_in(held)
        return super()._spec(schema)

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
            rows = self._rewrite.rows(
                old,
                staged.files,
                publication,
                reverts,
                url_of,
                on_disk,
                self._watermark_as_of(first - 1),
            )
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
                self._layout,
                self._storage,
                self._area.scratch,
                self._turn_session,
                table,
                partials,
            )
            self._cached_rewrite = rewrite
        return rewrite

    def _turn_session(self) -> SparkSession:
        on_disk = self._storage.is_local or self._area.nearby is not None
        return self._session(rewriting_conf(self._layout, on_disk=on_disk))

    # --- change the shape --------------------------------------------------------------------

    def _write_generation(
        self, rows: DataFrame, committed: int, *, shuffled: bool
    ) -> tuple[StagedFile, ...]:
        layout = self._layout
        if not layout.keys:
            rows = rows.coalesce(1)
        elif not shuffled:  # the partition that Spark sends a key to is its bucket
            rows = rows.repartition(layout.buckets, *map(quoted, layout.keys))
        attempt = TransactionAttempt(committed + 1, 0)
        return self._area.write(rows, attempt, partition_by=BUCKET)

    # --- published tables --------------------------------------------------------------------

    def readable_txid(self, committed: int) -> int:
        """The committed txid as of which the newest files can be read: `committed`, or later.

        An opaque table has the values before its newest publication, and no older ones.
        """
        last = self._log.last_publication()
        if not self._layout.keeps_previous or last is None or last[1].last_txid <= committed:
            return committed
        return last[1].first_txid - 1

    # --- changes -----------------------------------------------------------------------------

    def _changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        txid = publication.last_txid
        if self._layout.remove_where is not None:
            self._reported = prepared.staged
        written = [file.path for file in prepared.adds]
        replaced = [file.path for file in prepared.removes if isinstance(file, ActiveFile)]
        if prepared.skipped:
            written, replaced = files_of_held(
                prepared.read_version, publication, self._log, self._storage
            )
        # An opaque table writes removed keys, too: files that are only removed show no change.
        if not written and (self._layout.keeps_previous or not replaced):
            return self._no_changes()
        schema = self._table_schema()
        staged = [file.path for file in prepared.staged.files]
        paths = (*written, *replaced)
        after = self._rows_of(written, schema)
        layout = self._layout.at(publication.watermark)
        former = self._layout.at(self._watermark_as_of(publication.first_txid - 1))
        if layout.keeps_previous and after is not None:
            return self._stored_rows(from_previous_values(layout, after, txid, former), paths)
        only = None
        if self.semantics is Semantics.NON_TRANSACTIONAL and self._unfinished(publication):
            # A failed attempt's rows have this txid as well, and nothing reverts them.
            only = self._rows_of(staged, self._known_staged_schema(), self._area.scratch)
        before = self._rows_of(replaced, schema)
        changed = from_replaced_rows(layout, after, before, txid, former, only)
        return self._stored_rows(changed, paths)

    def _staged_rows(self, staged: Staged) -> DataFrame:
        paths = [file.path for file in staged.files]
        rows = self._rows_of(paths, self._known_staged_schema(), self._area.scratch)
        assert rows is not None
        return rows

    def _rows_of(
        self, paths: Sequence[str], schema: StructType, storage: Storage | None = None
    ) -> DataFrame | None:
        """Rows of exactly these files, in the session of the run; None without files."""
        if not paths:
            return None
        place = storage or self._storage
        reader = bucket_reader(self._spark, schema, place)
        return self._layout.as_stored(reader.parquet(*map(place.read_url, paths)))

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
