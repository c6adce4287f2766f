"""Load a table through delta-rs, with retries while storage fails for a moment."""

from __future__ import annotations

import contextlib
import errno
import re

import pyarrow as pa

from txn.delta.commits import LAST_CHECKPOINT, commit_path
from txn.delta.delta_rs import DeltaError, DeltaTable, TableNotFoundError
from txn.errors import RecoveryRefusedError, TableAbsentError
from txn.storage.retrying import client_message, retried
from txn.storage.storage import Storage

__all__ = ["damaged", "file_sizes", "find", "is_there", "load", "load_own", "require"]

_LOG_FILE = re.compile(r"_delta_log/\d{20}\.(json|checkpoint\..*)")


def is_there(storage: Storage) -> bool:
    """Return whether a Delta table exists: the commit file of a version, or a checkpoint.

    Does not use delta-rs, which keeps Python's lock while it waits for the answer.
    """
    texts, _ = storage.read_many([commit_path(0), LAST_CHECKPOINT])
    if any(text is not None for text in texts):
        return True
    return any(_LOG_FILE.fullmatch(path) for path, _ in storage.files("_delta_log"))


def load(storage: Storage, version: int | None = None) -> DeltaTable:
    """Load the table as it is now, or as of a version.

    Raises:
        DeltaError: the table does not exist or cannot be read.
    """

    def once() -> DeltaTable:
        try:
            return DeltaTable(storage.uri, version=version, storage_options=storage.options)
        except TableNotFoundError as error:
            if storage.is_local or not is_there(storage):
                raise
            # delta-rs lists the log, and a listing may lag behind a HEAD of a file.
            raise OSError(errno.ESTALE, "a listing of the log lacks what is there") from error

    return retried(once, f"load the log of table {storage.location}")


def load_own(storage: Storage) -> DeltaTable:
    """Load the table as it is now, to write to it.

    Raises:
        TableNotFoundError: the table does not exist.
        RecoveryRefusedError: its log is damaged.
    """
    try:
        return load(storage)
    except TableNotFoundError:
        raise
    except DeltaError as error:
        message = damaged(f"Table {storage.location}", error, "Nothing was written.")
        raise RecoveryRefusedError(message, number="TXN-315") from error


def damaged(table: str, error: DeltaError, effect: str, place: str = "") -> str:
    """The message for a log that cannot be loaded: the cause and the way out."""
    return (
        f"{table} cannot be loaded: {client_message(error)}. A file of its log is damaged{place}, "
        f"or {LAST_CHECKPOINT} names a checkpoint that is not there. {effect} Restore that file "
        "from a backup; if it is a checkpoint, and every commit file is there, delete it and "
        f"{LAST_CHECKPOINT} instead."
    )


def find(storage: Storage) -> DeltaTable | None:
    """Load the table as it is now; None if it does not exist."""
    try:
        return load(storage)
    except TableNotFoundError:
        # delta-rs raises the same for a disk that cannot be read; a listing raises its error.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            storage.folders("_delta_log")
        return None
    except DeltaError as error:
        # delta-rs raises this if the folder vanishes meanwhile: that of a failed first batch.
        if "Invalid table location" in str(error) and not storage.entries():
            return None
        raise


def require(storage: Storage) -> DeltaTable:
    """Load the table as it is now.

    Raises:
        TableAbsentError: the table does not exist.
    """
    if not is_there(storage):
        raise TableAbsentError(
            f"There is no table at {storage.location} yet: it is made by the first batch of its "
            "topology. Run the topology, or correct the path."
        )
    return load(storage)


def file_sizes(table: DeltaTable) -> dict[str, int]:
    """Path -> bytes of the files of the loaded version."""
    files = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
