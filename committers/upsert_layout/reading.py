"""Read a table with layout="upsert": its keys and values as of a txid."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from committers.publishing.rewritten import first_missing
from committers.state.layouts import UpsertLayout
from committers.state.reading import StateReader
from txn.errors import StateError, TableRefusedError
from txn.interfaces import KeysReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["UpsertReader"]


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
        if self._layout.keeps_previous:
            files = self._log.files_now()
            reverts = any(file.may_hold(txid + 1) for file in files)
            paths = [file.path for file in files]
            rows = self._rows(paths, txid + 1 if reverts else None, session)
            return self._shown(rows, paths, self._layout.shown_once)
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
        return self._shown(self._rows(paths, None, session), paths, self._layout.shown_once)

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

    def _rows(
        self, paths: Sequence[str], revert_from: int | None, session: SparkSession
    ) -> DataFrame:
        """The living rows in these files.

        Args:
            revert_from: revert rows to their state before this txid; None: leave them.
        """
        stored = self._read(paths, session)
        if revert_from is None:
            return self._layout.alive(stored)
        return self._layout.revert(stored, revert_from)

    def _newest_txid(self) -> int:
        last = self._log.last_publication()
        return last[1].last_txid if last else 0
