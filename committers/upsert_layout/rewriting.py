"""The rewrite of a commit turn: stored rows of the touched buckets, joined with staged partials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from committers.publishing.files import BUCKET, ActiveFile
from committers.state.layouts import UpsertLayout
from committers.state.reading import bucket_reader, without_bucket
from committers.table_rows import known_files
from committers.upsert_layout.join import UpsertJoin
from committers.upsert_layout.shares import shared_out
from txn.delta.commits import TXID
from txn.interfaces import Publication, StagedFile
from txn.spark.file_writer import COLLECT_STATISTICS
from txn.spark.lazy import st
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BucketRewrite", "bucket_of_file", "rewriting_conf"]


def rewriting_conf(layout: UpsertLayout, *, on_disk: bool) -> dict[str, str]:
    """Settings of the session that rewrites buckets.

    Args:
        on_disk: True if files are written to this machine's disk, where reading footers costs less
            than collecting statistics in the tasks.
    """
    buckets = str(layout.buckets)
    return {
        # If a shuffle is needed, one partition per bucket, never merged.
        "spark.sql.shuffle.partitions": buckets,
        "spark.sql.adaptive.enabled": "false",
        # Each pair of the join stays in its own task.
        "spark.sql.unionOutputPartitioning": "false",
        # A task has one writer per bucket, instead of sorting all rows by bucket.
        "spark.sql.maxConcurrentOutputFileWriters": buckets,
        # The same generated code for all pairs.
        "spark.sql.codegen.useIdInClassName": "false",
        # Listing a few hundred files takes less time than starting a Spark job for it.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
        COLLECT_STATISTICS: str(not on_disk).lower(),
    }


class BucketRewrite:
    """Computes the next rows of hash buckets.

    Its expressions are built at the first rewrite, for one session and these schemas.

    Args:
        storage: the table's folder.
        scratch: the storage of staged partials.
        session: the session that computes the rows; with `rewriting_conf`.
        table: schema of the table.
        partials: schema of the partials; their files have a bigint column `txid` besides.
    """

    def __init__(
        self,
        layout: UpsertLayout,
        storage: Storage,
        scratch: Storage,
        session: Callable[[], SparkSession],
        table: StructType,
        partials: StructType,
    ) -> None:
        self._layout = layout
        self._storage = storage
        self._scratch_storage = scratch
        self._session = session
        self._table = table
        self._partials = partials

    def rows(
        self,
        old: Sequence[ActiveFile],
        new: Sequence[StagedFile],
        publication: Publication,
        reverts: bool,
        url_of: Callable[[str], str] | None,
        on_disk: bool,
        watermark: int | None,
    ) -> DataFrame:
        """The rows that replace those of `old`; every row of either side once.

        Args:
            old: all files of some buckets.
            new: staged partials, of the same buckets.
            reverts: revert the old rows to their state before the publication.
            url_of: path -> URL of a file of `old` for Spark; None: `old` and `new` are in a
                storage over a network, where each check of a file takes a request.
            on_disk: True if this machine's disk has the files, old and new. In an object store
                each file takes time, however small, so tasks share files rather than bytes.
            watermark: that of the committed txid; keys that have ended at it are left out.
        """
        layout = self._layout.at(watermark)
        shares, hashed = shared_out(
            [(file.bucket, file.size) for file in old],
            [(bucket_of_file(file), file.size) for file in new],
            self._session().sparkContext.defaultParallelism,
            None if on_disk else 1,
        )
        staged_at = None if url_of is None else self._scratch_storage.read_url
        pairs = []
        for share in shares:
            before = [file for file in old if file.bucket in share]
            stored = self._read(before, url_of, self._stored, self._table, self._storage)
            stored = None if stored is None else layout.as_stored(stored)
            if stored is not None and reverts:
                stored = self._layout.revert(stored, publication.first_txid)
            elif stored is not None:
                stored = self._layout.alive(stored)
            if stored is not None and layout.expiry is not None:
                stored = stored.where(layout.not_ended(stored.schema, as_literal=False))
            partials = [file for file in new if bucket_of_file(file) in share]
            staged = self._read(
                partials, staged_at, self._scratch, self._staged_columns, self._scratch_storage
            )
            pairs.append((stored, staged))
        rows = self._join.rows(pairs, several=bool(publication.members), in_one_task=hashed)
        return layout.as_written(rows)

    @cached_property
    def _join(self) -> UpsertJoin:
        table = self._layout.stored_schema(self._table)
        return UpsertJoin(self._layout, table, self._partials)

    def _read(
        self,
        files: Sequence[ActiveFile | StagedFile],
        url_of: Callable[[str], str] | None,
        reader: DataFrameReader,
        columns: StructType,
        place: Storage,
    ) -> DataFrame | None:
        if not files:
            return None
        if url_of is not None:
            return reader.parquet(*(url_of(file.path) for file in files))
        sizes = [(file.path, file.size) for file in files]
        return known_files(self._session(), without_bucket(columns), place, sizes)

    @cached_property
    def _stored(self) -> DataFrameReader:
        """The reader of the table's files."""
        return bucket_reader(self._session(), self._table, self._storage)

    @cached_property
    def _scratch(self) -> DataFrameReader:
        """The reader of staged partials."""
        return bucket_reader(self._session(), self._staged_columns, self._scratch_storage)

    @cached_property
    def _staged_columns(self) -> st.StructType:
        return st.StructType([*self._partials.fields]).add(TXID, st.LongType())


def bucket_of_file(file: StagedFile) -> int:
    """The hash bucket of a staged file's rows."""
    return int(file.partition[BUCKET] or 0)
