"""The notices of a `FileSpout` to people: no files, changed files, replaced bytes."""

from __future__ import annotations

import glob
import logging
from collections.abc import Collection, Iterable
from itertools import islice

from spouts.files.folder.changed import Changed
from spouts.files.folder.listing import Listing
from spouts.files.folder.polls import Poll, Polls
from txn.interfaces import NOTICES

__all__ = ["FileNotices"]

_NAMED = 20
"""Most names in one notice."""

log = logging.getLogger("txn.spouts.files")
notices = logging.getLogger(f"{NOTICES}.files")


class FileNotices:
    """The notices of one run. The planner and readers change it; any thread may ask for `texts`."""

    def __init__(self, name: str, listing: Listing, polls: Polls) -> None:
        self._name = name
        self._listing = listing
        self._polls = polls
        self._empty: str | None = None
        """The notice that there is nothing to read; None: there is, or it is unknown."""
        self._stale: dict[str, int] = {}
        """Files that this run found changed, with their times."""
        self._replaced: tuple[str, ...] = ()
        """The first files with bytes that are not UTF-8."""
        self._changed = Changed(polls.times)
        self._newest_found = 0

    def texts(self) -> list[str]:
        """Return the notices: no file, files changed after reading, replaced bytes."""
        stale, replaced = self._stale, self._replaced
        return [
            *filter(None, [self._empty]),
            *([self._changed_notice(stale)] if stale else []),
            *([self._replaced_notice(replaced)] if replaced else []),
        ]

    def tell_replaced(self, names: Iterable[str]) -> None:
        """Warn once of each file with bytes that were replaced by U+FFFD; of the first 20."""
        new = [name for name in names if name not in self._replaced]
        new = new[: _NAMED - len(self._replaced)]
        if new:
            self._replaced = (*self._replaced, *new)
            notices.warning("%s", self._replaced_notice(new))

    def _replaced_notice(self, names: Collection[str]) -> str:
        more = " and perhaps more" if len(names) == _NAMED else ""
        return (
            f"{self._name} has files with bytes that are not UTF-8, in whose rows \ufffd stands "
            f"for them: {', '.join(names)}{more}. If they have another encoding, give the spout "
            "encoding=; rows that are stored already stay as they are."
        )

    def take(self, files: Iterable[tuple[str, int | None]]) -> None:
        """Remember files that are taken now, with their times."""
        self._changed.take(files)

    def newest(
        self, before: int | None, files: Iterable[int | None], *, is_first: bool
    ) -> int | None:
        """Return the newest time of all files taken and all reported changes; None: unknown.

        Args:
            before: the newest time in the position before, if it has one.
            files: times of the files that are taken now.
            is_first: True if there was no position before.
        """
        times = [self._newest_found] if self._newest_found else []
        if not is_first:
            earlier = self._changed.newest if before is None else before
            if earlier is None:
                return None
            times.append(earlier)
        return max([*times, *(time for time in files if time is not None)], default=None)

    def tell_if_empty(self, names: list[str]) -> None:
        """Warn once that the pattern matches nothing, and again only after it matched a file."""
        if names:
            self._empty = None
        elif self._empty is None:
            missing = self._listing.missing_folder()
            why = "" if missing is None else f", because the folder {missing} is not there"
            if literal := self._listing.literal_folder():
                why = (
                    f", because '[' begins a set of characters: for the folder {literal} write "
                    f"{glob.escape(literal)}"
                )
            self._empty = (
                f"{self._name} matches no file now{why}, so there is nothing to read. Check the "
                "pattern if you expect files there; it looks again until there are some."
            )
            log.warning("%s", self._empty)

    def tell_changed(self, poll: Poll, newest: int | None) -> None:
        """Warn once of each file that was changed after it was taken, as far as this poll shows.

        Args:
            newest: the newest time of all files taken when they were taken; None: unknown.
        """
        changed = self._changed.look(poll.names, poll.unseen, newest)
        if not changed:
            return
        self._newest_found = max([*changed.values(), self._newest_found])
        self._stale = {**self._stale, **changed}
        notices.warning("%s", self._changed_notice(changed))

    def tell_nothing_changed(self) -> None:
        """Free the times that `Polls` keeps for `tell_changed`: nothing was taken yet."""
        self._polls.times(())

    def _changed_notice(self, names: Collection[str]) -> str:
        listed = ", ".join(islice(names, _NAMED))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return (
            f"{self._name} had read these files before they were changed, and reads no file twice: "
            f"{listed}{more}. Rows that were added to them are in no table: write those into a new "
            "file."
        )
