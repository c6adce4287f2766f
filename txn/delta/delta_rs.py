"""delta-rs, so loaded that it gives unused memory back soon: import its names from here.

Its allocator (jemalloc) reads its settings once, when the library is loaded. By default it keeps
the pages that an append was done with for ten seconds, in an arena for each thread: over thousands
of appends a driver grew by a tenth, all of it unused. So the setting must be there while the
library is loaded, and nobody needs it before or afterwards.
"""

from __future__ import annotations

import os

__all__ = [
    "CONF",
    "VARIABLE",
    "ColumnProperties",
    "CommitProperties",
    "DeltaError",
    "DeltaTable",
    "PostCommitHookProperties",
    "Schema",
    "TableNotFoundError",
    "Transaction",
    "WriterProperties",
    "write_deltalake",
]

VARIABLE = "_RJEM_MALLOC_CONF"
"""The environment variable that allocators of Rust libraries read; what the user has put there
holds. No other allocator of the process reads it."""
CONF = "dirty_decay_ms:100,muzzy_decay_ms:0"

_given = os.environ.get(VARIABLE)
os.environ.setdefault(VARIABLE, CONF)
from deltalake import (  # noqa: E402 - it reads the environment now
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: E402

if _given is None:
    del os.environ[VARIABLE]
