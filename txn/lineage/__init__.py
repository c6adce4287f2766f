"""OpenLineage events: for each committed txid what it read and which table versions hold it."""

from __future__ import annotations

from txn.lineage.events import Lineage, is_asked_for

__all__ = ["Lineage", "is_asked_for"]
