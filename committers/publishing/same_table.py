"""Whether a table is still the one that was opened, or was deleted or replaced meanwhile."""

from __future__ import annotations

import errno

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from txn.delta.commits import commit_path, fingerprint_of
from txn.delta.loading import load
from txn.errors import StorageUnavailableError, TableChangedError
from txn.storage.retrying import retried
from txn.storage.storage import Storage

__all__ = ["instead_of", "replaced"]


def instead_of(
    storage: Storage, table: DeltaTable, version: int, fingerprint: int | None
) -> str | None:
    """Describe what replaced a table that was at `version`; None: it is still there.

    Args:
        table: as it was loaded.
        fingerprint: of the version's commit file; None: it was cleaned out of the log before.
    """
    text = storage.read(commit_path(version))
    if text is not None and fingerprint is not None:
        same = fingerprint_of(text) == fingerprint
        return None if same else f"version {version} in its log is a different commit"
    try:
        found = load(storage)
    except TableNotFoundError:
        return "there is no table now"
    same = found.metadata().id == table.metadata().id
    if not same or not _comes_to(version, found, storage.location):
        return f"the table there now is at version {found.version()}"
    return None


def replaced(table: str, topology: str, version: int, now: str) -> TableChangedError:
    """The error for a table that was put in the place of another one.

    Args:
        version: the newest version that was known.
        now: what is there instead.
    """
    return TableChangedError(
        f"Table {table} is no longer the one that topology '{topology}' has written: {now}, but "
        f"this run knew version {version} of the former one. The table was deleted or replaced. "
        "Nothing was written. Put the former table back from a backup, or give the topology a "
        "new name and new tables.",
        number="TXN-308",
    )


class _BehindError(OSError):
    """A log was listed without its newest versions."""


def _comes_to(version: int, found: DeltaTable, table: str) -> bool:
    """Return whether the log goes so far, whatever a listing says that is behind for a moment."""

    def look() -> None:
        if found.version() < version:
            found.update_incremental()
        if found.version() < version:
            raise _BehindError(errno.ESTALE, f"its listing ends at version {found.version()}")

    try:
        retried(look, f"list the log of table {table} up to version {version}")
    except StorageUnavailableError as error:
        if isinstance(error.__cause__, _BehindError):
            return False
        raise
    return True
