"""Topologies under watch: what ZooKeeper, the logs and the running processes say, kept up to date.

One thread asks ZooKeeper, and one for each topology reads its tables' logs: what is new at once,
what is old in the time that is left, newest first. A question is answered out of memory and the
index, so that it never waits for storage.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake.exceptions import DeltaError

from txn.errors import TxnError, UserError
from txn.operations.status import Status
from txn.operations.watching.feed import Look, StatusFeed
from txn.operations.watching.follower import LogFollower
from txn.operations.watching.index import LogIndex
from txn.operations.watching.known import Known
from txn.operations.watching.run_files import FailureLog, RunNote, read_note
from txn.operations.watching.tables import TableFacts, table_facts
from txn.storage.locations import is_local
from txn.storage.storage import Storage
from txn.text import first_line

__all__ = ["Sample", "Watch", "Watched", "WatchedTable"]

_EVERY_SECS = 0.5
_FOREIGN_SECS = 30.0
"""How often an object store is asked for versions that ZooKeeper does not know of."""
_AGAIN_SECS = 10.0
"""How long a table that cannot be read is left alone."""
_FACTS_SECS = 3.0
_FACTS_PAUSE = 30.0
"""How many times as long as it took to load a table it is left alone."""
_MOST_VERSIONS = 300_000
"""Versions of one table that are indexed at most."""
_SAMPLES = 3600
_YIELD = 0.3
"""Share of the time of background reading that is left to requests."""

log = logging.getLogger("txn.watching")


@dataclass
class WatchedTable:
    """One table of a topology."""

    number: int
    """In the index."""
    name: str
    """As the topology names it."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Its `storage_options`: secrets."""
    storage: Storage | None = None
    follower: LogFollower | None = None
    error: str | None = None
    """Why its log cannot be read."""
    again: float = 0.0
    """When it is read again, in monotonic seconds."""
    facts: TableFacts | None = None
    """Its files and properties, at a version that may be a few seconds old."""
    facts_again: float = 0.0


@dataclass(frozen=True)
class Sample:
    """What a running topology said at one moment."""

    at_ms: int
    lag: Mapping[str, Mapping[str, float]]
    in_flight: int
    held_up_by: str


class Watched:
    """One topology under watch.

    Args:
        folder: of its index.
        where: the working folder in which it runs.
    """

    def __init__(self, known: Known, folder: Path, where: Path = Path()) -> None:
        self.name = known.name
        self.config = known.config
        self.index = LogIndex(folder, known.name)
        self.tables: list[WatchedTable] = []
        self.status: Status | None = None
        self.error: str | None = None
        """Why ZooKeeper does not tell of it."""
        self.note: RunNote | None = None
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.revision = 0
        """Raised with everything that changes."""
        self.told = threading.Event()
        """ZooKeeper has said something new: the next look at logs and notes need not wait."""
        self.plan: Mapping[str, Any] = known.plan
        self._where = where
        self._failures = FailureLog(known.name, where / ".txn/logs")
        self._seen: tuple[Any, ...] = ()
        for table, options in known.tables.items():
            self._add_table(table, options)

    @property
    def is_live(self) -> bool:
        """Whether a run of it tells what it is doing."""
        return self.note is not None and self.note.is_live(time.time())

    @property
    def committed(self) -> int | None:
        """ZooKeeper's committed txid; None: not known."""
        return self.status.found.progress.committed.txid if self.status else None

    def table(self, name: str) -> WatchedTable:
        """A table by its name.

        Raises:
            UserError: the topology has no such table.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise UserError(f"Topology '{self.name}' has no table of that name.")

    def looked(self, look: Look) -> None:
        """Take what ZooKeeper says."""
        before = self.status, self.error
        found = look.statuses.get(self.name)
        self.status = found or self.status
        self.error = look.error or look.errors.get(self.name)
        for table in found.found.progress.committed.tables if found else ():
            self._add_table(table, {})
        if (self.status, self.error) != before:
            self.told.set()

    def _add_table(self, name: str, options: Mapping[str, str]) -> None:
        if all(table.name != name for table in self.tables):
            self.tables.append(WatchedTable(len(self.tables), name, options))

    # --- the thread that reads ---------------------------------------------------------------

    def refresh(self) -> None:
        """Read what is new: versions, failures, what the run says."""
        changed = 0
        hints = self.status.found.progress.committed.tables if self.status else {}
        for table in tuple(self.tables):
            changed += self._catch_up(table, hints.get(table.name))
        failures = list(self._failures.new())
        if failures:
            self.index.add_failures(failures)
        note = read_note(self.name, self._where / ".txn/runs")
        if note is not None and note != self.note:
            self.note = note
            self.plan = note.plan or self.plan
            self._sample(note)
        seen = (self.status, self.error, note, self.is_live, [t.error for t in self.tables])
        if changed or failures or seen != self._seen:
            self._seen = seen
            self.revision += 1

    def _sample(self, note: RunNote) -> None:
        if note.ended is None:
            at = int(note.at * 1000)
            self.samples.append(Sample(at, note.lags, len(note.in_flight), note.held_up_by))

    def _catch_up(self, table: WatchedTable, hint: int | None) -> int:
        """Read a table's new versions. Returns how many; an error is kept with the table."""
        now = time.monotonic()
        known = table.follower is not None and hint is not None and table.follower.newest >= hint
        if now < table.again and (known or table.error is not None):
            return 0
        try:
            if table.storage is None:
                table.storage = Storage(table.name, table.options)
            if table.follower is None:
                table.follower = LogFollower(
                    self.index, table.number, table.storage, _MOST_VERSIONS
                )
            count = table.follower.catch_up(hint)
        except (TxnError, DeltaError, OSError, ValueError) as error:
            table.error, table.again = first_line(error), now + _AGAIN_SECS
            return 0
        table.error = None if table.follower.newest >= 0 else "There is no Delta table there yet."
        wait = _EVERY_SECS if is_local(table.name) else _FOREIGN_SECS
        table.again = now + (wait if table.error is None else _AGAIN_SECS / 5)
        return count

    def look_at_files(self) -> bool:
        """Load the table whose facts are oldest, if it has changed. Returns whether one had."""
        now = time.monotonic()
        due = [
            table
            for table in self.tables
            if table.error is None
            and table.storage is not None
            and table.follower is not None
            and now >= table.facts_again
            and (table.facts is None or table.facts.version < table.follower.newest)
        ]
        if not due:
            return False
        table = min(due, key=lambda one: one.facts_again)
        assert table.storage is not None
        try:
            table.facts = table_facts(table.storage)
        except (TxnError, DeltaError, OSError, ValueError) as error:
            table.error, table.again = first_line(error), now + _AGAIN_SECS
        took = time.monotonic() - now
        # delta-rs keeps Python's lock while it loads: seldom, where that takes long.
        table.facts_again = time.monotonic() + max(_FACTS_SECS, _FACTS_PAUSE * took)
        self.revision += 1
        return True

    def step_back(self) -> bool:
        """Read some older versions of every table. Returns whether there may be more."""
        more = False
        for table in tuple(self.tables):
            if table.follower is None or table.follower.complete or table.error is not None:
                continue
            try:
                more |= table.follower.step_back()
            except (TxnError, DeltaError, OSError, ValueError) as error:
                table.error, table.again = first_line(error), time.monotonic() + _AGAIN_SECS
        return more

    @property
    def reads_old(self) -> bool:
        """Whether older versions are still being read."""
        return any(t.follower is not None and not t.follower.complete for t in self.tables)


class Watch:
    """All topologies that a page shows. To be entered; its threads end with it.

    Args:
        topologies: none: every one that ZooKeeper knows.
        zookeeper: as for `Topology.run`.
        where: the working folder in which they run.
        starts_server: whether an embedded server may be started for a moment; False in a run,
            which is about to start one itself.
        feed: who asks ZooKeeper.
    """

    def __init__(
        self,
        topologies: Sequence[Known],
        zookeeper: str,
        *,
        where: Path = Path(),
        starts_server: bool = True,
        feed: type[StatusFeed] = StatusFeed,
    ) -> None:
        self.zookeeper = zookeeper
        self.look = Look(0.0)
        self._where = where
        self._named: dict[str, Known] = {}
        for known in topologies:
            if known.plan or known.name not in self._named:
                self._named[known.name] = known
        self._scratch = tempfile.TemporaryDirectory(prefix="txn-dashboard-")
        self._watched: dict[str, Watched] = {}
        self._lock = threading.Lock()
        self._old = threading.Lock()
        """Held while old versions are read: one topology at a time, so that requests are served."""
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        wanted = {name: known.config for name, known in self._named.items()}
        self._feed = feed(zookeeper, wanted, self._looked, starts_server=starts_server)

    def __enter__(self) -> Watch:  # noqa: PYI034 - typing.Self is Python 3.11
        for known in self._named.values():
            self._add(known)
        self._feed.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._feed.close()
        for watched in self._watched.values():
            watched.told.set()
        for thread in self._threads:
            thread.join(10)
        for watched in self._watched.values():
            watched.index.close()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    @property
    def names(self) -> list[str]:
        """The topologies, in the order in which they were named or found."""
        return list(self._watched)

    def topology(self, name: str) -> Watched:
        """One topology.

        Raises:
            UserError: it is not under watch.
        """
        found = self._watched.get(name)
        if found is None:
            raise UserError("There is no topology of that name here.")
        return found

    @property
    def revisions(self) -> dict[str, int]:
        """Topology -> a number that changes with it."""
        return {name: watched.revision for name, watched in tuple(self._watched.items())}

    def _add(self, known: Known) -> None:
        folder = Path(self._scratch.name) / f"{len(self._watched)}.sqlite"
        watched = Watched(known, folder, self._where)
        self._watched[known.name] = watched
        thread = threading.Thread(
            target=self._follow, args=(watched,), name="txn-watch-tables", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _looked(self, look: Look) -> None:
        self.look = look
        # One that cannot be read is shown with the reason.
        for name in () if self._named else {**look.statuses, **look.errors}:
            if name not in self._watched:
                self._add(Known(name))
        for watched in tuple(self._watched.values()):
            watched.looked(look)

    def _follow(self, watched: Watched) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                watched.refresh()
                self._read_old(watched, time.monotonic() + _EVERY_SECS)
                looked = time.monotonic()
                while watched.look_at_files() and time.monotonic() < looked + _EVERY_SECS:
                    pass
            except Exception:
                log.exception("topology '%s' could not be looked at", watched.name)
            watched.told.wait(max(0.05, began + _EVERY_SECS - time.monotonic()))
            watched.told.clear()

    def _read_old(self, watched: Watched, until: float) -> None:
        while time.monotonic() < until and watched.reads_old and not self._closed.is_set():
            with self._old:
                began = time.monotonic()
                watched.step_back()
                self._closed.wait((time.monotonic() - began) * _YIELD)
