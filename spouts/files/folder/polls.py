"""Decide when a `FileSpout` polls for new files, and from which name on.

A local folder is polled whenever the spout is asked, and always as a whole.

An object store is polled at most every `every_secs`, and for at most half of the time. New names
mostly sort after all others (a date, a number), and a store lists from a name on. So most polls
begin near the end of the last one: `_OVERLAP` names before it, because parallel uploads do not end
in the order of their names.

Such a poll misses a name that sorts before its beginning. So a whole poll follows at the latest
20 times as long after the last whole one as that one took (or 10 s): whole polls take at most a
twentieth of the time. If all files fit into a page, every poll is whole. So is the first of a run.

If there are more new files than the spout keeps (`most`), the next poll continues after the kept
ones, once they are taken, and ends when it has as many again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from spouts.files.folder.listing import PAGE, FileStat, Listing, stat_of

__all__ = ["Poll", "Polls"]

_OVERLAP = 900
"""Together with as many new names, one page of S3."""
_SHARE = 20
_LEAST_SECS = 10.0
_SECOND = 1_000_000_000

Unseen = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class Poll:
    """The result of a poll, in name order."""

    names: list[str]
    """All names that it listed."""
    unseen: list[str]
    """The names that no batch took."""
    is_whole: bool = True
    """True if it listed all files."""
    is_cut: bool = False
    """True if it ended early, because the spout keeps no more."""
    stats: dict[str, FileStat] = field(default_factory=dict)
    """Size, time and version of the first of `unseen`, for a remote storage."""


class Polls:
    """The polls of one spout. Not thread-safe: only the planner uses it.

    Args:
        every_secs: least seconds between two polls of a remote storage.
        most: names of a poll that the spout keeps for its next batches.
        monotonic: a clock in seconds.
    """

    def __init__(
        self, listing: Listing, every_secs: float, most: int, monotonic: Callable[[], float]
    ) -> None:
        self._listing = listing
        self._every = every_secs
        self._most = most
        self._monotonic = monotonic
        self._seen: tuple[list[str], Sequence[int]] = [], ()
        self.begin()

    def begin(self) -> None:
        """Make the next poll a whole one, and due now."""
        self._next = self._next_whole = float("-inf")
        self._after = ""
        self._kept_up_to: str | None = None

    def poll(self, unseen: Unseen) -> Poll | None:
        """Poll for files that no batch took; None: it is too early.

        Unless `begin` was called since, all files kept from the last poll must have been taken.

        Args:
            unseen: filters names: returns those that no batch took.

        Raises:
            StorageUnavailableError, StorageRefusedError: the storage cannot be listed; the next
                poll is a whole one.
        """
        if not self._listing.remote:
            names = self._listing.names()
            return Poll(names, unseen(names))
        begun, goes_on = self._monotonic(), self._kept_up_to is not None
        if begun < self._next and not goes_on:
            return None
        is_whole = not goes_on and (begun >= self._next_whole or not self._after)
        after, whole_at = self._kept_up_to or self._after, self._next_whole
        self.begin()
        result = self._list(unseen, "" if is_whole else after, is_whole, may_end=goes_on)
        ended = self._monotonic()
        self._next = ended + max(self._every, ended - begun)
        whole_in = max(_LEAST_SECS, _SHARE * (ended - begun))
        self._next_whole = ended + whole_in if is_whole else whole_at
        return result

    def _list(self, unseen: Unseen, after: str, is_whole: bool, may_end: bool) -> Poll:
        base = self._listing.base
        names: list[str] = []
        new: list[str] = []
        times, stats = array("q"), dict[str, FileStat]()
        last = deque[str]([after] * (not is_whole), maxlen=_OVERLAP)
        is_cut, at_once = False, min(PAGE, self._most)
        for page in self._listing.pages(after, at_once):
            last.extend(entry.path for entry in page)
            fitting = {base + entry.path: entry for entry in page if self._listing.fits(entry)}
            names += fitting
            times.extend(entry.modified_ns // _SECOND * _SECOND for entry in fitting.values())
            new_names = unseen([*fitting])
            for name in new_names[: self._most - len(stats)]:
                stats[name] = stat_of(fitting[name])
            new += new_names
            if may_end and len(new) >= self._most and len(page) == at_once:
                is_cut = True
                break
        if len(last) == _OVERLAP or not is_whole:
            self._after = last[0]
        if len(new) > self._most or is_cut:
            self._kept_up_to = new[self._most - 1][len(base) :]
        self._seen = names, times
        return Poll(names, new, is_whole, is_cut, stats)

    def times(self, names: Sequence[str]) -> Iterable[tuple[str, int | None]]:
        """Return the time of change of each file; skips files that cannot be read.

        Remotely the times of the last poll, in whole seconds, and for one call only.
        """
        if not self._listing.remote:
            return self._listing.times(names)
        (seen, times), self._seen = self._seen, ([], ())
        places = ((name, bisect_left(seen, name)) for name in names)
        return [(name, times[place]) for name, place in places if seen[place : place + 1] == [name]]
