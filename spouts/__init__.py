"""Sources of micro-batches: plugins of `txn.interfaces.Spout`. Import them from their modules."""

from __future__ import annotations

import txn.errors  # noqa: F401 - txn itself, and so `txn.machine.allocator`, before anything loads delta-rs
