"""A table to which every batch appends its rows, with their txid."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from committers.named_table import storage_of
from committers.publishing.files import load_files
from committers.reading.frames import Frames
from committers.rows_committer import RowsCommitter
from committers.staging.area import random_id
from committers.state_table import StateTable
from committers.table_rows import read_table
from txn.delta.commits import TXID
from txn.delta.loading import load
from txn.interfaces import Committer, Semantics
from txn.spark.lazy import sf
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AppendTable"]


class AppendTable(Frames, RowsCommitter):
    """Rows of each batch plus a bigint column `txid`, each txid's rows exactly once.

    See `AppendingCommitter` for what happens at a replay.

    Args:
        path: the table's folder, a local path or an object-store URI; or its name in Spark's
            catalog, "catalog.schema.table".
        semantics: "opaque" (default), "transactional" or "non_transactional".
        columns_were: column -> its former name, for a column that the program has renamed.
        storage_options: credentials and endpoints, by object_store's names (`aws_endpoint_url`);
            missing ones come from the environment.
        new_id: source of folder names and commit tokens.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        semantics: Semantics | str = Semantics.OPAQUE,
        *,
        columns_were: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(
            path,
            semantics,
            storage_options=storage_options,
            new_id=new_id,
            columns_were=columns_were,
        )

    def read(self, spark: SparkSession, txid: int | None = None) -> DataFrame:
        """Read the rows with their txid.

        Args:
            txid: those of txids up to this one; None: all, as of the newest version.

        Raises:
            TableRefusedError: the table does not exist.
        """
        rows = read_table(spark, self._folder(spark))[0]
        if txid is None:
            return rows
        return rows.where((sf.col(TXID) <= txid) | sf.col(TXID).isNull())

    def rows_at(self, version: int) -> DataFrame:
        """Return the rows of a version, with the columns of the stream. Runs no job."""
        files = tuple(load_files(load(self._storage, version)).values())
        schema = self._logged_schema()
        session = self._session({})
        return (self._rows_in(files, session) if files else no_rows(session, schema)).drop(TXID)

    def keeping(
        self, name: str, keys: Sequence[str], time: str | None, after: int | None, *, whole: bool
    ) -> Committer:
        """Return the committer of a table beside this one (`KeepsBeside`)."""
        beside = StateTable(self.name, storage_options=self.storage_options)
        return beside.keeping(name, keys, time, after, whole=whole)

    def _folder(self, spark: SparkSession | None = None) -> Storage:
        if spark is None:
            return self._storage
        return storage_of(spark, self.name, self.storage_options)
