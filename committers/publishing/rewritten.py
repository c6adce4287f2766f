"""Read a table's files while others rewrite them.

OPTIMIZE puts rows into other files, and VACUUM deletes the old ones: the log is read again only
when one of its files no longer exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from committers.publishing.followed import FollowedTable
from committers.publishing.log import MAX_TRIES
from txn.errors import TableChangedError, TxnError
from txn.storage.storage import Storage

__all__ = ["up_to_date"]

R = TypeVar("R")


def up_to_date(read: Callable[[], R], table: FollowedTable, storage: Storage) -> R:
    """Call `read` over the table's files; repeat it if they were rewritten meanwhile.

    Raises:
        TableChangedError: a file of the table's newest version is gone.
    """
    for _ in range(MAX_TRIES):
        version = table.version
        try:
            return read()
        except TxnError:
            raise
        except Exception:
            if table.version != version:
                continue  # another thread has followed the log to newer files
            missing = storage.first_missing([file.path for file in table.files_now()])
            if missing is None:
                raise
            table.refresh()
            if table.version == version:
                raise TableChangedError(
                    f"File {missing} of table {storage.location} is gone, but version {version}, "
                    "the newest one, still needs it: somebody deleted it, and VACUUM does not do "
                    "that. Nothing was written. Restore the file from a backup, or start over "
                    "with a new table and a new topology name.",
                    number="TXN-308",
                ) from None
    return read()
