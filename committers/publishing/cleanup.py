"""Deleting the commit files and checkpoints of a table that are older than it keeps them.

Delta leaves that to whoever writes a checkpoint. On the commit path it would cost a listing of the
whole log, so commits of ours do not do it (`log`), and it is done here, by the clean-up
thread, every `EVERY_VERSIONS` versions: a table may have thousands of them a day.

How long they are kept is the table's own property `delta.logRetentionDuration` (30 days unless it
is set), and `delta.enableExpiredLogCleanup = false` keeps them all, as for any writer of Delta.
"""

from __future__ import annotations

from txn.delta.loading import load
from txn.storage.storage import Storage

__all__ = ["EVERY_VERSIONS", "LogCleanup"]

EVERY_VERSIONS = 500
"""Versions between two looks at what has expired; the first look of a run is at its beginning."""
_SWITCH = "delta.enableExpiredLogCleanup"


class LogCleanup:
    """Deletes what has expired of one table's log. For one thread.

    Args:
        storage: the table's folder.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._next = 0

    def run(self, version: int) -> None:
        """Delete expired log files if it is time to; a checkpoint keeps their content.

        Args:
            version: the newest version of the table, -1 if there is none.

        Raises:
            DeltaError: the log could not be listed or read; nothing is lost by that.
        """
        if version < self._next:
            return
        self._next = version + EVERY_VERSIONS
        # A table object of its own: that of the commit turns is in use.
        table = load(self._storage)
        if table.metadata().configuration.get(_SWITCH, "true").lower() != "false":
            table.cleanup_metadata()
