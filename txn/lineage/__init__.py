"""OpenLineage events: for each committed txid what it read and which table versions hold it."""

from __future__ import annotations

from txn.lineage.events import Lineage, lineage_wanted

__all__ = ["Lineage", "lineage_wanted"]
