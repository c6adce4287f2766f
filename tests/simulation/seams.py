"""Where the simulation meets the product: module-level names that are replaced while it runs.

Threads, queues and the clock of the shell become cooperative (`primitives`), the kazoo client, the
`DeltaTable`, the storage and Parquet's footers simulated ones. Nothing else of the product is
touched; a name that is not there any more is an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from typing_extensions import Self

import committers.delta_log
import committers.loading
import committers.log_append
import committers.log_reader
import committers.staging
import committers.state_committer
import committers.table_committer
import txn.columns
import txn.connection
import txn.emission
import txn.evaluation
import txn.graph
import txn.leadership
import txn.loop
import txn.maintenance
import txn.running
import txn.standbys
import txn.tables
import txn.threads
import txn.work
import txn.zookeeper
from tests.simulation import delta, primitives, spark, tables
from tests.simulation.world import current_world
from tests.simulation.zookeeper import Session
from txn.attempts import TransactionAttempt
from txn.points import observe

__all__ = ["Patch", "installed", "patched"]

Patch = tuple[Any, str, Any]
"""(module or class, name, what stands there instead)."""


class _Os:
    """`os`, for the identity of a leader and the question whether it lives."""

    @staticmethod
    def getpid() -> int:
        return current_world().kernel.alive().process.pid

    @staticmethod
    def kill(pid: int, signal: int) -> None:
        assert signal == 0
        alive = (p for p in current_world().kernel.processes if p.pid == pid and not p.dead)
        if next(alive, None) is None:
            raise ProcessLookupError


class _Socket:
    """`socket`."""

    @staticmethod
    def gethostname() -> str:
        return current_world().kernel.alive().process.machine


class _Now:
    """`datetime`."""

    @staticmethod
    def now(zone: timezone) -> datetime:
        return datetime.fromtimestamp(primitives.CLOCK.time(), zone)


def _machine_id() -> str:
    return current_world().kernel.alive().process.machine


def _reached(point: str, attempt: TransactionAttempt) -> None:
    current_world().reached(point, attempt)


def _patches() -> list[Patch]:
    threading, queue = primitives.THREADING, primitives.QUEUE
    clock, pool = primitives.CLOCK, primitives.Pool
    return [
        (txn.connection, "threading", threading),
        (txn.connection, "Session", Session),
        (txn.connection, "_POLL_SECS", 0.05),
        (txn.leadership, "threading", threading),
        (txn.leadership, "os", _Os),
        (txn.leadership, "socket", _Socket),
        (txn.leadership, "datetime", _Now),
        (txn.leadership, "machine_id", _machine_id),
        (txn.standbys, "os", _Os),
        (txn.standbys, "socket", _Socket),
        (txn.standbys, "datetime", _Now),
        (txn.zookeeper, "threading", threading),
        (txn.zookeeper, "queue", queue),
        (txn.loop, "queue", queue),
        (txn.threads, "Pool", pool),
        (txn.work, "Pool", pool),
        (txn.maintenance, "threading", threading),
        (txn.maintenance, "wait", primitives.wait),
        (txn.running, "threading", threading),
        (txn.running, "time", clock),
        (txn.tables, "threading", threading),
        (txn.emission, "empty_frame", spark.empty_frame),
        (txn.tables, "empty_frame", spark.empty_frame),
        (txn.columns, "threading", threading),
        (txn.columns, "columns_of", spark.columns_of),
        (txn.evaluation, "_nothing_of", spark.nothing_of),
        (txn.graph.StateQuery, "compute", spark.query_rows),
        (committers.state_committer, "no_rows", spark.empty_frame),
        (committers.state_committer, "from_previous_values", tables.from_previous_values),
        (committers.state_committer, "from_replaced_rows", tables.from_replaced_rows),
        (txn.work, "own_session", spark.same_session),
        (txn.work, "Watch", spark.NoWatch),
        (txn.work, "make_active", spark.no_thread),
        (txn.emission, "moved", spark.same_frame),
        (txn.tables, "moved", spark.same_frame),
        (committers.delta_log, "retried", delta.retried),
        (committers.delta_log, "threading", threading),
        (committers.delta_log, "load_files", delta.load_files),
        (committers.loading, "DeltaTable", delta.SimDeltaTable),
        (committers.loading, "retried", delta.retried),
        (committers.log_reader, "retried", delta.retried),
        (committers.delta_log, "time", clock),
        (committers.log_append, "DeltaTable", delta.SimDeltaTable),
        (committers.log_append, "RemoveAction", delta.RemoveAction),
        (committers.staging, "ThreadPoolExecutor", _Inline),
        (committers.staging, "reported", spark.reported),
        (committers.staging, "side_by_side", spark.side_by_side),
        (committers.staging, "to_write", spark.same_frame),
        (committers.table_committer, "own_session", spark.same_session),
        (committers.table_committer, "settings_of", spark.no_settings),
        (committers.table_committer, "Storage", delta.SimStorage),
        (committers.table_committer, "StagingArea", spark.SimStagingArea),
    ]


class _Inline:
    """A pool that reads footers: nothing that could interleave."""

    def __init__(self, workers: int) -> None:
        del workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    map = staticmethod(map)


@contextlib.contextmanager
def patched(patches: list[Patch]) -> Iterator[None]:
    """With these names replaced."""
    before = [(home, name, home.__dict__[name]) for home, name, _ in patches]
    try:
        for home, name, stand_in in patches:
            setattr(home, name, stand_in)
        yield
    finally:
        for home, name, original in reversed(before):
            setattr(home, name, original)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """With the product on the simulation."""
    with patched(_patches()):
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        forget = observe(_reached)
        try:
            yield
        finally:
            forget()
            logging.disable(level)
