"""The files that a `FileSpout` has listed and put into no batch yet, in reading order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

from spouts.files.folder.listing import FileStat, Listing
from spouts.files.folder.polls import Poll
from txn.interfaces import Lag

__all__ = ["Backlog"]

_SIZED = 10_000
"""Most files whose sizes are looked up for `lag`."""
_FRESH_SECS = 10.0
"""Seconds for which a listed size and time are used. Later they are read again: somebody may have
replaced the file before it was planned."""


class Backlog:
    """The files for the next batches. Only the planner changes it; any thread may ask for `lag`.

    Args:
        most: most names of one poll to keep.
    """

    def __init__(self, listing: Listing, most: int) -> None:
        self._listing = listing
        self._most = most
        self._names: deque[str] = deque()
        self._beyond = 0
        """The number of listed files that are not kept."""
        self._stats: dict[str, FileStat] = {}
        """Stats of kept files: remotely as they were listed, locally as far as asked."""
        self._listed_at = float("-inf")

    def clear(self) -> None:
        """Forget all files."""
        self._names.clear()
        self._beyond = 0

    def fill(self, poll: Poll) -> None:
        """Replace the backlog by the files of a poll."""
        self._names = deque(islice(poll.unseen, self._most))
        beyond = len(poll.unseen) - len(self._names)
        # The files of a poll that was cut short are among those that an earlier one counted.
        self._beyond = max(beyond, self._beyond - len(self._names)) if poll.is_cut else beyond
        self._stats, self._listed_at = poll.stats, time.monotonic()

    def take(self, most: int) -> list[tuple[str, FileStat]]:
        """Take at most so many files; drops names that are not files.

        Raises:
            OSError: the storage does not answer; some names are taken from the backlog.
        """
        files: list[tuple[str, FileStat]] = []
        while self._names and len(files) < most:
            count = min(len(self._names), most - len(files))
            names = [self._names.popleft() for _ in range(count)]
            stats = zip(names, self._stats_of(names), strict=True)
            # Without folders, and without files that are gone since the listing.
            files += [(name, stat) for name, stat in stats if stat is not None]
        return files

    def give_back(self, files: Sequence[tuple[str, FileStat]]) -> None:
        """Put the last files taken in front again."""
        self._names.extendleft(name for name, _ in reversed(files))

    def _stats_of(self, names: Sequence[str]) -> Sequence[FileStat | None]:
        """Return the stats of the listing while they are fresh, otherwise read them again."""
        listed = [self._stats.pop(name, None) for name in names]
        is_fresh = time.monotonic() - self._listed_at < _FRESH_SECS
        # An empty object may stand for a folder: a listing does not show the difference.
        if self._listing.remote and is_fresh and all(one and one.size for one in listed):
            return listed
        return self._listing.stats(names)

    def lag(self) -> Lag:
        """Return the number of files, and their bytes unless there are too many files."""
        # Copies: if the disk is slow, the next planning does not wait for this.
        names, stats = tuple(self._names), self._stats
        left = len(names) + self._beyond
        if self._beyond or left > _SIZED:
            return Lag(files=left)
        for name in names:
            if name not in stats:
                stats[name] = self._listing.stat(name) or FileStat(0, None)
        return Lag(files=left, bytes=sum(stats[name].size for name in names))
