"""Names below a table's folder, for files that are in no version, or not yet.

    data/<txid>-<attempt>-<random>/     staged: published where they lie
    data/compaction-<random>/           written by a compaction of a log table
    _txn/                               scratch: no version will ever refer to it
    _txn_progress/<digest>              permanent files of spouts
    generation-<n>/                     the table's next generation: a table of its own, with all of
                                        the above, until it takes this one's place

`data` is a visible name, so that VACUUM removes files without a version; `_txn` is hidden from it.
Committers write below both; VACUUM spares files that may still be published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

__all__ = [
    "COMPACTION",
    "DATA",
    "GENERATION",
    "KEPT",
    "SCRATCH",
    "job_folder",
    "next_generation",
    "staged_txid",
]

DATA = "data"
"""Folder of files that are published where they lie."""
SCRATCH = "_txn"
"""Folder of files that no version will ever refer to."""
KEPT = "_txn_progress"
"""Folder of the permanent files of spouts."""
COMPACTION = "compaction-"
"""Prefix of the name of a compaction's folder, below `DATA` and below `SCRATCH`."""

GENERATION = "txn.generation"
"""Property of a table: how many generations have taken the place of its first files."""

_GENERATION = re.compile(r"generation-\d+")
_STAGED = re.compile(r"(\d+)-\d+-[0-9A-Za-z]+")


def staged_txid(name: str) -> int | None:
    """The txid in the name of a staging job's folder; None for any other folder."""
    match = _STAGED.fullmatch(name)
    return int(match[1]) if match else None


def job_folder(path: str) -> str | None:
    """The folder name of the job that wrote a file below `DATA`; None for a file elsewhere."""
    parts = PurePosixPath(path).parts
    if parts and _GENERATION.fullmatch(parts[0]):
        parts = parts[1:]
    return parts[1] if len(parts) > 2 and parts[0] == DATA else None


def next_generation(table: str, properties: Mapping[str, str | None]) -> str:
    """The place of a table's next generation, given the table's properties."""
    return f"{table.rstrip('/')}/generation-{int(properties.get(GENERATION) or 0) + 1}"
