"""Bytes of spouts that lie beside a table, for good: `<table>/_txn_progress/<digest>`.

The name is hidden from VACUUM and from readers of the folder, and the sweep of staged files never
looks there. A file is there as a whole or not at all, and is written again only where it is
damaged.
"""

from __future__ import annotations

from txn.storage.storage import Storage

__all__ = ["KEPT", "keep", "kept"]

KEPT = "_txn_progress"
"""Folder below the table's own."""


def keep(storage: Storage, name: str, content: bytes) -> None:
    """Write a file that is not there whole yet; a damaged one is replaced.

    Raises:
        OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
    """
    path = f"{KEPT}/{name}"
    if storage.read(path) == content:
        return
    storage.write(path, content)


def kept(storage: Storage, name: str) -> bytes | None:
    """The bytes of a file; None if it does not exist.

    Raises:
        OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
    """
    return storage.read(f"{KEPT}/{name}")
