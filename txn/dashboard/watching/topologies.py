"""Topologies under watch: the state of ZooKeeper, logs and running processes, kept up to date.

One thread polls ZooKeeper, one per topology reads its run's note and log, and one per table reads
its log (`watched_table`). Questions are answered from memory and the index, so that they do not
wait for storage, except those about rows and about one txid's record.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txn.dashboard.watching.feed import Look, StatusFeed
from txn.dashboard.watching.index import LogIndex
from txn.dashboard.watching.run_files import (
    LOG_FOLDER,
    RUNS_FOLDER,
    FailureLog,
    RunNote,
    read_note,
)
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.dashboard.watching.watched_table import WatchedTable
from txn.errors import UserError
from txn.operations.status import Status

__all__ = ["Sample", "Watch", "Watched"]

_SAMPLES = 3600
"""Number of newest samples that are all kept: half an hour of a busy run."""
_SPARSE_SECS = 10
"""Seconds between older samples that are kept."""
_SPARSE_SAMPLES = 86_400 // _SPARSE_SECS
_NOTES_SECS = 0.5
"""Interval for reading notes and logs of runs while ZooKeeper has nothing new."""
_YIELD = 0.3
"""Pause for requests after background reading, as a share of its time."""
_END_SECS = 5.0
"""Most seconds that `Watch.__exit__` waits for threads."""

log = logging.getLogger("txn.watching")


@dataclass(frozen=True)
class Sample:
    """The lag of a running topology at one moment."""

    at_ms: int
    lag: Mapping[str, Mapping[str, float]]


class Watched:
    """One topology under watch.

    Args:
        folder: path for its index, without suffix.
        where: its home; None: as the topology's facts say.
        zookeeper: as for `Topology.run`.
    """

    def __init__(
        self,
        topology: TopologyFacts,
        folder: Path,
        where: Path | None = None,
        zookeeper: str = "embedded",
    ) -> None:
        self.name = topology.name
        self.zookeeper = zookeeper
        self._program = topology.program
        self.config = topology.config
        self._folder = folder
        self._options = topology.tables
        self._own_logs = topology.own_logs
        self._indexes: list[LogIndex] = []
        self.status: Status | None = None
        self.error: str | None = None
        """Why ZooKeeper has no status of it."""
        self.is_absent = False
        """True if the reason is that ZooKeeper does not know it."""
        self._note: RunNote | None = None
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._older: deque[Sample] = deque(maxlen=_SPARSE_SAMPLES)
        self.revision = 0
        """Increased with every change."""
        self.news = threading.Event()
        """Set when ZooKeeper has something new: the next read of logs and notes need not wait."""
        self._changing = threading.Lock()
        self.plan: Mapping[str, Any] = topology.plan
        self._where = topology.home if where is None else where
        self._seen: tuple[Any, ...] = ()
        self._begin()

    def _begin(self) -> None:
        """Start with an empty index. Threads that still use the former one may go on with it."""
        index = LogIndex(self._folder.with_suffix(f".{len(self._indexes)}.sqlite"), self.name)
        self._indexes.append(index)
        self.index = index
        self._failed = FailureLog(self.name, self._where / LOG_FOLDER), index
        self.tables: list[WatchedTable] = []
        for table in self._options:
            self._add_table(table)

    def close(self) -> None:
        """Close the index."""
        for index in self._indexes:
            index.close()

    @property
    def note(self) -> RunNote | None:
        """The newest run's last note; None: no note.

        A leader that was cut off writes into the same file as its successor for a while.
        """
        return self._note if self._note is not None and self._is_newest(self._note) else None

    def _is_newest(self, note: RunNote) -> bool:
        return self.status is None or note.epoch >= self.status.found.epoch

    @property
    def is_live(self) -> bool:
        """True if a run of it writes notes."""
        note = self.note
        return note is not None and note.is_live(time.time())

    @property
    def program(self) -> str:
        """Its FILE.py:TOPOLOGY; empty: unknown."""
        return self._program or (self.note.program if self.note else "")

    @property
    def committed(self) -> int | None:
        """ZooKeeper's committed txid; None: unknown."""
        return self.status.found.progress.committed.txid if self.status else None

    def table(self, name: str) -> WatchedTable:
        """Return a table by its name.

        Raises:
            UserError: the topology has no such table.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise UserError(f"Topology '{self.name}' has no table of that name.")

    def looked(self, answer: Look) -> None:
        """Take in an answer of ZooKeeper."""
        before = self.status, self.error
        status = answer.statuses.get(self.name)
        if status is not None and self.status is not None and _is_obsolete(self.status, status):
            tables = self.tables
            self._begin()
            for table in tables:
                table.leave()
        self.status = status or self.status
        self.error = answer.error or answer.errors.get(self.name)
        self.is_absent = not answer.error and self.name in answer.absent
        if status is not None:
            committed = status.found.progress.committed.tables
            for name in committed:
                self._add_table(name)
            for table in self.tables:
                table.hint = committed.get(table.name, table.hint)
        elif self.error is None and self.status is not None:
            self.error = f"ZooKeeper does not know topology '{self.name}' any more."
        if (self.status, self.error) != before:
            self.wake()

    def wake(self) -> None:
        """Let all waiting threads read at once."""
        self.news.set()
        for table in self.tables:
            table.news.set()

    def _add_table(self, name: str) -> None:
        if all(table.name != name for table in self.tables):
            options, own_log = self._options.get(name, {}), self._own_logs.get(name)
            table = WatchedTable(self.index, len(self.tables), name, options, own_log)
            self.tables.append(table)

    def changed(self) -> None:
        """Note a change. From any thread."""
        with self._changing:
            self.revision += 1

    def refresh(self) -> None:
        """Read the run's note and log. From one thread."""
        attempts, index = self._failed
        failures = attempts.new()
        if attempts.begins_anew:
            index.forget_failures()
        if failures:
            index.add_failures(failures)
        note = read_note(self.name, self._where / RUNS_FOLDER)
        if note is not None and note != self._note and self._is_newest(note):
            self._note = note
            self.plan = note.plan or self.plan
            self._sample(note)
        seen = (self.status, self.error, self.note, self.is_live)
        if failures or attempts.begins_anew or seen != self._seen:
            self._seen = seen
            self.changed()

    def _sample(self, note: RunNote) -> None:
        if note.ended is None:
            at = int(note.at * 1000)
            if len(self._samples) == self._samples.maxlen:
                oldest = self._samples[0]
                if not self._older or oldest.at_ms - self._older[-1].at_ms >= _SPARSE_SECS * 1000:
                    self._older.append(oldest)
            self._samples.append(Sample(at, note.lags))

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of about a day, the oldest first."""
        return (*self._older, *self._samples)

    @property
    def reads_old(self) -> bool:
        """True if older versions are still being read."""
        return any(table.reads_old for table in tuple(self.tables))


def _is_obsolete(before: Status, now: Status) -> bool:
    """True if the index is obsolete: the topology has a new incarnation, or fewer tables."""
    was, current = before.found, now.found
    if set(was.progress.committed.tables) - set(current.progress.committed.tables):
        return True
    old, new = was.incarnation, current.incarnation
    return old is not None and new is not None and old.id not in (new.id, *new.takes_over)


class Watch:
    """All topologies that a page shows. A context manager; its threads end with it.

    Args:
        topologies: the topologies to show; empty: every one that ZooKeeper knows.
        zookeeper: as for `Topology.run`.
        where: the home of all; None: as the topologies' facts say.
        starts_server: True if an embedded server may be started for a moment; False in a run,
            which is about to start one itself.
        feed: the class that polls ZooKeeper.
    """

    def __init__(
        self,
        topologies: Sequence[TopologyFacts],
        zookeeper: str,
        *,
        where: Path | None = None,
        starts_server: bool = True,
        feed: type[StatusFeed] = StatusFeed,
    ) -> None:
        self.zookeeper = zookeeper
        self.look = Look(0.0)
        self._where = where
        self._named: dict[str, TopologyFacts] = {}
        for topology in topologies:
            if topology.plan or topology.name not in self._named:
                self._named[topology.name] = topology
        self._scratch = tempfile.TemporaryDirectory(prefix="txn-dashboard-")
        self._watched: dict[str, Watched] = {}
        self._busy = threading.Lock()
        """Lock for work that keeps Python busy: one table at a time, so that requests go on."""
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        settings = {name: topology.config for name, topology in self._named.items()}
        self._feed = feed(zookeeper, settings, self._take_in, starts_server=starts_server)

    def __enter__(self) -> Watch:  # noqa: PYI034 - typing.Self is Python 3.11
        for topology in self._named.values():
            self._add(topology)
        self._feed.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._feed.close()
        for watched in tuple(self._watched.values()):
            watched.wake()
        until = time.monotonic() + _END_SECS
        for thread in self._threads:  # one may wait for storage that does not answer
            thread.join(max(0.0, until - time.monotonic()))
        for watched in tuple(self._watched.values()):
            watched.close()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    @property
    def names(self) -> list[str]:
        """The names of the topologies, in the order in which they were given or found."""
        return list(self._watched)

    def topology(self, name: str) -> Watched:
        """Return a topology by its name.

        Raises:
            UserError: it is not under watch.
        """
        watched = self._watched.get(name)
        if watched is None:
            raise UserError("There is no topology of that name here.")
        return watched

    @property
    def revisions(self) -> dict[str, int]:
        """Topology -> a number that changes with it."""
        return {name: watched.revision for name, watched in tuple(self._watched.items())}

    def _add(self, topology: TopologyFacts) -> None:
        folder = Path(self._scratch.name) / str(len(self._watched))
        watched = Watched(topology, folder, self._where, self.zookeeper)
        self._watched[topology.name] = watched
        self._start(f"txn-watch {topology.name}", self._follow, watched)
        self._start_tables(watched)

    def _take_in(self, answer: Look) -> None:
        self.look = answer
        # A topology that cannot be read is shown with the reason.
        for name in () if self._named else {**answer.statuses, **answer.errors}:
            if name not in self._watched:
                self._add(TopologyFacts(name))
        for watched in tuple(self._watched.values()):
            watched.looked(answer)
            self._start_tables(watched)

    def _start_tables(self, watched: Watched) -> None:
        for table in watched.tables:
            if table.thread is None:
                args = (self._closed, self._turn, watched.changed)
                table.thread = self._start(f"txn-watch {table.name}", table.watch, *args)

    def _start(self, name: str, job: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=job, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _follow(self, watched: Watched) -> None:
        while not self._closed.is_set():
            try:
                watched.refresh()
            except Exception:
                log.exception("topology '%s' could not be looked at", watched.name)
            watched.news.wait(_NOTES_SECS)
            watched.news.clear()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self._busy:
            began = time.monotonic()
            yield
            self._closed.wait((time.monotonic() - began) * _YIELD)
