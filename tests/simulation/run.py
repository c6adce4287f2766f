"""One run: processes that are started, die and are started again, until everything is committed."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from committers.publishing.append import file_actions
from committers.publishing.files import ActiveFile
from tests.simulation import primitives
from tests.simulation.books import ROOT, Books
from tests.simulation.chance import Faults
from tests.simulation.delta import Table, text_of
from tests.simulation.kernel import Crash, Kernel, Process
from tests.simulation.plan import (
    CHANGING,
    JOINS,
    TableKind,
    draw_plan,
    with_ends,
    with_event_time,
    with_release,
)
from tests.simulation.primitives import CLOCK
from tests.simulation.sources import SimSpout
from tests.simulation.spark import SparkFault, SparkSession, blob_of, stats_of
from tests.simulation.tables import SimTable, make_committer
from tests.simulation.world import World, set_world
from tests.simulation.zookeeper import Ensemble
from txn.delta.commits import epoch_app
from txn.engine.filling import fill
from txn.engine.running import RunningTopology
from txn.errors import (
    BatchError,
    ColumnsUnknownError,
    CommitConflictError,
    FailedException,
    FencedError,
    LeaderExistsError,
    ProgressUnavailableError,
    ProgressUnreadableError,
    RecoveryRefusedError,
    SourceChangedError,
    StagedFileError,
    StorageUnavailableError,
    TableChangedError,
    TableRefusedError,
)
from txn.interfaces import FENCE_KEY, SpoutKind, StagedFile
from txn.topology import Stream, Topology, TxnState
from txn.zookeeper import ZooKeeperProgress
from txn.zookeeper.backend import ZooKeeperBackend

__all__ = ["Result", "run_seed"]

NAME = "sim"
HOSTS = "simulated:2181"
GIVEN_UP = ("TXN-414", "TXN-502")
"""Numbers of errors that end a run which waited, or tried, as long as it may."""
LOOK_SECS = 0.25
DROPS = 2
"""Of the quarantined txids, the operator drops those that it divides."""
RETENTION_SECS = 0.2


@dataclass(frozen=True)
class Result:
    """What came of a seed."""

    seed: int
    failure: str | None
    faults: Counter[str]
    counts: Counter[str]
    committed: int
    events: int
    switches: int
    simulated_secs: float
    cpu_secs: float
    trace: list[str] = field(default_factory=list)


class SimStore(ZooKeeperProgress):
    """The real store over the simulated ZooKeeper.

    Args:
        waits: whether it waits for its turn to lead, whatever it is told.
    """

    def __init__(self, world: World, *, waits: bool) -> None:
        super().__init__(
            HOSTS,
            NAME,
            world.plan.config,
            sleep=CLOCK.sleep,
            clock=CLOCK.monotonic,
            new_id=world.new_id,
        )
        self.waits = waits

    def lead(self, *, wait: bool = False, **others: Any) -> int:
        return super().lead(wait=wait or self.waits, **others)


class Run:
    """The processes of one run, and what happens around them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kernel = world.kernel
        self.random = world.random
        self.plan = world.plan
        self.alive: dict[str, Process] = {}
        self.running: dict[Process, RunningTopology] = {}
        self.waited: set[Process] = set()
        """Those of them that waited for their turn to lead."""
        self.wanted: set[int] = set()
        self.asked = False
        self.original: tuple[str, bytes] | None = None
        self.repaired_at = -10.0
        self.started = 0
        self.filling: set[Process] = set()
        """Those that run `txn backfill`."""
        self.deleted: set[str] = set()
        """Next generations that somebody has deleted."""
        self.begins_late = False
        """Whether the late table need not have the first txids."""
        self.former_until = 0
        """The txid up to which the former program has to run on; 0: it has not."""
        self.waiting_until = 0
        """The same for the second one, without the setting that lets next generations in."""

    def begin(self) -> None:
        """What is going to happen whatever the processes do."""
        world, plan, random, kernel = self.world, self.plan, self.random, self.kernel
        for stream, size in enumerate(plan.records):
            world.source_sizes.append(random.randint(0, size))
            left = size - world.source_sizes[stream]
            while left > 0:
                some = random.randint(1, left)
                left -= some
                kernel.at(random.uniform(0, plan.calm_at * 0.8), self._grows(stream, some))
        for _ in range(6):
            kernel.at(random.uniform(0.05, plan.calm_at), self._stranger)
        world.committed = self._other_ensemble
        world.start_rival = lambda: self._start("b")
        self._start("a")
        if world.faults.strikes("rival"):
            kernel.at(random.uniform(0, plan.calm_at / 2), lambda: self._start("b"))
        if plan.release is not None:
            kernel.at(plan.release.at, self._release)
            for _ in range(plan.release.fills):
                kernel.at(random.uniform(0, plan.release.at * 1.5), self._fill_beside)
        kernel.at(plan.calm_at, self._calm)
        kernel.at(plan.ends_by, self._out_of_time)

    # --- processes ---------------------------------------------------------------------------

    def _start(self, slot: str) -> None:
        if slot in self.alive:
            return
        if not self.alive:
            self._damage()
            self._restore()
            self._poison()
        self.started += 1
        machine = "m" if self.plan.same_machine else f"m-{slot}"
        name = f"{slot}{self.started}"
        process, spark = self._process(name, self._next_release(), 1000 + self.started, machine)
        self.alive[slot] = process
        process.on_death.append(lambda: self._died(slot, process))
        self.kernel.spawn(process, "main", lambda: self._main(slot, process, spark))

    def _process(
        self, name: str, release: int, pid: int = 0, machine: str = ""
    ) -> tuple[Process, Any]:
        process = Process(name, pid, machine, release=release)
        self.kernel.processes.append(process)
        spark = SparkSession(self.plan.slots)
        self.world.contexts[process] = spark.sparkContext
        return process, spark

    def _died(self, slot: str, process: Process) -> None:
        self.world.trace(f"{process} is dead")
        self.world.process_died(process)
        self.alive.pop(slot, None)
        self.running.pop(process, None)
        if not self.kernel.stopping:
            soon = self.random.choice((0.002, 0.05, 0.4))
            delay = self.random.uniform(0, soon) if self.world.faults.on else 0.2
            self.kernel.at(self.kernel.now + delay, lambda: self._start(slot))

    def _main(self, slot: str, process: Process, spark: Any) -> None:
        world = self.world
        error: BaseException | None = None
        try:
            definition = self._topology(process.release).definition
            waits = slot == "b" and self.plan.standby
            running = RunningTopology(
                definition,
                spark,
                SimStore(world, waits=waits),
                until=self._until(process),  # type: ignore[arg-type]
                clock=CLOCK.time,
                monotonic=CLOCK.monotonic,
                ids=world.edge_id,
            )
            running.begin()
            self.running[process] = running
            if waits:
                self.waited.add(process)
            if world.faults.strikes("stop"):
                after = self.random.uniform(0, 1)
                self.kernel.at(self.kernel.now + after, lambda: self._stop(process))
            assert running._thread is not None
            running._thread.join()
            error = running._error
        except Crash:
            raise
        except BaseException as raised:  # noqa: BLE001 - judged below
            error = raised
        self._ended(process, error)
        self.kernel.kill(process)

    def _is_of_change(self, process: Process, error: BaseException) -> bool:
        """Whether a process ended rightly because the program changes."""
        world, starting = self.world, process not in self.running or process in self.waited
        if isinstance(error, TableRefusedError) and "it holds rows of txid" in str(error):
            world.counts["change refused in a half-published table"] += 1
            self.former_until = world.books.committed + 1
            return bool(process.release and starting)
        if not process.release and world.books.knows_release():
            world.counts["former program refused"] += 1
            if self.former_until > world.books.committed:
                self.former_until, self.waiting_until = 0, self.former_until
            # During the run, if a table is opened with the first rows: the books see that nothing
            # was published in it by then.
            return isinstance(error, TableRefusedError | RecoveryRefusedError)
        if isinstance(error, TableRefusedError) and "It was changed during the run" in str(error):
            # By a leader before it, between its look at the tables and its fence.
            return starting
        if self._is_of_generation(process, error):
            return bool(process.release)
        if isinstance(error, TableChangedError) and process.release:
            return any(name in str(error) for name in self.deleted)
        if found := re.search("can be filled from txid ([0-9]+) on", str(error)):
            # Before the first record no table has recorded anything.
            self.begins_late = True
            return not any(r for t, r in world.books.by_txid.items() if t < int(found[1]))
        # What changes or fills tables is tried once, by the start.
        once = SparkFault | FailedException | StagedFileError
        return bool(process.release and starting and isinstance(error, once))

    def _is_of_generation(self, process: Process, error: BaseException) -> bool:
        """Whether a next generation was refused rightly; somebody takes the way out."""
        world, stale = self.world, False
        if any(name in str(error) for name in self.deleted):
            stale = True  # it was refused to another one a moment ago
        if "has taken the table's place meanwhile" in str(error):
            return world.books.epoch > process.epoch or process.name.startswith("f")
        if "The next generation of table" in str(error):
            for table in [one for one in world.tables.values() if one.owner and one.commits]:
                if table.name in str(error) and world.books.is_stale(table.name, process.release):
                    world.counts["stale generation refused"] += 1
                    self.deleted.add(table.name)
                    for other in self.filling - {process}:
                        self.kernel.kill(other)
                    world.books.vanishes(table)
                    table.blobs.clear()
                    stale = True
        return stale

    def _stop(self, process: Process) -> None:
        running = self.running.get(process)
        if running is not None and not process.dead:
            running._ask_to_stop()

    def _ended(self, process: Process, error: BaseException | None) -> None:
        """A process has ended by itself: was that right?"""
        world = self.world
        told = "well" if error is None else f"{type(error).__name__}: {error}"
        world.trace(f"{process} ended: {told[:400]}")
        world.counts[f"ended: {'well' if error is None else type(error).__name__}"] += 1
        if error is None:
            if not world.faults.on and self._is_done() and world.books.is_released():
                self.kernel.stop()
            return
        if self._is_of_change(process, error):
            return
        if isinstance(error, ProgressUnreadableError) and world.books.damaged is not None:
            self._repair()
            return
        if isinstance(error, ProgressUnreadableError) and self.kernel.now < self.repaired_at + 4:
            return  # read by a second process, or of a server that lags
        replaced = world.books.epoch > process.epoch > 0
        taken = any(ledger.epoch > process.epoch for ledger in world.books.ledgers.values())
        if isinstance(error, FencedError):
            fair = replaced or taken
        elif isinstance(error, SourceChangedError):
            # A successor has deleted what it staged, and it looks as if nothing had been there.
            fair = replaced
        elif isinstance(error, RecoveryRefusedError):
            # Nothing is guessed from a listing that is older than what ZooKeeper knows.
            stale = world.books.has_struck("stale listing", process)
            starting = process not in self.running or process in self.waited
            fair = starting and (stale or taken)
        elif isinstance(error, CommitConflictError | StorageUnavailableError):
            fair = process not in self.running  # the store failed while it started
        else:
            expected = LeaderExistsError | ProgressUnavailableError | ColumnsUnknownError
            fair = isinstance(error, expected) or (
                isinstance(error, BatchError) and error.number in GIVEN_UP
            )
        if not fair:
            self.kernel.fail(f"{process} of epoch {process.epoch} ended wrongly: {told}", error)

    def _topology(self, release: int) -> Topology:
        plan, world = self.plan, self.world
        config = plan.config
        if release and plan.release is not None:
            late = tuple(name for name, table in plan.tables.items() if table.since)
            backfilled = {*late, *plan.release.refilled}
            if self.waiting_until > world.books.committed:
                backfilled -= world.books.versions.keys()
            rebuilt = tuple(sorted(plan.release.rebuilt))
            changed = {"rebuilt_tables": rebuilt, "backfilled_tables": tuple(sorted(backfilled))}
            if self.begins_late:
                changed["new_tables"] = tuple(sorted(backfilled))
            config = config.model_copy(update=changed)
        topology = Topology(NAME, config)
        streams = [
            topology.stream(
                f"s{number}",
                SimSpout(world, number, SpoutKind(kind), knows_schema=plan.knows_schema[number]),
            )
            for number, kind in enumerate(plan.kinds)
        ]
        timed = {
            number: stream.watermark(
                "at",
                timedelta(microseconds=plan.timed.delay),
                late=plan.timed.late,
                idle_after=plan.timed.idle_after,
            )
            for number, stream in enumerate(streams)
            if plan.timed is not None and number in plan.timed_streams(release)
        }
        states: dict[str, TxnState] = {}
        for name, table in plan.tables.items():
            if table.since > release:
                continue
            own = [streams[number] for number in table.streams]
            if table.feed == "rows":
                own = [timed.get(number, streams[number]) for number in table.streams]
            stream = fed(table, own, states)
            committer = make_committer(world, name, release)
            sink = topology._add_sink(stream._node, committer, committer)
            states[name] = TxnState(topology, SimTable(world, name), sink, ("key",), {})
        return topology

    # --- the program that follows ------------------------------------------------------------

    def _newest_release(self) -> int:
        release = self.plan.release
        return int(release is not None and self.kernel.now >= release.at)

    def _next_release(self) -> int:
        """Which program the next process has."""
        if self.former_until > self.world.books.committed:
            return 0
        newest = self._newest_release()
        return 0 if newest and self.world.faults.strikes("former program") else newest

    def _until(self, process: Process) -> str | int:
        asked = self.waiting_until if process.release else self.former_until
        return asked if asked > self.world.books.committed else self.plan.until

    def _release(self) -> None:
        """The second program gets its turn."""
        release = self.plan.release
        assert release is not None
        self.world.trace(f"RELEASE {release}")
        if release.how == "append":
            self.world.is_release_due = self.world.faults.on
            return
        for process in [one for one in self.alive.values() if not one.dead]:
            if release.how == "stop":
                self._stop(process)
            elif release.how == "kill":
                self.kernel.kill(process)
            elif release.how == "pause":
                self.world.stall(process, self.random.uniform(1, 4))
        self._start("b")

    def _fill_beside(self) -> None:
        """Somebody runs `txn backfill`."""
        self.started += 1
        assert self.plan.release is not None
        former = self.plan.release.is_stale and self.random.random() < 0.5
        process, spark = self._process(f"f{self.started}", 0 if former else 1)
        self.filling.add(process)
        process.on_death.append(lambda: self.filling.discard(process))
        process.on_death.append(lambda: self.world.process_died(process))
        self.kernel.spawn(process, "main", lambda: self._fill(process, spark))

    def _fill(self, process: Process, spark: Any) -> None:
        world = self.world
        definition = self._topology(process.release).definition
        assert self.plan.release is not None
        refilled = self.plan.release.refilled
        names = [sink.name for sink in definition.sinks]
        late = [name for name in names if self.plan.tables[name].since or name in refilled]
        told = "well"
        try:
            clocks: Any = {"sleep": CLOCK.sleep, "clock": CLOCK.monotonic}
            with closing(ZooKeeperBackend(HOSTS, self.plan.config, **clocks)) as backend:
                status = backend.status(NAME)
                with closing(SimStore(world, waits=False)) as store:
                    life, epoch = status.incarnation, status.epoch
                    fill(definition, spark, store, late, epoch=epoch, life=life, stragglers=[])
        except Crash:
            raise
        except Exception as error:  # noqa: BLE001 - somebody reads it, and runs it again or not
            told = f"{type(error).__name__}: {error}"
            self._is_of_generation(process, error)
        world.trace(f"{process} filled: {told[:400]}")
        world.counts[f"filled beside: {told.split(':')[0]}"] += 1
        self.kernel.kill(process)

    # --- around them -------------------------------------------------------------------------

    def _grows(self, stream: int, some: int) -> Callable[[], None]:
        def grow() -> None:
            self.world.source_sizes[stream] += some

        return grow

    def _stranger(self) -> None:
        """Somebody runs OPTIMIZE or VACUUM, sets a property, or cleans the log up."""
        world, random = self.world, self.random
        made = world.own_tables()
        if not made:
            return
        table = random.choice(made)
        if world.faults.strikes("table properties"):
            text = text_of([{"metaData": table.description()}], {})
        elif table.active and world.faults.strikes("optimize"):
            self.optimize(table)
            return
        else:
            self._clean_up(table)
            return
        assert table.land(table.version + 1, text)
        world.books.landed(table, {}, None)

    def _other_ensemble(self) -> None:
        """Somebody runs the topology on another ensemble, which takes a table and comes no further.

        Often while the topology here is about to say that nothing follows for now.
        """
        world = self.world
        if world.faults.strikes("other ensemble"):
            self.kernel.at(self.kernel.now + self.random.uniform(0, 0.1), self._take_table)

    def _take_table(self) -> None:
        world = self.world
        made = world.own_tables()
        if not made:
            return
        table = self.random.choice(made)
        ledger = world.books.ledgers[table.name]
        epoch = max(ledger.epoch, world.books.epoch) + 1
        last = None
        for commit in reversed(table.parsed):
            if commit.publication is not None:
                last = {
                    "version": commit.version,
                    "publication": commit.publication.model_dump(mode="json"),
                }
                break
        mark = {"topology": NAME, "epoch": epoch, "last": last}
        text = text_of((), {epoch_app(NAME): epoch}, {FENCE_KEY: mark})
        assert table.land(table.version + 1, text)
        world.books.landed(table, {FENCE_KEY: mark}, None)

    def _clean_up(self, table: Table) -> None:
        """Somebody runs VACUUM, or cleans up the log: of what is committed only."""
        world = self.world
        committed = world.books.versions.get(table.name, -1)
        if committed >= 0 and world.faults.strikes("vacuum"):
            gone = table.vacuum(committed, self.kernel.now - RETENTION_SECS)
            world.trace(f"{table.name} is vacuumed: {gone} files")
            world.counts["file vacuumed"] += gone
        elif committed >= 0 and not self._is_queried(table) and world.faults.strikes("log cleaned"):
            until = min(committed + 1, table.version)
            table.cleaned = max(table.cleaned, self.random.randint(0, until))
            world.trace(f"log of {table.name} is cleaned up below version {table.cleaned}")

    def _is_queried(self, table: Table) -> bool:
        """Whether older versions may be needed: by a query after a crash of a transactional upsert
        table, or for the watermark before a txid that is replayed, where keys end.

        Without their commit files it is refused for good, which is right and would end the run.
        """
        kinds = self.plan.tables
        asked = any(kind.of == table.name for kind in kinds.values())
        own = kinds[table.name]
        is_asked = asked and own.kind == "upsert" and own.semantics == "transactional"
        return is_asked or own.ends is not None

    def optimize(self, table: Table) -> None:
        """Put some files of one partition together."""
        random = self.random
        groups: dict[str, list[ActiveFile]] = {}
        for file in table.active.values():
            groups.setdefault(str(dict(file.partition)), []).append(file)
        files = random.choice(list(groups.values()))
        chosen = random.sample(files, random.randint(1, min(4, len(files))))
        rows = [row for file in chosen for row in table.blobs[file.path].rows]
        path = f"part-{self.world.new_id()}.parquet"
        table.blobs[path] = blob_of(rows)
        partition = dict(chosen[0].partition)
        size = table.blobs[path].size
        add = StagedFile(path, size, len(rows), partition, stats_of(rows))
        actions = file_actions([add], chosen, 0, data_change=False)
        assert table.land(table.version + 1, text_of(actions, {}))
        self.world.books.landed(table, {}, None)

    def _damage(self) -> None:
        """Somebody writes garbage into a node while nobody runs."""
        world, nodes = self.world, self.world.ensemble.nodes
        if self.original is not None or not world.faults.strikes("zk node damaged"):
            return
        names = ("committed", "epoch", "format", "batches/", "quarantine/")
        paths = [p for p in nodes if p.startswith(tuple(f"{ROOT}/{name}" for name in names))]
        if not paths:
            world.faults.counts["zk node damaged"] -= 1
            return
        path = self.random.choice(paths)
        self.original = path, nodes[path].data
        garbage = self.random.choice((b"", b"{", b'{"version": 2}', b"null", b"\xff"))
        world.ensemble.overwrite(path, garbage)
        world.books.damaged = path
        world.trace(f"{path} is damaged: {garbage!r}")

    def _poison(self) -> None:
        """The second of the open txids cannot be planned: what was known of it may be outdated."""
        books, faults = self.world.books, self.world.faults
        if "poison" in faults.rates and len(books.newest) > 1 and self.random.random() < 0.5:
            faults.counts["poison"] += 1
            self.world.poison(sorted(books.newest)[1], "plan")

    def _restore(self) -> None:
        """Somebody restores ZooKeeper from a backup made since the newest commit."""
        books, faults = self.world.books, self.world.faults
        backup = books.backup
        if self.original is None and backup and faults.strikes("zk restored"):
            self.world.trace("ZooKeeper is restored from a backup")
            self.world.ensemble.restore(f"{ROOT}/batches/", backup)
            self.world.ensemble.restore(f"{ROOT}/parts/", backup)
            books.restored()

    def _repair(self) -> None:
        """Somebody restores it."""
        if self.original is not None:
            self.world.ensemble.overwrite(*self.original)
            self.world.trace(f"{self.original[0]} is restored")
            self.world.counts["damaged node refused"] += 1
        self.original = self.world.books.damaged = None
        self.repaired_at = self.kernel.now

    # --- the end -----------------------------------------------------------------------------

    def _calm(self) -> None:
        """From now on nothing goes wrong, and what is there must be committed."""
        self.world.trace("CALM")
        self.world.faults.on = False
        if self.original is not None:
            self._repair()
        self._look()

    def _look(self) -> None:
        """The operator: asks for replays once, drops some, and stops what has nothing to do."""
        if self.world.books.set_aside and not self.asked:
            self.asked = True
            if self.random.random() < 0.8:
                process = Process("operator")
                self.kernel.processes.append(process)
                self.kernel.spawn(process, "main", self._ask_for_replays)
        elif self._is_done():
            for process in list(self.running):
                self._stop(process)
        for process in list(self.running):
            if process.release < self._next_release():
                self._stop(process)
        self.kernel.at(self.kernel.now + LOOK_SECS, self._look)

    def _ask_for_replays(self) -> None:
        try:
            clocks: Any = {"sleep": CLOCK.sleep, "clock": CLOCK.monotonic}
            backend = ZooKeeperBackend(HOSTS, self.plan.config, **clocks)
            with closing(backend):
                txids = backend.request_replays(NAME, None)
                if given_up := [txid for txid in txids if txid % DROPS == 0]:
                    self.world.books.given_up |= set(given_up)
                    backend.request_drops(NAME, given_up)
        except ProgressUnavailableError:
            return
        self.wanted = set(txids)

    def _is_done(self) -> bool:
        books = self.world.books
        there = sum(self.world.source_sizes)
        aside = sum(len(books.records(read)) for read in books.set_aside.values())
        accounted = len(books.seen) + aside + len(books.dropped)
        return accounted == there and not self.wanted & set(books.set_aside)

    def _out_of_time(self) -> None:
        waits = [str(task) for process in self.kernel.processes for task in process.tasks]
        books = self.world.books
        self.kernel.fail(
            f"liveness: not done {self.plan.ends_by - self.plan.calm_at:g} s after the last fault; "
            f"{books.committed} txids are committed, {sorted(books.newest)} open; tasks: {waits}"
        )


def fed(table: TableKind, streams: Sequence[Stream], states: Mapping[str, TxnState]) -> Stream:
    """What feeds a table."""
    first, *others = streams
    if table.feed in JOINS:
        return first.join(others[0], "key", table.feed.removeprefix("join "))
    if table.feed == "new values":
        return states[table.of].new_values()
    if table.feed == "final values":
        return states[table.of].final_values(by="key")
    if table.feed.startswith("query "):
        as_of: Any = table.feed.removeprefix("query ")
        return first.state_query(states[table.of], on="key", as_of=as_of)
    return first.merge(*others) if others else first


def run_seed(seed: int, *, trace: bool = False) -> Result:
    """Live through one seed. The seams must be installed."""
    began = time.process_time()
    random = Random(seed)
    plan = draw_plan(random)
    if seed % 16 in CHANGING:
        plan = with_release(plan, Random(f"release {seed}"))
    plan = with_event_time(plan, Random(f"event time {seed}"))
    plan = with_ends(plan, Random(f"ends {seed}"))
    kernel = Kernel()
    world = World(
        plan, kernel, random, Faults(random, dict(plan.rates), plan.calm_at), Random(~seed)
    )
    if trace:
        world.lines = [f"seed {seed}: {plan}"]
        kernel.record = world.lines.append
    world.make_table = Table
    world.ensemble, world.books = Ensemble(world), Books(world)
    primitives.use(kernel)
    set_world(world)
    try:
        Run(world).begin()
        kernel.run()
        if kernel.failure is None:
            if not kernel.stopping:
                kernel.fail("liveness: nothing is left to happen, and not everything is committed")
            else:
                world.books.close()
        failure, now, events = kernel.failure, kernel.now, kernel.events
        kernel.wind_up()
    finally:
        set_world(None)
        primitives.use(None)
    return Result(
        seed,
        failure,
        world.faults.counts,
        world.counts,
        world.books.committed,
        events,
        kernel.switches,
        now,
        time.process_time() - began,
        world.lines or [],
    )
