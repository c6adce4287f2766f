"""Read a version of a state table directly from the files in its log.

Delta's own reader makes its own snapshot of every version, by Spark jobs. Here the log was read
already for the table's properties, and Spark reads its files directly.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from committers.publishing.files import BUCKET, ActiveFile, columns_without_null, load_files
from committers.table_rows import known_files
from txn.delta.delta_rs import DeltaError
from txn.delta.folders import COMPACTION, job_folder
from txn.delta.loading import load, require
from txn.spark.lazy import st
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["SMALL_SHARE", "StoredState", "find_stored", "run_of"]

_MOST_FILES = 1_000
"""The most files; for more, Delta's reader is better, which skips files by statistics."""
_SMALL_BYTES = 16 * 1024 * 1024
"""Compressed bytes that one task reads in less time than more tasks take to start."""
SPLIT_FROM_BYTES = 1024 * 1024
"""Compressed bytes with each key once, below which merging all rows takes no longer."""
_FEW_FILES = 32
"""The most files for one task, on a local disk; in an object store opening takes longer."""
SMALL_SHARE = 0.5
"""The share of the largest part's compressed bytes up to which the rest is merged separately."""


@dataclass(frozen=True)
class StoredState:
    """The files of one version.

    Args:
        files: the rows' files, all inside of the table's folder.
        columns: the columns in the files; not the bucket, which is in their paths.
        properties: the table's properties.
        without_null: path -> the columns that certainly have no NULL there.
        version: the version; None: the newest one.
    """

    session: SparkSession
    storage: Storage
    files: tuple[ActiveFile, ...]
    columns: StructType
    properties: Mapping[str, str | None]
    without_null: Mapping[str, frozenset[str]] = field(default_factory=dict)
    version: int | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def first_txid(self) -> int:
        """The first txid of its rows; 0 if unknown."""
        return min((file.txid_min or 0 for file in self.files), default=0)

    @property
    def is_small(self) -> bool:
        """True if one task reads it fastest."""
        few = len(self.files) <= _FEW_FILES and self.storage.is_local
        return few and self.size <= _SMALL_BYTES

    def may_have_null(self, names: Iterable[str]) -> bool:
        """Return whether a row may have NULL in one of these columns."""
        columns = frozenset(names)
        return any(columns - self.without_null.get(file.path, frozenset()) for file in self.files)

    def rows(self) -> DataFrame:
        """The table's rows."""
        if not self.files:
            return no_rows(self.session, self.columns)
        files = [(file.path, file.size) for file in self.files]
        return known_files(self.session, self.columns, self.storage, files)

    def of_buckets(self, buckets: Sequence[int]) -> StoredState:
        """The same state with only the files of some hash buckets."""
        numbers = set(buckets)
        return self._with_files(file for file in self.files if file.bucket in numbers)

    def in_two(self) -> tuple[StoredState, StoredState] | None:
        """(files that have each key once, the rest); None if merging all takes no longer.

        The files of one compaction, or of one attempt at one txid, have each key once.
        """
        runs: dict[tuple[str, int], list[ActiveFile]] = defaultdict(list)
        for file in self.files:
            run = run_of(file)
            if run is not None:
                runs[run].append(file)
        if not runs:
            return None
        largest = max(runs, key=lambda run: sum(file.size for file in runs[run]))
        once = self._with_files(runs[largest])
        rest = self._with_files(file for file in self.files if run_of(file) != largest)
        is_small = rest.size <= min(_SMALL_BYTES, SMALL_SHARE * once.size)
        if rest.files and not (is_small and once.size >= SPLIT_FROM_BYTES):
            return None
        return once, rest

    def _with_files(self, files: Iterable[ActiveFile]) -> StoredState:
        return replace(self, files=tuple(files))


def find_stored(session: SparkSession, storage: Storage, version: int | None) -> StoredState | None:
    """Find the files of a version, or of the newest one; None if only Delta's reader can read it.

    Raises:
        TableAbsentError: the table does not exist.
        RecoveryRefusedError: the log names a file outside of the table's folder.
    """
    try:
        table = require(storage) if version is None else load(storage, version)
    except DeltaError:
        return None  # Delta's reader raises the error
    if table.protocol().min_reader_version > 1:
        return None  # features of rows or names, which another writer has turned on
    files = tuple(load_files(table).values())
    if not 0 < len(files) <= _MOST_FILES:
        return None
    schema = st.StructType.fromJson(json.loads(table.schema().to_json()))
    columns = st.StructType([field for field in schema if field.name != BUCKET])
    properties = table.metadata().configuration
    no_null = columns_without_null(table)
    return StoredState(session, storage, files, columns, properties, no_null, table.version())


def run_of(file: ActiveFile) -> tuple[str, int] | None:
    """Identify the compaction or attempt that wrote a file; None if unknown."""
    folder = job_folder(file.path)
    if folder is None:
        return None
    if folder.startswith(COMPACTION):
        return folder, 0
    # A folder may have files of several attempts, staged by one job: each file has one txid.
    if file.txid_min is None or file.txid_min != file.txid_max:
        return None
    return folder, file.txid_min
