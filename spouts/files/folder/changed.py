"""Find files that were changed after a `FileSpout` took them: it does not read them again.

Nothing is kept per file. A position has the newest time of change of all files taken up to it, so
a taken file with a newer time was changed since. Each poll of the folder asks for the times of a
part of the files, from the last name backwards, round by round. New files taken during a round
advance that newest time, so a round compares with the time of the round before, and keeps the
names of the files taken since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

__all__ = ["Changed"]

_PART = 1_000
"""Files whose times one poll asks for: some milliseconds on a local disk."""
_RECENT = 20_000
"""Most files of a round whose names are kept."""

Times = Callable[[Sequence[str]], Iterable["tuple[str, int | None]"]]


class Changed:
    """Finds changed files, each once. Not thread-safe: only the planner uses it.

    Args:
        times: returns the time of change of each file, nanoseconds since 1970; None: unknown.
        part: most files to ask for in one poll.
    """

    def __init__(self, times: Times, part: int = _PART) -> None:
        self._times = times
        self._part = part
        self._reported: set[str] = set()
        self._below: str | None = None
        """Names from this one on were checked in this round; None: it has not begun."""
        self._marks: tuple[int | None, int | None] = (None, None)
        """Newest time of all files taken, at the start of the round before and of this one."""
        self._taken: tuple[dict[str, int | None], dict[str, int | None]] = ({}, {})
        """Files taken in the round before, and in this one, with their times."""
        self._highest: int | None = None
        """The newest time seen in this round."""

    @property
    def newest(self) -> int | None:
        """The newest time of all files taken, as far as seen here; None: unknown."""
        mark = self._marks[1]
        if mark is None:
            return None
        return max([mark, *(t for taken in self._taken for t in taken.values() if t is not None)])

    def take(self, files: Iterable[tuple[str, int | None]]) -> None:
        """Remember files that are taken now, with their times."""
        before, current = self._taken
        current.update(files)
        if len(before) + len(current) > _RECENT:
            self._below, self._marks, self._taken = None, (None, None), ({}, {})

    def look(
        self, names: Sequence[str], unseen: Sequence[str], newest: int | None
    ) -> dict[str, int]:
        """Return newly changed files with their times.

        Args:
            names: all existing files, in name order.
            unseen: the files not taken yet, in name order.
            newest: the newest time of all files taken when they were taken; None: unknown.
        """
        end = self._end(names, newest)
        part = names[max(0, end - self._part) : end]
        self._below = part[0] if part and len(part) < end else None
        changed: dict[str, int] = {}
        for name, time in self._times([n for n in part if not _contains(n, unseen)]):
            if time is None:
                continue
            self._highest = time if self._highest is None else max(self._highest, time)
            if name not in self._reported and self._is_changed(name, time):
                changed[name] = time
        self._reported.update(changed)
        return changed

    def _end(self, names: Sequence[str], newest: int | None) -> int:
        """Return the end of the part to check now; begins another round if the last is over."""
        if self._below is not None:
            return bisect_left(names, self._below)
        # If the position does not have it, the newest time of one round takes its place.
        mark = self._highest if newest is None else newest
        self._marks = (mark if self._marks[1] is None else self._marks[1], mark)
        self._taken = (self._taken[1], {})
        self._highest = None
        return len(names)

    def _is_changed(self, name: str, time: int) -> bool:
        before, current = self._taken
        if name in current or name in before:
            taken_at = current.get(name, before.get(name))
            return taken_at is not None and time > taken_at
        return self._marks[0] is not None and time > self._marks[0]


def _contains(name: str, ordered: Sequence[str]) -> bool:
    place = bisect_left(ordered, name)
    return place < len(ordered) and ordered[place] == name
