"""Read a table that `TxnState.publish` keeps up: as of the txids that its log names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from committers.publishing.shown import shown_versions, version_showing
from committers.reading.frames import Frames
from committers.table_rows import read_table
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PublishedTable"]


class PublishedTable(Frames):
    """A table with nothing but keys and final values of a state, which any reader can read.

    Args:
        path: the table's folder: a local path or an object-store URI.
        storage_options: credentials and endpoints, by object_store's names (`aws_endpoint_url`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._options = dict(storage_options or {})

    def txids(self) -> tuple[int, ...]:
        """The txids that the table's versions show, the newest first, as far as its log goes back.

        Raises:
            TableAbsentError: there is no table yet.
        """
        return tuple(dict.fromkeys(txid for txid, _ in shown_versions(self._folder())))

    def read(self, spark: SparkSession, txid: int | None = None) -> DataFrame:
        """Read keys and values.

        Args:
            txid: one of `txids()`; None: the newest one.

        Raises:
            TableRefusedError: no version shows that txid, or its log does not go back to it.
        """
        folder = self._folder()
        return read_table(spark, folder, version_showing(folder, txid))[0]

    def _folder(self) -> Storage:
        return Storage(self.path, self._options)
