"""Staging: Parquet files inside a table's folder that are not in its log.

    <table>/data/<txid>-<attempt>-<random>/...   files that will be published where they lie
    <table>/_txn/<txid>-<attempt>-<random>/...   scratch: read once by the commit turn

Scratch of a table in an object store lies on this machine's disk, if the executors are threads of
this process.

Every staging job has its own folder; a job of several attempts has one, named after the first of
them. The tasks' commits list the job's staged files (`writing`): a folder may also have files of
task attempts that failed or were overtaken, which nothing refers to.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from committers.aggregates.totals import overflows_of
from committers.expressions import naming_invalid_text, side_by_side
from committers.staging.nearby import Nearby
from committers.staging.parquet_stats import delta_stats
from committers.staging.row_digest import Summary, row_digest, summarize
from committers.staging.writing import ROW_GROUPS, RowWriter, write_options
from txn.attempts import TransactionAttempt
from txn.delta.commits import TXID
from txn.delta.folders import DATA, SCRATCH, staged_txid
from txn.errors import StagedFileError
from txn.interfaces import Staged, StagedFile
from txn.spark.file_writer import WrittenFile
from txn.spark.own_session import to_write
from txn.spark.submission import runs_here
from txn.storage.asking import in_parallel
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["StagingArea", "newest_txid", "random_id"]

_Described = tuple[StagedFile, Summary]


def random_id() -> str:
    """64 random bits as hexadecimal digits."""
    return uuid.uuid4().hex[:16]


class StagingArea:
    """Writes attempts' files, and deletes those that were never published. Thread-safe.

    Args:
        storage: the table's folder.
        new_id: source of folder names; letters and digits.
        unique: a column that has no value twice in a file; None if there is no such column.
        session: the session that writes rows; None: the session of the rows.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        session: Callable[[], SparkSession] | None = None,
        new_id: Callable[[], str] = random_id,
        unique: str | None = None,
    ) -> None:
        self._storage = storage
        self._session = session
        self._unique = unique
        self._writers: dict[str, RowWriter] = {}
        """Root of a storage -> its writer."""
        self._nearby: Nearby | None = None
        self._new_id = new_id
        self._lock = threading.Lock()
        self._owned: dict[TransactionAttempt, dict[str, set[str]]] = {}
        """attempt -> folder -> its known files there; other attempts may have files there, too."""
        self._referred: set[str] = set()
        """Folders with files that a version may refer to, and others that an attempt still owns."""
        self._mixes = False
        """True after a joint job has put rows of several txids into one file."""

    @property
    def scratch(self) -> Storage:
        """The storage for scratch."""
        nearby = self.nearby
        return self._storage if nearby is None else nearby.storage

    @property
    def nearby(self) -> Nearby | None:
        """This machine's disk for files of a remote table; None if executors do not share it."""
        if self._storage.is_local or self._session is None:
            return None
        if not runs_here(str(self._session().sparkContext.master)):
            return None
        with self._lock:
            if self._nearby is None:
                self._nearby = Nearby()
            return self._nearby

    def _storage_of(self, path: str) -> Storage:
        """Return the storage that holds a path below this table."""
        return self.scratch if path.startswith(f"{SCRATCH}/") else self._storage

    def _writer(self, storage: Storage) -> RowWriter:
        if storage.uri not in self._writers:
            self._writers[storage.uri] = RowWriter(storage, write_options(storage, self._unique))
        return self._writers[storage.uri]

    def stage(
        self,
        rows: DataFrame,
        attempt: TransactionAttempt,
        *,
        below: str = DATA,
        partition_by: str | None = None,
    ) -> Staged:
        """Like `write`, with the rows' fingerprint (`committers.staging.row_digest`)."""
        return _staged(attempt, self._write(rows, [attempt], below, partition_by, digest=True))

    def stage_together(
        self,
        group: Sequence[tuple[DataFrame, TransactionAttempt]],
        *,
        below: str = DATA,
        partition_by: str | None = None,
    ) -> list[Staged]:
        """Stage several attempts with one job, each in its own files.

        Each DataFrame brings a column `txid`, the same for all of its rows. Tasks of different
        DataFrames stay apart, so each file has one txid, and its footer shows its attempt. If Spark
        ever mixes them all the same, this raises, and from then on stages one by one.

        Raises:
            StagedFileError: a file's footer does not show a single attempt; nothing is staged.
        """
        if self._mixes:
            return [
                self.stage(rows, attempt, below=below, partition_by=partition_by)
                for rows, attempt in group
            ]
        attempts = [attempt for _, attempt in group]
        session = self._session() if self._session else None
        rows = side_by_side([frame for frame, _ in group], session)
        written = self._write(rows, attempts, below, partition_by, digest=True)
        by_txid: dict[int, list[_Described]] = {attempt.txid: [] for attempt in attempts}
        for described in written:
            by_txid[self._txid_of(described[0], by_txid)].append(described)
        staged = [_staged(attempt, by_txid[attempt.txid]) for attempt in attempts]
        with self._lock:
            for member in staged:
                for file in member.files:
                    self._owned[member.attempt][_folder_of(file.path)].add(file.path)
        return staged

    def _txid_of(self, file: StagedFile, txids: Collection[int]) -> int:
        bounds = json.loads(file.stats)
        low, high = (bounds[name].get(TXID) for name in ("minValues", "maxValues"))
        if low != high or low not in txids:
            self._mixes = True
            raise StagedFileError(
                f"Staged file {file.path} of table {self._storage.location} holds rows of txids "
                f"{low} to {high} according to its footer, but each file must hold rows of only "
                f"one of {sorted(txids)}. The batches are staged one by one."
            )
        return int(low)

    def write(
        self,
        rows: DataFrame,
        attempt: TransactionAttempt,
        *,
        below: str = DATA,
        partition_by: str | None = None,
        first: Nearby | None = None,
    ) -> tuple[StagedFile, ...]:
        """Run one Spark job that writes `rows` as Parquet; returns the files with rows.

        Statistics that the session of `rows` has collected replace those of the footers.

        Args:
            first: a place where the job writes; complete files are sent on from there.
        """
        written = self._write(rows, [attempt], below, partition_by, digest=False, first=first)
        return tuple(file for file, _ in written)

    def _write(
        self,
        rows: DataFrame,
        attempts: Sequence[TransactionAttempt],
        below: str,
        partition_by: str | None,
        *,
        digest: bool,
        first: Nearby | None = None,
    ) -> list[_Described]:
        # Named after the first attempt: once that is published, `sweep` spares the folder, and
        # VACUUM deletes leftovers of the later ones in it.
        oldest = attempts[0]
        folder = f"{below}/{oldest.txid}-{oldest.attempt_id}-{self._new_id()}"
        with self._lock:
            for attempt in attempts:
                self._owned.setdefault(attempt, {})[folder] = set()
        if first is None:
            return self._run(rows, self._storage_of(folder), folder, partition_by, digest=digest)
        try:
            written = self._run(rows, first.storage, folder, partition_by, digest=digest)
            first.send(self._storage, [file.path for file, _ in written])
            return written
        finally:
            first.storage.delete_folder(folder)

    def write_folder(self, rows: DataFrame, folder: str) -> tuple[StagedFile, ...]:
        """Like `write`, into a folder that the caller deletes; several tasks can read each file."""
        storage = self._storage_of(folder)
        writer = RowWriter(storage, {**write_options(storage, self._unique), **ROW_GROUPS})
        written = self._run(rows, storage, folder, None, digest=False, writer=writer)
        return tuple(file for file, _ in written)

    def _run(
        self,
        rows: DataFrame,
        storage: Storage,
        folder: str,
        partition_by: str | None,
        *,
        digest: bool,
        writer: RowWriter | None = None,
    ) -> list[_Described]:
        """Run one Spark job that writes into a new folder; returns the files with rows."""
        if self._session is not None:
            rows = to_write(rows, self._session())
        table = self._storage.location
        with overflows_of(table), naming_invalid_text(rows, table):
            written = (writer or self._writer(storage)).write(rows, folder, partition_by)
        if not digest and all(file.stats is not None for file in written):
            return [(_staged_file(file), {}) for file in written]
        return self._describe(storage, written)

    def _describe(self, storage: Storage, written: Sequence[WrittenFile]) -> list[_Described]:
        def footer(file: WrittenFile) -> _Described:
            return self._footer(storage, file)

        files = in_parallel(footer, written)
        # Spark writes an empty file for a job without rows; the log does not need it.
        storage.delete_files(file.path for file, _ in files if file.rows == 0)
        return [(file, summary) for file, summary in files if file.rows > 0]

    def _footer(self, storage: Storage, written: WrittenFile) -> _Described:
        metadata = storage.footer(written.path, written.size)
        if metadata is None:
            raise StagedFileError(
                f"A Spark executor wrote file {written.path} of table {self._storage.location}, "
                "and this process does not see it. Executors write to another file system under "
                "this path, or something deletes files below it. The batch is staged again; if "
                "this goes on, put the table on storage that all executors and this process reach."
            )
        rows, stats = metadata.num_rows, delta_stats(metadata)
        file = StagedFile(written.path, written.size, rows, written.partition, stats)
        return file, summarize(metadata)

    def publishing(self, files: Iterable[StagedFile]) -> None:
        """Never delete these files from now on: a version may refer to them.

        Called before the append: if its outcome stays unknown, the files must stay. Other attempts
        keep their files in the same folders.
        """
        published = {file.path for file in files}
        folders = {_folder_of(path) for path in published}
        with self._lock:
            for owned in self._owned.values():
                for folder in folders & owned.keys():
                    if not owned[folder] or owned[folder] & published:
                        del owned[folder]
            self._referred |= folders
            self._forget_referred()

    def withdraw(self, attempt: TransactionAttempt, files: Iterable[StagedFile]) -> None:
        """Undo `publishing`: these files of `attempt` are certainly in no version."""
        with self._lock:
            for file in files:
                folder = _folder_of(file.path)
                self._owned.setdefault(attempt, {}).setdefault(folder, set()).add(file.path)

    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete the files of an attempt that were not passed to `publishing`."""
        with self._lock:
            owned = self._owned.pop(attempt, {})
            shared = self._referred.union(*self._owned.values())
            self._forget_referred()
        for folder, paths in owned.items():
            if folder in shared:
                self._storage_of(folder).delete_files(sorted(paths))
            else:
                self._storage_of(folder).delete_folder(folder)

    def _forget_referred(self) -> None:
        """Forget folders that no attempt owns files in; they are never deleted."""
        self._referred &= set().union(*self._owned.values())

    def folders(self) -> list[str]:
        """List every folder that a staging job or a compaction may have left, for `sweep`."""
        return [
            f"{below}/{name}" for below in (SCRATCH, DATA) for name in self._storage.folders(below)
        ]

    def sweep(self, folders: Iterable[str], published: int, active: Collection[str]) -> None:
        """Delete leftovers of dead processes: all scratch, and data of unpublished txids.

        Args:
            folders: the result of `folders` from before the table was fenced: the next leader had
                staged nothing by then.
            published: the newest txid in any version of the table.
            active: paths of the files of the current version, which are never deleted.
        """
        with self._lock:
            owned = set().union(*self._owned.values())
        used = owned | {_folder_of(path) for path in active}
        for folder in folders:
            below, _, name = folder.partition("/")
            is_left = below == SCRATCH or (staged_txid(name) or 0) > published
            if is_left and folder not in used:
                self._storage.delete_folder(folder)


def newest_txid(folders: Iterable[str]) -> int:
    """The newest txid with staged data among `StagingArea.folders`; 0 if none."""
    names = (folder.partition("/") for folder in folders)
    return max((staged_txid(name) or 0 for below, _, name in names if below == DATA), default=0)


def _staged(attempt: TransactionAttempt, described: Sequence[_Described]) -> Staged:
    files = tuple(file for file, _ in described)
    digest = row_digest((summary for _, summary in described), sum(file.rows for file in files))
    return Staged(attempt, files, digest)


def _staged_file(written: WrittenFile) -> StagedFile:
    """Describe a file by its task's statistics: tasks leave out files without rows."""
    stats = str(written.stats)
    rows = int(json.loads(stats)["numRecords"])
    return StagedFile(written.path, written.size, rows, written.partition, stats)


def _folder_of(path: str) -> str:
    """`data/7-0-abc` from `data/7-0-abc/txn_bucket=1/part-0.parquet`."""
    return "/".join(PurePosixPath(path).parts[:2])
