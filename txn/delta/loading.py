"""A table as delta-rs loads it: asked again while storage fails for a moment."""

from __future__ import annotations

import contextlib

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from txn.errors import TableAbsentError
from txn.storage.retrying import retried
from txn.storage.storage import Storage

__all__ = ["find", "is_there", "load", "require"]


def is_there(storage: Storage) -> bool:
    """Return whether there is a Delta table."""

    def found() -> bool:
        return DeltaTable.is_deltatable(storage.uri, storage.options)

    what = f"look for table {storage.location}"
    if retried(found, what):
        return True
    # delta-rs reports an unreadable folder as "no table"; a listing shows the real error.
    storage.entries()
    return retried(found, what)


def load(storage: Storage, version: int | None = None) -> DeltaTable:
    """The table as it is now, or as of a version.

    Raises:
        DeltaError: there is none.
    """
    return retried(
        lambda: DeltaTable(storage.uri, version=version, storage_options=storage.options),
        f"load the log of table {storage.location}",
    )


def find(storage: Storage) -> DeltaTable | None:
    """The table as it is now; None when there is none."""
    try:
        return load(storage)
    except TableNotFoundError:
        # delta-rs says the same of a disk that cannot be read; the disk itself tells.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            storage.folders("_delta_log")
        return None
    except DeltaError as error:
        # And this of a folder that goes while it looks: that of a first batch that failed.
        if "Invalid table location" in str(error) and not storage.entries():
            return None
        raise


def require(storage: Storage) -> DeltaTable:
    """The table as it is now.

    Raises:
        TableAbsentError: there is none.
    """
    if not is_there(storage):
        raise TableAbsentError(
            f"There is no table at {storage.location} yet: it is made by the first batch of its "
            "topology. Run the topology, or correct the path."
        )
    return load(storage)
