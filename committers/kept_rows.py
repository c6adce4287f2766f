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
from committers.state.reading import TableReader
from txn.interfaces import Semantics
from txn.interfaces.committer_capabilities import FIRST_AT
from txn.spark.event_times import is_left, moment
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KeptKeys", "KeptRows"]

_FILES, _SHARE = 16, 0.1
"""Files of about one size that become one, and the share of the time for it (`StateTable`)."""


class KeptRows(RowsCommitter, CompactingCommitter):
    """The rows of a stream, as long as later txids may compare theirs with them.

    Args:
        keys: the columns by which rows are looked up.
        time_column: the column with the event time; None: rows stay for ever.
        after: microseconds; a row that is that much behind the watermark, or more, may be removed.
            None: none is.
    """

    _stored_time: str | None = None
    """The column of the table with the event time; None: it is that of the stream."""
    _in_order = True
    """A txid looks for the rows of some span of time."""

    def __init__(
        self,
        path: str,
        keys: Sequence[str],
        time_column: str | None,
        after: int | None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._keys, self._time, self._after = tuple(keys), time_column, after
        self._compact_files, self._pace = _FILES, Pace(_SHARE, time.monotonic)
        super().__init__(path, Semantics.OPAQUE, storage_options=storage_options)

    def _begin(self) -> None:
        super()._begin()
        self._reader = TableReader(self._storage, self._log, self._table_schema)
        self._files_of = CompactionReader(self._storage, lambda: self._spark)

    @property
    def _looked_up_by(self) -> Sequence[str]:
        return self._keys

    def _compacted_rows(
        self, files: tuple[ActiveFile, ...], active: Sequence[ActiveFile], committed: int
    ) -> DataFrame:
        rows, parts = self._files_of.whole(files, self._table_schema())
        if self._time is None or self._after is None:
            return rows.coalesce(parts)
        at = sf.col(quoted(self._stored_time or self._time))
        watermark = self._log.watermark_as_of(committed)
        if watermark is not None:
            rows = rows.where(is_left(at, moment(watermark - self._after)))
        rows = rows.coalesce(parts)
        return rows.sortWithinPartitions(at) if self._in_order else rows

    def close(self) -> None:
        """Delete unpublished compactions; forget the Spark sessions."""
        super().close()
        self._files_of.close()


class KeptKeys(KeptRows):
    """The keys of rows that each have another one, with their event time (`FIRST_AT`).

    A key that has ended and comes again is there twice, each time with a time of its own.
    """

    _stored_time = FIRST_AT
    _in_order = False
    """A txid looks for all that have not ended."""

    def required_columns(self) -> Sequence[str]:
        """The keys and the event time."""
        times = () if self._time is None else (self._time,)
        return tuple(dict.fromkeys((*self._keys, *times)))

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """The rows, if they have the keys and the event time."""
        return batch if set(self.required_columns()) <= set(batch.columns) else None

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """The keys of the rows, and the event time."""
        columns = [sf.col(quoted(key)) for key in self._keys]
        if self._time is not None:
            columns.append(sf.col(quoted(self._time)).alias(FIRST_AT))
        return super().partials(batch.select(*columns), count_as)
