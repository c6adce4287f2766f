"""The marks by which a txid removes keys from a log table (`committers.state.removal`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from committers.expressions import bigint
from committers.log_layout.changes import removed_keys
from committers.log_layout.columns import LogLayout
from committers.log_layout.reading import LogReader
from committers.publishing.log import DeltaLog
from committers.staging.area import StagingArea
from committers.state.removal import REMOVED
from txn.delta.commits import TXID
from txn.interfaces import Prepared, Publication, Staged, StagedFile
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RemovalMarks"]


class RemovalMarks:
    """Decides which keys a txid removes, writes marks of them, and reads the marks of a txid.

    Args:
        reader: of the table.
        log: of the table.
        area: where the files are written.
        schema: the table's columns.
    """

    def __init__(
        self,
        layout: LogLayout,
        reader: LogReader,
        log: DeltaLog,
        area: StagingArea,
        schema: Callable[[], StructType],
    ) -> None:
        self._layout = layout
        self._reader = reader
        self._log = log
        self._area = area
        self._schema = schema
        self._decided: tuple[Staged, tuple[StagedFile, ...]] | None = None
        """What was staged, and the files that say which keys it removes."""

    def files(
        self, staged: Staged, publication: Publication, session: SparkSession
    ) -> tuple[StagedFile, ...]:
        """The files with the marks of what is staged, written in `session`.

        When it has to be prepared again (OPTIMIZE), others may have been told already: then
        nothing is decided anew.
        """
        if self._decided is None or self._decided[0] != staged:
            rows = self._rows(staged, publication, session)
            self._decided = (staged, self._area.write(rows, staged.attempt))
        return self._decided[1]

    def _rows(self, staged: Staged, publication: Publication, session: SparkSession) -> DataFrame:
        """Rows that make void what the keys had that this txid removes."""
        from pyspark.sql import functions as sf

        rows, _ = self._reader.touched(staged, publication.first_txid, session, session)
        given = {TXID: bigint(publication.last_txid), REMOVED: sf.lit(True)}
        columns = [
            sf.col(quoted(field.name))
            if field.name in self._layout.keys
            else given.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name)
            for field in self._schema()
        ]
        return removed_keys(self._layout, rows).select(*columns)

    def removed(
        self, prepared: Prepared, publication: Publication, session: SparkSession
    ) -> tuple[DataFrame | None, list[str]]:
        """(the keys that a txid removes, as its commit turn decided; the files that say so).

        The condition is not evaluated again: it may look at a clock, and here in another session.
        """
        from pyspark.sql import functions as sf

        txid = publication.last_txid
        if prepared.skipped:
            paths = [file.path for file in self._log.files_now() if file.may_hold(txid)]
        else:
            own = {file.path for file in prepared.staged.files}
            paths = [file.path for file in prepared.adds if file.path not in own]
        if not paths:
            return None, []
        rows = self._reader.rows(paths, None, session)
        marks = rows.where(sf.col(REMOVED) & (sf.col(TXID) == txid))
        return marks.select(*(sf.col(quoted(key)) for key in self._layout.keys)), paths
