"""A table as delta-rs loads it: asked again while storage fails for a moment."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import DeltaTable

from committers.publishing.storage import Storage
from txn.delta.retrying import retried
from txn.errors import TableAbsentError

__all__ = ["is_there", "load", "require"]


def is_there(storage: Storage, options: Mapping[str, str] | None) -> bool:
    """Whether there is a Delta table."""

    def found() -> bool:
        return DeltaTable.is_deltatable(storage.uri, _own(options))

    what = f"look for table {storage.location}"
    if retried(found, what):
        return True
    # Where delta-rs cannot look it says that there is none; a listing says what is wrong.
    storage.entries()
    return retried(found, what)


def load(
    storage: Storage, options: Mapping[str, str] | None, version: int | None = None
) -> DeltaTable:
    """The table as it is now, or as of a version.

    Raises:
        DeltaError: there is none.
    """
    return retried(
        lambda: DeltaTable(storage.uri, version=version, storage_options=_own(options)),
        f"load the log of table {storage.location}",
    )


def require(storage: Storage, options: Mapping[str, str] | None) -> DeltaTable:
    """The table as it is now.

    Raises:
        TableAbsentError: there is none.
    """
    if not is_there(storage, options):
        raise TableAbsentError(
            f"There is no table at {storage.location} yet: it is made by the first batch of its "
            "topology. Run the topology, or correct the path."
        )
    return load(storage, options)


def _own(options: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if options is None else dict(options)
