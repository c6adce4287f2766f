"""What is left of a compaction that died: each says where its result will be before it begins.

    <table>/data/compaction-<random>/...             the result
    <table>/_txn/compaction-<random>/intent.json     there before the first byte of the result,
                                                     and until it is published

A result that no version refers to is deleted at the next start; whether one does is read from the
log, from the version named in the intent on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from txn.delta.commits import Commit
from txn.delta.folders import COMPACTION, DATA, SCRATCH
from txn.storage.storage import Storage

__all__ = ["Intents"]

_INTENT = "intent.json"


class Intents:
    """The folders of compactions that are not published yet. Thread-safe: it holds no state.

    Args:
        storage: the table's folder.
        new_id: source of folder names; letters and digits.
    """

    def __init__(self, storage: Storage, new_id: Callable[[], str]) -> None:
        self._storage = storage
        self._new_id = new_id

    def begin(self, version: int) -> str:
        """A folder for a compaction that will be published after `version`, if at all."""
        name = f"{COMPACTION}{self._new_id()}"
        intent = json.dumps({"version": version}).encode()
        self._storage.write(f"{SCRATCH}/{name}/{_INTENT}", intent)
        return f"{DATA}/{name}"

    def end(self, folder: str, *, delete: bool) -> None:
        """The compaction is published, or (`delete`) certainly never will be."""
        if delete:
            self._storage.delete_folder(folder)
        self._storage.delete_folder(f"{SCRATCH}/{PurePosixPath(folder).name}")

    def sweep(
        self,
        found: Iterable[str],
        newest: int,
        active: Iterable[str],
        read: Callable[[int], Commit | None],
    ) -> None:
        """Delete the results of dead processes that no version refers to.

        Called when no older process can append any more.

        Args:
            found: `StagingArea.folders`, from before the fence.
            newest: the table's version.
            active: paths of its files.
            read: one version of the log, None when that was cleaned out of it.
        """
        folders = {str(PurePosixPath(path).parent) for path in active}
        for path in found:
            below, _, name = path.partition("/")
            is_ours = below == SCRATCH and name.startswith(COMPACTION)
            started = self._started_after(name) if is_ours else None
            if started is None:
                continue
            folder = f"{DATA}/{name}"
            published = folder in folders or _may_have_been_added(folder, started, newest, read)
            self.end(folder, delete=not published)

    def _started_after(self, name: str) -> int | None:
        """The version in an intent; None: it was not written to its end, so no job began."""
        intent = self._storage.read(f"{SCRATCH}/{name}/{_INTENT}") or b""
        try:
            return int(json.loads(intent)["version"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


def _may_have_been_added(
    folder: str, started: int, newest: int, read: Callable[[int], Commit | None]
) -> bool:
    """Return whether a version after `started` added a file of `folder`, or this is unknown."""
    for version in range(newest, started, -1):
        commit = read(version)
        if commit is None or any(file.path.startswith(f"{folder}/") for file in commit.adds):
            return True
    return False
