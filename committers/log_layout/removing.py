"""The marks by which a txid removes keys from a log table (`committers.state.removal`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from committers.expressions import bigint
from committers.publishing.log import DeltaLog
from committers.staging.area import StagingArea
from committers.state.changes import removed_keys
from committers.state.layouts import LogLayout
from committers.state.reading import LogReader
from committers.state.removal import REMOVED
from txn.delta.commits import TXID
from txn.interfaces import Prepared, Publication, Staged, StagedFile
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RemovalMarks"]


class RemovalMarks:
    """Decides which keys a txid removes, writes their marks, and reads the marks of a txid.

    Args:
        reader: the table's reader.
        log: the table's log.
        area: the staging area for the marks.
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
        """(a staged group, the files with the marks of the keys that it removes)."""

    def files(
        self, staged: Staged, publication: Publication, session: SparkSession
    ) -> tuple[StagedFile, ...]:
        """Write the marks of a staged group in `session`; returns the files.

        If the group has to be prepared again (OPTIMIZE), other streams may have received its
        changes already: then the first decision stands.
        """
        if self._decided is None or self._decided[0] != staged:
            rows = self._rows(staged, publication, session)
            self._decided = (staged, self._area.write(rows, staged.attempt))
        return self._decided[1]

    def _rows(self, staged: Staged, publication: Publication, session: SparkSession) -> DataFrame:
        """Rows that void all earlier values of the keys that this txid removes."""
        rows, _ = self._reader.touched(
            staged, publication.first_txid, session, session, publication.watermark
        )
        values = {TXID: bigint(publication.last_txid), REMOVED: sf.lit(True)}
        columns = [
            sf.col(quoted(field.name))
            if field.name in self._layout.keys
            else values.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name)
            for field in self._schema()
        ]
        return removed_keys(self._layout, rows).select(*columns)

    def removed(
        self, prepared: Prepared, publication: Publication, session: SparkSession
    ) -> tuple[DataFrame | None, list[str]]:
        """(the keys that a txid removes, as its commit turn decided; the files of their marks).

        Does not evaluate the condition again: it may depend on a clock, and here on another
        session.
        """
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
