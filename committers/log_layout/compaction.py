"""Compaction of a log table: choose the files to merge into one, and the time.

Size-tiered: a tier holds the files (or results of compactions) of about the same size, each tier
`factor` times as large as the one below. When a tier has `factor` of them, they and the smaller
ones are merged by key into one. If batches have mostly the same keys, the result is as large as one
of the files and takes its place; if keys are new, it belongs to the next tier. So a table of n
bytes has at most `factor` files per tier, log_factor(n) tiers, and the parts of files split by
size.
Tiers alone would let a table's smaller files outgrow its largest, which has each key once: a reader
would aggregate several times as many rows as there are keys. So, given `factor` files, all of them
are merged as soon as the smaller ones have more than `SMALL_SHARE` of the largest one's bytes: up
to that share a reader merges only the keys of the smaller ones.
The cost of compactions is spread over time (`Pace`); up to `MOST_WAITING` times as many files wait.

A table that had no new version for `STILL_SECS` is read more than it is written: all of its files
become one, unless the smaller ones have at most `STILL_SHARE` of the largest one's bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from committers.publishing.files import ActiveFile
from committers.state.stored import SMALL_SHARE, run_of
from txn.interfaces import StagedFile

__all__ = ["MOST_WAITING", "Compaction", "Pace", "files_to_compact", "with_files_between"]

MOST_WAITING = 4
"""The most files that wait for the pace, as a multiple of the files that fill a tier."""
STILL_SECS = 30.0
"""Seconds without a new version, after which a table is quiet."""
STILL_SHARE = 1 / 16
"""The share of the largest part's compressed bytes that the rest may have in a quiet table without
being merged. So a merge writes at most some 17 bytes for each new one."""
JOB_SECS = 0.3
BYTES_PER_SEC = 25e6
"""Costs of a compaction: a Spark job, and (compressed) bytes of one task on an average machine."""
SMALLEST_TIER = 64 * 1024
"""Bytes up to which files are in the lowest tier."""


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
    """Decides when a compaction may begin, so that all together take at most a share of the time.

    Args:
        share: above 0, up to 1; 1: no waiting.
        clock: monotonic seconds.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._rest = 1 / share - 1
        self._clock = clock
        self._since = self._still_since = self._began = clock()
        self._took = 0.0
        self._version = -1

    def may_begin(self, size: int) -> bool:
        """Return whether enough time has passed to pay for the last compaction and for this one."""
        cost = JOB_SECS + size / BYTES_PER_SEC
        return self._clock() - self._since >= self._rest * max(cost, self._took)

    def begin(self) -> None:
        """Record the start of a compaction, paid for or not."""
        self._began = self._clock()

    def end(self) -> None:
        """Record the end of a compaction, successful or not."""
        self._since = self._clock()
        self._took = self._since - self._began

    def is_still(self, version: int) -> bool:
        """Return whether the table has had this version for `STILL_SECS`."""
        now = self._clock()
        if version != self._version:
            self._version, self._still_since = version, now
        return now - self._still_since >= STILL_SECS


def files_to_compact(
    files: Iterable[ActiveFile],
    committed: int,
    factor: int,
    full: int | None = None,
    *,
    still: bool = False,
) -> tuple[ActiveFile, ...]:
    """Choose the files of the lowest full tier and below; all, if the smaller ones are too large.

    Args:
        files: of the current version of the table.
        committed: leave files alone that may hold rows of later txids.
        factor: the ratio of the file sizes of two adjacent tiers; 2 or more.
        full: the number of files that fill a tier; None: `factor`.
        still: True if the table is quiet.
    """
    # The files of one compaction or one attempt count as one: they were split by size, and by key.
    made: dict[tuple[str, int], list[ActiveFile]] = defaultdict(list)
    for file in files:
        if not file.may_hold(committed + 1):
            made[run_of(file) or (file.path, 0)].append(file)
    tiers: dict[int, list[list[ActiveFile]]] = defaultdict(list)
    for run in made.values():
        tiers[_tier(sum(file.size for file in run), factor)].append(run)
    enough = full or factor
    lowest = min((tier for tier, runs in tiers.items() if len(runs) >= enough), default=None)
    outgrown = lowest is None and len(made) >= enough and _outgrown(made.values(), SMALL_SHARE)
    if outgrown or (still and _outgrown(made.values(), STILL_SHARE)):
        lowest = max(tiers)
    if lowest is None:
        return ()
    some = (runs for tier, runs in tiers.items() if tier <= lowest)
    chosen = (file for runs in some for run in runs for file in run)
    return tuple(sorted(chosen, key=lambda file: file.path))


def with_files_between(
    chosen: Sequence[ActiveFile], active: Sequence[ActiveFile]
) -> tuple[ActiveFile, ...]:
    """Add the files with txids between those of the chosen ones, so that none is left out."""
    by_path = {file.path: file for file in chosen}
    size = 0
    while len(by_path) > size:  # an OPTIMIZE may have joined txids far from each other
        size = len(by_path)
        first = min(file.txid_min or 0 for file in by_path.values())
        last = max(file.txid_max or 0 for file in by_path.values())
        by_path |= {
            f.path: f for f in active if (f.txid_min or 0) <= last and (f.txid_max or 0) >= first
        }
    return tuple(by_path[path] for path in sorted(by_path))


def _outgrown(runs: Iterable[Sequence[ActiveFile]], share: float) -> bool:
    """Return whether the smaller runs have more than this share of the largest one's bytes."""
    *smaller, largest = sorted(sum(file.size for file in run) for run in runs) or [0]
    return sum(smaller) > share * largest


def _tier(size: int, factor: int) -> int:
    return math.ceil(math.log(max(size / SMALLEST_TIER, 1), factor))
