"""What people are told of a `FileSpout`'s files: that there are none, which changed, and so on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from itertools import islice

from spouts._changed import Changed
from spouts._listing import Listing
from spouts._looks import Look, Looks
from txn.interfaces import NOTICES

__all__ = ["FileNotices"]

_NAMED = 20
"""Most names in one notice."""

log = logging.getLogger("txn.spouts.files")
notices = logging.getLogger(f"{NOTICES}.files")


class FileNotices:
    """Only the planner and who reads batches change it; another thread may ask for `texts`.

    Args:
        name: of the spout, for messages.
    """

    def __init__(self, name: str, listing: Listing, looks: Looks) -> None:
        self._name = name
        self._listing = listing
        self._looks = looks
        self._empty: str | None = None
        """That there is nothing to read, in words; None: there is, or nobody has looked."""
        self._stale: dict[str, int] = {}
        """Files that this run found changed, with their times."""
        self._replaced: tuple[str, ...] = ()
        """The first files with bytes that are not UTF-8."""
        self._changed = Changed(looks.times)
        self._newest_found = 0

    def texts(self) -> list[str]:
        """That the pattern matches no file, and which files were changed after they were read."""
        stale, replaced = self._stale, self._replaced
        return [
            *filter(None, [self._empty]),
            *([self._about_changed(stale)] if stale else []),
            *([self._about_replaced(replaced)] if replaced else []),
        ]

    def tell_replaced(self, names: Iterable[str]) -> None:
        """Warn once of files in which signs of replacement stand for bytes; of the first 20."""
        new = [name for name in names if name not in self._replaced]
        new = new[: _NAMED - len(self._replaced)]
        if new:
            self._replaced = (*self._replaced, *new)
            notices.warning("%s", self._about_replaced(new))

    def _about_replaced(self, names: Collection[str]) -> str:
        more = " and perhaps more" if len(names) == _NAMED else ""
        return (
            f"{self._name} has files with bytes that are not UTF-8, in whose rows \ufffd stands "
            f"for them: {', '.join(names)}{more}. If they have another encoding, give the spout "
            "encoding=; rows that are stored already stay as they are."
        )

    def take(self, files: Iterable[tuple[str, int | None]]) -> None:
        """Remember files, with their times, that are taken now."""
        self._changed.take(files)

    def newest(
        self, before: int | None, files: Iterable[int | None], *, is_first: bool
    ) -> int | None:
        """The newest time of all files taken and all changes told; None: not known of some.

        Args:
            before: that of the position before, as far as it says.
            files: times of the files that are taken now.
            is_first: whether there was no position before.
        """
        known = [self._newest_found] if self._newest_found else []
        if not is_first:
            earlier = self._changed.newest if before is None else before
            if earlier is None:
                return None
            known.append(earlier)
        return max([*known, *(time for time in files if time is not None)], default=None)

    def tell_if_empty(self, names: list[str]) -> None:
        """Warn once that the pattern matches nothing, and again only after it matched a file."""
        if names:
            self._empty = None
        elif self._empty is None:
            missing = self._listing.missing_folder()
            why = "" if missing is None else f", because the folder {missing} is not there"
            self._empty = (
                f"{self._name} matches no file now{why}, so there is nothing to read. Check the "
                "pattern if you expect files there; it looks again until there are some."
            )
            log.warning("%s", self._empty)

    def tell_changed(self, look: Look, newest: int | None) -> None:
        """Warn once of each file that was changed after it was taken, as far as this look sees.

        Args:
            newest: no file that was taken had a later time then; None: not known.
        """
        found = self._changed.look(look.names, look.unseen, newest)
        if not found:
            return
        self._newest_found = max([*found.values(), self._newest_found])
        self._stale = {**self._stale, **found}
        notices.warning("%s", self._about_changed(found))

    def tell_nothing_changed(self) -> None:
        """Nothing was taken yet: free what the looks keep for `tell_changed`."""
        self._looks.times(())

    def _about_changed(self, found: Collection[str]) -> str:
        listed = ", ".join(islice(found, _NAMED))
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        return (
            f"{self._name} had read these files before they were changed, and reads no file twice: "
            f"{listed}{more}. Rows that were added to them are in no table: write those into a new "
            "file."
        )
