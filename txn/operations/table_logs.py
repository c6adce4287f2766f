"""Open the tables of a topology by name, and read the newest entries of their logs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from txn.errors import UserError
from txn.interfaces import Publication
from txn.storage.locations import is_local

if TYPE_CHECKING:
    from txn.delta.delta_rs import DeltaTable
    from txn.delta.log import TableLog
    from txn.storage.storage import Storage

__all__ = ["opened_table", "recent_publications", "table_log"]


def table_log(table: str, options: Mapping[str, str] | None = None) -> TableLog:
    """Open the log of one table.

    Args:
        table: the committer's name: a local path (relative to the working directory) or a URI.
        options: the committer's `storage_options`.

    Raises:
        UserError: no Delta table exists there.
    """
    from txn.delta.log import TableLog

    opened = opened_table(table, options)
    return TableLog(_storage(table, options), opened)


def opened_table(table: str, options: Mapping[str, str] | None = None) -> DeltaTable:
    """Load a table with delta-rs; arguments and errors as for `table_log`."""
    from txn.delta.loading import find

    try:
        opened = find(_storage(table, options))
    except OSError as error:
        raise _no_table(table) from error
    if opened is None:
        raise _no_table(table)
    return opened


def _storage(table: str, options: Mapping[str, str] | None) -> Storage:
    from txn.storage.storage import Storage

    return Storage(table, options)


def recent_publications(log: TableLog, topology: str) -> list[tuple[int, Publication]]:
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
    return UserError(f"There is no Delta table at '{table}'.{where}", number="TXN-306")
