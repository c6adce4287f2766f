"""One run: everything is started, broken for a while, healed, written down and taken away."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.machine import facts
from tests.chaos.cluster import WORKERS, Cluster
from tests.chaos.collect import collect
from tests.chaos.disk import Disk, unmount
from tests.chaos.ensemble import Ensemble
from tests.chaos.feeder import PARTITIONS, Feeder
from tests.chaos.history import History, read_history
from tests.chaos.injector import Injector, Setting
from tests.chaos.lake import Lake
from tests.chaos.links import Links, Slot
from tests.chaos.lives import ROOT, SLOTS, Lives
from tests.chaos.machines import BROKER, STORE, Network
from tests.chaos.place import local_place
from tests.chaos.plan import THIRDS, fates, fault_decks, faults_of
from tests.chaos.reader import ReaderSpec
from tests.chaos.topology import NAME, TOPIC, DriverSpec, tables_of
from tests.children import LOOPBACK
from tests.spouts.kafka_broker import Broker
from txn.machine.jars import cache_folder

__all__ = ["Options", "run"]

READER_SECS = 120.0


@dataclass(frozen=True)
class Options:
    """What a run is to be."""

    folder: Path
    seed: int = 0
    minutes: float = 5.0
    """Of faults; 0: until each kind has come once."""
    records: int = 100_000
    """Of both sources together."""
    gap_secs: float = 25.0
    """Mean pause between two faults that are not the driver's; two series of them run at once."""
    session_secs: float = 4.0
    at_least: Mapping[str, int] = field(default_factory=dict)
    """Kind of fault -> the run goes on until there were so many."""
    per_file: int = 1000
    kafka_records: tuple[int, int] = (2000, 20_000)
    files_per_batch: tuple[int, int] = (2, 10)
    disk: str = "3g"
    store: str = "local"
    """Where tables and files lie: one of `place.STORES`."""
    cluster: str = "shared"
    """One of `cluster.CLUSTERS`; an isolated one needs another store than "local"."""
    thirds: tuple[int, ...] = THIRDS
    """Of the kinds of fault that are not the driver's; see `plan.fault_decks`."""
    command: str = ""


class Counted:
    """How many faults of each kind there were. Thread-safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._say = say

    def __call__(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1
            self._say(f"{kind} ({self.counts[kind]})")

    def missing(self, wanted: Mapping[str, int]) -> list[str]:
        """The kinds of which there were too few."""
        return [kind for kind, count in wanted.items() if self.counts[kind] < count]


def run(options: Options, say: Callable[[str], None] = lambda _: None) -> Path:
    """Do it; the file of the history.

    Raises:
        StuckError: the topology did not catch up. What was recorded is in the file.
    """
    folder = options.folder
    unmount(folder / "disk")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lives").mkdir(parents=True)
    history = History(folder / "history.jsonl")
    history.add(
        "run",
        seed=options.seed,
        command=options.command,
        machine=facts(folder),
        minutes=options.minutes,
        records=options.records,
        session_secs=options.session_secs,
        store=options.store,
        cluster=options.cluster,
        tables=tables_of(options.seed),
    )
    with contextlib.ExitStack() as resources:
        resources.callback(history.close)
        _Run(options, history, resources, say).run()
    return history.path


class _Run:
    """What is alive during a run."""

    def __init__(
        self,
        options: Options,
        history: History,
        resources: contextlib.ExitStack,
        say: Callable[[str], None],
    ) -> None:
        folder = options.folder
        self._options = options
        self._history = history
        self._resources = resources
        self._say = say
        self._began = self._until = time.monotonic()
        self._life = lambda: 0
        self._counted = Counted(self._tell)
        self._disk: Disk | None = None
        self._lake: Lake | None = None
        network = None
        if options.cluster == "isolated":
            hidden = [folder, cache_folder() / "jars"]
            network = Network(1 + WORKERS["isolated"], hidden)
            resources.enter_context(network)
        if options.store == "local":
            self._disk = resources.enter_context(Disk(folder / "disk", options.disk))
            self._place = local_place(self._disk.folder, folder / "files")
        else:
            self._lake = resources.enter_context(
                Lake(folder / "lake", STORE if network else LOOPBACK)
            )
            self._place = self._lake.place
        self._ensemble = Ensemble(folder)
        self._cluster = Cluster(folder, network)
        resources.callback(shutil.rmtree, self._cluster.scratch, ignore_errors=True)
        resources.callback(shutil.rmtree, folder / "work", ignore_errors=True)
        self._broker = Broker(folder / "kafka", BROKER if network else LOOPBACK)
        self._links = Links(self._ensemble.ports, SLOTS)
        self._lives = Lives(
            history, self._links, self._spec, fates(options.seed), self._counted, self._enough
        )
        self._life = lambda: self._lives.lives
        self._wanted = dict(options.at_least)
        if options.minutes == 0:
            kinds = faults_of(options.store, options.thirds, options.cluster)
            self._wanted = {**dict.fromkeys(kinds, 1), **self._wanted}
        why_not = "the tables are on S3" if self._disk is None else self._disk.why_not
        if why_not:
            history.add("missing", fault="disk_full", why=why_not)
            self._wanted.pop("disk_full", None)
            say(f"disk_full is not available here: {why_not}")

    def run(self) -> None:
        self._start()
        self._tell("everything is up")
        feeder = self._feeder()
        injectors = self._injectors()
        self._break(injectors)
        self._tell("healing")
        for injector in injectors:
            injector.finish()
        feeder.finish()
        self._lives.last()
        self._tell("caught up")
        self._reader_ends()
        self._tell("writing down what is left")
        tables = tables_of(self._options.seed)
        collect(self._history, self._place, tables, self._ensemble.hosts)
        for event in read_history(self._options.folder / "reader.jsonl"):
            self._history.write(event)
        seconds = round(time.monotonic() - self._began, 1)
        self._history.add("end", seconds=seconds)

    def _start(self) -> None:
        later = self._resources.callback
        later(self._ensemble.stop)
        self._ensemble.start()
        later(self._cluster.stop)
        self._cluster.start()
        later(self._broker.stop)
        self._broker.start()
        self._broker.create(TOPIC, PARTITIONS)
        self._ensemble.wait()
        self._cluster.wait()
        self._links.start()
        later(self._links.stop)
        self._start_reader()
        later(self._lives.stop)

    def _start_reader(self) -> None:
        folder = self._options.folder
        spec = ReaderSpec(
            folder=self._place.tables,
            storage_options=dict(self._place.direct),
            tables=tables_of(self._options.seed),
            zookeeper=self._ensemble.hosts,
            committed=f"/txn/{NAME}/committed",
            out=str(folder / "reader.jsonl"),
        )
        with (folder / "reader.out").open("wb") as said:
            self._reader = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.reader", spec.model_dump_json()],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._resources.callback(self._reader.wait)
        self._resources.callback(self._reader.kill)

    def _reader_ends(self) -> None:
        assert self._reader.stdin is not None
        self._reader.stdin.close()
        code = self._reader.wait(READER_SECS)
        said = (self._options.folder / "reader.out").read_text(errors="replace")
        assert code == 0, f"the reader ended with code {code}:\n{said[-3000:]}"

    def _feeder(self) -> Feeder:
        options = self._options
        feeder = Feeder(
            self._broker,
            TOPIC,
            self._place.put,
            self._history,
            records=options.records // 2,
            per_file=options.per_file,
            seconds=max(60.0, options.minutes * 60) * 0.95,
        )
        self._resources.callback(feeder.give_up)
        feeder.start()
        return feeder

    def _injectors(self) -> list[Injector]:
        setting = Setting(
            self._ensemble,
            self._cluster,
            self._broker,
            self._disk,
            self._lake,
            self._links,
            self._slot,
            self._options.session_secs,
        )
        injectors = []
        options = self._options
        once, thirds = options.minutes == 0, options.thirds
        places = (options.store, options.cluster)
        for kinds, draw in fault_decks(options.seed, *places, once=once, thirds=thirds):
            gap = options.gap_secs
            injectors.append(Injector(setting, self._history, kinds, draw, gap, self._counted))
            injectors[-1].start()
            self._resources.callback(_calmed, injectors[-1])
        return injectors

    def _break(self, injectors: list[Injector]) -> None:
        """One life after the other, until it is enough."""
        self._until = time.monotonic() + self._options.minutes * 60
        while not self._enough():
            self._lives.one()
            if self._lives.lives % 5 == 0:
                self._cluster.sweep()
            for injector in injectors:
                if injector.error is not None:
                    raise injector.error

    def _enough(self) -> bool:
        return time.monotonic() >= self._until and not self._counted.missing(self._wanted)

    def _slot(self) -> Slot | None:
        driver = self._lives.current
        return None if driver is None or driver.is_over else driver.slot

    def _spec(self, life: int, slot: Slot, at: str | None, nth: int) -> DriverSpec:
        options = self._options
        return DriverSpec(
            life=life,
            tables=self._place.tables,
            files=self._place.files,
            storage_options=dict(self._place.options),
            out=str(options.folder / "lives" / f"{life:05}.jsonl"),
            zookeeper=slot.hosts,
            servers=self._broker.servers,
            master=self._cluster.url,
            session_secs=options.session_secs,
            kafka_records=options.kafka_records,
            files_per_batch=options.files_per_batch,
            late=bool(options.seed % 2),
            at=at,
            nth=nth,
            host=self._cluster.host,
            isolated=bool(self._cluster.machines),
            executor_options=self._cluster.executor_options,
            scratch=str(self._cluster.scratch),
        )

    def _tell(self, what: str) -> None:
        seconds = time.monotonic() - self._began
        self._say(f"{seconds:7.1f} s  life {self._life()}: {what}")


def _calmed(injector: Injector) -> None:
    with contextlib.suppress(BaseException):
        injector.finish()
