"""Names below a table's folder, of files that no version has, or not yet.

    data/<txid>-<attempt>-<random>/     staged: published where they lie
    data/compaction-<random>/           what a compaction of a log table has written
    _txn/                               scratch: no version will ever refer to it

`data` is a visible name, so that VACUUM removes what no version refers to; `_txn` is hidden from
it. Committers write below both, VACUUM spares what may still be published.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

__all__ = ["COMPACTION", "DATA", "SCRATCH", "job_folder", "staged_txid"]

DATA = "data"
"""Folder of files that are published where they lie."""
SCRATCH = "_txn"
"""Folder of files that no version will ever refer to."""
COMPACTION = "compaction-"
"""How the name of a compaction's folder begins, below `DATA` and below `SCRATCH`."""

_STAGED = re.compile(r"(\d+)-\d+-[0-9A-Za-z]+")


def staged_txid(name: str) -> int | None:
    """The txid of a staging job, after which its folder is named; None: it is another folder."""
    found = _STAGED.fullmatch(name)
    return int(found[1]) if found else None


def job_folder(path: str) -> str | None:
    """The name of the folder of the job that wrote a file below `DATA`; None: it lies elsewhere."""
    parts = PurePosixPath(path).parts
    return parts[1] if len(parts) > 2 and parts[0] == DATA else None
