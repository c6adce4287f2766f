"""One table under watch: its log is read into the index and its files are counted, on a thread.

Storage may take seconds to answer, or not answer at all. So each table has a thread of its own: one
that waits holds up no other, and no question.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from txn.delta.delta_rs import DeltaError
from txn.errors import TxnError
from txn.operations.watching.follower import LogFollower
from txn.operations.watching.index import LogIndex
from txn.operations.watching.tables import TableFacts, table_facts
from txn.storage.storage import Storage
from txn.text import first_line

__all__ = ["EVERY_SECS", "NOT_YET", "WatchedTable"]

NOT_YET = "There is no Delta table there yet."
EVERY_SECS = 1.2
"""How often a local table is looked at when ZooKeeper, which is looked at once a second, says
nothing new.
"""
_FOREIGN_SECS = 30.0
"""How often an object store is asked for versions that ZooKeeper does not know of."""
_AGAIN_SECS = 10.0
"""How long a table that cannot be read is left alone."""
_ABSENT_SECS = 2.0
"""How long one that is not there is."""
_FACTS_SECS = 3.0
_FACTS_PAUSE = 30.0
"""How many times as long as it took to load a table it is left alone."""
_MOST_VERSIONS = 300_000
"""Versions of one table that are indexed at most."""
_ERRORS = (TxnError, DeltaError, OSError, ValueError, OverflowError, sqlite3.Error)

log = logging.getLogger("txn.watching")

Turn = Callable[[], AbstractContextManager[object]]


class WatchedTable:
    """One table of a topology. Its thread changes it; any thread may look at it.

    Args:
        index: of the topology.
        number: in the index.
        name: as the topology names it.
        options: its `storage_options`: secrets.
    """

    def __init__(self, index: LogIndex, number: int, name: str, options: Mapping[str, str]) -> None:
        self.number = number
        self.name = name
        self.options = options
        self.storage: Storage | None = None
        self.follower: LogFollower | None = None
        self.error: str | None = None
        """Why its log cannot be read."""
        self.facts: TableFacts | None = None
        """Its files and properties, as last counted; see `ask_facts`."""
        self.hint: int | None = None
        """A version that it has, as ZooKeeper knows."""
        self.bad_rows: tuple[object, dict[str, Any]] | None = None
        """What was last told of its rows as bad ones, and what that follows from."""
        self.told = threading.Event()
        """ZooKeeper has said something new: the next look need not wait."""
        self.thread: threading.Thread | None = None
        self._left = False
        self._index = index
        self._again = 0.0
        """When it is read again, in monotonic seconds."""
        self._asked = False
        """Whether somebody has asked for `facts` since they were counted."""
        self._facts_again = 0.0
        self._facts_of = 0
        """Incarnation of the table that `facts` are of."""

    @property
    def reads_old(self) -> bool:
        """Whether older versions are still being read, or nothing is known of it yet."""
        if self.follower is None or self.follower.newest < 0:
            return self.error is None
        return not self.follower.complete

    def ask_facts(self) -> TableFacts | None:
        """The newest `facts`, which are then counted again if they are old. None: not yet."""
        self._asked = True
        return self.facts

    def leave(self) -> None:
        """It is no table of the topology any more: end its thread."""
        self._left = True
        self.told.set()

    def watch(self, closed: threading.Event, turn: Turn, changed: Callable[[], None]) -> None:
        """Read it until `closed` or `leave`: what is new at once, what is old in the time between.

        Args:
            closed: set before `told`, so that it ends at once.
            turn: entered for work that keeps Python busy: one table at a time, so that requests
                are served.
            changed: called when there is something new.
        """
        while not (closed.is_set() or self._left):
            began = time.monotonic()
            try:
                if self._catch_up():
                    changed()
                while (
                    self._step_back(turn)
                    and time.monotonic() < began + EVERY_SECS
                    and not (closed.is_set() or self._left)
                ):
                    pass
                if self._look_at_files(turn):
                    changed()
            except Exception:
                if not closed.is_set():  # else the index is closed, too
                    log.exception("table %s could not be looked at", self.name)
            self.told.wait(max(0.05, began + EVERY_SECS - time.monotonic()))
            self.told.clear()

    def _catch_up(self) -> bool:
        """Read new versions. Returns whether there were some, or the error is another one."""
        now, hint, before = time.monotonic(), self.hint, self.error
        known = self.follower is not None and hint is not None and self.follower.newest >= hint
        if now < self._again and (known or before is not None):
            return False
        count = 0
        try:
            if self.storage is None:
                self.storage = Storage(self.name, self.options)
            if self.follower is None:
                follower = LogFollower(self._index, self.number, self.storage, _MOST_VERSIONS)
                self.follower = follower
            count = self.follower.catch_up(hint)
        except _ERRORS as error:
            self.error, self._again = first_line(error), time.monotonic() + _AGAIN_SECS
            return self.error != before
        if self.follower.newest < 0:
            self.error = NOT_YET
        else:
            gone = "There is no Delta table there any more."
            self.error = gone if self.follower.is_gone else None
        wait = EVERY_SECS if self.storage.is_local else _FOREIGN_SECS
        self._again = now + (wait if self.error is None else _ABSENT_SECS)
        return count > 0 or self.error != before

    def _step_back(self, turn: Turn) -> bool:
        """Read some older versions. Returns whether there may be more."""
        if self.follower is None or self.error is not None:
            return False
        try:
            return self.follower.step_back(turn)
        except _ERRORS as error:
            self.error, self._again = first_line(error), time.monotonic() + _AGAIN_SECS
            return False

    def _look_at_files(self, turn: Turn) -> bool:
        """Load the table, if it has changed. Returns whether it had."""
        now = time.monotonic()
        if self.storage is None or self.follower is None or self.error is not None:
            return False
        # Another table may lie there by now, with a lower version or the same.
        incarnation = self.follower.incarnation
        known = (self.facts.version, self._facts_of) if self.facts else None
        if known == (self.follower.newest, incarnation) or now < self._facts_again:
            return False
        # It takes a core for a while, each time that there is a new version.
        if known is not None and incarnation == self._facts_of and not self._asked:
            return False
        self._asked = False
        try:
            if self.storage.is_local:
                with turn():
                    self.facts = table_facts(self.storage)
            else:
                self.facts = table_facts(self.storage)
            self._facts_of = incarnation
        except _ERRORS as error:
            self.error, self._again = first_line(error), time.monotonic() + _AGAIN_SECS
        took = time.monotonic() - now
        self._facts_again = time.monotonic() + max(_FACTS_SECS, _FACTS_PAUSE * took)
        return True
