"""The shared part of both state layouts: take partial aggregates, report values and changes."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from committers.generations.state_rows import generation_rows
from committers.open_table import Properties
from committers.published.request import Pace, Request
from committers.published.table import PublishedState
from committers.publishing.spec import TableSpec
from committers.publishing.storable import storable_columns
from committers.staging.area import random_id
from committers.state.changes import ended
from committers.state.partials import PartialRows, mergeable
from committers.state.properties import described_values
from committers.state.reading import StateReader
from committers.state.removal import check_condition
from committers.state.shape import StateShape
from committers.table_committer import TableCommitter
from txn.changes import TableShape
from txn.changes.shape import FORMER, SINCE
from txn.delta.commits import ACCEPTED
from txn.delta.folders import GENERATION
from txn.errors import TopologyError
from txn.interfaces import (
    WATERMARK,
    Prepared,
    Publication,
    Semantics,
    Staged,
    StagedFile,
    StoredRows,
)
from txn.spark.keys import joined_by_key
from txn.spark.own_session import moved
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StateCommitter"]

L = TypeVar("L", bound=StateShape)


class StateCommitter(TableCommitter, Generic[L]):
    """A committer of running aggregates by key; subclasses define how a table stores them."""

    _reader: StateReader[L]

    def __init__(
        self,
        path: str | os.PathLike[str],
        semantics: Semantics | str,
        layout: L,
        *,
        columns_were: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self._layout = layout  # before `_begin`, which reads it
        self._partials = PartialRows(layout.keys, layout.stored)
        self._stored_columns: StructType | None = None
        self.takes_watermark = WATERMARK in layout.columns_read
        self.changes_without_rows = layout.expiry is not None
        super().__init__(
            path,
            semantics,
            storage_options=storage_options,
            new_id=new_id,
            keys=layout.keys,
            columns_were=columns_were,
        )

    @property
    def groups(self) -> bool:
        """True if partials of several txids may be merged before they meet stored values.

        Not if one txid may remove or end a key that comes back with the next.
        """
        layout = self._layout
        returns = layout.remove_where is not None or layout.ends_by_event
        return not returns and all(map(mergeable, layout.aggregates.values()))

    def required_columns(self) -> Sequence[str]:
        """The keys and the columns that the aggregates read."""
        return tuple(name for name in self._layout.columns_read if name != WATERMARK)

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """The rows, if they have the keys and all columns that the aggregates read."""
        return batch if set(self.required_columns()) <= set(batch.columns) else None

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch; for a global aggregate always one row."""
        return self._partials.of(batch, count_as)

    # --- columns -----------------------------------------------------------------------------

    def _spec(self, schema: StructType) -> TableSpec:
        layout = self._layout
        columns = layout.table_schema(self._spark, schema, self._turn_session())
        self._staged_schema, self._stored_columns = schema, columns
        if layout.remove_where is not None:
            shown = layout.shown_schema(self._spark, columns)
            # In the session that will evaluate it, where the user's own functions are unknown.
            check_condition(self._turn_session(), layout.remove_where, shown, self.name)
        layout.require_time(columns, self.name)
        return TableSpec(
            self._opened.topology,
            layout.kind,
            self.semantics,
            storable_columns(columns, self.name),
            layout.keys,
            described_values(layout),
            layout.buckets,
            layout.remove_where,
            layout.expiry,
        )

    def shape(self) -> TableShape:
        """Return the table that the program needs, without the types of its columns."""
        layout = self._layout
        return TableShape(
            layout.kind,
            self.semantics.value,
            layout.keys,
            {name: text for name, text, *_ in described_values(layout)},
            layout.buckets,
            layout.remove_where,
            layout.expiry,
            was=self._columns_were,
        )

    def _write_anew(
        self,
        stored: DataFrame,
        properties: Properties,
        spec: TableSpec,
        committed: int,
        watermark: int | None,
    ) -> tuple[StagedFile, ...]:
        rows, shuffled = generation_rows(
            stored, properties, self._layout, spec, self.name, watermark
        )
        return self._write_generation(rows, committed, shuffled=shuffled)

    @abstractmethod
    def _write_generation(
        self, rows: DataFrame, committed: int, *, shuffled: bool
    ) -> tuple[StagedFile, ...]:
        """Write the rows of the next generation, which no reader sees yet.

        Args:
            shuffled: True if Spark has sent the rows to partitions by their keys.
        """

    def _table_schema(self) -> StructType:
        if self._stored_columns is None:
            raise TopologyError(
                f"Table {self.name} is written to before it was opened.", number="TXN-116"
            )
        return self._stored_columns

    def _stored_schema(self) -> StructType:
        """The columns of the table, even before the first batch."""
        return self._logged_schema() if self._staged_schema is None else self._table_schema()

    def _any_session(self) -> SparkSession:
        """The session of the run; before `open`, the active one."""
        from pyspark.sql import SparkSession

        return self._spark if self._context else SparkSession.builder.getOrCreate()

    # --- values ------------------------------------------------------------------------------

    def shown(self, partials: DataFrame) -> DataFrame:
        """The keys and values that these partials give in an empty state."""
        return self._layout.shown_alone(partials)

    def values_schema(self, partials: StructType) -> StructType:
        """Keys and values as readers see them, given the columns of the partials. Runs no job."""
        spark = self._any_session()
        return self._layout.shown_schema(spark, self._layout.table_schema(spark, partials))

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows:
        """Keys and values as of `txid`, the newest committed one, from the newest files.

        An opaque table has the previous values of everything published since, and compaction takes
        only committed txids. If another table with layout="upsert" holds `txid` in one version
        with later ones, it is read as of the txid before them.

        Raises:
            StateError: `exact`, and the table has no version for it.
            TableRefusedError: the commit files needed were cleaned out of the log, or a file of
                that state was deleted.
            TableChangedError: a file of the table's newest version is gone.
        """
        return self._up_to_date(
            lambda: self._stored_rows(*self._reader.as_of(txid, self._reading(), exact=exact))
        )

    # --- published tables --------------------------------------------------------------------

    def published_table(
        self, path: str, *, every: tuple[int | None, float | None], **asked: Any
    ) -> PublishedState:
        """Return a table that shows this state's keys and values (`CanPublish`)."""
        request = Request.of(self._layout.keys, self._layout.values, table=self.name, **asked)
        return PublishedState(
            path, self, request, Pace(*every), self.storage_options, time.monotonic
        )

    def topology(self) -> str | None:
        """The topology that has opened the table; None: none has, or values are to be added."""
        if self._log.version < 0:
            return None
        wanted = {*self._layout.keys, *self._layout.values}
        return self._opened.topology if wanted <= {*self._logged_schema().fieldNames()} else None

    def lineage(self) -> Mapping[str, Any]:
        """What identifies the rows: others may differ without a later txid."""
        names = (GENERATION, ACCEPTED, FORMER, SINCE)
        return {"id": self._log.table_id, **{n: self._log.properties.get(n) for n in names}}

    def size(self) -> int:
        """Bytes of the table's files."""
        return self._log.size

    def readable_txid(self, committed: int) -> int:
        """The committed txid as of which the newest files can be read: `committed`, or later."""
        return committed

    def changed_after(self, former: int, txid: int) -> tuple[StoredRows, bool]:
        """(keys with rows of later txids than `former`, whether other keys may have gone).

        As of `txid`. Besides the keys, the rows may have all values, as readers see them.
        """
        layout = self._layout
        more_gone = layout.expiry is not None or layout.remove_where is not None

        def read() -> StoredRows:
            return self._stored_rows(*self._reader.changed_after(former, txid, self._reading()))

        return self._up_to_date(read), more_gone

    # --- changes -----------------------------------------------------------------------------

    def require_changes(self) -> None:
        """Refuse a `prev_<value>` that is the name of a key or another value."""
        self._layout.require_changes(self.name)

    def changes_schema(self, partials: StructType) -> StructType:
        """Keys, values and `prev_<value>`, given the columns of the partials. Runs no job."""
        spark = self._any_session()
        columns = self._layout.table_schema(spark, partials)
        return self._layout.changes_schema(spark, columns, self.name)

    def changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """The changes of this txid: one row per touched key, with `prev_<value>`.

        Lazy, in the session of the run. A removed key has NULL values; a key that one txid both
        adds and removes is left out. Keys of a failed attempt that an opaque replay lacks are
        reverted, and are not a change.

        Raises:
            TopologyError: the publication has several txids.
            TableRefusedError: the table holds the txid already, and the files that it replaced
                then were vacuumed since. Only layout="upsert" needs those.
        """
        if publication.members:
            raise TopologyError(
                f"The changes of one txid in table {self.name} cannot be read: txids "
                f"{publication.first_txid} to {publication.last_txid} are published together. "
                "Run the topology with max_group_commit=1.",
                number="TXN-116",
            )
        changed = self._changes(prepared, publication) if prepared.staged.files else None
        ending = self._ending(prepared, publication)
        if changed is None or ending is None:
            return changed or ending or self._no_changes()
        return StoredRows(
            changed.rows.unionByName(ending.rows),
            lambda: changed.missing() or ending.missing(),
        )

    def _ending(self, prepared: Prepared, publication: Publication) -> StoredRows | None:
        """The keys that end in this txid, unless a row of it begins them anew; None: no key can."""
        txid, watermark = publication.last_txid, publication.watermark
        layout = self._layout.at(watermark)
        if layout.expiry is None or watermark in (None, self._watermark_as_of(txid - 1)):
            return None

        def read() -> StoredRows:
            rows, paths = self._reader.ending(txid, watermark, self._reading())
            if layout.ends_by_event and prepared.staged.files:
                begun = layout.unended(self._staged_rows(prepared.staged))
                rows = joined_by_key(rows, moved(begun, self._reading()), layout.keys, "left_anti")
            return self._stored_rows(moved(ended(layout, rows), self._spark), paths)

        return self._up_to_date(read)

    @abstractmethod
    def _staged_rows(self, staged: Staged) -> DataFrame:
        """The staged partials."""

    def _watermark_as_of(self, txid: int) -> int | None:
        """The watermark of a txid, if keys end by it."""
        if self._layout.expiry is None:
            return None
        return self._log.watermark_as_of(txid, needed=True)

    @abstractmethod
    def _changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """`changes` of one txid that has staged rows."""

    def _no_changes(self) -> StoredRows:
        """The changes of a txid that touches no key."""
        columns = self._layout.changes_schema(self._spark, self._stored_schema(), self.name)
        return StoredRows(no_rows(self._spark, columns))
