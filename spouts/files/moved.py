"""A folder that was moved or copied: its files have other names, and were read all the same.

The files that were taken are known by their whole names. So after a move all of them would be new,
and be read a second time. A pattern may also be pointed at another folder, whose files are new. So
where the newest files are not below the pattern's folder, each folder above them is tried as its
former name: if files are known by it, they were read, or others with their names were.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from spouts.files.batch import FileBatch
from spouts.files.folder.listing import Listing
from spouts.files.folder.seen import Taking
from txn.errors import TopologyError

__all__ = ["Moved", "check_moved_from", "moved_names"]

Moved = str | os.PathLike[str] | Literal[False] | None
_LOOKED_AT = 50_000
"""Files from each end of the folder that are compared with those that were read."""


def check_moved_from(name: str, moved_from: object) -> None:
    """Refuse a `moved_from` that is no folder.

    Raises:
        TopologyError: as said.
    """
    if moved_from not in (None, False) and not isinstance(moved_from, str | os.PathLike):
        raise TopologyError(
            f"{name} was given moved_from={moved_from!r}. It is the folder in which the files "
            "were, as text or a path; or False if they are other files.",
            number="TXN-408",
        )


def moved_names(
    name: str, listing: Listing, taking: Taking, previous: FileBatch, moved_from: Moved
) -> tuple[str, str] | None:
    """Return how names begin now, and how they began when the first were taken; None: the same.

    Args:
        name: of the spout, for errors.
        taking: the files that were taken.
        moved_from: the folder in which the files were before; False: these are other files.

    Raises:
        TopologyError: files were read under other names, or `moved_from` is another folder.
        OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
    """
    newest = previous.files[0].path if previous.files else ""
    if not newest or listing.is_below_base(newest):
        return None if previous.named_as is None else (listing.base, previous.named_as)
    linked = next((one for one in _folders(newest) if _is_same_folder(listing, one)), None)
    if linked is not None:
        former = linked
    elif moved_from is False:
        return None
    else:
        files = _Files(name, listing, taking, previous)
        if moved_from is None:
            files.refuse_known()
            return None
        former = _base(os.fspath(moved_from), listing)
        files.require_fit(former)
    return listing.base, former if previous.named_as is None else previous.named_as


def _folders(path: str) -> Iterator[str]:
    """Yield the folders above a file, the nearest first, each as the beginning of names."""
    while "/" in path.rstrip("/"):
        path = path.rstrip("/").rpartition("/")[0] + "/"
        if path.endswith("://"):
            return
        yield path
    if not path.startswith("/") and ":/" not in path:
        yield ""


def _is_same_folder(listing: Listing, former: str) -> bool:
    """Return whether a folder of this machine is the pattern's under another name, by a link."""
    if listing.remote:
        return False
    now, then = Path(listing.local(listing.base)), Path(listing.local(former))
    return then.is_dir() and now.resolve() == then.resolve()


def _base(folder: str, listing: Listing) -> str:
    if listing.remote:
        return f"{folder.rstrip('/')}/"
    path = os.path.normpath(Path(folder).expanduser()).rstrip("/")
    return "" if path == "." else f"{path}/"


class _Files:
    """The files that lie in the pattern's folder, compared with those that were taken."""

    def __init__(self, name: str, listing: Listing, taking: Taking, previous: FileBatch) -> None:
        self._name = name
        self._listing = listing
        self._taking = taking
        self._previous = previous
        self._newest = previous.files[0].path
        self._folders = list(_folders(self._newest))
        names = listing.names()
        if len(names) > 2 * _LOOKED_AT:
            names = names[:_LOOKED_AT] + names[-_LOOKED_AT:]
        self._below = [one.removeprefix(listing.base) for one in names]

    def _known(self, former: str) -> list[str]:
        """Return the files that were taken, if `former` was the folder's name when they were."""
        named_as = former if self._previous.named_as is None else self._previous.named_as
        unseen = set(self._taking.unseen([named_as + one for one in self._below], self._previous))
        return [one for one in self._below if named_as + one not in unseen]

    def require_fit(self, former: str) -> None:
        """Refuse a folder by whose name no file is known, while files are by another's."""
        is_above = self._newest.startswith(former)
        others = [one for one in self._folders if one != former and self._known(one)]
        if is_above and (not others or self._known(former)):
            return
        known_as = f" Files of it are known as those of {others[0].rstrip('/')!r}: name that."
        raise TopologyError(
            f"{self._name} was given moved_from={former.rstrip('/')!r}, which is not the former "
            f"name of '{self._listing.base}': the newest file that it read is '{self._newest}'."
            f"{known_as if others else ''} It is the folder of the pattern as far as that has no "
            "wildcard.",
            number="TXN-408",
        )

    def refuse_known(self) -> None:
        """Refuse files that were taken by the name of another folder, or seem to be copies."""
        for former in self._folders:
            for below in self._known(former):
                known, before = self._listing.base + below, former + below
                if _is_another(self._listing, known, before):
                    continue
                raise TopologyError(
                    f"{self._name} has '{known}', and '{before}' was read before. If the folder "
                    f"was moved or copied, add moved_from={former.rstrip('/') or '.'!r} to the "
                    "spout: its files are then not read again. If these are other files, add "
                    "moved_from=False.",
                    number="TXN-408",
                )


def _is_another(listing: Listing, known: str, before: str) -> bool:
    """Return whether both files exist and have other sizes: neither is a copy of the other."""
    if listing.remote:
        return False  # the listing reaches no other folder
    try:
        then, now = (Path(listing.local(one)).stat() for one in (before, known))
    except OSError:
        return False
    return then.st_size != now.st_size
