"""When a `FileSpout` looks for new files, and where its look begins.

A local folder is looked at whenever the spout is asked, and always as a whole.

An object store is listed at most once in a while (`every_secs`), and never for more than half of
the time. Names that sort behind all others are what comes most often (a date, a number), and a
store lists from a name on. So most looks begin near the end of the last one: `_OVERLAP` names
before it, because uploads that run side by side do not end in the order of their names.

A name that sorts before that would be missed. So a look at everything follows at the latest when
the last one is as long ago as 20 times what it took (or 10 s): it takes a twentieth of the time at
most. Where everything is a page or less, each look is one. A run begins with one.

Where there are more new files than the spout keeps (`most`), the next look goes on behind those
that it kept, once they are taken, and ends when it has as many again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from spouts._listing import PAGE, FileStat, Listing, stat_of

__all__ = ["Look", "Looks"]

_OVERLAP = 900
"""With as many names again, still one page of S3's."""
_SHARE = 20
_LEAST_SECS = 10.0
_SECOND = 1_000_000_000

Unseen = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class Look:
    """What a look has found, in name order."""

    names: list[str]
    """All that it saw."""
    unseen: list[str]
    """Those of them that no batch took."""
    is_whole: bool = True
    """Whether it saw everything that is there."""
    is_cut: bool = False
    """Whether it ended early, because the spout keeps no more."""
    stats: dict[str, FileStat] = field(default_factory=dict)
    """Of a remote storage: size, time and version of the first of `unseen`."""


class Looks:
    """The looks of one spout. Not thread-safe: only the planner uses it.

    Args:
        every_secs: remotely, seconds between two looks at least.
        most: names of a look that the spout keeps for its next batches.
        monotonic: seconds.
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
        """The next look is at everything, and now."""
        self._next = self._next_whole = float("-inf")
        self._after = ""
        self._kept_up_to: str | None = None

    def look(self, unseen: Unseen) -> Look | None:
        """Look for files that no batch took; None: it is too early for that.

        Unless `begin` was called since, all that the last look kept must have been taken.

        Args:
            unseen: those of some names that no batch took.

        Raises:
            StorageUnavailableError, StorageRefusedError: the storage cannot be listed; the next
                look is at everything.
        """
        if not self._listing.remote:
            names = self._listing.names()
            return Look(names, unseen(names))
        begun, goes_on = self._monotonic(), self._kept_up_to is not None
        if begun < self._next and not goes_on:
            return None
        is_whole = not goes_on and (begun >= self._next_whole or not self._after)
        after, whole_at = self._kept_up_to or self._after, self._next_whole
        self.begin()
        found = self._list(unseen, "" if is_whole else after, is_whole, may_end=goes_on)
        ended = self._monotonic()
        self._next = ended + max(self._every, ended - begun)
        whole_in = max(_LEAST_SECS, _SHARE * (ended - begun))
        self._next_whole = ended + whole_in if is_whole else whole_at
        return found

    def _list(self, unseen: Unseen, after: str, is_whole: bool, may_end: bool) -> Look:
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
            found = unseen([*fitting])
            for name in found[: self._most - len(stats)]:
                stats[name] = stat_of(fitting[name])
            new += found
            if may_end and len(new) >= self._most and len(page) == at_once:
                is_cut = True
                break
        if len(last) == _OVERLAP or not is_whole:
            self._after = last[0]
        if len(new) > self._most or is_cut:
            self._kept_up_to = new[self._most - 1][len(base) :]
        self._seen = names, times
        return Look(names, new, is_whole, is_cut, stats)

    def times(self, names: Sequence[str]) -> Iterable[tuple[str, int | None]]:
        """When each of these files was changed last; without those that cannot be seen.

        Remotely as the last look saw them, in whole seconds, and for one call only.
        """
        if not self._listing.remote:
            return self._listing.times(names)
        (seen, times), self._seen = self._seen, ([], ())
        places = ((name, bisect_left(seen, name)) for name in names)
        return [(name, times[place]) for name, place in places if seen[place : place + 1] == [name]]
