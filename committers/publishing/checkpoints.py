"""Make checkpoints of a table's log, outside of the commit turns.

A checkpoint holds the result of all versions up to it, so that a start and a new reader need not
read them one by one. It takes some eighty requests to an object store, so the clean-up thread makes
it. A failed one only makes loading the table slower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from committers.publishing.append import CHECKPOINT_INTERVAL
from txn.delta.commits import LAST_CHECKPOINT, checkpoint_version
from txn.delta.delta_rs import DeltaError
from txn.delta.loading import load
from txn.errors import TableChangedError, TxnError
from txn.storage.storage import Storage

__all__ = ["Checkpoints"]

log = logging.getLogger("txn")

_INTERVAL = "delta.checkpointInterval"


class Checkpoints:
    """Makes the checkpoints of one table. For one thread.

    Args:
        storage: the table's folder.
        verify: raises TableChangedError if a version was overwritten: a checkpoint would keep it.
    """

    def __init__(self, storage: Storage, verify: Callable[[], None]) -> None:
        self._storage = storage
        self._verify = verify
        self._due = 0

    def run(self, version: int, properties: Mapping[str, str | None]) -> None:
        """Make a checkpoint if one is due by the table's own `delta.checkpointInterval`.

        Logs a failure, and tries again after as many versions.

        Args:
            version: the newest version of the table, -1 if it has none.
        """
        if version < self._due:
            return
        stated = properties.get(_INTERVAL) or ""
        # Up to nine digits: a large number turns checkpoints off.
        readable = stated.isdecimal() and 0 < len(stated) < 10
        interval = max(1, int(stated)) if readable else CHECKPOINT_INTERVAL
        last, self._due = -1, version + interval
        try:
            checkpoint = checkpoint_version(self._storage.read(LAST_CHECKPOINT))
            last = -1 if checkpoint is None else checkpoint
            if version < last + interval:
                self._due = last + interval
                return
            self._verify()
            # A separate table object: nobody else waits for it.
            load(self._storage).create_checkpoint()
        except TableChangedError:
            raise
        except (TxnError, DeltaError, OSError) as error:
            log.warning(
                "table %s has %d versions since its last checkpoint, and another one could not be "
                "made: %s. It is tried again after %d versions. Until then every start and every "
                "new reader reads them all.",
                self._storage.location,
                version - last,
                error,
                interval,
            )
