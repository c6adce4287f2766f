"""Open the tables of a topology by name, and read the newest entries of their logs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from txn.errors import UserError
from txn.interfaces import Publication
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.storage.locations import is_local

if TYPE_CHECKING:
    from txn.delta.delta_rs import DeltaTable
    from txn.delta.log import TableLog
    from txn.interfaces import Committer

__all__ = ["PublicationLog", "opened_table", "recent_publications", "table_log"]


PublicationLog: TypeAlias = "TableLog | _CommitterLog"
"""The log of one table: Delta's, or one that a committer keeps."""


def table_log(table: str, committer: Committer | KeepsOwnLog | None = None) -> PublicationLog:
    """Open the log of one table.

    Args:
        table: the committer's name: a local path (relative to the working directory) or a URI.
        committer: from a program: it has the `storage_options`, or a log of its own. None: only
            the name is known.

    Raises:
        UserError: no Delta table exists there.
    """
    from txn.delta.log import TableLog
    from txn.storage.storage import Storage

    if isinstance(committer, KeepsOwnLog):
        return _CommitterLog(committer)
    options = committer.storage_options if committer else None
    opened = opened_table(table, options)
    return TableLog(Storage(table, options), opened)


class _CommitterLog:
    """The log that a committer keeps, with what operations ask of a `TableLog`."""

    def __init__(self, log: KeepsOwnLog) -> None:
        self.publications = log.publications
        self._log = log

    @property
    def first_txid(self) -> int:
        return min((entry.publication.first_txid for entry in self.publications()), default=1)

    def epoch(self, topology: str) -> int:
        return self._log.newest_epoch()

    def incarnation(self, topology: str) -> int:
        return 0

    def require_nothing_of(self, topology: str) -> None:
        """Do nothing: such a table has no txid beside its publications."""


def opened_table(table: str, options: Mapping[str, str] | None) -> DeltaTable:
    """Load a table with delta-rs.

    Args:
        options: the committer's `storage_options`.

    Raises:
        UserError: no Delta table exists there.
    """
    from txn.delta.loading import find
    from txn.storage.storage import Storage

    try:
        opened = find(Storage(table, options))
    except OSError as error:
        raise _no_table(table) from error
    if opened is None:
        raise _no_table(table)
    return opened


def recent_publications(log: PublicationLog, topology: str) -> list[tuple[int, Publication]]:
    """Return (version, publication) of the newest txid and the one before it, newest first.

    Raises:
        RecoveryRefusedError: the table holds a txid of the topology, but its log no longer has
            the metadata that was read for it.
    """
    publications = log.publications()
    first = next(publications, None)
    if first is None:
        log.require_nothing_of(topology)
        return []
    needed = takewhile(
        lambda entry: entry.publication.last_txid >= first.publication.first_txid - 1, publications
    )
    return [(entry.version, entry.publication) for entry in (first, *needed)]


def _no_table(table: str) -> UserError:
    relative = is_local(table) and not Path(table).is_absolute()
    where = (
        f" Its path is relative, and the working directory is '{Path.cwd()}': go to the folder in "
        "which the topology was run."
        if relative
        else " Check that it was not moved, and that its storage can be reached from here."
    )
    other = " A table of another kind is read if you name the program: FILE.py:TOPOLOGY."
    return UserError(f"There is no Delta table at '{table}'.{where}{other}", number="TXN-306")
