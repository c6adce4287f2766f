"""Compaction of a log table: which files are folded, and what is left of one that died.

Size-tiered: a tier holds the files (or results of compactions) of about the same size, each tier
`factor` times as large as the one below. When a tier has `factor` of them, they and the smaller
ones are folded by key into one. Where batches have mostly the same keys, the result is as large as
one of the files and takes its place; where keys are new, it belongs to the next tier. So of n bytes
a table has at most `factor` files per tier, log_factor(n) tiers, and what is split by size.
The cost of folds is spread over time (`Pace`); up to `MOST_WAITING` times as many files wait.

    <table>/data/compaction-<random>/...             the result
    <table>/_txn/compaction-<random>/intent.json     there before the first byte of the result,
                                                     and until it is published

A result that no version refers to is deleted at the next start; whether one does is read from the
log, from the version named in the intent on.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from committers.publishing.files import ActiveFile
from committers.staging.area import DATA, SCRATCH
from txn.delta.commits import Commit
from txn.interfaces import StagedFile
from txn.storage.storage import Storage

__all__ = ["MOST_WAITING", "Compaction", "Intents", "Pace", "files_to_fold"]

MOST_WAITING = 4
"""How many times as many files as make a tier full wait at most for their fold's time to come."""
JOB_SECS = 0.3
BYTES_PER_SEC = 25e6
"""Costs of a fold: a Spark job, and (compressed) bytes of one task on an average machine."""
SMALLEST_TIER = 64 * 1024
"""Bytes up to which files are in the lowest tier."""

_NAME = "compaction-"
_INTENT = "intent.json"


@dataclass(frozen=True)
class Compaction:
    """The result of one compaction, before it is published."""

    folder: str
    adds: tuple[StagedFile, ...]
    removes: tuple[ActiveFile, ...]

    @property
    def txids(self) -> tuple[int, int]:
        """First and last txid of the rows."""
        first = min(file.txid_min or 0 for file in self.removes)
        return first, max(file.txid_max or 0 for file in self.removes)


class Pace:
    """When a fold may begin, so that all of them together take a share of the time at most.

    Args:
        share: above 0, up to 1; 1: at once.
        clock: seconds that never go back.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._rest = 1 / share - 1
        self._clock = clock
        self._since = clock()

    def begin(self, size: int) -> bool:
        """Return whether the time since the last fold pays for one of this size (compressed)."""
        return self._clock() - self._since >= self._rest * (JOB_SECS + size / BYTES_PER_SEC)

    def end(self) -> None:
        """A fold has ended, whatever came of it."""
        self._since = self._clock()


def files_to_fold(
    files: Iterable[ActiveFile], committed: int, factor: int, full: int | None = None
) -> tuple[ActiveFile, ...]:
    """The files of the lowest full tier and of those below it; none when no tier is full.

    Args:
        files: of the current version of the table.
        committed: files that may hold rows of later txids are left alone.
        factor: how many times as large the files of the next tier are; 2 or more.
        full: how many files make a tier full; None: `factor`.
    """
    made: dict[str, list[ActiveFile]] = defaultdict(list)
    for file in files:
        if not file.may_hold(committed + 1):
            made[_run_of(file.path)].append(file)
    tiers: dict[int, list[list[ActiveFile]]] = defaultdict(list)
    for run in made.values():
        tiers[_tier(sum(file.size for file in run), factor)].append(run)
    enough = full or factor
    lowest = min((tier for tier, found in tiers.items() if len(found) >= enough), default=None)
    if lowest is None:
        return ()
    some = (runs for tier, runs in tiers.items() if tier <= lowest)
    chosen = (file for runs in some for run in runs for file in run)
    return tuple(sorted(chosen, key=lambda file: file.path))


def _run_of(path: str) -> str:
    """Files that one compaction wrote are one: they were split by size, and by key."""
    parts = PurePosixPath(path).parts
    ours = len(parts) > 2 and parts[0] == DATA and parts[1].startswith(_NAME)
    return "/".join(parts[:2]) if ours else path


def _tier(size: int, factor: int) -> int:
    return math.ceil(math.log(max(size / SMALLEST_TIER, 1), factor))


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
        name = f"{_NAME}{self._new_id()}"
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
            is_ours = below == SCRATCH and name.startswith(_NAME)
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
