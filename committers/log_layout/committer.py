"""The committer of a state table with `layout="log"`: partial aggregates, added and never changed.

Every txid adds its partials as they were staged, so that a commit costs the same whatever the size
of the state; readers merge the partials of a key. Compaction (`committers.log_layout.compaction`)
merges committed partials in the background, so that readers never have many to merge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from committers.log_layout.compacted_rows import CompactedRows
from committers.log_layout.compacting import CompactingCommitter
from committers.log_layout.compaction import Pace, with_files_between
from committers.log_layout.removing import RemovalMarks
from committers.publishing.files import ActiveFile
from committers.staging.area import random_id
from committers.state.changes import from_partials
from committers.state.layouts import LogLayout
from committers.state.reading import LogReader
from committers.state_committer import StateCommitter
from txn.interfaces import Prepared, Publication, Semantics, Staged, StagedFile, StoredRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LogCommitter"]


class LogCommitter(StateCommitter[LogLayout], CompactingCommitter):
    """The result of `StateTable.bind` for `layout="log"`.

    Args:
        layout: its keys, aggregates and columns.
        compact_files: number of files of about one size that become one; None: never.
        pace: decides when a compaction may begin.
    """

    layout = "log"
    """The table's layout, for `txn plan`."""
    _reader: LogReader

    def __init__(
        self,
        path: str,
        semantics: Semantics,
        layout: LogLayout,
        compact_files: int | None,
        pace: Pace,
        *,
        columns_were: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.prepare_reads = layout.keeps_removed
        self._compact_files, self._pace = compact_files, pace  # before `_begin`, which reads them
        super().__init__(
            path,
            semantics,
            layout,
            columns_were=columns_were,
            storage_options=storage_options,
            new_id=new_id,
        )

    def _begin(self) -> None:
        super()._begin()
        self._reader = LogReader(self._layout, self._storage, self._log, self._stored_schema)
        self._compacted = CompactedRows(self._layout, self._storage, lambda: self._spark)
        self._marks = RemovalMarks(
            self._layout, self._reader, self._log, self._area, self._table_schema
        )

    # --- change the shape --------------------------------------------------------------------

    def _write_generation(
        self, rows: DataFrame, committed: int, *, shuffled: bool
    ) -> tuple[StagedFile, ...]:
        # In a compaction's folder: readers then know that each key is there once.
        return self._compactor.write(lambda: rows, (), self._area, self._log.version).adds

    # --- changes -----------------------------------------------------------------------------

    def _changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """Merge the touched keys' partials of all earlier txids, whatever the table holds of this.

        So a replay reports the same changes, also after a compaction, OPTIMIZE or VACUUM.
        """
        return self._up_to_date(lambda: self._merged_changes(prepared, publication))

    def _merged_changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        # A table that applies replays again still has the rows of a failed attempt.
        applies_again = self.semantics is Semantics.NON_TRANSACTIONAL
        first = None if applies_again else publication.first_txid
        reading = self._reading()
        staged, watermark = prepared.staged, publication.watermark
        rows, paths = self._reader.touched(staged, first, self._spark, reading, watermark)
        removed = None
        if self._layout.keeps_removed:
            removed, marked = self._marks.removed(prepared, publication, reading)
            paths = [*paths, *marked]
        layout = self._layout.at(watermark)
        return self._stored_rows(from_partials(layout, rows, removed), paths)

    def _staged_rows(self, staged: Staged) -> DataFrame:
        return self._reader.rows([file.path for file in staged.files], None, self._spark)

    @property
    def _looked_up_by(self) -> Sequence[str]:
        return self._layout.keys

    # --- removal -----------------------------------------------------------------------------

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        prepared = super()._prepare(staged, publication)
        if not self._layout.keeps_removed or not staged.files:
            return prepared
        marks = self._marks.files(staged, publication, self._session({}))
        return replace(prepared, adds=(*prepared.adds, *marks))

    # --- compaction --------------------------------------------------------------------------

    def _to_compact(
        self, files: tuple[ActiveFile, ...], active: Sequence[ActiveFile]
    ) -> tuple[ActiveFile, ...]:
        return with_files_between(files, active) if self._layout.ends_by_event else files

    def _compacted_rows(
        self, files: tuple[ActiveFile, ...], active: Sequence[ActiveFile], committed: int
    ) -> DataFrame:
        # Of keys that may begin anew, a later partial decides by the bound of its own txid.
        newest = max(file.txid_max or 0 for file in files)
        txid = newest if self._layout.ends_by_event else committed
        watermark = self._log.watermark_as_of(txid)
        return self._compacted.rows(files, active, committed, self._table_schema(), watermark)

    def close(self) -> None:
        """Delete unpublished compactions; forget the Spark sessions."""
        super().close()
        self._compacted.close()
