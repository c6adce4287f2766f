"""Checkpoints of a table's log, aside from the commit turns.

A checkpoint holds what all versions up to it come to, so that a start and a new reader need not
read them one by one. It takes some eighty requests to an object store, so it is the clean-up
thread that makes it. One that fails costs nothing but the time of those who load the table.
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
        verify: raises TableChangedError if a version was overwritten: a checkpoint would keep that.
    """

    def __init__(self, storage: Storage, verify: Callable[[], None]) -> None:
        self._storage = storage
        self._verify = verify
        self._due = 0

    def run(self, version: int, properties: Mapping[str, str | None]) -> None:
        """Make one if the table's own `delta.checkpointInterval` says so.

        A failure is logged, and tried again after as many versions.

        Args:
            version: the newest version of the table, -1 if there is none.

        Raises:
            TableChangedError: a version was overwritten.
        """
        if version < self._due:
            return
        stated = properties.get(_INTERVAL) or ""
        # Nine digits: who wants none sets a large number.
        readable = stated.isdecimal() and 0 < len(stated) < 10
        interval = max(1, int(stated)) if readable else CHECKPOINT_INTERVAL
        last, self._due = -1, version + interval
        try:
            found = checkpoint_version(self._storage.read(LAST_CHECKPOINT))
            last = -1 if found is None else found
            if version < last + interval:
                self._due = last + interval
                return
            self._verify()
            # A table object of its own: nobody else waits for it.
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
