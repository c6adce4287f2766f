"""The shared part of committers whose files are merged in the background."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from committers.appending import AppendingCommitter
from committers.log_layout.compaction import Pace
from committers.log_layout.compactor import Compactor
from committers.publishing.files import ActiveFile
from committers.state.keys import keys_reader
from committers.state.reading import TableReader
from txn.interfaces import Staged, StagedFile, StoredRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CompactingCommitter"]


class CompactingCommitter(AppendingCommitter):
    """Adds the files of each txid, and merges those of committed txids in the background."""

    _compact_files: int | None
    """Number of files of about one size that become one; None: never. Set before `_begin`."""
    _pace: Pace
    """Decides when a compaction may begin. Set before `_begin`."""
    _reader: TableReader

    def _begin(self) -> None:
        super()._begin()
        self._compactor = Compactor(self._storage, self._compact_files, self._pace, self._new_id)

    # --- rows of earlier txids ---------------------------------------------------------------

    @property
    @abstractmethod
    def _looked_up_by(self) -> Sequence[str]:
        """The columns by which rows are looked up."""

    def rows_as_of(self, txid: int, staged: Sequence[Staged]) -> StoredRows:
        """The rows of all txids up to `txid`, and those that were staged and not published."""
        return self._up_to_date(lambda: self._rows_as_of(txid, staged))

    def _rows_as_of(self, txid: int, staged: Sequence[Staged]) -> StoredRows:
        session = self._reading()
        rows, paths = self._reader.before(txid + 1, session)
        own = [file.path for one in staged for file in one.files]
        if own:
            rows = rows.unionByName(self._reader.rows(own, None, session))
        size = self._log.size + sum(file.size for one in staged for file in one.files)
        of_keys = keys_reader(lambda: rows, self._looked_up_by, size, lambda found: found)
        return self._stored_rows(rows, [*paths, *own], of_keys)

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
        files = self._to_compact(files, active)
        if not files:
            return None
        compaction = self._compactor.write(
            lambda: self._compacted_rows(files, active, committed),
            files,
            self._area,
            self._log.version,
        )
        return lambda: self._compactor.publish(compaction, self._log, self._opened.epoch)

    def _to_compact(
        self, files: tuple[ActiveFile, ...], active: Sequence[ActiveFile]
    ) -> tuple[ActiveFile, ...]:
        """The chosen files, and those that have to be compacted together with them."""
        return files

    @abstractmethod
    def _compacted_rows(
        self, files: tuple[ActiveFile, ...], active: Sequence[ActiveFile], committed: int
    ) -> DataFrame:
        """The rows that take the place of those in `files`."""

    def _leave(self, adds: Sequence[StagedFile]) -> None:
        super()._leave(adds)
        self._compactor.publishing(adds)

    def _sweep(self, folders: Sequence[str]) -> None:
        self._compactor.sweep(folders, self._log)
        super()._sweep(folders)

    def close(self) -> None:
        """Delete unpublished compactions; forget the Spark sessions."""
        super().close()
        self._compactor.close()
