"""Keep the index of one table's log: new versions as they come, old ones in the background."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, takewhile

from txn.dashboard.watching.entries import Unreadable, fits
from txn.dashboard.watching.index import LogIndex
from txn.delta.commits import LAST_CHECKPOINT, Commit, checkpoint_version, commit_path, parse_commit
from txn.errors import RecoveryRefusedError
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.storage.storage import Storage

__all__ = ["LogFollower", "OwnLogFollower"]

_AT_ONCE = 32
"""Commit files that are read together: on an object store they cost one round trip."""

_AT_ONCE_GONE = 256
"""Versions that are forgotten together."""
_TOO_LARGE = "It says a number of rows, bytes or txids that no table can have."


class LogFollower:
    """Reads one table's log into an index, each file once. For one thread.

    Args:
        table: its number in the index.
        storage: the table's folder.
        most: the number of newest versions to read and keep; there may be a few more.
    """

    def __init__(self, index: LogIndex, table: int, storage: Storage, most: int) -> None:
        self.newest = -1
        """The newest version that was read; -1: none yet."""
        self.oldest = 0
        """The oldest version that was read."""
        self.complete = False
        """True if nothing older is left to read."""
        self.is_gone = False
        """True if the log existed and is gone."""
        self.incarnation = 0
        """Raised when another table is found in the folder."""
        self._hinted: int | None = None
        """The hint of the call before: a wrong one must not cost more each time."""
        self._last: bytes | None = None
        """Digest of the newest commit file that was read: another table would have another file."""
        self._index = index
        self._table = table
        self._storage = storage
        self._most = most

    def catch_up(self, hint: int | None = None) -> int:
        """Read the versions that are new, and return how many. The first call finds the newest one.

        Args:
            hint: a version that exists according to ZooKeeper; None: unknown.
        """
        if self.newest < 0:
            start = self._start(hint)
            if start is None:
                return 0
            self._begin(start)
        # One file beyond the known versions: most calls end with that.
        far = hint if hint is not None and hint != self._hinted else self.newest
        self._hinted = hint
        ahead = min(max(self.newest, far), self.newest + _AT_ONCE) + 2
        last, *texts = self._texts(range(max(0, self.newest), ahead))
        if self.newest < 0:
            texts = [last, *texts]
        if _digest(last) != self._last if self._last else texts[0] is None:
            self._begin_again(is_there=last is not None)
            return 0
        self.is_gone = False
        count = 0
        while commits := self._parsed(range(self.newest + 1, self.newest + 1 + len(texts)), texts):
            self._index.add_newer(self._table, commits)
            self.newest += len(commits)
            self._last = _digest(texts[len(commits) - 1])
            count += len(commits)
            self._let_go()
            if len(commits) < len(texts):
                break
            texts = self._texts(range(self.newest + 1, self.newest + 1 + _AT_ONCE))
        return count

    def _let_go(self) -> None:
        """Forget the oldest versions, some at a time, if there are more than `most`."""
        if self.newest - self.oldest >= self._most + _AT_ONCE_GONE:
            self.oldest, self.complete = self.newest - self._most, True
            self._index.let_go(self._table, self.oldest)

    def _begin(self, start: int) -> None:
        self.newest, self.oldest, self.complete, self._last = start - 1, start, False, None

    def _begin_again(self, *, is_there: bool) -> None:
        """Start anew: the newest version that was read was replaced or is gone.

        A log's own clean-up keeps the newest version.
        """
        versions = self._versions()
        self.is_gone = not versions
        newer = [version for version in versions if version > self.newest]
        if newer and not is_there:  # no call for so long that those between were deleted
            self.newest, self._last = min(newer) - 1, None
        elif versions:  # another table lies there
            self._index.forget(self._table)
            self._begin(max(versions))
            self.incarnation += 1

    def step_back(self, turn: Callable[[], AbstractContextManager[object]] = nullcontext) -> bool:
        """Read some older versions. Returns True if there may be more.

        Args:
            turn: entered for work that keeps Python busy, and left to wait for storage.
        """
        if self.complete or self.newest < 0:
            return False
        low = max(0, self.oldest - _AT_ONCE)
        older = range(self.oldest - 1, low - 1, -1)
        texts = self._texts(older)
        with turn():
            commits = self._parsed(older, texts)
            self._index.add_older(self._table, commits)
        self.oldest -= len(commits)
        ended = len(commits) < len(older) or self.oldest == 0
        self.complete = ended or self.newest - self.oldest >= self._most
        return not self.complete

    def _start(self, hint: int | None) -> int | None:
        """Return a version near the newest whose file exists; None: there is no table."""
        last = checkpoint_version(self._storage.read(LAST_CHECKPOINT))
        for version in sorted({v for v in (hint, last, 0) if v is not None}, reverse=True):
            if self._storage.sizes([commit_path(version)])[0] is not None:
                return version
        return max(self._versions(), default=None)

    def _versions(self) -> list[int]:
        names = (path.rpartition("/")[2] for path, _ in self._storage.files("_delta_log"))
        return [int(n[:20]) for n in names if n.endswith(".json") and n[:20].isdecimal()]

    def _texts(self, versions: range) -> list[bytes | None]:
        return self._storage.read_many([commit_path(version) for version in versions])[0]

    def _parsed(self, versions: range, texts: Sequence[bytes | None]) -> list[Commit | Unreadable]:
        """Return the commits of these versions, up to the first missing one."""
        commits: list[Commit | Unreadable] = []
        for version, text in zip(versions, texts, strict=True):
            if text is None:
                break
            try:
                commit = parse_commit(version, text, self._storage.location)
            except RecoveryRefusedError as error:
                commits.append(Unreadable(version, str(error)))
                continue
            commits.append(commit if fits(commit) else Unreadable(version, _TOO_LARGE))
        return commits


class OwnLogFollower:
    """Reads the log that a committer keeps into an index: `LogFollower` for other tables."""

    complete = True
    is_gone = False
    incarnation = 0

    def __init__(self, index: LogIndex, table: int, log: KeepsOwnLog, most: int) -> None:
        self.newest = -1
        self.oldest = 0
        self._index = index
        self._table = table
        self._log = log
        self._most = most

    def catch_up(self, hint: int | None = None) -> int:
        """Read the publications that are new; returns how many."""
        new = takewhile(lambda entry: entry.version > self.newest, self._log.publications())
        commits = [
            Commit(entry.version, entry.timestamp_ms, "", publication=entry.publication)
            for entry in islice(new, self._most)
        ][::-1]
        if commits:
            self._index.add_newer(self._table, commits)
            self.oldest = self.oldest if self.newest >= 0 else commits[0].version
            self.newest = commits[-1].version
        return len(commits)

    def step_back(self, turn: Callable[[], AbstractContextManager[object]] = nullcontext) -> bool:
        """Read nothing: `catch_up` has read everything."""
        return False


def _digest(text: bytes | None) -> bytes | None:
    return None if text is None else hashlib.blake2b(text, digest_size=16).digest()
