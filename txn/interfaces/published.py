"""Tables that show keys and values of a state, for the engine and for readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from txn.interfaces.committer_capabilities import ReadableTable

__all__ = ["PUBLISHED", "CanPublish", "Publishes", "ReadablePublished"]

PUBLISHED = "txn_published"
"""Key of the record in `commitInfo`: topology, txid, and what the rows were computed from."""


class ReadablePublished(ReadableTable, Protocol):
    """Reads a published table, as of the txids that its log names."""

    def txids(self) -> tuple[int, ...]:
        """The txids that the table shows, the newest first."""


class Publishes(Protocol):
    """A table with keys and final values of another one, which is kept up beside commit turns."""

    name: str
    storage_options: Mapping[str, str]
    shows: int | None
    """The txid that it shows, 0 if none; None: unknown, for the moment."""

    def check(self, topology: str) -> int:
        """Return the txid that it shows, 0 if none; raise TableRefusedError if it is another's."""

    def reader(self) -> ReadablePublished:
        """Return the table for readers."""

    def maintain(self, committed: int, *, now: bool = False) -> Callable[[], None] | None:
        """As `MaintainsTable.maintain`; `now`: whether or not it is due."""


@runtime_checkable
class CanPublish(Protocol):
    """Shows its keys and values in tables with nothing else (`TxnState.publish`)."""

    def published_table(
        self,
        path: str,
        *,
        every: tuple[int | None, float | None],
        columns: Sequence[str] | None,
        order_by: Sequence[str] | None,
        top: int | None,
        by: Sequence[str] | None,
        per: Sequence[str] | None,
        deletion_vectors: bool,
        change_feed: bool,
    ) -> Publishes:
        """Return such a table, which is not written yet.

        Args:
            every: txids, or seconds, that it may be behind; one is None.
        """
