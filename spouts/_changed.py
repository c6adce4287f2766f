"""Files that were changed after a `FileSpout` took them: it will not read them again.

Nothing is kept per file. A position has the newest time of change of all files that were taken up
to it, so a file that was taken and now has a newer one was changed since. Each look at the folder
asks for the times of a part of the files, from the last name backwards, round by round. New files
that are taken during a round move that newest time on, so a round compares with the one of the
round before, and knows the files that were taken since by name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

__all__ = ["Changed"]

_PART = 1_000
"""Files whose times one look asks for: some milliseconds on a local disk."""
_RECENT = 20_000
"""Most files of a round that are known by name."""

Times = Callable[[Sequence[str]], Iterable["tuple[str, int | None]"]]


class Changed:
    """Finds changed files, each once. Not thread-safe: only the planner uses it.

    Args:
        times: the time of change of each of these files, nanoseconds since 1970; None: not known.
        part: most files to ask for in one look.
    """

    def __init__(self, times: Times, part: int = _PART) -> None:
        self._times = times
        self._part = part
        self._found: set[str] = set()
        self._below: str | None = None
        """Names from here on had their turn in this round; None: it has not begun."""
        self._marks: tuple[int | None, int | None] = (None, None)
        """Newest time of what was taken when the round before began, and when this one did."""
        self._taken: tuple[dict[str, int | None], dict[str, int | None]] = ({}, {})
        """What was taken in the round before, and in this one, with its time."""
        self._highest: int | None = None
        """Of the times seen in this round."""

    @property
    def newest(self) -> int | None:
        """No file that was taken had a later time then, by what was seen here; None: not known."""
        mark = self._marks[1]
        if mark is None:
            return None
        return max([mark, *(t for taken in self._taken for t in taken.values() if t is not None)])

    def take(self, files: Iterable[tuple[str, int | None]]) -> None:
        """Remember files, with their times, that are taken now."""
        before, now = self._taken
        now.update(files)
        if len(before) + len(now) > _RECENT:
            self._below, self._marks, self._taken = None, (None, None), ({}, {})

    def look(
        self, names: Sequence[str], unseen: Sequence[str], newest: int | None
    ) -> dict[str, int]:
        """The files that were found changed now, with their times.

        Args:
            names: all that are there, in name order.
            unseen: those of them that were not taken yet, in name order.
            newest: no file that was taken had a later time then; None: not known.
        """
        end = self._end(names, newest)
        part = names[max(0, end - self._part) : end]
        self._below = part[0] if part and len(part) < end else None
        found: dict[str, int] = {}
        for name, time in self._times([n for n in part if not _among(n, unseen)]):
            if time is None:
                continue
            self._highest = time if self._highest is None else max(self._highest, time)
            if name not in self._found and self._is_changed(name, time):
                found[name] = time
        self._found.update(found)
        return found

    def _end(self, names: Sequence[str], newest: int | None) -> int:
        """Where the part that has its turn ends; begins another round if there is none."""
        if self._below is not None:
            return bisect_left(names, self._below)
        # Of a position that does not say it, what one round has seen stands for it.
        mark = self._highest if newest is None else newest
        self._marks = (mark if self._marks[1] is None else self._marks[1], mark)
        self._taken = (self._taken[1], {})
        self._highest = None
        return len(names)

    def _is_changed(self, name: str, time: int) -> bool:
        before, now = self._taken
        if name in now or name in before:
            taken_at = now.get(name, before.get(name))
            return taken_at is not None and time > taken_at
        return self._marks[0] is not None and time > self._marks[0]


def _among(name: str, ordered: Sequence[str]) -> bool:
    place = bisect_left(ordered, name)
    return place < len(ordered) and ordered[place] == name
