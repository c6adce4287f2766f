"""What all parts of one simulated run share: time, chance, the store, ZooKeeper, the books."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.chance import Faults
from tests.simulation.kernel import Crash, Kernel, Process
from tests.simulation.plan import owner_of
from txn.attempts import TransactionAttempt

if TYPE_CHECKING:
    from tests.simulation.books import Books
    from tests.simulation.delta import Table
    from tests.simulation.plan import Plan
    from tests.simulation.spark import Context
    from tests.simulation.zookeeper import Ensemble, Session
    from txn.delta.commits import Commit

__all__ = ["World", "current_world", "set_world"]

SLOW = {
    "before-maintenance": 0.5,
    "between-publications": 0.3,
    "shape-staged": 0.5,
    "shape-changed": 0.3,
    "backfilled": 0.2,
}
"""Point -> how often the thread that is there gets no time for a while."""
WORST = ("between-publications", "shape-staged", "shape-changed", "backfilled")
UNSURE = ("zk answer lost", "zk write late", "append answer lost", "append late")
_worlds: list[World] = []


def folder_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def current_world() -> World:
    """The world of the run; there is one at a time."""
    if not _worlds:
        raise Crash
    return _worlds[0]


def set_world(world: World | None) -> None:
    """From now on this is the world."""
    _worlds[:] = [] if world is None else [world]


@dataclass(eq=False)
class World:
    """One run. `faults` and `random` decide everything; nothing else is random."""

    plan: Plan
    kernel: Kernel
    random: Random
    faults: Faults
    ids: Random
    """Of its own: how many ids are drawn, and in which order, must not change what happens."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often each rare situation came about."""
    tables: dict[str, Table] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    source_sizes: list[int] = field(default_factory=list)
    doomed: dict[tuple[str, str], Process] = field(default_factory=dict)
    """(table, path) of staged files that somebody may delete -> who staged them."""
    offered: set[tuple[str, str]] = field(default_factory=set)
    """Files that some append has named: whoever deletes those deletes published rows."""
    start_rival: Callable[[], None] = field(init=False)
    committed: Callable[[], None] = field(init=False)
    """Called when COMMITTED has been written."""
    lines: list[str] | None = None
    """The trace, if one is kept."""
    ensemble: Ensemble = field(init=False)
    books: Books = field(init=False)
    make_table: Callable[[str], Table] = field(init=False)
    contexts: dict[Process, Context] = field(default_factory=dict)
    poisoned: dict[tuple[int, str], float] = field(default_factory=dict)
    """(txid, station) -> until when it fails there."""
    store_away_until: float = 0.0
    is_release_due: bool = False
    """Whether the leader dies with its next append under way, so that the next program begins."""
    _names: int = 0

    # --- small things ------------------------------------------------------------------------

    @property
    def hang_secs(self) -> float:
        return self.plan.config.message_timeout_secs

    @property
    def zookeeper_reachable(self) -> bool:
        return self.kernel.now >= self.ensemble.away_until

    def new_id(self) -> str:
        self._names += 1
        return f"{self._names:08x}"

    def edge_id(self) -> int:
        return self.ids.getrandbits(64) or 1

    def table(self, name: str) -> Table:
        if name not in self.tables:
            table = self.tables[name] = self.make_table(name)
            if (owner := owner_of(name)) != name:
                table.lie_in(self.table(owner))
        return self.tables[name]

    def own_tables(self) -> list[Table]:
        """The tables that exist, without next generations."""
        return [table for table in self.tables.values() if table.commits and not table.owner]

    def bucket(self, table: str, key: int) -> int:
        return key % self.plan.buckets_of(table, self.kernel.alive().process.release)

    def context_of(self, process: Process) -> Context:
        return self.contexts[process]

    def trace(self, line: str) -> None:
        """Note what happened, if anybody wants to know."""
        if self.lines is not None:
            who = self.kernel.current
            self.lines.append(f"{self.kernel.now:10.5f} {who or '-'}: {line}")

    def note(self, fault: str, process: Process) -> None:
        """A fault has struck this process."""
        self.trace(f"FAULT {fault}")
        self.books.struck(fault, process)
        if fault in UNSURE and "crash" in self.faults.rates and self.random.random() < 0.35:
            # Rare faults are worst in pairs: what it has sent is under way, and it dies.
            self.faults.counts["crash"] += 1
            later = self.kernel.now + self.random.uniform(0, 0.05)
            self.kernel.at(later, lambda: self.kernel.kill(process))

    # --- occasions for faults ----------------------------------------------------------------

    def io(self, what: str) -> None:
        """A simulated I/O: takes time, and may be the last thing that the process does."""
        self.step(what)
        self.kernel.sleep(0.0002 + 0.002 * self.random.random())

    def step(self, what: str) -> None:
        """A point at which anything may happen to the running process."""
        kernel = self.kernel
        process = kernel.alive().process
        if self.lines is not None:
            self.trace(what)
        if not self.faults.on:
            return
        fault = self.faults.first("crash", "pause", "zk session expired", "zk away")
        if fault is None:
            return
        self.note(fault, process)
        if fault == "crash":
            kernel.kill(process)
            raise Crash
        if fault == "pause":
            self.pause(process)
        elif fault == "zk session expired":
            for session in self.live_sessions(process):
                self.expire(session.server)
        else:
            self.cut(process)

    def reached(self, point: str, attempt: TransactionAttempt) -> None:
        """A named point of a batch's life (`txn.engine.base.killpoints`)."""
        self.step(f"{point} {attempt}")
        if not self.faults.on:
            return
        if self.random.random() < SLOW.get(point, 0.1):
            # A thread that gets no time for a while.
            self.kernel.sleep(self.random.uniform(0, 0.1))
        # Of all places the worst, above all where a table may hold an earlier attempt.
        worst = point in WORST and "crash" in self.faults.rates
        if worst and self.random.random() < (0.3 if attempt.attempt_id else 0.03):
            process = self.kernel.alive().process
            self.faults.counts["crash"] += 1
            self.note("crash", process)
            if "poison" in self.faults.rates and self.random.random() < 0.8:
                self.faults.counts["poison"] += 1
                self.poison(attempt.txid, "emit")
            self.kernel.kill(process)
            raise Crash
        if point == "before-publish" and self.doomed:
            self._lose_a_file()

    def _lose_a_file(self) -> None:
        """Somebody deletes a staged file, between two looks that the commit turn takes at it."""
        process = self.kernel.alive().process
        mine = [
            (table, path)
            for (table, path), owner in self.doomed.items()
            if owner is process and path in self.tables[table].blobs
        ]
        there = [one for one in mine if one not in self.offered]
        # Above all one beside which others of a joint job are published already.
        mates = {(table, folder_of(path)) for table, path in self.offered}
        joint = [one for one in there if (one[0], folder_of(one[1])) in mates]
        tries = 3 if joint else 1
        if there and any(self.faults.strikes("staged file gone") for _ in range(tries)):
            table, path = self.random.choice(joint or there)
            del self.tables[table].blobs[path]
            del self.doomed[table, path]
            self.trace(f"FAULT {table}/{path} is gone")

    def dies_before(self, table: Table, process: Process) -> bool:
        """Whether a process dies before it appends a txid that the late table may hold by then.

        COMMITTED does not name that one yet, so the former program may commit another attempt.
        """
        if not (self.faults.on and process.release and "crash" in self.faults.rates):
            return False
        if table.name == "late" or not self.books.is_late_unnamed() or self.random.random() > 0.25:
            return False
        self.faults.counts["crash"] += 1
        self.note("crash", process)
        self.kernel.kill(process)
        return True

    def hesitate(self) -> None:
        """An append is about to be sent: the moment for a zombie."""
        if self.faults.on and "pause" in self.faults.rates and self.random.random() < 0.04:
            process = self.kernel.alive().process
            self.faults.counts["pause"] += 1
            self.note("pause", process)
            self.pause(process, longest=True)

    def pause(self, process: Process, *, longest: bool = False) -> None:
        """SIGSTOP; often for so long that the session is over."""
        share = 4.0 if longest else self.random.choice((0.05, 0.5, 1.5, 3.0))
        timeout = self.plan.config.zookeeper_timeout_secs
        self.stall(process, share * timeout * self.random.uniform(0.5, 1))
        self.kernel.sleep(0)

    def stall(self, process: Process, seconds: float) -> None:
        """Give a process no time for a while."""
        kernel, timeout = self.kernel, self.plan.config.zookeeper_timeout_secs
        process.paused_until = kernel.now + seconds
        if seconds > timeout:
            kernel.at(kernel.now + timeout, lambda: self._expire_all(process, if_paused=True))
            # Whoever looks after it starts another one elsewhere.
            kernel.at(kernel.now + timeout * self.random.uniform(0, 1.3), self.start_rival)

    def cut(self, process: Process) -> None:
        """ZooKeeper is away, or only this process cannot reach it."""
        kernel, timeout = self.kernel, self.plan.config.zookeeper_timeout_secs
        seconds = self.random.choice((0.1, 0.4, 1.5)) * timeout
        if self.random.random() < 0.5:
            self.ensemble.away_until = max(self.ensemble.away_until, kernel.now + seconds)
            return
        for session in self.live_sessions(process):
            session.broken_until = kernel.now + seconds
        if seconds > timeout:
            kernel.at(kernel.now + timeout, lambda: self._expire_all(process))

    def poison(self, txid: int, station: str) -> None:
        """Something in this txid makes every attempt of it fail at a station, for a while."""
        self.poisoned[txid, station] = self.kernel.now + self.random.uniform(0.1, 3)

    def is_poisoned(self, txid: int, station: str) -> bool:
        return self.faults.on and self.poisoned.get((txid, station), 0.0) > self.kernel.now

    # --- what the store tells ----------------------------------------------------------------

    def ask(self, what: str) -> None:
        """A read, a listing or a deletion: an I/O that may be repeated, and may have to be.

        Raises:
            OSError: nobody reaches the store for now.
        """
        self.io(what)
        kernel = self.kernel
        process = kernel.alive().process
        if kernel.now >= self.store_away_until and self.faults.strikes("storage away"):
            # Longer than a call is repeated, now and then.
            seconds = self.random.choice((0.0, 0.2, 1.0, 8.0)) * self.random.uniform(0.5, 1)
            self.store_away_until = kernel.now + seconds
            self.note("storage away", process)
            raise OSError(errno.EIO, "the store does not answer")
        if kernel.now < self.store_away_until:
            self.books.struck("storage away", process)
            raise OSError(errno.EIO, "the store does not answer")

    def listed(self, table: Table) -> int:
        """The newest version of a table as a listing of its log has it."""
        if table.version > 0 and self.faults.strikes("stale listing"):
            self.books.struck("stale listing", self.kernel.alive().process)
            return max(0, table.version - self.random.randint(1, 3))
        return table.version

    def garbles(self, name: str, commit: Commit) -> bool:
        """Whether a version lacks the last of its files when it lands.

        Only where a replay takes the version back, and what older versions had is not lost.
        """
        kind = self.plan.tables.get(name)
        able = kind is not None and kind.kind != "upsert" and kind.semantics == "opaque"
        if not able or not commit.adds or commit.removes:
            return False
        return self.faults.strikes("append garbled")

    # --- sessions ----------------------------------------------------------------------------

    def live_sessions(self, process: Process) -> list[Session]:
        return [one for one in self.sessions if one.process is process and not one.server.expired]

    def _expire_all(self, process: Process, *, if_paused: bool = False) -> None:
        if if_paused and process.paused_until <= self.kernel.now:
            return
        for session in self.live_sessions(process):
            self.expire(session.server)

    def expire(self, server: Any) -> None:
        """The ensemble gives a session up; its client hears of it as soon as it can."""
        if not self.zookeeper_reachable:
            self.expire_later(server)
            return
        self.ensemble.expire(server)
        for session in self.sessions:
            if session.server is server and not session.process.dead:
                later = max(self.kernel.now, session.process.paused_until, session.broken_until)
                self.kernel.at(later + 0.02, session.notice)

    def expire_later(self, server: Any) -> None:
        timeout = self.plan.config.zookeeper_timeout_secs
        self.kernel.at(
            max(self.kernel.now, self.ensemble.away_until) + timeout, lambda: self.expire(server)
        )

    def process_died(self, process: Process) -> None:
        """Its sessions end when their time is over."""
        for session in self.live_sessions(process):
            self.expire_later(session.server)

    # --- files -------------------------------------------------------------------------------

    def put_files(self, url: str, files: dict[str, Any]) -> None:
        """A job's output appears."""
        table = self.table(url.split("/", 1)[0])
        for path, blob in files.items():
            if path not in table.referred:
                table.blobs[path] = blob

    def described(self, table: str, paths: Iterable[str]) -> None:
        """A process knows now what it has staged; from now on somebody may delete it.

        Before, nobody could tell that it was ever there (but `verify="rows"`).
        """
        if self.faults.on and "staged file gone" in self.faults.rates:
            process = self.kernel.alive().process
            self.doomed.update({(table, p): process for p in paths if "compaction" not in p})
