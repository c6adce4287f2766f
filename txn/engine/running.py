"""A topology in flight: takes leadership, recovers, runs the pipeline, cleans up.

`begin` does on the caller's thread everything that can refuse (ZooKeeper, leadership, columns,
tables, recovery), so that a mistake is raised where it was made; the pipeline runs on a thread.
A standby connects and rehearses there; it waits, takes over and recovers on the thread.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txn.delta.locations import identity
from txn.engine.equipment import Equipment
from txn.engine.pipeline import Pipeline
from txn.engine.report import RunReport, RunStatus, Standby
from txn.engine.shared_folders import local_tables, runs_here, try_folder
from txn.engine.threads import Straggler, abandoned, straggler, within
from txn.errors import (
    AbandonedError,
    FencedError,
    ProgressUnavailableError,
    RecoveryRefusedError,
    TxnError,
)
from txn.interfaces import CommitterContext, Semantics, SpoutKind
from txn.protocol import coordinator
from txn.protocol.order_records import columns_record
from txn.protocol.records import Progress
from txn.protocol.recovery import Found, by_todays_names, check_streams, reconcile, require_tables
from txn.zookeeper.location import resolve_shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.topology import Topology, Until
    from txn.zookeeper.progress import ZooKeeperProgress
    from txn.zookeeper.znodes import LeaderIdentity

__all__ = ["RunningTopology"]

log = logging.getLogger("txn")

START_SECS = 120.0
"""For a call of the user's code while a run starts, at least: Spark is cold then."""
_WATCH_SECS = 1.0
"""Between two looks at the run's own thread."""
_NAMING_SECS = 5.0
"""How long to ask ZooKeeper who has taken over."""


def random_id() -> int:
    """A random non-zero 64-bit id: zero would vanish from the acker's XOR."""
    return secrets.randbits(64) or 1


class RunningTopology:
    """A handle on a run in the background, as returned by `Topology.start`.

    Args:
        standby: wait while another process leads, instead of being refused.
        clock: seconds since the epoch.
        ids: random non-zero 64-bit ids.
    """

    def __init__(
        self,
        topology: Topology,
        spark: SparkSession,
        *,
        zookeeper: str,
        until: Until,
        standby: bool = False,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], int] = random_id,
    ) -> None:
        self._topology = topology
        self._spark = spark
        self._zookeeper = zookeeper
        self._until = until
        self._is_standby = standby
        self._clock = clock
        self._ids = ids
        self._resources = contextlib.ExitStack()
        self._store: ZooKeeperProgress | None = None
        self._pipeline: Pipeline | None = None
        self._standby: Standby | None = None
        self._stopping = threading.Event()
        self._before = RunReport(topology.name)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._closing = threading.Lock()
        self._stragglers: list[Straggler] = []

    def begin(self) -> None:
        """Lead, check, recover, and start the pipeline's thread. Called by `Topology.start`.

        A standby gets ready instead, and leads, checks and recovers when its time has come.

        Raises:
            TxnError: what was refused; nothing is left open.
        """
        self._refuse_stragglers()
        try:
            if self._is_standby:
                self._get_ready()
            else:
                self._pipeline = self._prepare(self._connect())
        except BaseException:
            self._resources.close()
            raise
        self._thread = threading.Thread(target=self._run, name="txn-coordinator", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="txn-watch", daemon=True).start()

    def stop(self, timeout: float | None = None) -> RunReport:
        """Finish the commit turn under way, cancel the rest, and return the report.

        Args:
            timeout: seconds to wait for the end; None waits as long as it takes, which is
                `message_timeout_secs` for a commit turn that hangs and `stop_grace_secs` for the
                rest.
        """
        self._ask_to_stop()
        return self.await_termination(timeout)

    def _ask_to_stop(self) -> None:
        """Safe from any thread and from a signal handler."""
        self._stopping.set()
        if self._pipeline is not None:
            self._pipeline.stop()

    def await_termination(
        self, timeout: float | None = None, *, signals: bool = False
    ) -> RunReport:
        """Wait for the end of the run.

        Args:
            timeout: seconds; when they pass the report so far is returned (its `ended` is
                "running").
            signals: turn Ctrl-C and SIGTERM into a clean stop meanwhile (main thread only).

        Raises:
            TxnError: what ended the run otherwise; durable state is intact.
        """
        with self._stop_on_signals() if signals else contextlib.nullcontext():
            self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self.report

    def status(self) -> RunStatus:
        """A snapshot of the run; of a standby that waits, one with epoch 0 in which nothing is."""
        if self._pipeline is None:
            return RunStatus(self._topology.name, 0, 0, (), 0, 0, 0, None, 0.0)
        return self._pipeline.status()

    @property
    def report(self) -> RunReport:
        """How the run has gone so far; it goes on changing until the run has ended."""
        return self._before if self._pipeline is None else self._pipeline.report

    @property
    def standby(self) -> Standby | None:
        """What a standby waits for; None: it does not wait (yet, or any more)."""
        return self._standby if self._pipeline is None else None

    @property
    def leads(self) -> bool:
        """Whether the run has begun: always, but for a standby that has not taken over."""
        return self._pipeline is not None

    @property
    def is_active(self) -> bool:
        """True until the run has ended."""
        return self._thread is not None and not self._done.is_set()

    # --- from nothing to a pipeline ----------------------------------------------------------

    def _prepare(self, store: ZooKeeperProgress) -> Pipeline:
        topology, config = self._topology, self._topology.config
        tried = self._local_tables()
        work = self._work(lambda *columns: store.persist_columns(columns_record(*columns)))
        epoch = store.lead(
            wait=self._is_standby, on_waiting=self._waits_for, stopped=self._stopping.is_set
        )
        self._resources.callback(self._close_work, work)
        progress = store.load()
        check_streams(topology.name, self._streams, self._opaque, progress)
        for table in tried:
            try_folder(self._spark, table)
        self._open_spouts(work, progress)
        life = store.incarnation()
        context = CommitterContext(topology.name, epoch, life.id, frozenset(life.takes_over))
        there = work.attach_tables(context)
        known = by_todays_names(topology.name, progress.committed, there, identity)
        progress = progress.model_copy(update={"committed": known})
        require_tables(topology.name, progress.committed, there)
        self._in_time(work.check_and_open_tables, "trying what the program computes")
        found = self._fence_tables(work, store)
        opaque = self._opaque
        differ = any(s.promise.kind is not SpoutKind.TRANSACTIONAL for s in topology.sinks)
        recovered = reconcile(
            topology.name,
            self._streams,
            opaque,
            progress,
            found,
            replays_differ=differ,
            skipping=[
                sink.name
                for sink in topology.sinks
                if sink.committer.semantics is Semantics.TRANSACTIONAL
            ],
        )
        if recovered.roll_forward:
            log.info("[%s] rolled forward to txid %s", topology.name, recovered.committed.txid)
            store.persist_committed(
                recovered.committed.model_copy(update={"epoch": epoch}),
                recovered.quarantine,
                recovered.replay_of,
            )
        work.tables.advance(recovered.committed.txid, recovered.committed.tables)
        state = coordinator.recovered_state(
            recovered.committed,
            recovered.batches,
            streams=self._streams,
            opaque_streams=opaque,
            config=config,
            until=self._until,
            published=recovered.published,
            # What is staged in the turn needs the values of each txid by itself.
            grouped=all(s.committer.groups and not s.in_commit_turn for s in topology.sinks),
        )
        pipeline = Pipeline(
            topology.name,
            config,
            store,
            work,
            state,
            clock=self._clock,
            monotonic=time.monotonic,
            ids=self._ids,
        )
        store.on_lost = lambda: self._on_lost(store, pipeline)
        return pipeline

    def _local_tables(self) -> list[str]:
        """The tables of which it must be tried whether executors see what this process sees."""
        master = str(self._spark.sparkContext.master)
        if runs_here(master):
            return []
        committers = [sink.committer for sink in self._topology.sinks]
        return local_tables(committers, self._topology.config.shared_folders, master)

    def _work(self, remember: Callable[[str, dict[str, Any]], None]) -> Equipment:
        topology = self._topology
        return Equipment(
            self._spark,
            topology.name,
            topology.sources,
            topology.sinks,
            verify_rows=topology.config.verify == "rows",
            remember=remember,
        )

    @property
    def _streams(self) -> tuple[str, ...]:
        return tuple(source.name for source in self._topology.sources)

    @property
    def _opaque(self) -> frozenset[str]:
        """The streams that are planned anew on replay."""
        sources = self._topology.sources
        return frozenset(s.name for s in sources if s.spout.kind is not SpoutKind.TRANSACTIONAL)

    def _fence_tables(self, work: Equipment, store: ZooKeeperProgress) -> Found:
        try:
            return work.fence_tables()
        except FencedError as error:
            # Either a newer leader was faster by a moment, and then this raises, or ZooKeeper
            # knows of no epoch as new as the tables'.
            store.assert_leading()
            raise RecoveryRefusedError(
                f"Topology '{self._topology.name}' has epoch {store.epoch} in ZooKeeper, and a "
                f"table has seen a newer one: {str(error).partition(';')[0]}. ZooKeeper was wiped, "
                "or another ensemble is meant. Nothing was changed. `txn recover "
                "FILE.py:TOPOLOGY` rebuilds ZooKeeper's state from the tables."
            ) from error

    def _connect(self) -> ZooKeeperProgress:
        from txn.embedded.server import zookeeper_service
        from txn.zookeeper.progress import ZooKeeperProgress

        hosts = self._resources.enter_context(zookeeper_service(self._zookeeper))
        self._store = ZooKeeperProgress(hosts, self._topology.name, self._topology.config)
        self._resources.callback(self._store.close)
        return self._store

    # --- standing by -------------------------------------------------------------------------

    def _get_ready(self) -> None:
        """All that a standby can do before its time: what it would be refused for, and warm up."""
        from txn.zookeeper.status import find_status

        hosts = resolve_shared(self._zookeeper).hosts
        topology = self._topology
        self._local_tables()
        self._connect()
        status = find_status(hosts, topology.name, topology.config)
        progress = status.progress if status else Progress()
        check_streams(topology.name, self._streams, self._opaque, progress)
        work = self._work(lambda *_: None)  # it does not lead, and so writes nothing
        try:
            self._open_spouts(work, progress)
            self._in_time(work.rehearse, "trying what the program computes")
        finally:
            work.close()

    def _waits_for(self, leader: LeaderIdentity | None) -> None:
        since = self._standby.since if self._standby else self._clock()
        fields = {"host", "pid", "started", "epoch"}
        who = None if leader is None else leader.model_dump(include=fields)
        self._standby = Standby(since, who)
        log.info("[%s] standing by, waiting for %s", self._topology.name, self._standby)

    def _take_over(self) -> Pipeline | None:
        """Wait for the leadership; None when it was told to stop before that."""
        assert self._store is not None
        try:
            return self._prepare(self._store)
        except ProgressUnavailableError:
            if not self._stopping.is_set():
                raise
        self._before.ended = "stopped"
        return None

    def _on_lost(self, store: ZooKeeperProgress, pipeline: Pipeline) -> None:
        """The session is gone: commits wait in `assert_leading`; a successor ends the run."""
        try:
            store.assert_leading()
        except FencedError as error:
            pipeline.halt(error)
        except Exception as error:  # noqa: BLE001 - the next write meets it again, and tells
            log.warning("[%s] %s", self._topology.name, error)

    # --- the thread, and waiting for it -------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._pipeline is None:
                self._pipeline = self._take_over()
            if self._pipeline is not None:
                if self._stopping.is_set():
                    self._pipeline.stop()
                self._pipeline.run()
        except FencedError as error:
            self._error = self._naming_the_winner(error)
        except BaseException as error:  # noqa: BLE001 - raised by await_termination
            self._error = error
        if self._pipeline is not None:
            self._stragglers += self._pipeline.stragglers
        self._close()

    def _close(self) -> None:
        """Let go of everything, leadership last; once, whoever is first."""
        with self._closing:
            if self._done.is_set():
                return
            try:
                self._resources.close()
            except BaseException as error:  # noqa: BLE001 - raised by await_termination
                self._error = self._error or error
            if self._stragglers:
                self._topology.stragglers = tuple(self._stragglers)
            if self._stragglers and not isinstance(self._error, AbandonedError):
                self._error = self._abandoned()
            self._done.set()

    def _close_work(self, work: Equipment) -> None:
        about = "closing spouts and tables"
        _, stragglers = within(self._topology.config.stop_grace_secs, work.close, about)
        self._stragglers += stragglers

    def _abandoned(self) -> AbandonedError:
        grace = self._topology.config.stop_grace_secs
        return abandoned(self._topology.name, self._stragglers, grace, self._error)

    # --- threads that hang -------------------------------------------------------------------

    def _open_spouts(self, work: Equipment, progress: Progress) -> None:
        newest = newest_metadata(progress)
        self._in_time(lambda: work.open_spouts(newest, progress.columns), "opening the spouts")

    def _in_time(self, job: Callable[[], None], about: str) -> None:
        """Let a start call the user's code, for a while.

        Raises:
            AbandonedError: it did not come back; leadership is given up.
        """
        config = self._topology.config
        seconds = max(START_SECS, config.message_timeout_secs)
        ended, stragglers = within(seconds, job, about, "txn-start")
        if stragglers:
            self._stragglers += stragglers
            self._topology.stragglers = tuple(stragglers)
            raise abandoned(self._topology.name, stragglers, seconds, None)
        ended.result()

    def _watch(self) -> None:
        """End the run for its own thread, should that hang: user code may be called there, too."""
        stopped_at = None
        while not self._done.wait(_WATCH_SECS):
            if self._stopping.is_set() and stopped_at is None:
                stopped_at = time.monotonic()
            if self._thread is None or not self._hangs(stopped_at):
                continue
            self._stragglers.append(
                straggler(self._thread, "the run's own", self._since(stopped_at))
            )
            self._close()

    def _hangs(self, stopped_at: float | None) -> bool:
        config, pipeline = self._topology.config, self._pipeline
        if pipeline is not None:
            # A fact may take as long as ZooKeeper is waited for, the end as long as its threads.
            patience = max(config.zookeeper_deadline_secs, config.message_timeout_secs)
            return pipeline.busy_secs > patience + 2 * config.stop_grace_secs
        return stopped_at is not None and time.monotonic() - stopped_at > config.stop_grace_secs

    def _since(self, stopped_at: float | None) -> float:
        now = time.monotonic()
        if self._pipeline is not None:
            return now - self._pipeline.busy_secs
        return now if stopped_at is None else stopped_at

    def _refuse_stragglers(self) -> None:
        alive = [one for one in self._topology.stragglers if one.thread.is_alive()]
        if alive:
            raise AbandonedError(
                f"Topology '{self._topology.name}' cannot run in this process again: an earlier "
                f"run of it left behind {'; '.join(map(str, alive))}. Start a new process."
            )

    def _naming_the_winner(self, error: FencedError) -> FencedError:
        """A table tells only of a newer epoch; ZooKeeper knows whose it is."""
        try:
            if self._store is not None:
                self._store.assert_leading(_NAMING_SECS)
        except FencedError as winner:
            if str(winner) != str(error):
                winner = FencedError(f"{winner} It was told so by a table: {error}")
                winner.__cause__ = error
            return winner
        except TxnError:
            pass  # ZooKeeper is away: what the table said has to do
        return error

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_active:
            # A short wait each, so that signal handlers get to run in this thread.
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            if left <= 0:
                return
            self._done.wait(left)

    @contextlib.contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handler(number: int, frame: Any) -> None:
            del frame
            log.info("[%s] %s: stopping", self._topology.name, signal.Signals(number).name)
            self._ask_to_stop()

        before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


def newest_metadata(progress: Progress) -> dict[str, Any]:
    """Stream -> its newest durable metadata, open batches included but for replays."""
    newest = dict(progress.committed.spouts)
    for batch in progress.batches:
        if batch.replay_of is not None:
            continue
        newest.update({name: m for name, m in batch.spouts.items() if m is not None})
    return newest
