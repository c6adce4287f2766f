"""Rows of a stream that its later txids look up: kept until their event time is over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from committers.log_layout.compacted_rows import CompactionReader
from committers.log_layout.compacting import CompactingCommitter
from committers.log_layout.compaction import Pace
from committers.publishing.files import ActiveFile
from committers.rows_committer import RowsCommitter
from committers.state.keys import keys_reader
from committers.table_rows import strict_reader
from txn.delta.commits import TXID
from txn.interfaces import Semantics, Staged, StoredRows
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KeptRows"]

_FILES, _SHARE = 16, 0.1
"""Files of about one size that become one, and the share of the time for it (`StateTable`)."""


class KeptRows(RowsCommitter, CompactingCommitter):
    """The rows of a stream, as long as later txids may compare theirs with them.

    Args:
        keys: the columns by which rows are looked up.
        time: the column with the event time.
        after: microseconds; a row that is that much behind the watermark, or more, may be removed.
    """

    def __init__(
        self,
        path: str,
        keys: Sequence[str],
        time_column: str,
        after: int,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._keys, self._time, self._after = tuple(keys), time_column, after
        self._compact_files, self._pace = _FILES, Pace(_SHARE, time.monotonic)
        super().__init__(path, Semantics.OPAQUE, storage_options=storage_options)

    def _begin(self) -> None:
        super()._begin()
        self._files_of = CompactionReader(self._storage, lambda: self._spark)

    def rows_as_of(self, txid: int, staged: Sequence[Staged]) -> StoredRows:
        """The rows of all txids up to `txid`, and those that were staged and not published."""
        return self._up_to_date(lambda: self._rows_as_of(txid, staged))

    def _rows_as_of(self, txid: int, staged: Sequence[Staged]) -> StoredRows:
        files = [file for file in self._log.files_now() if not file.holds_only(txid + 1)]
        own = [file for one in staged for file in one.files]
        rows = self._read([file.path for file in files])
        if any(file.may_hold(txid + 1) for file in files):
            rows = rows.where(sf.col(TXID) <= txid)
        if own:
            rows = rows.unionByName(self._read([file.path for file in own]))
        size = sum(file.size for file in files) + sum(file.size for file in own)
        of_keys = keys_reader(lambda: rows, self._keys, size, lambda found: found)
        paths = [*(file.path for file in files), *(file.path for file in own)]
        return self._stored_rows(rows, paths, of_keys)

    def _read(self, paths: Sequence[str]) -> DataFrame:
        session, schema = self._reading(), self._table_schema()
        if not paths:
            return no_rows(session, schema)
        reader = strict_reader(session, schema, self._storage)
        return reader.parquet(*map(self._storage.read_url, paths))

    def _compacted_rows(
        self, files: tuple[ActiveFile, ...], active: Sequence[ActiveFile], committed: int
    ) -> DataFrame:
        rows, parts = self._files_of.whole(files, self._table_schema())
        at, watermark = sf.col(quoted(self._time)), self._log.watermark_as_of(committed)
        if watermark is not None:
            bound = sf.timestamp_micros(sf.lit(watermark - self._after))
            rows = rows.where(at.isNull() | (at > bound))
        # A txid looks for the rows of some span of time.
        return rows.coalesce(parts).sortWithinPartitions(at)

    def close(self) -> None:
        """Delete unpublished compactions; forget the Spark sessions."""
        super().close()
        self._files_of.close()
