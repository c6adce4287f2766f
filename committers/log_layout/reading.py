"""Read a log table's rows: as of a txid, or those of the keys that a txid touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from committers.log_layout.columns import LogLayout
from committers.publishing.log import DeltaLog
from committers.reading import strict_reader
from committers.state.keys import keys_reader
from committers.state.merging import touched
from committers.state.removal import marks_of, without_removed
from txn.delta.commits import TXID
from txn.interfaces import KeysReader, Staged
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["LogReader"]


class LogReader:
    """Reads the partials in a log table.

    Args:
        storage: the table's folder.
        log: the table's log, at the version read last.
        schema: the table's columns.
    """

    def __init__(
        self,
        layout: LogLayout,
        storage: Storage,
        log: DeltaLog,
        schema: Callable[[], StructType],
    ) -> None:
        self._layout = layout
        self._storage = storage
        self._log = log
        self._schema = schema

    def as_of(
        self, txid: int, session: SparkSession
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """(keys and values as of `txid`, the files read, a reader of some keys)."""
        rows, paths = self.before(txid + 1, session)
        shown = self._layout.shown
        return (
            shown(rows),
            paths,
            keys_reader(lambda: rows, self._layout.keys, self._log.size, shown),
        )

    def before(self, txid: int | None, session: SparkSession) -> tuple[DataFrame, list[str]]:
        """(the table's rows of txids before this one, all if None; the files read)."""
        files = self._log.files_now()
        if txid is None:
            paths = [file.path for file in files]
            return self.rows(paths, None, session), paths
        files = tuple(file for file in files if not file.holds_only(txid))
        paths = [file.path for file in files]
        mixed = any(file.may_hold(txid) for file in files)
        return self.rows(paths, txid if mixed else None, session), paths

    def rows(self, paths: Sequence[str], below: int | None, session: SparkSession) -> DataFrame:
        """The rows of these files; only those of txids before `below`, unless it is None."""
        from pyspark.sql import functions as sf

        if not paths:
            return no_rows(session, self._schema())
        rows = self._read(paths, session)
        if below is None:
            return rows
        return rows.where((sf.col(TXID) < below) | sf.col(TXID).isNull())

    def touched(
        self, staged: Staged, txid: int | None, session: SparkSession, reading: SparkSession
    ) -> tuple[DataFrame, list[str]]:
        """(the staged keys with their partials after and before, the files read).

        Args:
            txid: "before" means before this txid; None: all rows of the table.
            session: the session of the result.
            reading: the session that reads the table's own files.
        """
        before, paths = self.before(txid, reading)
        keys = self._layout.keys
        if self._layout.removes:
            before = without_removed(before, keys, marks_of(before, keys))
        own = [file.path for file in staged.files]
        new = self._read(own, session)
        return touched(new, before, keys, self._layout.aggregates), [*paths, *own]

    def _read(self, paths: Sequence[str], session: SparkSession) -> DataFrame:
        urls = map(self._storage.read_url, paths)
        return strict_reader(session, self._schema(), self._storage).parquet(*urls)
