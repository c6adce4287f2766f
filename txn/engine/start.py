"""From nothing to a pipeline: lead, check, recover.

Every refusal of a run comes from here, before anything is written: for streams that differ from the
durable progress, folders that executors do not share, columns, tables, epochs.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txn.dataflow.definition import Definition, Until
from txn.engine.base.shared_folders import local_tables, try_folder
from txn.engine.base.threads import Straggler, abandoned_error, run_within
from txn.engine.changed_code import (
    describe_changes,
    list_changes,
    program_id,
    program_of,
    record_to_keep,
)
from txn.engine.late_tables import LateTables
from txn.engine.loop.ending_errors import not_started
from txn.engine.loop.equipment import Equipment
from txn.engine.loop.pipeline import Pipeline
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.backfill import Leader
from txn.errors import (
    FencedError,
    RecoveryRefusedError,
    TableChangedError,
    TopologyError,
    TxnError,
)
from txn.interfaces import NOTICES, CommitterContext
from txn.observers import LeadershipWon, RunStarted
from txn.protocol import coordinator
from txn.protocol.event_time import WatermarkRule
from txn.protocol.records import (
    ColumnsRecord,
    CommittedRecord,
    IncarnationRecord,
    LeaderIdentity,
    ProgramRecord,
    Progress,
)
from txn.protocol.recovery import (
    Newest,
    Recovered,
    check_streams,
    newest_metadata,
    reconcile,
    require_tables,
    with_rows,
)
from txn.protocol.store import ProgressStore
from txn.protocol.stream_names import check_renamed, rename_in_newest, rename_in_progress
from txn.protocol.table_names import (
    by_todays_names,
    declared_and_read,
    filled_and_gone,
    recorded_ids,
)
from txn.spark.causes import is_of_spark
from txn.spark.submission import runs_here
from txn.storage.locations import identity
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Start"]

log = logging.getLogger("txn")
notices = logging.getLogger(NOTICES)

START_SECS = 120.0
"""Least seconds for a call of the user's code while a run starts: Spark is cold then."""
_OTHER_SCHEMA = "TXN-411"
_TRYING = "trying what the program computes"


@dataclass(frozen=True)
class Start:
    """The start of one run."""

    definition: Definition
    spark: SparkSession
    store: ProgressStore
    until: Until
    clock: Callable[[], float]
    """Seconds since the epoch."""
    monotonic: Callable[[], float]
    """Seconds, for timers."""
    ids: Callable[[], int]
    """Random non-zero 64-bit ids."""
    resources: contextlib.ExitStack
    """Gets the things that the end of the run has to close."""
    stragglers: list[Straggler]
    """Gets the threads left behind because they hang in the user's code."""
    broadcast: Broadcast
    """Gets the events of the leadership and of the start."""

    # --- a standby, before its time ----------------------------------------------------------

    def rehearse(self) -> None:
        """Make the checks that follow `lead`, and warm up. Neither leads nor writes."""
        self._tables_to_try()
        progress = self._by_present_streams(self.store.peek())
        self._check_streams(progress)
        equipment = self._equipment(lambda *_: None)
        try:
            newest = self._attach_tables(equipment, CommitterContext(self.definition.name, 0))
            late = self._late_tables(progress, newest)
            self._known_tables(progress, late.without(newest), late, equipment.tables.ids())
            self._open_spouts(equipment, progress)
            self._call_in_time(equipment.rehearse, _TRYING)
        finally:
            equipment.close()

    # --- beside a leader ---------------------------------------------------------------------

    def fill(
        self, tables: Sequence[str], copied: Sequence[str], epoch: int, life: IncarnationRecord
    ) -> dict[str, int]:
        """Fill tables that the leader's program does not know, and next generations of others.

        Args:
            copied: as for `LateTables`.

        Returns:
            Table -> the newest txid that it, or its next generation, holds.

        Raises:
            TxnError: the refusal; what the tables have got by then stays.
        """
        progress = self._by_present_streams(self.store.peek())
        self._check_streams(progress)
        equipment = self._equipment(lambda *_: None)
        self.resources.callback(self._close, equipment)
        newest = self._attach_tables(equipment, self._context(epoch, life, progress))
        late = LateTables(
            self.definition,
            tables,
            progress.committed,
            newest,
            beside=True,
            declared=declared_and_read(progress)[0] or (),
            copied=copied,
        )
        late.refuse()
        equipment.tables.begin_at(late.first_txids)
        self._open_spouts(equipment, progress)
        self._call_in_time(lambda: equipment.open_tables(late.sinks), _TRYING)
        equipment.tables.advance(progress.committed.txid, progress.committed.tables)
        equipment.change_shapes(late.held, late.sinks)
        late.copy_rows(equipment, epoch)
        leader = Leader(epoch, lambda: None, self.monotonic)
        # Each round fills what was committed during the last one. If that does not become less, the
        # leader is as fast, and the start of the program fills the rest.
        lacking, before = late.lacking(progress.committed.txid), math.inf
        while lacking and lacking < before / 2:
            late.fill(equipment, progress.committed, leader)
            progress = self.store.peek()
            lacking, before = late.lacking(progress.committed.txid), lacking
        return late.tables

    # --- a leader ----------------------------------------------------------------------------

    def lead(
        self,
        *,
        wait: bool,
        on_waiting: Callable[[LeaderIdentity | None], None],
        stopped: Callable[[], bool],
    ) -> Pipeline:
        """Lead, check, recover. Takes the arguments of `ProgressStore.lead`.

        Raises:
            TxnError: the refusal; `resources` closes what is open.
        """
        tried = self._tables_to_try()
        equipment = self._equipment(self._persist_columns)
        program = program_id(program_of(self.definition))
        epoch = self.store.lead(wait=wait, on_waiting=on_waiting, stopped=stopped, program=program)
        self.resources.callback(self._close, equipment)
        self.broadcast.epoch = epoch
        self.broadcast.report(LeadershipWon)
        progress, misfit, late = self._check_durable(equipment, epoch, tried)
        recovered, publications = self._recover(equipment, epoch, progress, misfit, late)
        equipment.tables.advance(recovered.committed.txid, recovered.committed.tables)
        equipment.change_shapes(late.held, late.sinks)
        leader = Leader(epoch, self.store.assert_leading, self.monotonic)
        late.fill(equipment, recovered.committed, leader)
        # Queries of a table that was filled find what it has got.
        versions = {**recovered.committed.tables, **late.versions}
        equipment.tables.advance(recovered.committed.txid, versions)
        equipment.change_shapes({}, equipment.tables.all)
        pipeline = self._pipeline(equipment, recovered)
        self._report_changes(progress.program, recovered, equipment.tables.ids())
        committed, started = recovered.committed.txid, sorted(b.txid for b in recovered.batches)
        aside = sorted(recovered.quarantined(progress.quarantined))
        self.broadcast.report(RunStarted, committed, tuple(started), tuple(aside))
        pipeline.news.rolled_forward(progress.committed.txid, recovered, publications)
        return pipeline

    def _check_durable(
        self, equipment: Equipment, epoch: int, tried: list[Storage]
    ) -> tuple[Progress, TxnError | None, LateTables]:
        """The durable progress, after a check that program, spouts and tables fit it.

        Returns:
            The progress; the error of open batches that do not fit, or None; the tables that get
            the txids that they lack.
        """
        name = self.definition.name
        life = self.store.incarnation()
        durable = self._by_present_streams(self.store.load())
        newest = self._attach_tables(equipment, self._context(epoch, life, durable))
        late = self._late_tables(durable, newest)
        equipment.tables.begin_at(late.first_txids)
        newest = late.without(newest)
        progress, misfit = self._fit_spouts(equipment, durable, newest)
        for storage in tried:
            try_folder(self.spark, storage)
        committed = self._known_tables(progress, newest, late, equipment.tables.ids())
        program = progress.program and progress.program.model_copy(
            update={"tables": recorded_ids(progress)}
        )
        progress = progress.model_copy(update={"committed": committed, "program": program})
        require_tables(name, progress.committed, newest)
        self._call_in_time(equipment.check_and_open_tables, _TRYING)
        generations = tuple(late.generations.values())
        self._call_in_time(lambda: equipment.open_tables(generations), _TRYING)
        return progress, misfit, late

    def _context(self, epoch: int, life: IncarnationRecord, progress: Progress) -> CommitterContext:
        config = self.definition.config
        return CommitterContext(
            self.definition.name,
            epoch,
            life.id,
            frozenset(life.takes_over),
            progress.committed.txid + 1,
            config.dropped_columns,
            config.rebuilt_tables,
        )

    def _late_tables(self, progress: Progress, newest: Newest) -> LateTables:
        named = self.definition.config.backfilled_tables
        late = LateTables(self.definition, named, progress.committed, newest)
        late.refuse()
        return late

    def _fit_spouts(
        self, equipment: Equipment, progress: Progress, newest: Newest
    ) -> tuple[Progress, TxnError | None]:
        """The durable progress, if the spouts can go on from it.

        If a schema was corrected after the first batch failed, no table has rows, and every source
        would begin at the same place, its open batches are planned anew. Otherwise the topology
        would need another name.

        Returns:
            The progress; and the error of open batches that do not fit and are left out, or None.
        """
        try:
            self._check_streams(progress)
            self._open_spouts(equipment, progress)
        except TopologyError as error:
            begun = progress.committed.txid or any(newest.values()) or not progress.batches
            alike = all(source.spout.begins_alike for source in self.definition.sources)
            if error.number != _OTHER_SCHEMA or begun or not alike:
                raise
            log.warning(
                "[%s] nothing is committed yet, so what was planned is planned anew: %s",
                self.definition.name,
                error,
            )
            equipment.spouts.close()
            fresh = Progress(committed=progress.committed)
            self._open_spouts(equipment, fresh)
            return fresh, error
        return progress, None

    def _recover(
        self,
        equipment: Equipment,
        epoch: int,
        progress: Progress,
        misfit: TxnError | None,
        late: LateTables,
    ) -> tuple[Recovered, Newest]:
        """Decide by the tables where the run begins; durable when this returns."""
        definition = self.definition
        publications = late.without(self._fence_tables(equipment))
        if misfit is not None:
            if any(publications.values()):
                raise misfit  # an older leader has published them a moment ago
            self.store.drop_open()
        recovered = reconcile(
            definition.name,
            definition.streams,
            definition.opaque_streams,
            progress,
            publications,
            replays_differ=definition.replays_differ,
            skipping=definition.skipping_tables,
            dropped=definition.config.dropped_streams,
        )
        late.look_again(recovered.committed)
        if recovered.roll_forward:
            log.info("[%s] rolled forward to txid %s", definition.name, recovered.committed.txid)
            self.store.persist_committed(
                late.with_held(recovered.committed.model_copy(update={"epoch": epoch})),
                recovered.quarantine,
                recovered.replay_of,
            )
        return recovered, publications

    def _report_changes(
        self, before: ProgramRecord | None, recovered: Recovered, ids: Mapping[str, str]
    ) -> None:
        """Report once that the program differs from the last run's, and record this one."""
        program, first = program_of(self.definition), recovered.committed.txid + 1
        named = set(map(identity, recovered.committed.tables))
        filled = [
            sink.name
            for sink in self.definition.sinks
            if first > 1 and identity(sink.name) not in named and sink.committer.last_publication()
        ]
        # A moved table has its former name, too, until a commit stores the present one.
        tables = {**(before.tables if before else {}), **ids}
        program = program.model_copy(update={"tables": tables, "filled": filled})
        former = before if first > 1 or recovered.batches else None  # it has done nothing yet
        lines = [] if former is None else list_changes(former, program)
        if lines:
            notices.warning("[%s] %s", self.definition.name, describe_changes(lines, recovered))
        if (record := record_to_keep(program, former, first)) != before:
            self.store.persist_program(record)

    def _fence_tables(self, equipment: Equipment) -> Newest:
        try:
            return rename_in_newest(self.definition.renamed, equipment.tables.fence())
        except TableChangedError:
            self.store.assert_leading()  # a newer leader may have taken a next generation
            raise
        except FencedError as error:
            # Either a newer leader was a moment faster, and then this raises, or the store has no
            # epoch as new as the tables'.
            self.store.assert_leading()
            raise RecoveryRefusedError(
                f"Topology '{self.definition.name}' has epoch {self.store.epoch} in ZooKeeper, "
                "but a table has a newer one: ZooKeeper was wiped, or this run uses another "
                "ensemble. Nothing was changed. `txn recover FILE.py:TOPOLOGY` rebuilds "
                f"ZooKeeper's state from the tables. The table's own words: {error}",
                number="TXN-803",
            ) from error

    def _pipeline(self, equipment: Equipment, recovered: Recovered) -> Pipeline:
        definition = self.definition
        state = coordinator.recovered_state(
            recovered.committed,
            recovered.batches,
            streams=definition.streams,
            opaque_streams=definition.opaque_streams,
            config=definition.config,
            until=self.until,
            published=recovered.published,
            grouped=definition.can_group,
            watermark_rules=[
                WatermarkRule(w.label(), w.delay, w.idle_after, w.by) for w in definition.watermarks
            ],
            dimensions=equipment.dimensions.versions(),
        )
        return Pipeline(
            definition.name,
            definition.config,
            self.store,
            equipment,
            state,
            self.broadcast,
            clock=self.clock,
            monotonic=self.monotonic,
            ids=self.ids,
        )

    # --- both --------------------------------------------------------------------------------

    def _by_present_streams(self, progress: Progress) -> Progress:
        """The durable progress, under the names that the program has for its streams."""
        definition = self.definition
        check_renamed(definition.name, definition.renamed, progress.committed)
        for former, name in definition.renamed.items():
            if former in progress.committed.spouts:
                log.info("[%s] stream '%s' was '%s' so far", definition.name, name, former)
        return rename_in_progress(definition.renamed, progress)

    def _attach_tables(self, equipment: Equipment, context: CommitterContext) -> Newest:
        return rename_in_newest(self.definition.renamed, equipment.attach_tables(context))

    def _known_tables(
        self, progress: Progress, newest: Newest, late: LateTables, ids: Mapping[str, str]
    ) -> CommittedRecord:
        """The committed record with today's table names; refuses tables that are gone or new.

        Args:
            newest: of all tables but those that are late.
        """
        definition = self.definition
        return by_todays_names(
            definition.name,
            late.without_committed(progress.committed),
            newest,
            identity,
            unborn=definition.unborn_tables(
                *with_rows(progress, newest),
                *declared_and_read(progress),
            ),
            new=definition.config.new_tables,
            dropped=definition.config.dropped_tables,
            ids=ids,
            recorded=recorded_ids(progress),
            filled=filled_and_gone(progress, [s.name for s in definition.sinks], ids, identity),
        )

    def _equipment(self, remember: Callable[[str, dict[str, Any]], None]) -> Equipment:
        definition = self.definition
        return Equipment(
            self.spark,
            definition.name,
            definition.sources,
            definition.sinks,
            self.broadcast,
            verify_rows=definition.config.verify == "rows",
            remember=remember,
            monotonic=self.monotonic,
        )

    def _persist_columns(self, stream: str, columns: dict[str, Any]) -> None:
        self.store.persist_columns(ColumnsRecord(stream=stream, columns=columns))

    def _tables_to_try(self) -> list[Storage]:
        """The tables for which to check that executors see the same files as this process."""
        master = str(self.spark.sparkContext.master)
        if runs_here(master):
            return []
        committers = [sink.committer for sink in self.definition.sinks]
        local_tables(committers, self.definition.config.shared_folders, master)
        return [
            Storage(committer.name, committer.storage_options)
            for committer in committers
            if committer.lies_in_folder
        ]

    def _check_streams(self, progress: Progress) -> None:
        definition = self.definition
        check_streams(
            definition.name,
            definition.streams,
            definition.opaque_streams,
            progress,
            definition.config.dropped_streams,
        )

    def _open_spouts(self, equipment: Equipment, progress: Progress) -> None:
        newest = newest_metadata(progress)
        self._call_in_time(
            lambda: equipment.open_spouts(newest, progress.columns), "opening the spouts"
        )

    def _call_in_time(self, job: Callable[[], None], about: str) -> None:
        """Call the user's code during a start, with a time limit.

        Raises:
            AbandonedError: the call did not return in time.
            TopologyError: Spark refused something; the error names the cause.
        """
        seconds = max(START_SECS, self.definition.config.message_timeout_secs)
        ended, stragglers = run_within(seconds, job, about, "txn-start")
        if stragglers:
            self.stragglers.extend(stragglers)
            raise abandoned_error(self.definition.name, stragglers, seconds, None)
        try:
            ended.result()
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise not_started(self.definition.name, about, error) from error

    def _close(self, equipment: Equipment) -> None:
        grace = self.definition.config.stop_grace_secs
        _, stragglers = run_within(grace, equipment.close, "closing spouts and tables")
        self.stragglers.extend(stragglers)
