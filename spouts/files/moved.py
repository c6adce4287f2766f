"""A folder that was moved or copied: its files have other names, and were read all the same.

The files that were taken are known by their whole names. So after a move all of them would be new,
and be read a second time. A pattern may also be pointed at another folder, whose files are new. The
two cannot be told apart by names alone: files of the same name and size are refused until the
program says which it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from spouts.files.batch import FileBatch, PlannedFile
from spouts.files.folder.listing import Listing
from txn.errors import TopologyError

__all__ = ["Moved", "moved_names"]

Moved = str | os.PathLike[str] | Literal[False] | None
_LOOKED_AT = 3
"""Files of the newest batch that are looked for in the new folder."""


def moved_names(
    name: str, listing: Listing, previous: FileBatch, moved_from: Moved
) -> tuple[str, str] | None:
    """Return how names begin now, and how they began when the first were taken; None: the same.

    Args:
        name: of the spout, for errors.
        moved_from: the folder in which the files were before; False: these are other files.

    Raises:
        TopologyError: files seem to have been read under other names, or the newest batch was not
            in the folder `moved_from`.
    """
    files = previous.files
    if not files or listing.is_below_base(files[0].path):
        return None if previous.named_as is None else (listing.base, previous.named_as)
    if moved_from is False:
        return None
    if moved_from is None:
        _refuse_known(name, listing, files[-_LOOKED_AT:])
        return None
    former = _base(os.fspath(moved_from), listing)
    if not files[0].path.startswith(former):
        raise TopologyError(
            f"{name} was given moved_from={os.fspath(moved_from)!r}, but the newest file that it "
            f"read is '{files[0].path}'. Name the folder in which that lies, as far as the pattern "
            "has no wildcard.",
            number="TXN-408",
        )
    return listing.base, former if previous.named_as is None else previous.named_as


def _base(folder: str, listing: Listing) -> str:
    if listing.remote:
        return f"{folder.rstrip('/')}/"
    path = os.path.normpath(Path(folder).expanduser()).rstrip("/")
    return "" if path == "." else f"{path}/"


def _refuse_known(name: str, listing: Listing, files: tuple[PlannedFile, ...]) -> None:
    for file in files:
        for below in _endings(file.path):
            there = listing.stat(listing.base + below)
            if there is None or there.size != file.size:
                continue
            if file.version and there.version and file.version != there.version:
                continue
            folder = file.path.removesuffix(below).rstrip("/")
            raise TopologyError(
                f"{name} has '{listing.base}{below}' of {file.size} bytes, and read "
                f"'{file.path}' of the same size before. If the folder was moved or copied, add "
                f"moved_from={folder!r} to the spout: its files are then not read again. If these "
                "are other files, add moved_from=False.",
                number="TXN-408",
            )


def _endings(path: str) -> list[str]:
    """Return the ends of a path that may be a name below the pattern's folder, longest first."""
    parts = path.split("/")[-4:]
    return ["/".join(parts[i:]) for i in range(len(parts)) if parts[i]]
