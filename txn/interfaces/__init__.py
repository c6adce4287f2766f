"""The contracts that plugins implement: spouts, aggregates, states, committers.

Nothing here imports Spark: its types appear in annotations only. Besides this package, plugins may
import `txn.attempts`, `txn.errors`, `txn.storage` (storage of files), `txn.delta` (a table's log)
and `txn.spark` (the sessions that compute and write rows).
"""

from __future__ import annotations

from txn.changes import Expiry
from txn.interfaces.aggregate import (
    Aggregate,
    combined,
    merged,
    partials_over,
)
from txn.interfaces.committer import (
    WATERMARK,
    Committer,
    KeysReader,
    Semantics,
    State,
    StoredRows,
)
from txn.interfaces.inlet import Inlet
from txn.interfaces.notices import NOTICES
from txn.interfaces.publication import (
    CHANGE_KEY,
    COMPACTION_KEY,
    FENCE_KEY,
    PUBLICATION_KEY,
    SETTLED_KEY,
    CommitterContext,
    Member,
    PartitionPositions,
    Prepared,
    Publication,
    Published,
    Staged,
    StagedFile,
    TablePublication,
)
from txn.interfaces.spout import (
    NOT_PARSED,
    UNREAD,
    Keeper,
    Lag,
    PartitionedSpout,
    Spout,
    SpoutKind,
    Unparsed,
)

__all__ = [
    "CHANGE_KEY",
    "COMPACTION_KEY",
    "FENCE_KEY",
    "NOTICES",
    "NOT_PARSED",
    "PUBLICATION_KEY",
    "SETTLED_KEY",
    "UNREAD",
    "WATERMARK",
    "Aggregate",
    "Committer",
    "CommitterContext",
    "Expiry",
    "Inlet",
    "Keeper",
    "KeysReader",
    "Lag",
    "Member",
    "PartitionPositions",
    "PartitionedSpout",
    "Prepared",
    "Publication",
    "Published",
    "Semantics",
    "Spout",
    "SpoutKind",
    "Staged",
    "StagedFile",
    "State",
    "StoredRows",
    "TablePublication",
    "Unparsed",
    "combined",
    "merged",
    "partials_over",
]
