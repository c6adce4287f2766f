"""The shared part of tables that only add files: append tables, and state tables with `log`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from committers.generations.rows import renamed_and_cast, types_of
from committers.open_table import Properties
from committers.publishing.files import ActiveFile
from committers.publishing.spec import TableSpec
from committers.table_committer import TableCommitter
from committers.table_rows import strict_reader
from txn.attempts import TransactionAttempt
from txn.changes import TableShape
from txn.delta.commits import TXID
from txn.interfaces import Prepared, Publication, Semantics, Staged, StagedFile
from txn.spark.lazy import sf, st

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AppendingCommitter"]


class AppendingCommitter(TableCommitter):
    """Adds the files of each txid and never touches those of committed txids.

    The processing phase writes the files where they stay; the commit turn only appends to the log.
    If an unfinished attempt has published already, a transactional table keeps its rows and skips
    the replay, an opaque one drops them in the same version that adds the replay's, and a
    non-transactional one appends again.
    """

    prepare_reads = False

    def stage(self, partials: DataFrame, attempt: TransactionAttempt) -> Staged:
        """Write the rows with their txid, in no more files than the cluster has task slots."""
        slots = self._spark.sparkContext.defaultParallelism
        return self._area.stage(self._stamped(partials, attempt).coalesce(slots), attempt)

    def stage_together(self, group: Sequence[tuple[DataFrame, TransactionAttempt]]) -> list[Staged]:
        """Write the rows of several attempts with one job, each attempt's in its own files."""
        return self._area.stage_together(
            [(self._stamped(rows, attempt), attempt) for rows, attempt in group]
        )

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        adds, version = staged.files, self._log.version
        removes: tuple[ActiveFile, ...] = ()
        if self.semantics is Semantics.OPAQUE and self._unfinished(publication):
            rewritten, removes = self._drop_from(publication.first_txid, staged.attempt)
            adds = (*adds, *rewritten)
        return Prepared(staged, adds, removes, version)

    def _drop_from(
        self, txid: int, attempt: TransactionAttempt
    ) -> tuple[tuple[StagedFile, ...], tuple[ActiveFile, ...]]:
        """(files rewritten with the rows below `txid` only, the files to remove)."""
        removes = tuple(file for file in self._log.files_now() if file.may_hold(txid))
        # OPTIMIZE may have put rows of several txids into one file.
        mixed = [file.path for file in removes if not file.holds_only(txid)]
        if not mixed:
            return (), removes
        return self._area.write(self._rows_below(mixed, txid), attempt), removes

    def _rows_below(self, paths: Sequence[str], txid: int) -> DataFrame:
        """The rows of these files that were written before `txid`."""
        urls = [self._storage.read_url(path) for path in paths]
        # Of the log, not of the program: that may not know its columns yet.
        reader = strict_reader(self._session({}), self._logged_schema(), self._storage)
        stored = reader.parquet(*urls)
        return stored.where((sf.col(TXID) < txid) | sf.col(TXID).isNull())

    def shape(self) -> TableShape:
        """Return the table that the program needs, without its columns."""
        return TableShape("append", self.semantics.value, was=self._columns_were)

    def _write_anew(
        self,
        stored: DataFrame,
        properties: Properties,
        spec: TableSpec,
        committed: int,
        watermark: int | None,
    ) -> tuple[StagedFile, ...]:
        rows = renamed_and_cast(stored, types_of(spec), spec, self.name)
        return self._area.write(rows, TransactionAttempt(committed + 1, 0))

    def _table_schema(self) -> st.StructType:
        return st.StructType([*self._known_staged_schema().fields]).add(TXID, st.LongType())
