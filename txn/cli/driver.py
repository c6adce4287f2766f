"""`txn run`: a session, a ZooKeeper, a topology, and a loop that tells an observer about them.

Spark and an embedded ZooKeeper are started side by side. Ctrl-C and SIGTERM ask the topology for a
clean stop, the second one leaves at once; either is safe at any moment.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from txn.cli.observers import Observer, RunInfo
from txn.engine.report import RunReport
from txn.errors import AbandonedError, LeaderExistsError, SetupError, TxnError
from txn.zookeeper.location import resolve

if TYPE_CHECKING:
    from txn.engine.running import RunningTopology
    from txn.topology import Topology, Until

__all__ = ["LOG_FOLDER", "drive", "logging_to_file"]

LOG_FOLDER = Path(".txn/logs")
"""Where `txn run` logs, relative to the working directory."""

_LEAVE_SECS = 15.0
_LOOK_SECS = 0.1
_PATIENCE_SECS = 3.0
_LOG_BYTES = 5_000_000

log = logging.getLogger("txn")


def drive(
    topology: Topology,
    observer: Observer,
    *,
    zookeeper: str,
    master: str | None,
    until: Until,
    conf: Mapping[str, str],
    standby: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> RunReport:
    """Run a topology to its end and keep the observer informed.

    Args:
        zookeeper: as for `Topology.run`; so is `standby`.
        master: Spark's; None: as for `delta_session`.
        conf: Spark settings.

    Raises:
        TxnError: why the run ended otherwise; state is intact.
        KeyboardInterrupt: a signal came before the topology ran.
    """
    from txn.session import delta_session

    with contextlib.ExitStack() as resources, observer, _terminable(), _leaving():
        server = _server_of(zookeeper)
        if server is not None:  # said now, before the seconds that Spark takes
            _refuse_second(server, topology)
        observer.starting(topology.name)
        with ThreadPoolExecutor(1, "txn-zookeeper") as pool:
            hosts = pool.submit(_enter_zookeeper, resources, zookeeper, topology, sleep)
            packages = sorted({p for s in topology.sources for p in s.spout.packages})
            spark = delta_session(topology.name, master, conf, packages=packages)
            resources.callback(spark.stop)
            connect = hosts.result()
        running = topology.start(spark, zookeeper=connect, until=until, standby=standby)
        with _signals() as received:
            if standby:
                _stand_by(topology.name, running, observer, received, sleep)
            if running.leads:
                now = running.status()
                observer.started(
                    RunInfo(topology.name, now.epoch, zookeeper, str(until), now.committed_txid)
                )
            return _watch(running, observer, received, sleep)


def _stand_by(
    name: str,
    running: RunningTopology,
    observer: Observer,
    received: Sequence[int],
    sleep: Callable[[float], None],
) -> None:
    """Tell what a standby waits for, until it leads or has ended."""
    told = None
    while running.is_active and not running.leads and not received:
        now = running.standby
        if now is not None and now != told:
            observer.standing_by(name, now)
            told = now
        sleep(_LOOK_SECS)


def _watch(
    running: RunningTopology,
    observer: Observer,
    received: Sequence[int],
    sleep: Callable[[float], None],
) -> RunReport:
    txid, failures, stopping = 0, 0, False
    active = True
    while active:
        if received and not stopping:
            stopping = True
            log.info("%s: stopping", signal.Signals(received[0]).name)
            if running.leads:
                observer.note("Stopping after the commit under way; once more leaves at once.")
            with contextlib.suppress(TxnError):  # how it ended is told below
                running.stop(timeout=0)
        # Asked before the look, so that the last look comes after the end.
        active, report = running.is_active, running.report
        batches = [b for b in tuple(report.batches) if b.attempt.txid > txid]
        new_failures = max(0, report.replays - failures)
        newest = tuple(report.failures)[-new_failures:] if new_failures else ()
        txid = batches[-1].attempt.txid if batches else txid
        failures += new_failures
        observer.update(running.status(), batches, newest)
        if active:
            sleep(_LOOK_SECS)
    report = running.report
    try:
        running.await_termination()
    except BaseException as error:
        observer.ended(report, running.status(), error)
        raise
    observer.ended(report, running.status(), None)
    return report


def _enter_zookeeper(
    resources: contextlib.ExitStack,
    spec: str,
    topology: Topology,
    sleep: Callable[[float], None],
) -> str:
    """A connect string. Says so if the folder is in use because the topology already runs."""
    from txn.embedded.service import zookeeper_service

    deadline = time.monotonic() + _PATIENCE_SECS
    while True:
        try:
            return resources.enter_context(zookeeper_service(spec))
        except SetupError:
            server = _server_of(spec)
            if server is None:
                raise
            _refuse_second(server, topology)
            # A `txn status` that has the folder for a moment is no reason to refuse.
            if time.monotonic() >= deadline:
                raise
        sleep(_LOOK_SECS)


def _server_of(spec: str) -> str | None:
    from txn.embedded.service import running_server

    folder = resolve(spec).folder
    return None if folder is None else running_server(folder)


def _refuse_second(hosts: str, topology: Topology) -> None:
    """Raise LeaderExistsError if the topology has a leader; a dead one is no reason to refuse."""
    from txn.zookeeper.liveness import is_alive
    from txn.zookeeper.status import read_status

    try:
        leader = read_status(hosts, topology.name, topology.config).leader
    except TxnError:
        return
    if is_alive(leader):
        raise LeaderExistsError(
            f"Topology '{topology.name}' is led by {leader}. Stop that process first."
        )


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """After threads were left behind, end the process even if Spark's own end hangs, too."""
    try:
        yield
    except AbandonedError as error:
        text = f"error: {error}\n"  # `error` is gone when the timer fires

        def leave() -> None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
                sys.stderr.flush()
            os._exit(AbandonedError.exit_code)

        timer = threading.Timer(_LEAVE_SECS, leave)
        timer.daemon = True
        timer.start()
        raise


# --- signals ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM during the start is what Ctrl-C is: unwind, and leave nothing running."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _signals() -> Iterator[Sequence[int]]:
    """Ctrl-C and SIGTERM as they come, for the loop to act on; the second one ends the process."""
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
        if received:
            # What is durable is consistent at every moment; the next run picks it up.
            os._exit(128 + number)
        received.append(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


# --- log -------------------------------------------------------------------------------------


@contextlib.contextmanager
def logging_to_file(topology: str, level: str) -> Iterator[Path | None]:
    """Send the log of `txn`, and warnings of the libraries below it, to a file of the topology.

    Yields:
        The file; None when the folder cannot be written to, and nothing is logged.
    """
    path = LOG_FOLDER / f"{topology}.log"
    handler: logging.Handler
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8"
        )
        written: Path | None = path
    except OSError:
        handler, written = logging.NullHandler(), None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    # On the root: without any handler Python prints warnings into the picture on the screen.
    root = logging.getLogger()
    before = log.level
    root.addHandler(handler)
    log.setLevel(level.upper())
    try:
        yield written
    finally:
        root.removeHandler(handler)
        log.setLevel(before)
        handler.close()
