"""`txn run`: a session, a ZooKeeper, a topology, and a loop that reports to an observer.

Starts Spark and an embedded ZooKeeper side by side. Ctrl-C and SIGTERM ask the topology for a clean
stop, a second one ends the process at once; both are safe at any moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from txn.cli.errors import numbered
from txn.cli.running.idleness import Idleness
from txn.cli.running.observers import CliObserver, RunInfo
from txn.cli.running.run_notes import RunNotes
from txn.cli.running.start import Start, given_up
from txn.cli.signals import quiet_interrupts, received_signals
from txn.engine.reporting.report import RunReport
from txn.errors import AbandonedError, TxnError
from txn.interfaces import NOTICES
from txn.logs import WAITING
from txn.machine.heap import settled

if TYPE_CHECKING:
    from txn.engine.running import RunningTopology
    from txn.observers import Observer
    from txn.topology import Topology, Until

__all__ = ["drive"]

_LEAVE_SECS = 15.0
_POLL_SECS = 0.1

log = logging.getLogger("txn")


def drive(
    topology: Topology,
    observer: CliObserver,
    notes: RunNotes,
    *,
    zookeeper: str,
    master: str | None,
    until: Until,
    conf: Mapping[str, str],
    standby: bool = False,
    observers: Sequence[Observer] = (),
) -> RunReport:
    """Run a topology to its end and keep the observer informed.

    Args:
        notes: the run's notes for other processes.
        zookeeper: as for `Topology.run`; so are `standby` and `observers`.
        master: Spark's master; None: as for `delta_session`.
        conf: Spark settings.

    Raises:
        TxnError: the error that ended the run; state is intact.
        KeyboardInterrupt: a signal came before the topology ran.
    """
    from txn.embedded.service import refuse_second_run
    from txn.operations.packages import packages_of
    from txn.session import delta_session
    from txn.spark.jvm import refuse_connect

    with (
        contextlib.ExitStack() as resources,
        observer,
        quiet_interrupts(),
        _leaving(),
        _showing_notes(observer),
    ):
        with _reporting_refusal(observer, topology.name):
            # Refuse before the seconds that Spark takes, and before ZooKeeper is asked.
            refuse_connect(master, conf)
            refuse_second_run(zookeeper, topology.name, topology.settings)
            observer.starting(
                topology.name, "starting Spark (Java takes some seconds) and ZooKeeper"
            )
            with ThreadPoolExecutor(1, "txn-zookeeper") as pool, given_up() as event:
                start = Start(resources, zookeeper, topology, event, compares=not standby)
                hosts = pool.submit(start.zookeeper)
                with start.spark_starts():
                    packages = packages_of(topology, conf)
                    spark = delta_session(topology.name, master, conf, packages=packages)
                    resources.callback(spark.stop)
                connect = hosts.result()
            observer.starting(topology.name, "checking columns, tables and progress")
            resources.enter_context(settled())
            running = topology.start(
                spark, zookeeper=connect, until=until, standby=standby, observers=observers
            )
        with received_signals() as received:
            if standby:
                _stand_by(topology.name, running, observer, received)
            if running.leads:
                status = running.status()
                txid = status.committed_txid
                observer.started(RunInfo(topology.name, status.epoch, zookeeper, str(until), txid))
            return _watch(running, observer, notes, received, Idleness(topology))


@contextlib.contextmanager
def _reporting_refusal(observer: CliObserver, topology: str) -> Iterator[None]:
    try:
        yield
    except (TxnError, KeyboardInterrupt) as error:
        observer.refused(topology, error)
        raise


def _stand_by(
    name: str,
    running: RunningTopology,
    observer: CliObserver,
    received: Sequence[int],
) -> None:
    """Report the leader that a standby waits for, until it leads or has ended."""
    reported = None
    while running.is_active and not running.leads and not received:
        standby = running.standby
        if standby is not None and standby != reported:
            observer.standing_by(name, standby)
            reported = standby
        time.sleep(_POLL_SECS)


def _watch(
    running: RunningTopology,
    observer: CliObserver,
    notes: RunNotes,
    received: Sequence[int],
    idleness: Idleness,
) -> RunReport:
    txid, failure, stopping = 0, "", False
    active = True
    while active:
        if received and not stopping:
            stopping = True
            log.info("%s: stopping", signal.Signals(received[0]).name)
            if running.leads:
                observer.note("Stopping after the commit under way; a second signal stops at once.")
            with contextlib.suppress(TxnError):  # the end is reported below
                running.stop(timeout=0)
        # Read before the report, so that the last report comes after the end.
        active, report = running.is_active, running.report
        batches = [b for b in tuple(report.batches) if b.attempt.txid > txid]
        # Each has its attempt, which fails once.
        failures = tuple(report.failures)
        newest = failures[failures.index(failure) + 1 :] if failure in failures else failures
        txid = batches[-1].attempt.txid if batches else txid
        failure = failures[-1] if failures else ""
        status = running.status()
        observer.update(status, batches, newest)
        notes.update(status)
        if active and (line := idleness.look(status)) is not None:
            observer.note(line)
        if active:
            time.sleep(_POLL_SECS)
    report = running.report
    try:
        running.await_termination()
    except BaseException as error:
        log.error("[%s] %s", report.topology, numbered(error))
        notes.ended(report, running.status(), error)
        observer.ended(report, running.status(), error)
        raise
    if (line := idleness.ended(report)) is not None:
        observer.note(line)
    notes.ended(report, running.status(), None)
    observer.ended(report, running.status(), None)
    return report


class _Notes(logging.Handler):
    """Passes log messages on to the screen."""

    def __init__(self, observer: CliObserver) -> None:
        super().__init__(logging.WARNING)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        self._observer.note(record.getMessage())


@contextlib.contextmanager
def _showing_notes(observer: CliObserver) -> Iterator[None]:
    """Show waits and notices on the screen, whatever the level of the log."""
    loggers, notes = [logging.getLogger(name) for name in (WAITING, NOTICES)], _Notes(observer)
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(notes)
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.removeHandler(notes)


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """After threads were left behind, end the process even if stopping Spark hangs too."""
    try:
        yield
    except AbandonedError as error:
        text = f"error: {numbered(error)}\n"  # `error` is gone when the timer fires

        def leave() -> None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
                sys.stderr.flush()
            os._exit(AbandonedError.exit_code)

        timer = threading.Timer(_LEAVE_SECS, leave)
        timer.daemon = True
        timer.start()
        raise
