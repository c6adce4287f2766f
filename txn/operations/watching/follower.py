"""Keeps the index of one table's log: new versions as they come, old ones in the background."""

from __future__ import annotations

from txn.delta.commits import LAST_CHECKPOINT, Commit, checkpoint_version, commit_path, parse_commit
from txn.errors import RecoveryRefusedError
from txn.operations.watching.index import LogIndex, Unreadable
from txn.storage.storage import Storage

__all__ = ["LogFollower"]

_AT_ONCE = 32
"""Commit files that are asked for together: on an object store they cost one round trip."""


class LogFollower:
    """Reads one table's log into an index, each file once. For one thread.

    Args:
        table: its number in the index.
        storage: the table's folder.
        most: versions that are read at most, newest first.
    """

    def __init__(self, index: LogIndex, table: int, storage: Storage, most: int) -> None:
        self.newest = -1
        """The newest version that was read; -1: none yet."""
        self.oldest = 0
        """The oldest one."""
        self.complete = False
        """Whether there is nothing older to read."""
        self._index = index
        self._table = table
        self._storage = storage
        self._most = most

    def catch_up(self, hint: int | None = None) -> int:
        """Read the versions that are new. The first call finds the newest one.

        Args:
            hint: a version that is there, as ZooKeeper knows it; None: unknown.

        Returns:
            how many were read.

        Raises:
            OSError, TxnError: storage cannot be read.
        """
        count = 0
        if self.newest < 0:
            start = self._start(hint)
            if start is None:
                return 0
            self.newest, self.oldest = start - 1, start
        while commits := self._read(range(self.newest + 1, self.newest + 1 + self._ahead(count))):
            self._index.add_newer(self._table, commits)
            self.newest += len(commits)
            count += len(commits)
        return count

    def _ahead(self, count: int) -> int:
        """One file at first: most looks find that there is nothing new."""
        return 1 if count == 0 else _AT_ONCE

    def step_back(self) -> bool:
        """Read some older versions. Returns whether there may be more.

        Raises:
            OSError, TxnError: storage cannot be read.
        """
        if self.complete or self.newest < 0:
            return False
        low = max(0, self.oldest - _AT_ONCE)
        wanted = range(self.oldest - 1, low - 1, -1)
        commits = self._read(wanted)
        self._index.add_older(self._table, commits)
        self.oldest -= len(commits)
        ended = len(commits) < len(wanted) or self.oldest == 0
        self.complete = ended or self.newest - self.oldest >= self._most
        return not self.complete

    def _start(self, hint: int | None) -> int | None:
        """A version near the newest one whose file is there; None: there is no table."""
        last = checkpoint_version(self._storage.read(LAST_CHECKPOINT))
        for version in sorted({v for v in (hint, last, 0) if v is not None}, reverse=True):
            if self._storage.sizes([commit_path(version)])[0] is not None:
                return version
        names = (path.rpartition("/")[2] for path, _ in self._storage.files("_delta_log"))
        versions = [int(n[:20]) for n in names if n.endswith(".json") and n[:20].isdecimal()]
        return max(versions, default=None)

    def _read(self, versions: range) -> list[Commit | Unreadable]:
        """The commits of these versions, up to the first that is not there."""
        texts, _ = self._storage.look([commit_path(version) for version in versions])
        found: list[Commit | Unreadable] = []
        for version, text in zip(versions, texts, strict=True):
            if text is None:
                break
            try:
                found.append(parse_commit(version, text, self._storage.location))
            except RecoveryRefusedError as error:
                found.append(Unreadable(version, str(error)))
        return found
