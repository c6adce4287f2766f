"""Where the simulation meets the product: module-level names that are replaced while it runs.

Threads, queues and the clock of the shell become cooperative (`primitives`), the kazoo client, the
`DeltaTable`, the storage and Parquet's footers simulated ones. Nothing else of the product is
touched; a name that is not there any more is an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import committers.appending
import committers.log_layout.committer
import committers.log_layout.compacted_rows
import committers.open_table
import committers.publishing.append
import committers.publishing.followed
import committers.publishing.log
import committers.staging.area
import committers.state.layouts
import committers.state.reading
import committers.state.shape
import committers.state_committer
import committers.upsert_layout.committer
import committers.verifying.same_table
import txn.dataflow.columns
import txn.dataflow.evaluation
import txn.dataflow.graph
import txn.delta.loading
import txn.engine.base.mailbox
import txn.engine.base.shared_rows
import txn.engine.base.threads
import txn.engine.filling
import txn.engine.loop.equipment
import txn.engine.loop.maintenance
import txn.engine.running
import txn.engine.work.commit
import txn.engine.work.emission
import txn.engine.work.history
import txn.engine.work.jobs
import txn.engine.work.lookups
import txn.engine.work.staging
import txn.engine.work.tables
import txn.engine.work.violations
import txn.machine.liveness
import txn.spark.event_times
import txn.zookeeper.client.connection
import txn.zookeeper.client.session_watch
import txn.zookeeper.leadership
import txn.zookeeper.progress
import txn.zookeeper.standbys
from tests.simulation import delta, primitives, spark, tables
from tests.simulation.world import current_world
from tests.simulation.zookeeper import Session
from txn.attempts import TransactionAttempt
from txn.engine.base.killpoints import observe

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
        (txn.zookeeper.client.connection, "threading", threading),
        (txn.zookeeper.client.connection, "Session", Session),
        (txn.zookeeper.client.connection, "_POLL_SECS", 0.05),
        (txn.zookeeper.leadership, "threading", threading),
        (txn.zookeeper.leadership, "datetime", _Now),
        (txn.machine.liveness, "os", _Os),
        (txn.machine.liveness, "socket", _Socket),
        (txn.machine.liveness, "machine_id", _machine_id),
        (txn.machine.liveness, "_is_zombie", lambda _: False),
        (txn.zookeeper.standbys, "datetime", _Now),
        (txn.zookeeper.client.session_watch, "threading", threading),
        (txn.zookeeper.client.session_watch, "queue", queue),
        (txn.zookeeper.progress, "threading", threading),
        (txn.engine.base.mailbox, "queue", queue),
        (txn.engine.base.threads, "Pool", pool),
        (txn.engine.work.commit, "Pool", pool),
        (txn.engine.loop.maintenance, "threading", threading),
        (txn.engine.loop.maintenance, "wait", primitives.wait),
        (txn.engine.running, "threading", threading),
        (txn.engine.work.tables, "threading", threading),
        (txn.engine.work.emission, "no_rows", spark.no_rows),
        (txn.engine.work.lookups, "no_rows", spark.no_rows),
        (txn.engine.base.shared_rows, "_compute", lambda frames, session: None),
        (txn.dataflow.columns, "threading", threading),
        (txn.dataflow.columns, "columns_of", spark.columns_of),
        (txn.dataflow.evaluation, "_empty_frame", spark.nothing_of),
        (txn.dataflow.evaluation, "Judged", spark.SimJudged),
        (txn.engine.work.violations, "moved", spark.same_frame),
        (txn.dataflow.graph.StateQuery, "compute", spark.query_rows),
        (txn.dataflow.graph, "sf", spark.FUNCTIONS),
        (txn.spark.event_times, "sf", spark.FUNCTIONS),
        (txn.engine.work.staging, "sf", spark.FUNCTIONS),
        (committers.state.shape, "sf", spark.FUNCTIONS),
        (committers.state.shape, "bigint", spark.FUNCTIONS.lit),
        (committers.state.layouts, "merged_by_key", tables.merged_by_key),
        (committers.state.layouts, "since_begun", tables.since_begun),
        (committers.state.reading, "merged_by_key", tables.merged_by_key),
        (committers.state.reading, "touched", tables.touched),
        (committers.log_layout.compacted_rows, "merged_by_key", tables.merged_by_key),
        (committers.log_layout.compacted_rows, "since_begun", tables.since_begun),
        (committers.log_layout.compacted_rows, "merged_where_certain", tables.merged_where_certain),
        (committers.log_layout.committer, "from_partials", tables.from_partials),
        (committers.state_committer, "ended", tables.ended),
        (committers.state_committer, "joined_by_key", tables.joined_by_key),
        (committers.state_committer, "moved", spark.same_frame),
        (committers.log_layout.committer, "CompactedRows", tables.SimCompactedRows),
        (committers.log_layout.committer, "LogReader", tables.SimLogReader),
        (committers.upsert_layout.committer, "BucketRewrite", tables.SimRewrite),
        (committers.upsert_layout.committer, "UpsertReader", tables.SimUpsertReader),
        (committers.upsert_layout.committer, "from_previous_values", tables.from_previous_values),
        (committers.upsert_layout.committer, "from_replaced_rows", tables.from_replaced_rows),
        (txn.engine.filling, "time", clock),
        (txn.engine.work.history, "Storage", delta.SimStorage),
        (committers.appending, "strict_reader", tables.RowReader),
        (committers.appending, "types_of", lambda spec: {}),
        (committers.appending, "renamed_and_cast", tables.renamed_and_cast),
        (committers.state_committer, "generation_rows", tables.generation_rows),
        (txn.engine.loop.equipment, "own_session", spark.same_session),
        (txn.engine.work.jobs, "SettingsWatch", spark.NoWatch),
        (txn.engine.work.jobs, "make_active", spark.no_thread),
        (txn.engine.work.emission, "moved", spark.same_frame),
        (txn.engine.work.lookups, "moved", spark.same_frame),
        (txn.engine.work.staging, "moved", spark.same_frame),
        (committers.publishing.followed, "threading", threading),
        (committers.publishing.followed, "load_files", delta.load_files),
        (txn.delta.loading, "DeltaTable", delta.SimDeltaTable),
        (txn.delta.loading, "retried", delta.retried),
        (committers.verifying.same_table, "retried", delta.retried),
        (committers.publishing.log, "retried", delta.retried),
        (committers.publishing.log, "time", clock),
        (committers.publishing.append, "DeltaTable", delta.SimDeltaTable),
        (committers.publishing.append, "_make", delta.make_table),
        (committers.staging.area, "in_parallel", _one_by_one),
        (committers.staging.area, "RowWriter", spark.SimRowWriter),
        (committers.staging.area, "side_by_side", spark.side_by_side),
        (committers.staging.area, "to_write", spark.same_frame),
        (committers.open_table, "strict_reader", tables.RowReader),
        (committers.open_table, "in_parallel", _one_by_one),
        (committers.open_table, "measured", spark.measured),
        (committers.open_table, "own_session", spark.same_session),
        (committers.open_table, "settings_of", spark.no_settings),
        (committers.open_table, "Storage", delta.SimStorage),
        (committers.open_table, "StagingArea", spark.SimStagingArea),
    ]


def _one_by_one(ask: Callable[[Any], Any], about: Sequence[Any]) -> list[Any]:
    """As `in_parallel`, for reading footers: nothing that could interleave."""
    return [ask(one) for one in about]


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
