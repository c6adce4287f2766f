"""One table under watch: a thread reads its log into the index and counts its files.

Storage may take seconds to answer, or not answer at all. So each table has a thread of its own: one
that waits holds up neither another table nor a question.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from txn.dashboard.watching.follower import LogFollower, OwnLogFollower
from txn.dashboard.watching.index import LogIndex
from txn.dashboard.watching.stored import Stored, StoredFiles
from txn.dashboard.watching.tables import TableFacts, table_facts
from txn.delta.delta_rs import DeltaError
from txn.errors import TxnError
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.storage.storage import Storage
from txn.text import first_line

__all__ = ["EVERY_SECS", "NOT_YET", "WatchedTable"]

NOT_YET = "There is no Delta table there yet."
_NOTHING_YET = "The table's own log has no publication yet."
EVERY_SECS = 1.2
"""Interval for a local table while ZooKeeper, which is polled once a second, has nothing new."""
_FOREIGN_SECS = 30.0
"""Interval in which an object store is asked for versions that ZooKeeper does not have."""
_RETRY_SECS = 10.0
"""Pause before a table that cannot be read is tried again."""
_ABSENT_SECS = 2.0
"""Pause before a table that does not exist is tried again."""
_FACTS_SECS = 3.0
"""Shortest pause before a table is loaded again."""
_FACTS_FACTOR = 30.0
"""The pause as a multiple of the time that loading took."""
_MOST_VERSIONS = 300_000
"""Most versions of one table that are indexed."""
_ERRORS = (TxnError, DeltaError, OSError, ValueError, OverflowError, sqlite3.Error)

log = logging.getLogger("txn.watching")

Turn = Callable[[], AbstractContextManager[object]]


class WatchedTable:
    """One table of a topology. Its thread changes it; any thread may read it.

    Args:
        index: the index of the topology.
        number: the table's number in the index.
        name: as the topology names it.
        options: its `storage_options`: secrets.
        own_log: its committer, if that keeps its own log. Of such a table the page shows versions
            and txids, but neither files nor rows.
    """

    def __init__(
        self,
        index: LogIndex,
        number: int,
        name: str,
        options: Mapping[str, str],
        own_log: KeepsOwnLog | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.options = options
        self.own_log = own_log
        self.storage: Storage | None = None
        self.follower: LogFollower | OwnLogFollower | None = None
        self.error: str | None = None
        """Why its log cannot be read."""
        self.facts: TableFacts | None = None
        """Its files and properties when it was last loaded; see `ask_facts`."""
        self.hint: int | None = None
        """A version that it has according to ZooKeeper."""
        self.bad_rows: tuple[object, dict[str, Any]] | None = None
        """(cache key, answer) of the last question about its bad rows."""
        self.news = threading.Event()
        """Set when ZooKeeper has something new: the next read need not wait."""
        self.thread: threading.Thread | None = None
        self._stored_files = StoredFiles(index.topology)
        self._is_removed = False
        self._index = index
        self._next_read = 0.0
        """Time of the next read, in monotonic seconds."""
        self._next_facts = 0.0
        """Earliest time at which `facts` are loaded again, in monotonic seconds."""
        self._are_facts_asked = False
        """True if `facts` were asked for since they were loaded."""
        self._facts_incarnation = 0
        """Incarnation of the table that `facts` describe."""

    @property
    def reads_old(self) -> bool:
        """True if older versions are still being read, or none was read yet."""
        if self.follower is None or self.follower.newest < 0:
            return self.error is None
        return not self.follower.complete

    def ask_facts(self) -> TableFacts | None:
        """Return the newest `facts` and let old ones be loaded again. None: not loaded yet."""
        self._are_facts_asked = True
        return self.facts

    def ask_stored(self) -> Stored | None:
        """Return the files in its folder as last counted, and let them be counted again."""
        if self.storage is None or self.facts is None:
            return None
        return self._stored_files.ask(self.storage)

    def leave(self) -> None:
        """End its thread: the topology no longer has this table."""
        self._is_removed = True
        self.news.set()

    def watch(self, closed: threading.Event, turn: Turn, changed: Callable[[], None]) -> None:
        """Read it until `closed` or `leave`: new versions first, old ones in the time left.

        Args:
            closed: set before `news`, so that the thread ends at once.
            turn: entered for work that keeps Python busy: one table at a time, so that requests
                are served.
            changed: called when something is new.
        """

        def is_over() -> bool:
            return closed.is_set() or self._is_removed

        while not is_over():
            next_round = time.monotonic() + EVERY_SECS
            try:
                if self._catch_up():
                    changed()
                while self._step_back(turn) and time.monotonic() < next_round and not is_over():
                    pass
                if self._load_facts(turn):
                    changed()
            except Exception:
                if not closed.is_set():  # else the index is closed, too
                    log.exception("table %s could not be watched", self.name)
            self.news.wait(max(0.05, next_round - time.monotonic()))
            self.news.clear()

    def _catch_up(self) -> bool:
        """Read new versions. Returns True if there were some or the error has changed."""
        now, hint, former_error = time.monotonic(), self.hint, self.error
        has_read_hint = (
            self.follower is not None and hint is not None and self.follower.newest >= hint
        )
        # Read a version that ZooKeeper has at once, unless the table cannot be read.
        if now < self._next_read and (has_read_hint or former_error is not None):
            return False
        try:
            self.follower = self.follower or self._new_follower()
            count = self.follower.catch_up(hint)
        except _ERRORS as error:
            self._note_error(error)
            return self.error != former_error
        if self.follower.newest < 0:
            self.error = NOT_YET if self.own_log is None else _NOTHING_YET
        else:
            gone = "There is no Delta table there any more."
            self.error = gone if self.follower.is_gone else None
        is_near = self.storage is None or self.storage.is_local
        wait = EVERY_SECS if is_near else _FOREIGN_SECS
        self._next_read = now + (wait if self.error is None else _ABSENT_SECS)
        return count > 0 or self.error != former_error

    def _new_follower(self) -> LogFollower | OwnLogFollower:
        if self.own_log is not None:
            return OwnLogFollower(self._index, self.number, self.own_log, _MOST_VERSIONS)
        self.storage = Storage(self.name, self.options)
        return LogFollower(self._index, self.number, self.storage, _MOST_VERSIONS)

    def _step_back(self, turn: Turn) -> bool:
        """Read some older versions. Returns True if there may be more."""
        if self.follower is None or self.error is not None:
            return False
        try:
            return self.follower.step_back(turn)
        except _ERRORS as error:
            self._note_error(error)
            return False

    def _load_facts(self, turn: Turn) -> bool:
        """Load the table if it has changed. Returns True if it was loaded, or could not be."""
        now = time.monotonic()
        if self.storage is None or self.follower is None or self.error is not None:
            return False
        # Another table may be there by now, with the same version or a lower one.
        incarnation = self.follower.incarnation
        is_loaded = incarnation == self._facts_incarnation
        loaded_version = self.facts.version if self.facts and is_loaded else None
        if loaded_version == self.follower.newest or now < self._next_facts:
            return False
        # Loading takes a core for a while, so new versions are loaded only on demand.
        if loaded_version is not None and not self._are_facts_asked:
            return False
        self._are_facts_asked = False
        try:
            with turn() if self.storage.is_local else nullcontext():
                self.facts = table_facts(self.storage)
            self._facts_incarnation = incarnation
        except _ERRORS as error:
            self._note_error(error)
        took = time.monotonic() - now
        self._next_facts = time.monotonic() + max(_FACTS_SECS, _FACTS_FACTOR * took)
        return True

    def _note_error(self, error: Exception) -> None:
        self.error, self._next_read = first_line(error), time.monotonic() + _RETRY_SECS
