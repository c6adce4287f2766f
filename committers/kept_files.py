"""Permanent files of spouts beside a table: `<table>/_txn_progress/<digest>`.

The folder is hidden from VACUUM and from readers of the table's folder, and the sweep of staged
files ignores it. A file exists as a whole or not at all, and is rewritten only if it is damaged.
"""

from __future__ import annotations

from txn.delta.folders import KEPT
from txn.storage.storage import Storage

__all__ = ["keep", "kept"]


def keep(storage: Storage, name: str, content: bytes) -> None:
    """Write a file unless it exists with this content; replace a damaged one."""
    path = f"{KEPT}/{name}"
    if storage.read(path) == content:
        return
    storage.write(path, content)


def kept(storage: Storage, name: str) -> bytes | None:
    """The bytes of a file; None if it does not exist."""
    return storage.read(f"{KEPT}/{name}")
