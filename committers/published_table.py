"""Read a table that `TxnState.publish` keeps up."""

from __future__ import annotations

from committers.published.reader import PublishedTable

__all__ = ["PublishedTable"]
