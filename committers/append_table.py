"""A table to which every batch appends its rows, with their txid."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from committers.generations.rows import renamed_and_cast, types_of
from committers.open_table import Properties
from committers.publishing.files import ActiveFile, load_files
from committers.publishing.spec import TableSpec
from committers.publishing.storable import storable_columns
from committers.staging.area import random_id
from committers.table_committer import TableCommitter
from committers.table_rows import read_table, strict_reader
from txn.attempts import TransactionAttempt
from txn.changes import TableShape
from txn.delta.commits import TXID
from txn.delta.loading import load
from txn.errors import TopologyError
from txn.interfaces import Prepared, Publication, Semantics, Staged, StagedFile
from txn.spark.lazy import sf, st
from txn.spark.names import quoted
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["AppendTable", "AppendingCommitter"]


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
        self, stored: DataFrame, properties: Properties, spec: TableSpec, committed: int
    ) -> tuple[StagedFile, ...]:
        rows = renamed_and_cast(stored, types_of(spec), spec, self.name)
        return self._area.write(rows, TransactionAttempt(committed + 1, 0))

    def _table_schema(self) -> st.StructType:
        return st.StructType([*self._known_staged_schema().fields]).add(TXID, st.LongType())


class AppendTable(AppendingCommitter):
    """Rows of each batch plus a bigint column `txid`, each txid's rows exactly once.

    See `AppendingCommitter` for what happens at a replay.

    Args:
        path: the table's folder: a local path or an object-store URI.
        semantics: "opaque" (default), "transactional" or "non_transactional".
        columns_were: column -> its former name, for a column that the program has renamed.
        storage_options: credentials and endpoints, by object_store's names (`aws_endpoint_url`);
            missing ones come from the environment.
        new_id: source of folder names and commit tokens.
    """

    layout = "append"
    """The table's layout, for `txn plan`."""

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

    def rows_at(self, version: int) -> DataFrame:
        """Return the rows of a version, with the columns of the stream. Runs no job."""
        files = tuple(load_files(load(self._storage, version)).values())
        schema = self._logged_schema()
        session = self._session({})
        return (self._rows_in(files, session) if files else no_rows(session, schema)).drop(TXID)

    def required_columns(self) -> Sequence[str]:
        """No columns: the table stores whatever columns a batch has."""
        return ()

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """The rows themselves."""
        return batch if count_as is None else batch.withColumn(count_as, sf.lit(1))

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """Add the table's missing columns to the rows, as NULLs; None if there is no table yet.

        A column whose name differs only in case counts as present, unless the session is
        case-sensitive: it keeps its name, and staging the rows refuses it.
        """
        columns = self._log.columns()
        if columns is None:
            return None
        exact = str(batch.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
        own = {name if exact else name.lower(): name for name in batch.columns}
        if len(own) < len(batch.columns):
            return batch  # two columns of one name, which no table takes
        whole = []
        for field in st.StructType.fromJson(columns):
            own_name = own.pop(field.name if exact else field.name.lower(), None)
            if own_name is not None:
                whole.append(sf.col(quoted(own_name)))
            elif field.name != TXID:
                whole.append(sf.lit(None).cast(field.dataType).alias(field.name))
        # In the table's order, then the columns that the table lacks and will refuse.
        return batch.select(*whole, *(sf.col(quoted(name)) for name in own.values()))

    def _spec(self, schema: StructType) -> TableSpec:
        for name in schema.fieldNames():
            if name.lower() == TXID:
                raise TopologyError(
                    f"Table {self.name} keeps the transaction id in a column '{TXID}', but the "
                    f"rows bring a column '{name}' of their own. Rename it.",
                    number="TXN-113",
                )
        self._staged_schema = schema
        columns = storable_columns(self._table_schema(), self.name)
        return TableSpec(self._opened.topology, "append", self.semantics, columns)

    def read(self, spark: SparkSession) -> DataFrame:
        """Read the rows with their txid, as of the newest version.

        Raises:
            TableRefusedError: the table does not exist.
        """
        return read_table(spark, self._storage)[0]
