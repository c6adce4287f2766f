"""What a commit turn is made of: staged files, what a version says of itself, what was published.

These are values of the contracts in `txn.interfaces`, which has them all; import them from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from txn.attempts import TransactionAttempt

__all__ = [
    "FENCE_KEY",
    "PUBLICATION_KEY",
    "SETTLED_KEY",
    "CommitterContext",
    "Prepared",
    "Publication",
    "Published",
    "Staged",
    "StagedFile",
]

PUBLICATION_KEY = "txn"
"""Key of a `Publication` in a table version's `commitInfo`."""
FENCE_KEY = "txn_fence"
"""Key of a fence in `commitInfo`: {"topology", "epoch", "last": {"version", "publication"},
"settled": the newest txid that was marked as final, 0 if none}."""
SETTLED_KEY = "txn_settled"
"""Key of `Committer.settle` in `commitInfo`: {"topology", "epoch", "txid", "last": as a fence's}:
every txid up to `txid` is committed and final."""


@dataclass(frozen=True)
class StagedFile:
    """One Parquet file written by a job and not (yet) in a table's log."""

    path: str
    """Relative to the table's folder, with `/`."""
    size: int
    """Bytes, as the storage reported them right after the job."""
    rows: int
    """Rows, from the file's own footer."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Partition column -> value, empty for unpartitioned tables."""
    stats: str = "{}"
    """Delta's per-file statistics as JSON (numRecords, minValues, maxValues, nullCount)."""


@dataclass(frozen=True)
class Staged:
    """What the processing phase of one attempt wrote for one committer."""

    attempt: TransactionAttempt
    files: tuple[StagedFile, ...]
    digest: str = ""
    """Fingerprint of the rows, whatever their order and files; "" where it would not be cheap."""

    @property
    def rows(self) -> int:
        """Rows in all files together."""
        return sum(f.rows for f in self.files)


class Publication(BaseModel):
    """What every append to a table's log says about itself (in `commitInfo`, key `txn`).

    It is enough to rebuild the coordinator's state from a table alone (`txn recover`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    topology: str
    epoch: int
    """The leader's fencing token; 1 or more."""
    first_txid: int
    last_txid: int
    """First and last txid that this one version holds (equal unless commits were grouped)."""
    attempt_id: int
    """Attempt id of `last_txid`."""
    spouts: dict[str, Any] = Field(default_factory=dict)
    """stream -> its newest metadata as of `last_txid` (JSON of the spout's pydantic model)."""
    read: dict[str, Any] = Field(default_factory=dict)
    """stream -> the metadata that this txid itself read; None for a stream that was idle."""
    rows: int = 0
    """Rows staged for this table by the processing phase."""
    digest: str = ""
    """`Staged.digest`: what an identical replay stages again."""
    timings_ms: dict[str, float] = Field(default_factory=dict)
    """phase -> milliseconds, of the batch up to this publication."""


@dataclass(frozen=True)
class Prepared:
    """What one commit turn is about to append to one table's log."""

    staged: Staged
    adds: tuple[StagedFile, ...]
    """Files that the new version adds; every one exists in storage with this size."""
    removes: tuple[Any, ...] = ()
    """Files of the read version that the new version drops (the committer's own type)."""
    read_version: int = -1
    """The table version that this was computed from; the append must become the next one."""
    skipped: bool = False
    """True when the table already holds this txid from an identical, earlier attempt."""


@dataclass(frozen=True)
class Published:
    """A publication as read back from the table's log after the append."""

    version: int
    """Table version that holds the txid."""
    files: tuple[StagedFile, ...] = ()
    """(path, size, rows, ...) of every file that this version adds, as the log itself says."""
    skipped: bool = False
    prepared: Prepared | None = None
    """What was published, when it had to be prepared anew (somebody's OPTIMIZE came between)."""


@dataclass(frozen=True)
class CommitterContext:
    """Who is publishing: given to a committer once per run."""

    topology: str
    epoch: int
