"""Staging: Parquet files inside a table's folder that are not in its log.

    <table>/data/<txid>-<attempt>-<random>/...   files that will be published where they lie
    <table>/_txn/<txid>-<attempt>-<random>/...   scratch: read once by the commit turn

`data` is a visible name, so that VACUUM removes what no version refers to; `_txn` is hidden from
it. Every staging job has a folder of its own: attempts never share Spark's `_temporary`.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pyarrow import parquet

from committers.parquet_stats import delta_stats
from committers.row_digest import Summary, row_digest, summarize
from committers.storage import Storage
from txn.attempts import TransactionAttempt
from txn.interfaces import Staged, StagedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DATA", "SCRATCH", "StagingArea", "random_id"]

DATA = "data"
"""Folder of files that are published where they lie."""
SCRATCH = "_txn"
"""Folder of files that no version will ever refer to."""

_FOLDER = re.compile(r"(\d+)-(\d+)-[0-9A-Za-z]+")
_WRITE_OPTIONS = {
    "compression": "snappy",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_FOOTER_THREADS = 8


def random_id() -> str:
    """64 random bits as hexadecimal digits."""
    return uuid.uuid4().hex[:16]


class StagingArea:
    """Writes attempts' files, and deletes what was never published. Thread-safe.

    Args:
        storage: the table's folder.
        new_id: source of folder names; letters and digits.
    """

    def __init__(self, storage: Storage, *, new_id: Callable[[], str] = random_id) -> None:
        self._storage = storage
        self._new_id = new_id
        self._lock = threading.Lock()
        self._folders: dict[TransactionAttempt, set[str]] = {}

    def stage(
        self,
        rows: DataFrame,
        attempt: TransactionAttempt,
        *,
        below: str = DATA,
        partition_by: str | None = None,
    ) -> Staged:
        """As `write`, with the fingerprint of the rows (`committers.row_digest`)."""
        found = self._write(rows, attempt, below, partition_by)
        files = tuple(file for file, _ in found)
        digest = row_digest((summary for _, summary in found), sum(file.rows for file in files))
        return Staged(attempt, files, digest)

    def write(
        self,
        rows: DataFrame,
        attempt: TransactionAttempt,
        *,
        below: str = DATA,
        partition_by: str | None = None,
    ) -> tuple[StagedFile, ...]:
        """Run one Spark job that writes `rows` as Parquet; the files with at least one row."""
        return tuple(file for file, _ in self._write(rows, attempt, below, partition_by))

    def _write(
        self, rows: DataFrame, attempt: TransactionAttempt, below: str, partition_by: str | None
    ) -> list[tuple[StagedFile, Summary]]:
        folder = f"{below}/{attempt.txid}-{attempt.attempt_id}-{self._new_id()}"
        with self._lock:
            self._folders.setdefault(attempt, set()).add(folder)
        writer = rows.write.options(**_WRITE_OPTIONS)
        if partition_by is not None:
            writer = writer.partitionBy(partition_by)
        writer.parquet(self._storage.url(folder))
        return self._describe(folder, partition_by)

    def _describe(self, folder: str, partition_by: str | None) -> list[tuple[StagedFile, Summary]]:
        found = self._storage.files(folder)

        def footer(one: tuple[str, int]) -> tuple[StagedFile, Summary]:
            return self._footer(one[0], one[1], partition_by)

        if len(found) > 1:
            with ThreadPoolExecutor(min(_FOOTER_THREADS, len(found))) as pool:
                files = list(pool.map(footer, found))
        else:
            files = [footer(one) for one in found]
        # Spark writes an empty file for a job without rows; it says nothing that a log needs.
        self._storage.delete_files(file.path for file, _ in files if file.rows == 0)
        return [(file, summary) for file, summary in files if file.rows > 0]

    def _footer(self, path: str, size: int, partition_by: str | None) -> tuple[StagedFile, Summary]:
        metadata = parquet.read_metadata(
            self._storage.absolute(path), filesystem=self._storage.filesystem
        )
        partition = {} if partition_by is None else {partition_by: _value(path, partition_by)}
        rows, stats = metadata.num_rows, delta_stats(metadata)
        return StagedFile(path, size, rows, partition, stats), summarize(metadata)

    def publishing(self, files: Iterable[StagedFile]) -> None:
        """From now on a version may refer to these files: never delete their folders.

        Called before the append: when its outcome stays unknown, the files must stay.
        """
        published = {_folder_of(file.path) for file in files}
        with self._lock:
            for folders in self._folders.values():
                folders -= published

    def withdraw(self, attempt: TransactionAttempt, files: Iterable[StagedFile]) -> None:
        """Take `publishing` back: these files of `attempt` are in no version, for certain."""
        with self._lock:
            folders = {_folder_of(file.path) for file in files}
            self._folders.setdefault(attempt, set()).update(folders)

    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete every folder of an attempt that was not given to `publishing`."""
        with self._lock:
            folders = self._folders.pop(attempt, set())
        for folder in folders:
            self._storage.delete_folder(folder)

    def sweep(self, published: int, active: Collection[str]) -> None:
        """Delete what dead processes left: all scratch, and data of txids never published.

        Args:
            published: the newest txid that the table's log holds.
            active: paths of the files of the current version, which are never touched.
        """
        with self._lock:
            mine = set().union(*self._folders.values()) if self._folders else set()
        kept = mine | {_folder_of(path) for path in active}
        scratch = [f"{SCRATCH}/{name}" for name in self._storage.folders(SCRATCH)]
        data = [
            f"{DATA}/{name}"
            for name in self._storage.folders(DATA)
            if (match := _FOLDER.fullmatch(name)) and int(match[1]) > published
        ]
        for folder in (*scratch, *data):
            if folder not in kept:
                self._storage.delete_folder(folder)


def _folder_of(path: str) -> str:
    """`data/7-0-abc` out of `data/7-0-abc/txn_bucket=1/part-0.parquet`."""
    return "/".join(PurePosixPath(path).parts[:2])


def _value(path: str, column: str) -> str:
    """The value of a partition column out of a path; ours are plain integers."""
    prefix = f"{column}="
    part = next(part for part in PurePosixPath(path).parts if part.startswith(prefix))
    return part.removeprefix(prefix)
