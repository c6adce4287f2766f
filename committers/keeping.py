"""Bytes of spouts that lie beside a table, for good: `<table>/_txn_progress/<digest>`.

The name is hidden from VACUUM and from readers of the folder, and the sweep of staged files never
looks there. A file is there as a whole or not at all, and is written again only where it is
damaged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

from pyarrow import fs

from txn.delta.storage import Storage

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
    if isinstance(storage.filesystem, fs.LocalFileSystem):
        _write_whole(Path(storage.absolute(path)), content)
    else:
        storage.write(path, content)  # an object is there when all of it is


def kept(storage: Storage, name: str) -> bytes | None:
    """The bytes of a file; None if it does not exist.

    Raises:
        OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
    """
    return storage.read(f"{KEPT}/{name}")


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        # The names have to outlast a power cut as well: of the file, and of its folder.
        _sync_folder(path.parent)
        _sync_folder(path.parent.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # such a mount syncs no folders
            raise
    finally:
        os.close(handle)
