"""Durable ends of a stream: Delta tables that publish staged files in txid order."""

from __future__ import annotations

import txn.errors  # noqa: F401 - txn itself, and so `txn.machine.allocator`, before anything loads delta-rs
