"""Check that a table is still the one that was opened, neither deleted nor replaced since.

Reads only its newest commit file, as long as that is the one that was read or written last.
"""

from __future__ import annotations

import errno

from committers.verifying.chain import overwritten
from txn.delta.commits import fingerprint_of
from txn.delta.delta_rs import DeltaTable, TableNotFoundError
from txn.delta.loading import load_own
from txn.errors import StorageUnavailableError, TableChangedError
from txn.storage.retrying import retried
from txn.storage.storage import Storage

__all__ = ["require_same"]


def require_same(
    storage: Storage,
    table_id: str,
    topology: str,
    version: int,
    *,
    fingerprint: int | None,
    text: bytes | None,
) -> int:
    """Refuse a table that is not the one that was at `version` before.

    Args:
        table_id: Delta's own id of the table.
        fingerprint: of the version's commit file; None: it was cleaned out of the log before.
        text: the current content of the commit file; None: it does not exist.

    Returns:
        The newest version that the table has certainly reached.

    Raises:
        TableChangedError: it was deleted or replaced, or this version was overwritten.
    """
    table = storage.location
    if text is not None and fingerprint is not None and fingerprint_of(text) == fingerprint:
        return version
    try:
        loaded = load_own(storage)
    except TableNotFoundError:
        raise _replaced(table, topology, version, "there is no table now") from None
    same = str(loaded.metadata().id) == table_id
    if text is not None and fingerprint is not None:
        if same:
            raise overwritten(table, topology, version)
        other = f"version {version} in its log is a different commit"
        raise _replaced(table, topology, version, other)
    if not same or not _reaches(version, loaded, table):
        current = f"the table there now is at version {loaded.version()}"
        raise _replaced(table, topology, version, current)
    return max(version, loaded.version())


def _replaced(table: str, topology: str, version: int, state: str) -> TableChangedError:
    """The error for a table that was put in the place of another one.

    Args:
        version: the newest version that this run has read or written.
        state: a description of the current state.
    """
    return TableChangedError(
        f"Table {table} is no longer the one that topology '{topology}' has written: {state}, but "
        f"this run knew version {version} of the former one. The table was deleted or replaced. "
        "Nothing was written. Put the former table back from a backup, or give the topology a "
        "new name and new tables.",
        number="TXN-308",
    )


class _BehindError(OSError):
    """A listing of a log lacks its newest versions."""


def _reaches(version: int, loaded: DeltaTable, table: str) -> bool:
    """Return whether the log reaches a version; retries while a listing may lag behind."""

    def update() -> None:
        if loaded.version() < version:
            loaded.update_incremental()
        if loaded.version() < version:
            raise _BehindError(errno.ESTALE, f"its listing ends at version {loaded.version()}")

    try:
        retried(update, f"list the log of table {table} up to version {version}")
    except StorageUnavailableError as error:
        if isinstance(error.__cause__, _BehindError):
            return False
        raise
    return True
