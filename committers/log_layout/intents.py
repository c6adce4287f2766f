"""Find and delete the results of dead compactions: each records its folder before it begins.

    <table>/data/compaction-<random>/...             the result
    <table>/_txn/compaction-<random>/intent.json     exists from before the first byte of the
                                                     result until it is published

The next start deletes a result that no version refers to; it searches the log from the version in
the intent on.
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
    """The folders of compactions that are not published yet. Thread-safe: it has no state."""

    def __init__(self, storage: Storage, new_id: Callable[[], str]) -> None:
        self._storage = storage
        self._new_id = new_id

    def begin(self, version: int) -> str:
        """Record a compaction that will be published after `version`, if at all; its folder."""
        name = f"{COMPACTION}{self._new_id()}"
        intent = json.dumps({"version": version}).encode()
        self._storage.write(f"{SCRATCH}/{name}/{_INTENT}", intent)
        return f"{DATA}/{name}"

    def end(self, folder: str, *, delete: bool) -> None:
        """Delete the record of a compaction; with `delete`, its unpublished result as well."""
        if delete:
            self._storage.delete_folder(folder)
        self._storage.delete_folder(f"{SCRATCH}/{PurePosixPath(folder).name}")

    def sweep(
        self,
        staged: Iterable[str],
        newest: int,
        active: Iterable[str],
        read: Callable[[int], Commit | None],
    ) -> None:
        """Delete the results of dead processes that no version refers to.

        Called when no older process can append any longer.

        Args:
            staged: `StagingArea.folders`, listed before the fence.
            newest: the table's version.
            active: paths of its files.
            read: reads one version of the log; None if it was cleaned out.
        """
        folders = {str(PurePosixPath(path).parent) for path in active}
        for path in staged:
            below, _, name = path.partition("/")
            is_compaction = below == SCRATCH and name.startswith(COMPACTION)
            started = self._started_after(name) if is_compaction else None
            if started is None:
                continue
            folder = f"{DATA}/{name}"
            published = folder in folders or _may_have_been_added(folder, started, newest, read)
            self.end(folder, delete=not published)

    def _started_after(self, name: str) -> int | None:
        """The version in an intent; None if the intent is incomplete, so that no job began."""
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
