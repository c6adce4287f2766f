"""The committer of a state table with `layout="log"`: partial aggregates, added and never changed.

Every txid adds its partials as they were staged, so that a commit costs the same whatever the size
of the state; readers merge the partials of a key. Compaction (`committers.log_layout.compaction`)
merges committed partials in the background, so that readers never have many to merge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from committers.append_table import AppendingCommitter
from committers.log_layout.compacted_rows import CompactedRows
from committers.log_layout.compaction import Compaction, Pace
from committers.log_layout.compactor import Compactor
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


class LogCommitter(StateCommitter[LogLayout], AppendingCommitter):
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
        self._compactor = Compactor(self._storage, self._compact_files, self._pace, self._new_id)
        self._marks = RemovalMarks(
            self._layout, self._reader, self._log, self._area, self._table_schema
        )

    # --- change the shape --------------------------------------------------------------------

    def _write_generation(
        self, rows: DataFrame, committed: int, *, shuffled: bool
    ) -> tuple[StagedFile, ...]:
        # In a compaction's folder: readers then know that each key is there once.
        return self._compactor.write(lambda: rows, (), self._area, self._log.version).adds

    def _leave(self, adds: Sequence[StagedFile]) -> None:
        super()._leave(adds)
        self._compactor.publishing(adds)

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
        rows, paths = self._reader.touched(prepared.staged, first, self._spark, reading)
        removed = None
        if self._layout.keeps_removed:
            removed, marked = self._marks.removed(prepared, publication, reading)
            paths = [*paths, *marked]
        return self._stored_rows(from_partials(self._layout, rows, removed), paths)

    # --- removal -----------------------------------------------------------------------------

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        prepared = super()._prepare(staged, publication)
        if not self._layout.keeps_removed or not staged.files:
            return prepared
        marks = self._marks.files(staged, publication, self._session({}))
        return replace(prepared, adds=(*prepared.adds, *marks))

    # --- compaction --------------------------------------------------------------------------

    def maintain(self, committed: int) -> Callable[[], None] | None:
        """Compact files of committed txids, if there are many or the table is quiet.

        Returns the function that publishes the result.

        Raises:
            Exception: the Spark job failed; its files are deleted.
        """
        self._compactor.clean_up()
        if self._log.version < 0 or self._staged_schema is None:
            return None
        active = self._log.files_now()
        files = self._compactor.choose(active, committed, self._log.version)
        if not files:
            return None
        compaction = self._compact(files, active, committed)
        return lambda: self._compactor.publish(compaction, self._log, self._opened.epoch)

    def _compact(
        self, files: tuple[ActiveFile, ...], active: Sequence[ActiveFile], committed: int
    ) -> Compaction:
        schema = self._table_schema()
        return self._compactor.write(
            lambda: self._compacted.rows(files, active, committed, schema),
            files,
            self._area,
            self._log.version,
        )

    def _sweep(self, folders: Sequence[str]) -> None:
        self._compactor.sweep(folders, self._log)
        super()._sweep(folders)

    def close(self) -> None:
        """Delete unpublished compactions; forget the Spark sessions."""
        super().close()
        self._compacted.close()
        self._compactor.close()
