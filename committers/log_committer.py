"""The committer of a state table with `layout="log"`: partial aggregates, added and never changed.

Every txid adds its partials as they were staged, so that a commit costs the same whatever the size
of the state; readers put the partials of a key together. Compaction (`committers.log_compaction`)
does so in the background for what is committed, so that there is never much to put together.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from committers.append_table import AppendingCommitter
from committers.constants import no_rows
from committers.log_actions import TXID, ActiveFile
from committers.log_append import AppendFailedError
from committers.log_compaction import MOST_WAITING, Compaction, Intents, Pace, files_to_fold
from committers.log_fold import folded
from committers.partials import columns_read, partial_rows
from committers.staging import random_id
from committers.state_shape import StateShape, described
from committers.table_committer import strict_reader
from committers.table_spec import TableSpec, storable_columns
from txn.errors import (
    CommitConflictError,
    FencedError,
    StagedFileError,
    TableChangedError,
    TopologyError,
)
from txn.interfaces import Aggregate, Semantics, StoredRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["LogCommitter"]

ONE_TASK_BYTES = 64 * 1024 * 1024
"""Compressed bytes that one task folds: without a shuffle, and in one slot of the cluster."""
FILE_BYTES = 128 * 1024 * 1024
"""Compressed bytes of what is folded, per file of a result larger than that."""


class LogCommitter(AppendingCommitter):
    """What `StateTable.bind` returns for `layout="log"`.

    Args:
        keys: grouping columns; empty for one global row.
        aggregates: value column -> aggregate.
        compact_files: files of about one size that are folded into one; None: never.
        compact_share: share of the time that folding may take.
        clock: seconds that never go back.
    """

    layout = "log"
    """How rows lie in the table, for `txn plan`."""

    def __init__(
        self,
        path: str,
        semantics: Semantics,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        compact_files: int | None,
        compact_share: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(
            path,
            semantics,
            storage_options=storage_options,
            new_id=new_id,
            keys=keys,
        )
        self._shape = StateShape(tuple(keys), dict(aggregates), 0, False, self.layout)
        self._aggregates = dict(aggregates)
        self._compact_files = compact_files
        self._pace = Pace(compact_share, clock)
        self._intents = Intents(self._storage, new_id)
        self._compaction_session: SparkSession | None = None
        self._lock = threading.Lock()
        self._made: set[str] = set()
        """Folders of compactions whose publication was not tried."""
        self._ended: list[tuple[str, bool]] = []
        """Folders of compactions that are done with, and whether to delete them."""

    def required_columns(self) -> Sequence[str]:
        """The keys and the columns that the aggregates read."""
        return columns_read(self._shape.keys, self._aggregates)

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch; one row for a global aggregate, rows or not."""
        return partial_rows(batch, self._shape.keys, self._aggregates, count_as)

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """The rows, if they have the keys and all that the aggregates read."""
        return batch if set(self.required_columns()) <= set(batch.columns) else None

    def _spec(self, schema: StructType) -> TableSpec:
        self._rows_schema = schema
        return TableSpec(
            self._opened.topology,
            self.layout,
            self.semantics,
            storable_columns(self._table_schema(), self.name),
            self._shape.keys,
            tuple((name, *described(agg, always=True)) for name, agg in self._aggregates.items()),
        )

    def values_schema(self, partials: StructType) -> StructType:
        """Keys and values as readers see them. Runs no job."""
        from pyspark.sql import SparkSession
        from pyspark.sql.types import LongType, StructType

        spark = self._spark if self._context else SparkSession.builder.getOrCreate()
        stored = StructType([*partials.fields]).add(TXID, LongType())
        return self._shape.shown(spark.createDataFrame([], stored)).schema

    def changes_schema(self, partials: StructType) -> StructType:
        """None: a commit does not look at what the keys had before.

        Raises:
            TopologyError: always.
        """
        raise TopologyError(
            f'State table {self.name} has layout="log", whose commits do not read the state, so '
            'it has no new values. Use layout="upsert" for a table whose new_values() are needed.'
        )

    # --- queries -----------------------------------------------------------------------------

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows:
        """Keys and values as of `txid`, the newest committed one: its rows and those before it.

        Compaction folds committed txids only, so no row has a part of a later one.

        Raises:
            TableChangedError: a file is gone that the table's newest version still has.
        """
        return self._up_to_date(lambda: self._as_of(txid))

    def _as_of(self, txid: int) -> StoredRows:
        rows, paths = self._rows_before(txid + 1)
        return self._stored_rows(self._shape.shown(rows), paths)

    def _rows_before(self, txid: int | None) -> tuple[DataFrame, list[str]]:
        """The table's rows of txids before this one (None: all), and the files that have them."""
        from pyspark.sql import functions as sf

        files = self._log.files_now()
        if txid is not None:
            files = tuple(file for file in files if not file.holds_only(txid))
        paths = [file.path for file in files]
        session, schema = self._reading(), self._stored_schema()
        if not paths:
            return no_rows(session, schema), paths
        rows = strict_reader(session, schema).parquet(*map(self._storage.read_url, paths))
        if txid is not None and any(file.may_hold(txid) for file in files):
            rows = rows.where((sf.col(TXID) < txid) | sf.col(TXID).isNull())
        return rows, paths

    def _stored_schema(self) -> StructType:
        """Columns of the table, also before any batch has said what they are."""
        from pyspark.sql.types import StructType

        if self._rows_schema is not None:
            return self._table_schema()
        return StructType.fromJson(self._log.columns())

    # --- compaction --------------------------------------------------------------------------

    def maintain(self, committed: int) -> Callable[[], None] | None:
        """Fold files of committed txids, if there are many; what is returned publishes the result.

        Raises:
            Exception: the Spark job failed; nothing is left of it.
        """
        self._clean_up()
        if self._compact_files is None or self._log.version < 0 or self._rows_schema is None:
            return None
        now, factor = self._log.files_now(), self._compact_files
        files = files_to_fold(now, committed, factor)
        if files and not self._pace.begin(sum(file.size for file in files)):
            files = files_to_fold(now, committed, factor, MOST_WAITING * factor)
        if not files:
            return None
        compaction = self._fold(files)
        return lambda: self._publish_compaction(compaction)

    def _fold(self, files: tuple[ActiveFile, ...]) -> Compaction:
        folder = self._intents.begin(self._log.version)
        try:
            adds = self._area.write_folder(self._folded(files), folder)
        except BaseException:
            self._end(folder, delete=True)
            with suppress(OSError):
                self._clean_up()
            raise
        finally:
            self._pace.end()
        with self._lock:
            self._made.add(folder)
        return Compaction(folder, adds, files)

    def _folded(self, files: Sequence[ActiveFile]) -> DataFrame:
        if self._compaction_session is None:
            self._compaction_session = self._new_session(
                {
                    # What is asked for below is what is done: each task writes one file.
                    "spark.sql.adaptive.enabled": "false",
                    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
                }
            )
        session, size = self._compaction_session, sum(file.size for file in files)
        reader = strict_reader(session, self._table_schema())
        rows = reader.parquet(*(self._storage.read_url(file.path) for file in files))
        if size <= ONE_TASK_BYTES:
            rows = rows.coalesce(1)
        else:
            parts = math.ceil(size / FILE_BYTES)
            session.conf.set("spark.sql.shuffle.partitions", str(parts))
        return folded(rows, self._shape.keys, self._aggregates, with_txid=True)

    def _publish_compaction(self, compaction: Compaction) -> None:
        """Append the version that has the result in place of what was folded.

        Nothing happens when somebody's OPTIMIZE has rewritten some of that meanwhile.
        """
        with self._lock:
            # Unless it is certain that nothing lands, only the next start may delete it.
            self._made.discard(compaction.folder)
        try:
            landed = self._log.compact(
                compaction.adds, compaction.removes, self._opened.epoch, compaction.txids
            )
        except AppendFailedError:
            raise  # it may still land
        except (StagedFileError, CommitConflictError, FencedError, TableChangedError):
            self._end(compaction.folder, delete=True)
            raise
        self._end(compaction.folder, delete=landed is None)

    def _end(self, folder: str, *, delete: bool) -> None:
        with self._lock:
            self._ended.append((folder, delete))

    def _clean_up(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
        for folder, delete in ended:
            self._intents.end(folder, delete=delete)

    def _sweep(self, found: Sequence[str]) -> None:
        self._intents.sweep(found, self._log.version, self._log.files, self._log.read_commit)
        super()._sweep(found)

    def close(self) -> None:
        """Delete what was folded and not published; forget the Spark sessions."""
        super().close()
        self._compaction_session = None
        with self._lock:
            self._ended += [(folder, True) for folder in self._made]
            self._made.clear()
        with suppress(OSError):
            self._clean_up()
