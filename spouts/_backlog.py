"""Files that a `FileSpout` has found and put into no batch yet, in reading order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

from spouts._listing import FileStat, Listing
from spouts._looks import Look
from txn.interfaces import Lag

__all__ = ["Backlog"]

_SIZED = 10_000
"""Most files whose sizes are looked up for `lag`."""
_FRESH_SECS = 10.0
"""So long a file counts as it was listed. Later it is looked at again, since somebody may have
replaced a file that nobody had planned yet."""


class Backlog:
    """Only the planner changes it; another thread may ask for `lag`.

    Args:
        most: names of one look that are kept.
    """

    def __init__(self, listing: Listing, most: int) -> None:
        self._listing = listing
        self._most = most
        self._names: deque[str] = deque()
        self._beyond = 0
        """Files that were listed and are not kept."""
        self._stats: dict[str, FileStat] = {}
        """Of those that are kept: remotely as they were listed, locally as far as asked."""
        self._listed_at = float("-inf")

    def clear(self) -> None:
        """Forget all files."""
        self._names.clear()
        self._beyond = 0

    def fill(self, look: Look) -> None:
        """Keep what a look has found, in the place of what was there."""
        self._names = deque(islice(look.unseen, self._most))
        beyond = len(look.unseen) - len(self._names)
        # What a look saw before it was cut is part of what an earlier one counted.
        self._beyond = max(beyond, self._beyond - len(self._names)) if look.is_cut else beyond
        self._stats, self._listed_at = look.stats, time.monotonic()

    def take(self, most: int) -> list[tuple[str, FileStat]]:
        """Take so many files at most; names that are not files are dropped.

        Raises:
            OSError: the storage does not answer; some names are taken from the backlog.
        """
        files: list[tuple[str, FileStat]] = []
        while self._names and len(files) < most:
            count = min(len(self._names), most - len(files))
            names = [self._names.popleft() for _ in range(count)]
            found = zip(names, self._stats_of(names), strict=True)
            # Without folders, and without what is gone since the listing.
            files += [(name, stat) for name, stat in found if stat is not None]
        return files

    def give_back(self, files: Sequence[tuple[str, FileStat]]) -> None:
        """Put the last files taken in front again."""
        self._names.extendleft(name for name, _ in reversed(files))

    def _stats_of(self, names: Sequence[str]) -> Sequence[FileStat | None]:
        """As the listing had them, if that is no longer ago than looking at them would be wrong."""
        listed = [self._stats.pop(name, None) for name in names]
        is_fresh = time.monotonic() - self._listed_at < _FRESH_SECS
        # An empty object may stand for a folder, which a listing does not tell.
        if self._listing.remote and is_fresh and all(one and one.size for one in listed):
            return listed
        return self._listing.stats(names)

    def lag(self) -> Lag:
        """How many files there are, and their bytes, unless there are too many to look at.

        Raises:
            OSError: the storage does not answer.
        """
        # Copies: if the disk is slow, the next planning does not wait for this.
        names, stats = tuple(self._names), self._stats
        left = len(names) + self._beyond
        if self._beyond or left > _SIZED:
            return Lag(files=left)
        for name in names:
            if name not in stats:
                stats[name] = self._listing.stat(name) or FileStat(0, None)
        return Lag(files=left, bytes=sum(stats[name].size for name in names))
