"""Read a table with layout="upsert": some of its files, or its keys and values as of a txid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from committers.publishing.files import BUCKET
from committers.publishing.log import DeltaLog
from committers.publishing.rewritten import first_missing
from committers.reading import strict_reader
from committers.state.keys import keys_reader
from committers.upsert_layout.columns import UpsertLayout
from txn.errors import StateError, TableRefusedError
from txn.interfaces import KeysReader
from txn.spark.names import quoted
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["UpsertReader", "bucket_reader", "without_bucket"]


class UpsertReader:
    """Reads keys and values as of a txid.

    Args:
        layout: the table's layout; if it keeps previous values, rows are reverted to them.
        storage: the table's folder.
        log: the table's log, at the version read last.
        session: the session that reads the table.
        schema: the table's columns.
    """

    def __init__(
        self,
        layout: UpsertLayout,
        storage: Storage,
        log: DeltaLog,
        session: Callable[[], SparkSession],
        schema: Callable[[], StructType],
    ) -> None:
        self._layout = layout
        self._storage = storage
        self._log = log
        self._session = session
        self._schema = schema

    def as_of(self, txid: int, *, exact: bool) -> tuple[DataFrame, list[str], KeysReader | None]:
        """(keys and values as of `txid`, the files read, a reader of some keys).

        A table without previous values that holds `txid` in one version with later ones is read
        as of the txid before them.

        Raises:
            StateError: `exact`, and the table has no version for it.
            TableRefusedError: the commit files needed were cleaned out of the log, or a file of
                that state was deleted.
        """
        if self._layout.keeps_previous:
            files = self._log.files_now()
            reverts = any(file.may_hold(txid + 1) for file in files)
            paths = [file.path for file in files]
            return self._with_reader(self._state_in(paths, txid + 1 if reverts else None), paths)
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
        return self._with_reader(self._state_in(paths, None), paths)

    def _with_reader(
        self, rows: DataFrame, paths: list[str]
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        of_keys = keys_reader(lambda: rows, self._layout.keys, self._log.size, lambda some: some)
        return rows, paths, of_keys

    def _require_former(self, txid: int, paths: Collection[str]) -> None:
        """Refuse a state whose files VACUUM has deleted: later versions lack them too."""
        gone = first_missing(self._storage, sorted(paths))
        if gone is not None:
            raise TableRefusedError(
                f"Table {self._storage.location} cannot be read as of txid {txid}: a crash left it "
                f"at txid {self._newest_txid()}, and VACUUM has deleted file {gone} of the state "
                "before. Nothing was written. Run the program without the query until txid "
                f"{self._newest_txid()} is committed, then with it. With semantics='opaque' the "
                "newest files also hold the state before, and VACUUM cannot delete it.",
                number="TXN-309",
            )

    def _state_in(self, paths: Sequence[str], revert_from: int | None) -> DataFrame:
        """Keys and values in these files.

        Args:
            revert_from: revert rows to their state before this txid; None: leave them.
        """
        from pyspark.sql import functions as sf

        session, schema = self._session(), self._schema()
        if not paths:
            rows = no_rows(session, schema)
        else:
            urls = map(self._storage.read_url, paths)
            stored = bucket_reader(session, schema, self._storage).parquet(*urls)
            if revert_from is not None:
                rows = self._layout.revert(stored, revert_from)
            else:
                rows = self._layout.alive(stored)
        keys = (sf.col(quoted(key)) for key in self._layout.keys)
        values = (
            self._layout.shown(name, sf.col(quoted(name))).alias(name)
            for name in self._layout.values
        )
        return rows.select(*keys, *values)

    def _newest_txid(self) -> int:
        last = self._log.last_publication()
        return last[1].last_txid if last else 0


def bucket_reader(session: SparkSession, schema: StructType, storage: Storage) -> DataFrameReader:
    """A reader of files with these columns, except the bucket."""
    return strict_reader(session, without_bucket(schema), storage)


def without_bucket(schema: StructType) -> StructType:
    """The columns in the files: the bucket follows from the keys."""
    from pyspark.sql.types import StructType

    return StructType([f for f in schema if f.name != BUCKET])
