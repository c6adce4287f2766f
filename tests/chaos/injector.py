"""Faults of everything but the driver, one after the other, each healed again; see `plan`."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tests.chaos.cluster import EXECUTOR, Cluster
from tests.chaos.disk import Disk
from tests.chaos.ensemble import Ensemble
from tests.chaos.history import History
from tests.chaos.lake import Lake
from tests.chaos.links import Links, Slot, Trouble
from tests.chaos.machines import DRIVER, STORE
from tests.chaos.processes import Server, children, send
from tests.spouts.kafka_broker import Broker
from tests.stores.proxy import (
    Delay,
    Fail,
    HideNew,
    Late,
    LoseAnswer,
    Repeat,
    Request,
    Reset,
    lists,
)
from tests.stores.proxy import Fault as StoreFault

__all__ = ["Injector", "Setting"]

DISK_LEFT = (0, 200_000)
"""Bytes that a full disk has left: faults come in the middle of things."""
TRIES = 5
LOOKS = 40
LOOK_SECS = 0.5


@dataclass(frozen=True)
class Setting:
    """What can be broken."""

    ensemble: Ensemble
    cluster: Cluster
    broker: Broker
    disk: Disk | None
    """None: the tables are on a store."""
    lake: Lake | None
    """None: they are on a disk."""
    links: Links
    slot: Callable[[], Slot | None]
    """The links of the driver of this moment."""
    session_secs: float


Fault = AbstractContextManager[dict[str, Any] | None]
"""Yields what was hit, and how; None: nothing could be. Leaving it heals."""


class Injector(threading.Thread):
    """One thread of faults.

    Args:
        kinds: which fault comes next.
        gap_secs: mean pause between two.
        count: told each fault when it is done.
    """

    def __init__(
        self,
        setting: Setting,
        history: History,
        kinds: Iterator[str],
        draw: random.Random,
        gap_secs: float,
        count: Callable[[str], None],
    ) -> None:
        super().__init__(daemon=True)
        self._setting = setting
        self._history = history
        self._kinds = kinds
        self._draw = draw
        self._gap_secs = gap_secs
        self._count = count
        self._enough = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until `finish`, or there are no more; what is broken is healed in any case."""
        try:
            kind = next(self._kinds, None)
            while kind and not self._enough.wait(self._draw.uniform(0.2, 1.8) * self._gap_secs):
                tries = 0
                while not self._one(kind) and tries < TRIES and not self._enough.is_set():
                    tries += 1
                kind = next(self._kinds, None)
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self.error = error

    def finish(self) -> None:
        """No new fault; wait until the last one is healed."""
        self._enough.set()
        self.join()
        if self.error is not None:
            raise self.error

    def _one(self, kind: str) -> bool:
        """Do it; False when there was nothing that could be hit."""
        disk = self._setting.disk
        if kind == "disk_full" and (disk is None or disk.why_not):
            return True  # said once, at the start of the run
        at = time.time()
        fault: Callable[[], Fault] = getattr(self, f"_{kind}")
        with fault() as hit:
            if hit is None:
                return False
        self._history.add("fault", fault=kind, at=round(at, 3), until=round(time.time(), 3), **hit)
        self._count(kind)
        return True

    def _hold(self, least: float, most: float) -> float:
        """Let a fault last, between so many seconds; shorter when the run is to end."""
        seconds = self._draw.uniform(least, most)
        self._enough.wait(seconds)
        return round(seconds, 1)

    # --- ZooKeeper -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _zookeeper_kill(self) -> Iterator[dict[str, Any] | None]:
        server = self._draw.choice(self._setting.ensemble.servers)
        server.kill()
        try:
            self._hold(0.5, 6.0)
        finally:
            server.start()
        yield {"server": server.name}

    @contextlib.contextmanager
    def _zookeeper_stop(self) -> Iterator[dict[str, Any] | None]:
        server = self._draw.choice(self._setting.ensemble.servers)
        with _stopped([server]):
            self._hold(1.0, 8.0)
        yield {"server": server.name}

    @contextlib.contextmanager
    def _zookeeper_majority(self) -> Iterator[dict[str, Any] | None]:
        some = self._draw.sample(self._setting.ensemble.servers, self._draw.choice((2, 2, 3)))
        how = self._draw.choice(("kill", "stop"))
        longest = 2.5 * self._setting.session_secs
        if how == "stop":
            with _stopped(some):
                self._hold(1.0, longest)
        else:
            for server in some:
                server.kill()
            try:
                self._hold(0.5, longest)
            finally:
                for server in some:
                    server.start()
        yield {"servers": [server.name for server in some], "how": how}

    @contextlib.contextmanager
    def _link_delay(self) -> Iterator[dict[str, Any] | None]:
        yield self._trouble(Trouble(delay_secs=round(self._draw.uniform(0.02, 0.6), 2)), 2.0, 8.0)

    @contextlib.contextmanager
    def _link_cut(self) -> Iterator[dict[str, Any] | None]:
        silent = self._draw.random() < 0.5
        longest = 2.0 * self._setting.session_secs
        yield self._trouble(Trouble(silent=silent, cut=not silent), 0.2, longest)

    def _trouble(self, trouble: Trouble, least: float, most: float) -> dict[str, Any] | None:
        slot = self._slot_in_use()
        if slot is None:
            return None
        with self._setting.links.trouble(slot, trouble):
            self._hold(least, most)
        return {"delay": trouble.delay_secs, "silent": trouble.silent}

    @contextlib.contextmanager
    def _session_expiry(self) -> Iterator[dict[str, Any] | None]:
        slot = self._slot_in_use()
        if slot is None or slot.session is None:
            yield None
            return
        # A second client takes the session over by its id and password, and ends it.
        session = slot.session
        client = KazooClient(
            self._setting.ensemble.hosts, client_id=(session.id, session.password), timeout=4.0
        )
        try:
            client.start(timeout=5.0)
        except KazooTimeoutError:
            client.stop()
            yield None
            return
        same = client.client_id is not None and client.client_id[0] == session.id
        client.stop()
        with contextlib.suppress(KazooException):
            client.close()
        yield {"session": f"{session.id & (2**64 - 1):x}"} if same else None

    def _slot_in_use(self) -> Slot | None:
        """The links of a driver that has a session over them; waits a while for one."""
        for _ in range(LOOKS):
            slot = self._setting.slot()
            if slot is not None and slot.session is not None and slot.connections:
                return slot
            if self._enough.wait(LOOK_SECS):
                return None
        return None

    # --- the others ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _executor_kill(self) -> Iterator[dict[str, Any] | None]:
        choose = self._draw.randrange(1000)
        for _ in range(LOOKS):
            pid = self._setting.cluster.kill_executor(choose)
            if pid is not None:
                yield {"pid": pid}
                return
            if self._enough.wait(LOOK_SECS):
                break
        yield None

    @contextlib.contextmanager
    def _worker_kill(self) -> Iterator[dict[str, Any] | None]:
        worker = self._draw.choice(self._setting.cluster.workers)
        executors = len(self._setting.cluster.executors())
        worker.kill()
        try:
            self._hold(0.5, 4.0)
        finally:
            worker.start()
        yield {"server": worker.name, "executors": executors}

    @contextlib.contextmanager
    def _worker_pause(self) -> Iterator[dict[str, Any] | None]:
        worker = self._draw.choice(self._setting.cluster.workers)
        pids = [worker.pid, *children(worker.pid, EXECUTOR)]
        for pid in pids:
            send(pid, signal.SIGSTOP)
        try:
            self._hold(1.0, 30.0)  # on both sides of the time after which Spark gives it up
        finally:
            for pid in pids:
                send(pid, signal.SIGCONT)
        yield {"server": worker.name, "executors": len(pids) - 1}

    @contextlib.contextmanager
    def _worker_decommission(self) -> Iterator[dict[str, Any] | None]:
        worker = self._draw.choice(self._setting.cluster.workers)
        executors = len(children(worker.pid, EXECUTOR))
        worker.send(signal.SIGPWR)
        try:
            self._hold(2.0, 10.0)
        finally:
            worker.kill()
            worker.start()
        yield {"server": worker.name, "executors": executors}

    @contextlib.contextmanager
    def _worker_add(self) -> Iterator[dict[str, Any] | None]:
        spare = self._setting.cluster.spare
        spare.start()
        try:
            self._hold(8.0, 30.0)
            executors = len(children(spare.pid, EXECUTOR))
        finally:
            spare.kill()
        yield {"server": spare.name, "executors": executors}

    def _worker_cut_driver(self) -> Fault:
        return self._worker_cut(DRIVER)

    def _worker_cut_store(self) -> Fault:
        return self._worker_cut(STORE)

    @contextlib.contextmanager
    def _worker_cut(self, address: str) -> Iterator[dict[str, Any] | None]:
        cluster = self._setting.cluster
        number = self._draw.randrange(len(cluster.workers))
        executors = len(children(cluster.workers[number].pid, EXECUTOR))
        with cluster.machines[number].cut_off(address):
            self._hold(1.0, 30.0)
        yield {"server": cluster.workers[number].name, "executors": executors}

    @contextlib.contextmanager
    def _broker_kill(self) -> Iterator[dict[str, Any] | None]:
        with self._setting.broker.away():
            self._hold(0.2, 5.0)
        yield {}

    @contextlib.contextmanager
    def _disk_full(self) -> Iterator[dict[str, Any] | None]:
        left = self._draw.randint(*DISK_LEFT)
        assert self._setting.disk is not None
        with self._setting.disk.full(left):
            self._hold(2.0, 8.0)
        yield {"left": left}

    # --- the store -------------------------------------------------------------------------------

    def _store_errors(self) -> Fault:
        fault = self._draw.choice((Fail(503, "SlowDown"), Fail(500, "InternalError"), Reset()))
        return self._store(fault, probability=self._draw.choice((0.1, 0.5, 1.0)))

    def _store_lost(self) -> Fault:
        return self._store(LoseAnswer(self._draw.choice((0, 500))), probability=0.2)

    def _store_late(self) -> Fault:
        fault = Late(round(self._draw.uniform(0.3, 8.0), 1))
        return self._store(fault, when=_is_conditional, probability=0.5)

    def _store_slow(self) -> Fault:
        pause, before = round(self._draw.uniform(0.1, 1.0), 2), self._draw.random() < 0.5
        return self._store(Delay((0.0, pause), before, self._draw))

    def _store_lists(self) -> Fault:
        return self._store(HideNew(4.0), Repeat(2.0), when=lists())

    @contextlib.contextmanager
    def _store(
        self,
        *faults: StoreFault,
        when: Callable[[Request], bool] = lambda _: True,
        probability: float = 1.0,
    ) -> Iterator[dict[str, Any] | None]:
        assert self._setting.lake is not None
        seed = self._draw.randrange(1 << 30)
        with self._setting.lake.trouble(
            *faults, when=when, probability=probability, seed=seed
        ) as met:
            self._hold(1.0, 8.0)
        what = " and ".join(type(fault).__name__ for fault in faults)
        yield {"what": what, "share": probability, "met": sum(met)} if any(met) else None

    @contextlib.contextmanager
    def _store_kill(self) -> Iterator[dict[str, Any] | None]:
        assert self._setting.lake is not None
        with self._setting.lake.away():
            self._hold(0.2, 5.0)
        yield {}


def _is_conditional(request: Request) -> bool:
    return request.operation == "PUT IF ABSENT"


@contextlib.contextmanager
def _stopped(servers: list[Server]) -> Iterator[None]:
    for server in servers:
        server.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            server.send(signal.SIGCONT)
