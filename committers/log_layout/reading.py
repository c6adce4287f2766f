"""Read a log table's rows: as of a txid, or those of the keys that a txid touches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from committers.state.layouts import LogLayout
from committers.state.merging import touched
from committers.state.reading import StateReader
from committers.state.removal import marks_of, without_removed
from txn.delta.commits import TXID
from txn.interfaces import KeysReader, Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LogReader"]


class LogReader(StateReader[LogLayout]):
    """Reads the partials in a log table."""

    def as_of(
        self, txid: int, session: SparkSession, *, exact: bool
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """(keys and values as of `txid`, the files read, a reader of some keys)."""
        rows, paths = self.before(txid + 1, session)
        return self._shown(rows, paths, self._layout.shown)

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

        rows = self._read(paths, session)
        if below is None or not paths:
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
        if self._layout.keeps_removed:
            before = without_removed(before, keys, marks_of(before, keys))
        own = [file.path for file in staged.files]
        new = self._read(own, session)
        return touched(new, before, keys, self._layout.aggregates), [*paths, *own]
