"""Making and publishing compactions of one log table, and deleting those that come to nothing."""

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
        factor: files of about one size that become one; None: never.
        pace: when a compaction may begin.
        new_id: source of folder names; letters and digits.
    """

    def __init__(
        self, storage: Storage, factor: int | None, pace: Pace, new_id: Callable[[], str]
    ) -> None:
        self._factor = factor
        self._pace = pace
        self._intents = Intents(storage, new_id)
        self._lock = threading.Lock()
        self._made: set[str] = set()
        """Folders of compactions whose publication was not tried."""
        self._ended: list[tuple[str, bool]] = []
        """Folders of compactions that are done with, and whether to delete them."""

    def choose(
        self, now: Sequence[ActiveFile], committed: int, version: int
    ) -> tuple[ActiveFile, ...]:
        """The files of the table that are to be compacted now, if any.

        Args:
            now: all of its files.
            committed: the newest committed txid.
            version: of the table.
        """
        if self._factor is None:
            return ()
        for still in (True, False) if self._pace.is_still(version) else (False,):
            files = files_to_compact(now, committed, self._factor, still=still)
            if self._pace.may_begin(sum(file.size for file in files)):
                return files
        return files_to_compact(now, committed, self._factor, MOST_WAITING * self._factor)

    def write(
        self,
        rows: Callable[[], DataFrame],
        files: tuple[ActiveFile, ...],
        area: StagingArea,
        version: int,
    ) -> Compaction:
        """Write the rows of some files into a folder of its own.

        Args:
            rows: they, one per key.
            version: after which the result will be published.

        Raises:
            Exception: the Spark job failed; nothing is left of it.
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
            self._made.add(folder)
        return Compaction(folder, adds, files)

    def publish(self, compaction: Compaction, log: DeltaLog, epoch: int) -> None:
        """Append the version that has the result in place of what was compacted.

        Nothing happens when somebody's OPTIMIZE has rewritten some of that meanwhile.
        """
        with self._lock:
            # Unless it is certain that nothing lands, only the next start may delete it.
            self._made.discard(compaction.folder)
        try:
            landed = log.compact(compaction.adds, compaction.removes, epoch, compaction.txids)
        except AppendFailedError:
            raise  # it may still land
        except (StagedFileError, CommitConflictError, FencedError, TableChangedError):
            self._end(compaction.folder, delete=True)
            raise
        self._end(compaction.folder, delete=landed is None)

    def _end(self, folder: str, *, delete: bool) -> None:
        with self._lock:
            self._ended.append((folder, delete))

    def clean_up(self) -> None:
        """Delete what is left of those that are done with."""
        with self._lock:
            ended, self._ended = self._ended, []
        for folder, delete in ended:
            self._intents.end(folder, delete=delete)

    def sweep(self, found: Iterable[str], log: DeltaLog) -> None:
        """Delete the results of dead processes that no version refers to (`Intents.sweep`)."""
        self._intents.sweep(found, log.version, log.files, log.read_commit)

    def close(self) -> None:
        """Delete what was compacted and not published."""
        with self._lock:
            self._ended += [(folder, True) for folder in self._made]
            self._made.clear()
        with suppress(OSError, TxnError):
            self.clean_up()
