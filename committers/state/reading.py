"""Read a state table's files: keys and values as of a txid, or the rows that a committer needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from committers.publishing.files import BUCKET
from committers.publishing.log import DeltaLog
from committers.state.keys import keys_reader
from committers.state.layouts import LogLayout, UpsertLayout
from committers.state.merging import merged_by_key, touched
from committers.state.removal import marks_of, without_removed
from committers.state.shape import StateShape
from committers.table_rows import strict_reader
from txn.delta.commits import TXID
from txn.errors import StateError, TableRefusedError
from txn.interfaces import KeysReader, Staged
from txn.spark.lazy import sf, st
from txn.spark.names import quoted
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "LogReader",
    "StateReader",
    "TableReader",
    "UpsertReader",
    "bucket_reader",
    "without_bucket",
]

L = TypeVar("L", bound=StateShape)


class TableReader:
    """Reads the newest files of a table that a committer writes.

    Args:
        storage: the table's folder.
        log: the table's log, at the version read last.
        schema: the table's columns.
    """

    def __init__(self, storage: Storage, log: DeltaLog, schema: Callable[[], StructType]) -> None:
        self._storage = storage
        self._log = log
        self._schema = schema

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
        rows = self._read(paths, session)
        if below is None or not paths:
            return rows
        return rows.where((sf.col(TXID) < below) | sf.col(TXID).isNull())

    def _read(self, paths: Sequence[str], session: SparkSession) -> DataFrame:
        """The rows of these files."""
        if not paths:
            return no_rows(session, self._schema())
        urls = map(self._storage.read_url, paths)
        return bucket_reader(session, self._schema(), self._storage).parquet(*urls)


class StateReader(TableReader, ABC, Generic[L]):
    """Reads the newest files of a state table that a committer writes."""

    def __init__(
        self, layout: L, storage: Storage, log: DeltaLog, schema: Callable[[], StructType]
    ) -> None:
        super().__init__(storage, log, schema)
        self._layout = layout

    @abstractmethod
    def as_of(
        self, txid: int, session: SparkSession, *, exact: bool
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """(keys and values as of `txid`, the files read, a reader of some keys).

        Args:
            exact: as of `txid` itself; False: an older committed txid will do.
        """

    @abstractmethod
    def living_as_of(self, txid: int, session: SparkSession) -> tuple[DataFrame, list[str]]:
        """(one stored row per key that readers see as of `txid`, the files read)."""

    def changed_after(
        self, former: int, txid: int, session: SparkSession
    ) -> tuple[DataFrame, list[str]]:
        """(at least the keys of rows of txids after `former`, as of `txid`; the files read)."""
        rows, paths = self._rows_as_of(txid, session)
        return self._shown_of_changed(rows.where(sf.col(TXID) > former)), paths

    def _shown_of_changed(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(sf.col(quoted(key)) for key in self._layout.keys)).distinct()

    @abstractmethod
    def _rows_as_of(self, txid: int, session: SparkSession) -> tuple[DataFrame, list[str]]:
        """(the stored rows as of `txid`, with the txid that last wrote each; the files read)."""

    def ending(
        self, txid: int, watermark: int | None, session: SparkSession
    ) -> tuple[DataFrame, list[str]]:
        """(the stored rows, as of the txid before, of the keys that end in a txid; files read).

        Args:
            watermark: that of `txid`.
        """
        rows, paths = self.living_as_of(txid - 1, session)
        return rows.where(~self._layout.at(watermark).not_ended(rows.schema)), paths

    def _layout_as_of(self, txid: int) -> L:
        """The layout, for readers as of a txid."""
        if self._layout.expiry is None:
            return self._layout
        return self._layout.at(self._log.watermark_as_of(txid, needed=True))

    def _shown(
        self, rows: DataFrame, paths: list[str], show: Callable[[DataFrame], DataFrame]
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """The result of `as_of`, given the rows and the function that shows them to readers."""
        of_keys = keys_reader(lambda: rows, self._layout.keys, self._log.size, show)
        return show(rows), paths, of_keys


class UpsertReader(StateReader[UpsertLayout]):
    """Reads keys and values; if the table keeps previous values, reverts rows to them."""

    def as_of(
        self, txid: int, session: SparkSession, *, exact: bool
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """(keys and values as of `txid`, the files read, a reader of some keys).

        A table without previous values that holds `txid` in one version with later ones is read
        as of the txid before them.

        Raises:
            StateError: `exact`, and the table has no version for it.
            TableRefusedError: the commit files needed were cleaned out of the log, or a file of
                that state was deleted.
        """
        rows, paths, layout = self._as_of(txid, session, exact=exact)
        return self._shown(rows, paths, layout.shown_once)

    def living_as_of(self, txid: int, session: SparkSession) -> tuple[DataFrame, list[str]]:
        """(one stored row per key that readers see as of `txid`, the files read)."""
        rows, paths, layout = self._as_of(txid, session, exact=True)
        return layout.unended(rows), paths

    def _rows_as_of(self, txid: int, session: SparkSession) -> tuple[DataFrame, list[str]]:
        return self._as_of(txid, session, exact=True)[:2]

    def _shown_of_changed(self, rows: DataFrame) -> DataFrame:
        return self._layout.shown_once(rows)  # each key has one row, which has all of its values

    def _as_of(
        self, txid: int, session: SparkSession, *, exact: bool
    ) -> tuple[DataFrame, list[str], UpsertLayout]:
        if self._layout.keeps_previous:
            files = self._log.files_now()
            reverts = any(file.may_hold(txid + 1) for file in files)
            paths = [file.path for file in files]
            rows = self._rows(paths, txid + 1 if reverts else None, session)
            return rows, paths, self._layout_as_of(txid)
        newest, former = self._log.files_before(txid + 1)
        if exact and newest < txid <= self._newest_txid():
            raise StateError(
                f"Table {self._storage.location} holds txids {newest + 1} to "
                f"{self._newest_txid()} in one version, so it cannot be read as of txid {txid} for "
                "a query as of txid - 1: a crash left a group of txids in this table only. Run the "
                "former program, which groups txids without that query, until txid "
                f"{self._newest_txid()} is committed.",
                number="TXN-309",
            )
        paths = sorted(former)
        self._require_former(txid, former - {file.path for file in self._log.files_now()})
        return self._rows(paths, None, session), paths, self._layout_as_of(newest)

    def _require_former(self, txid: int, paths: Collection[str]) -> None:
        """Refuse a state whose files VACUUM has deleted: later versions lack them too."""
        gone = self._storage.first_missing(sorted(paths))
        if gone is not None:
            raise TableRefusedError(
                f"Table {self._storage.location} cannot be read as of txid {txid}: a crash left it "
                f"at txid {self._newest_txid()}, and VACUUM has deleted file {gone} of the state "
                "before. Nothing was written. Run the program without the query until txid "
                f"{self._newest_txid()} is committed, then with it. With semantics='opaque' the "
                "newest files also hold the state before, and VACUUM cannot delete it.",
                number="TXN-309",
            )

    def _rows(
        self, paths: Sequence[str], revert_from: int | None, session: SparkSession
    ) -> DataFrame:
        """The living rows in these files.

        Args:
            revert_from: revert rows to their state before this txid; None: leave them.
        """
        stored = self._layout.as_stored(self._read(paths, session))
        if revert_from is None:
            return self._layout.alive(stored)
        return self._layout.revert(stored, revert_from)

    def _newest_txid(self) -> int:
        last = self._log.last_publication()
        return last[1].last_txid if last else 0


class LogReader(StateReader[LogLayout]):
    """Reads the partials in a log table."""

    def as_of(
        self, txid: int, session: SparkSession, *, exact: bool
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """(keys and values as of `txid`, the files read, a reader of some keys)."""
        rows, paths = self.before(txid + 1, session)
        return self._shown(rows, paths, self._layout_as_of(txid).shown)

    def living_as_of(self, txid: int, session: SparkSession) -> tuple[DataFrame, list[str]]:
        """(one stored row per key that readers see as of `txid`, the files read)."""
        rows, paths = self.before(txid + 1, session)
        layout = self._layout_as_of(txid)
        return layout.living(rows), paths

    def _rows_as_of(self, txid: int, session: SparkSession) -> tuple[DataFrame, list[str]]:
        return self.before(txid + 1, session)

    def touched(
        self,
        staged: Staged,
        txid: int | None,
        session: SparkSession,
        reading: SparkSession,
        watermark: int | None,
    ) -> tuple[DataFrame, list[str]]:
        """(the staged keys with their partials after and before, the files read).

        Args:
            txid: "before" means before this txid; None: all rows of the table.
            session: the session of the result.
            reading: the session that reads the table's own files.
            watermark: that of the staged txid.
        """
        before, paths = self.before(txid, reading)
        layout, keys = self._layout, self._layout.keys
        if txid is not None:
            layout = self._layout_as_of(txid - 1)
        if layout.keeps_removed:
            before = without_removed(before, keys, marks_of(before, keys))

        def merged(rows: DataFrame) -> DataFrame:
            rows = merged_by_key(layout.counted(rows), keys, layout.stored, with_txid=True)
            return layout.unended(rows)

        own = [file.path for file in staged.files]
        new = self._read(own, session)
        continues = None
        if layout.ends_by_event:
            continues = layout.at(watermark).not_ended(new.schema)
        changed = touched(new, before, keys, layout.stored, merged, continues)
        return changed, [*paths, *own]


def bucket_reader(session: SparkSession, schema: StructType, storage: Storage) -> DataFrameReader:
    """A reader of files with these columns, except the bucket."""
    return strict_reader(session, without_bucket(schema), storage)


def without_bucket(schema: st.StructType) -> st.StructType:
    """The columns in the files: the bucket follows from the keys."""
    return st.StructType([f for f in schema if f.name != BUCKET])
