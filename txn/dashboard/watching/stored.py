"""The files in a table's folder, those of old versions included: counted in the background.

Counting lists the folder, which takes long for a large table. So it has a thread of its own, one
folder is listed at a time, and each at most once a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from txn.delta.delta_rs import DeltaError
from txn.delta.upkeep import plan_vacuum, stored_bytes
from txn.errors import TxnError
from txn.storage.storage import Storage
from txn.text import first_line

__all__ = ["Stored", "StoredFiles"]

_EVERY_SECS = 60.0
"""Shortest pause before a folder is listed again."""
_FACTOR = 30.0
"""The pause as a multiple of the time that it took."""
_one_at_a_time = threading.Lock()

log = logging.getLogger("txn.watching")


@dataclass(frozen=True)
class Stored:
    """The files of a table at one moment."""

    bytes: int = 0
    """All of its files together."""
    free_files: int = 0
    """Files that `txn vacuum` would delete."""
    free_bytes: int = 0
    why: str = ""
    """The reason for which the numbers are unknown, or for which VACUUM leaves the table alone."""


class StoredFiles:
    """Counts the files of one table when asked. Safe from any thread."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._next = 0.0
        """Earliest time of the next count, in monotonic seconds; infinite while one goes on."""
        self._newest: Stored | None = None

    def ask(self, storage: Storage) -> Stored | None:
        """Return the newest count; starts another one if it is old. None: not counted yet."""
        with self._lock:
            if time.monotonic() >= self._next:
                self._next = float("inf")
                threading.Thread(target=self._count, args=(storage,), daemon=True).start()
            return self._newest

    def _count(self, storage: Storage) -> None:
        with _one_at_a_time:
            began = time.monotonic()
            try:
                plan = plan_vacuum(storage, self._topology)
                stored = Stored(
                    stored_bytes(storage), plan.chosen, plan.chosen_bytes, plan.skipped or ""
                )
            except (TxnError, DeltaError, OSError, ValueError) as error:
                stored = Stored(why=first_line(error))
            except Exception as error:
                log.exception("the files of table %s could not be counted", storage.location)
                stored = Stored(why=first_line(error))
            ended = time.monotonic()
        with self._lock:
            self._newest = stored
            self._next = ended + max(_EVERY_SECS, _FACTOR * (ended - began))
