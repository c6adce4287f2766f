"""Sources of micro-batches: plugins of `txn.interfaces.Spout`. Import them from their modules."""

from __future__ import annotations

import sys

try:
    # txn itself, and so `txn.machine.allocator`, before anything loads delta-rs
    import txn.errors  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "txn.errors":
        raise
    raise ImportError(
        f"'{sys.modules['txn'].__file__}' hides the installed package 'txn', which 'spouts' "
        "needs. Rename it, or move it to a folder that Python does not search first."
    ) from error
