"""The equipment of a run: made before the first batch, opened, checked, and closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from txn.config import TopologyConfig
from txn.dataflow.columns import StreamColumns
from txn.dataflow.graph import Sink, Source
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.backfill import Backfill, Leader
from txn.engine.work.commit import Committing
from txn.engine.work.derived import StoredStream
from txn.engine.work.dimensions import Dimensions
from txn.engine.work.emission import Emissions
from txn.engine.work.history import History
from txn.engine.work.jobs import Jobs
from txn.engine.work.lookups import Lookups
from txn.engine.work.processing import Processing
from txn.engine.work.spouts import Spouts
from txn.engine.work.staging import Stager
from txn.engine.work.stations import Stations
from txn.engine.work.table_keeper import TableKeeper
from txn.engine.work.tables import Tables
from txn.interfaces import CommitterContext
from txn.protocol.events import Metadata
from txn.protocol.recovery import Newest
from txn.spark.own_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Equipment"]


class Equipment:
    """Spark's jobs, the spouts and the tables of one run, and the stations that use them.

    Args:
        sinks: the committers, in the order in which they publish.
        verify_rows: count rows into and out of every staging job (`verify="rows"`).
        remember: makes the columns of a stream durable.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        broadcast: Broadcast,
        *,
        verify_rows: bool = False,
        remember: Callable[[str, dict[str, Any]], None],
        monotonic: Callable[[], float],
    ) -> None:
        own = own_session(spark)
        self._spark = spark
        self._name = name
        self._columns = StreamColumns(remember)
        self._keeper = TableKeeper(name, [sink.committer for sink in sinks])
        self.jobs = Jobs(spark, name)
        self.spouts = Spouts(name, sources, self.jobs.enter_thread)
        self.tables = Tables(own, sinks)
        self._stager = Stager(own, self.tables, verify_rows=verify_rows)
        self._lookups = Lookups(spark, self.tables, self._stager)
        self.dimensions = Dimensions(spark, sinks)
        self._emissions = self._emissions_of(own, sinks, verify_rows=verify_rows)
        self._committing = Committing(
            self.jobs,
            self.spouts,
            self._emissions,
            self._stager,
            self.tables,
            broadcast,
            monotonic,
        )
        self.stations = Stations(
            self.jobs,
            self.spouts,
            self.tables,
            self._emissions,
            Processing(self.jobs, self._emissions, self._stager, self.tables, broadcast),
            self._committing,
            self.dimensions,
            broadcast,
        )

    def _emissions_of(
        self, own: SparkSession, sinks: Sequence[Sink], *, verify_rows: bool
    ) -> Emissions:
        return Emissions(
            self._spark,
            own,
            self.spouts,
            sinks,
            self._lookups,
            self._columns,
            self.dimensions,
            verify_rows=verify_rows,
        )

    def backfill(
        self,
        sink: Sink,
        history: History,
        after: int,
        committed: int,
        config: TopologyConfig,
        leader: Leader,
    ) -> None:
        """Give a table the txids behind `after`, up to `committed`."""
        emissions = self._emissions_of(own_session(self._spark), [sink], verify_rows=False)
        versions = self.dimensions.versions()
        backfill = Backfill(sink, emissions, self._stager, self.jobs, self._name, leader, versions)
        backfill.run(history, after, committed, config.max_group_commit)

    def fill_from(self, stream: StoredStream, sink: Sink, epoch: int) -> None:
        """Give an empty table the rows that an append table has of its stream."""
        self.jobs.enter_thread()
        stream.fill(sink, self._stager, epoch)

    def open_spouts(self, newest: Metadata, columns: Mapping[str, Mapping[str, Any]]) -> None:
        """Open every spout with its newest durable metadata, and learn the columns they know."""
        self.jobs.enter_thread()
        declared = {source.name for source in self.spouts.sources}
        self._columns.recall({name: schema for name, schema in columns.items() if name in declared})
        self.spouts.open(self._spark, newest, self._keeper, self._columns)

    def attach_tables(self, context: CommitterContext) -> Newest:
        """The newest publication of every table that exists; creates nothing."""
        self.jobs.enter_thread()
        return self.tables.attach(context)

    def rehearse(self) -> None:
        """Process no rows, without touching the tables: a standby gets ready.

        Errors show now, and Spark's code is warm when the standby takes over.
        """
        self.jobs.enter_thread()
        self._stager.rehearse(self._emissions.nothing())

    def check_and_open_tables(self) -> None:
        """Refuse wrong columns, shapes and tables; create missing tables. Reads no data.

        A table whose stream has an unknown schema is attached now and checked with the first
        batch, before any job. Tables that lack content named by the spouts' positions get a copy.
        """
        self.jobs.enter_thread()
        self._stager.check_and_open(self._emissions.nothing(), self.tables.all)
        self._keeper.mend()

    def open_tables(self, sinks: Sequence[Sink]) -> None:
        """Open these tables alone; create those that are missing."""
        self.jobs.enter_thread()
        self._stager.check_and_open(self._emissions.nothing(), sinks)

    def change_shapes(self, held: Mapping[str, int], sinks: Sequence[Sink]) -> None:
        """Give tables the shape of the program, before the first batch."""
        self.jobs.enter_thread()
        self.tables.change_shapes(held, sinks)

    def close(self) -> None:
        """Close committers and spouts, each even if others raise."""
        self._committing.close()
        with suppress(Exception):
            self._emissions.release_all()
        self.tables.close()
        self.spouts.close()
