"""Make delta-rs return unused memory sooner. Import this before delta-rs.

delta-rs brings an allocator of its own (jemalloc), which reads its settings once, when it is
loaded. By default it keeps the pages that an append was done with for ten seconds, in an arena for
each thread: over thousands of appends a driver grew by a tenth, all of it unused.
"""

from __future__ import annotations

import os

__all__ = ["CONF", "VARIABLE"]

VARIABLE = "_RJEM_MALLOC_CONF"
"""The environment variable that allocators of Rust libraries read; what the user has put there
holds. No other allocator of the process reads it."""
CONF = "dirty_decay_ms:100,muzzy_decay_ms:0"

os.environ.setdefault(VARIABLE, CONF)
