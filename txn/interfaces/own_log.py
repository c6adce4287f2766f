"""The log of a table that is not a Delta table: what operations read of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from txn.interfaces.publication import Publication

__all__ = ["OwnLog", "TablePublication"]


@dataclass(frozen=True)
class TablePublication:
    """One publication in one table's log."""

    version: int
    """Table version that holds it."""
    publication: Publication
    timestamp_ms: int
    """When it was appended, milliseconds since 1970; 0 if that is unknown."""


@runtime_checkable
class OwnLog(Protocol):
    """A committer whose table is not a Delta table, for operations from outside of a run.

    `txn history`, `status`, `recover`, `doctor` and the page call these on a committer that was
    never opened. Without them, they look for a Delta table at the committer's `name`.
    """

    def publications(self) -> Iterator[TablePublication]:
        """Yield every publication, newest first, as far back as the table keeps them.

        Yields nothing if the table does not exist yet.
        """

    def newest_epoch(self) -> int:
        """Return the newest epoch in the table, of a fence or of a publication; 0: none."""
