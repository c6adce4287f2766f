"""Make and publish compactions of one log table, and delete those that failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from committers.log_layout.compaction import MOST_WAITING, Compaction, Pace, files_to_compact
from committers.log_layout.intents import Intents
from committers.publishing.append import AppendFailedError
from committers.publishing.files import ActiveFile
from committers.publishing.log import DeltaLog
from committers.staging.area import StagingArea
from txn.delta.commits import Commit
from txn.errors import (
    CommitConflictError,
    FencedError,
    StagedFileError,
    TableChangedError,
    TxnError,
)
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Compactor"]


class Compactor:
    """The compactions of one table, from the choice of files to the last deletion. Thread-safe.

    Args:
        storage: the table's folder.
        factor: number of files of about one size that become one; None: never.
        pace: decides when a compaction may begin.
        new_id: source of folder names; letters and digits.
    """

    def __init__(
        self, storage: Storage, factor: int | None, pace: Pace, new_id: Callable[[], str]
    ) -> None:
        self._factor = factor
        self._pace = pace
        self._intents = Intents(storage, new_id)
        self._lock = threading.Lock()
        self._unpublished: set[str] = set()
        """Folders of compactions without an attempt to publish them yet."""
        self._ended: list[tuple[str, bool]] = []
        """(folder, True to delete it) of finished compactions."""

    def choose(
        self, active: Sequence[ActiveFile], committed: int, version: int
    ) -> tuple[ActiveFile, ...]:
        """Choose the table's files to compact now, if any.

        Args:
            active: all of its files.
            committed: the newest committed txid.
            version: the table's version.
        """
        if self._factor is None:
            return ()
        for still in (True, False) if self._pace.is_still(version) else (False,):
            files = files_to_compact(active, committed, self._factor, still=still)
            if self._pace.may_begin(sum(file.size for file in files)):
                return files
        return files_to_compact(active, committed, self._factor, MOST_WAITING * self._factor)

    def write(
        self,
        rows: Callable[[], DataFrame],
        files: tuple[ActiveFile, ...],
        area: StagingArea,
        version: int,
    ) -> Compaction:
        """Write the merged rows of some files into a new folder.

        Args:
            rows: makes the merged rows, one per key.
            version: the version after which the result will be published.
        """
        folder = self._intents.begin(version)
        self._pace.begin()
        try:
            adds = area.write_folder(rows(), folder)
        except BaseException:
            self._end(folder, delete=True)
            with suppress(OSError, TxnError):
                self.clean_up()
            raise
        finally:
            self._pace.end()
        with self._lock:
            self._unpublished.add(folder)
        return Compaction(folder, adds, files)

    def publish(self, compaction: Compaction, append: Callable[[], Commit | None]) -> bool:
        """Append the version that replaces files by the result; False: it was not appended.

        Args:
            append: appends it; None if an OPTIMIZE has rewritten some of those files meanwhile.
        """
        with self._lock:
            # Only the next start may delete the folder, unless nothing has landed for certain.
            self._unpublished.discard(compaction.folder)
        try:
            landed = append()
        except AppendFailedError:
            raise  # it may still land
        except (StagedFileError, CommitConflictError, FencedError, TableChangedError):
            self._end(compaction.folder, delete=True)
            raise
        self._end(compaction.folder, delete=landed is None)
        return landed is not None

    def _end(self, folder: str, *, delete: bool) -> None:
        with self._lock:
            self._ended.append((folder, delete))

    def clean_up(self) -> None:
        """Delete the remains of finished compactions."""
        with self._lock:
            ended, self._ended = self._ended, []
        for folder, delete in ended:
            self._intents.end(folder, delete=delete)

    def sweep(self, folders: Iterable[str], log: DeltaLog) -> None:
        """Delete the results of dead processes that no version refers to (`Intents.sweep`)."""
        self._intents.sweep(folders, log.version, log.files, log.read_commit)

    def close(self) -> None:
        """Delete unpublished compactions."""
        with self._lock:
            self._ended += [(folder, True) for folder in self._unpublished]
            self._unpublished.clear()
        with suppress(OSError, TxnError):
            self.clean_up()
