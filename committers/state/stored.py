"""A version of a state table by its files, as the log names them: what its rows are read from.

Delta's own reader makes a snapshot of its own of every version, by Spark jobs. The log was read
already to learn what the table is, and Spark reads the files that it names at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from committers.publishing.files import BUCKET, ActiveFile, columns_without_null, load_files
from committers.reading import known_files
from txn.delta.delta_rs import DeltaError
from txn.delta.folders import COMPACTION, job_folder
from txn.delta.loading import load, require
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["SMALL_SHARE", "StoredState", "find_stored", "run_of"]

_MOST_FILES = 1_000
"""Beyond it Delta's reader, which skips files by statistics, is the better one."""
_SMALL_BYTES = 16 * 1024 * 1024
"""Compressed bytes that one task reads in less time than further tasks take to begin."""
SPLIT_FROM_BYTES = 1024 * 1024
"""Compressed, of what has each key once: below it, all rows are merged as soon as some."""
_FEW_FILES = 32
"""As many on a local disk; in an object store, opening one takes longer than a task."""
SMALL_SHARE = 0.5
"""Of the largest part, compressed: what the rest may have, or everything is merged at once."""


@dataclass(frozen=True)
class StoredState:
    """The files of one version.

    Args:
        files: the rows' files; of each a path inside of the table's folder.
        columns: those in the files; not the bucket, which is in their paths.
        properties: of the table.
        without_null: path -> the columns that certainly have no NULL there.
    """

    session: SparkSession
    storage: Storage
    files: tuple[ActiveFile, ...]
    columns: StructType
    properties: Mapping[str, str | None]
    without_null: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def is_small(self) -> bool:
        """Whether one task reads it soonest."""
        few = len(self.files) <= _FEW_FILES and self.storage.is_local
        return few and self.size <= _SMALL_BYTES

    def may_have_null(self, names: Iterable[str]) -> bool:
        """Whether a row may have NULL in one of these columns."""
        wanted = frozenset(names)
        return any(wanted - self.without_null.get(file.path, frozenset()) for file in self.files)

    def rows(self) -> DataFrame:
        """The table's rows."""
        if not self.files:
            return no_rows(self.session, self.columns)
        files = [(file.path, file.size) for file in self.files]
        return known_files(self.session, self.columns, self.storage, files)

    def of_buckets(self, buckets: Sequence[int]) -> StoredState:
        """Only the files of some hash buckets."""
        wanted = set(buckets)
        return self._of(file for file in self.files if file.bucket in wanted)

    def in_two(self) -> tuple[StoredState, StoredState] | None:
        """(files that have each key once, the rest); None: merging all takes no longer.

        Each key once has what one compaction wrote, or one attempt of one txid.
        """
        runs: dict[tuple[str, int], list[ActiveFile]] = defaultdict(list)
        for file in self.files:
            run = run_of(file)
            if run is not None:
                runs[run].append(file)
        if not runs:
            return None
        largest = max(runs, key=lambda run: sum(file.size for file in runs[run]))
        once = self._of(runs[largest])
        rest = self._of(file for file in self.files if run_of(file) != largest)
        is_small = rest.size <= min(_SMALL_BYTES, SMALL_SHARE * once.size)
        if rest.files and not (is_small and once.size >= SPLIT_FROM_BYTES):
            return None
        return once, rest

    def _of(self, files: Iterable[ActiveFile]) -> StoredState:
        return replace(self, files=tuple(files))


def find_stored(session: SparkSession, storage: Storage, version: int | None) -> StoredState | None:
    """The files of a version, None: of the newest now. None: only Delta's reader reads it.

    Raises:
        TableAbsentError: there is no Delta table.
        RecoveryRefusedError: the log names a file outside of the table's folder.
    """
    from pyspark.sql.types import StructType

    try:
        table = require(storage) if version is None else load(storage, version)
    except DeltaError:
        return None  # Delta's reader says why
    if table.protocol().min_reader_version > 1:
        return None  # features of rows or names, which somebody else has turned on
    files = tuple(load_files(table).values())
    if not 0 < len(files) <= _MOST_FILES:
        return None
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    columns = StructType([field for field in schema if field.name != BUCKET])
    properties = table.metadata().configuration
    return StoredState(session, storage, files, columns, properties, columns_without_null(table))


def run_of(file: ActiveFile) -> tuple[str, int] | None:
    """Files that one compaction or one attempt wrote; None: it is not known who wrote this one."""
    folder = job_folder(file.path)
    if folder is None:
        return None
    if folder.startswith(COMPACTION):
        return folder, 0
    # A folder may have files of several attempts that were staged by one job, of one txid each.
    if file.txid_min is None or file.txid_min != file.txid_max:
        return None
    return folder, file.txid_min
