"""Delete a table's commit files and checkpoints that have passed the log's retention.

Delta leaves that to the writer of a checkpoint. On the commit path it would cost a listing of the
whole log, so a topology's commits do not do it (`log`); the clean-up thread does it here, every
`EVERY_VERSIONS` versions: a table may have thousands of them a day.

The table's own property `delta.logRetentionDuration` sets the retention (30 days by default), and
`delta.enableExpiredLogCleanup = false` keeps all files, as for any writer of Delta.
"""

from __future__ import annotations

from txn.delta.loading import load
from txn.storage.storage import Storage

__all__ = ["EVERY_VERSIONS", "LogCleanup"]

EVERY_VERSIONS = 500
"""Versions between two clean-ups; the first one of a run is at its beginning."""
_SWITCH = "delta.enableExpiredLogCleanup"


class LogCleanup:
    """Deletes the expired files of one table's log. For one thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._next = 0

    def run(self, version: int) -> None:
        """Delete expired log files if a clean-up is due; a checkpoint keeps their content.

        Args:
            version: the newest version of the table, -1 if it has none.
        """
        if version < self._next:
            return
        self._next = version + EVERY_VERSIONS
        # A separate table object: the commit turns use the other one.
        table = load(self._storage)
        if table.metadata().configuration.get(_SWITCH, "true").lower() != "false":
            table.cleanup_metadata()
