"""A table of running values, one row per key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from committers.aggregates import identity, quoted
from committers.log_actions import BUCKET, ActiveFile
from committers.staging import SCRATCH, random_id
from committers.storage import Storage
from committers.table_committer import (
    TableCommitter,
    parse_semantics,
    read_table,
    require_same_columns,
)
from committers.table_spec import TableSpec, storable_columns
from committers.upsert import StateLayout
from txn.attempts import TransactionAttempt
from txn.errors import TableRefusedError, TopologyError
from txn.interfaces import (
    Aggregate,
    Committer,
    Prepared,
    Publication,
    Semantics,
    Staged,
    StagedFile,
    State,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StateCommitter", "StateTable"]

HASHED_BYTES = 32 * 1024 * 1024
"""Largest staged (compressed) size of one bucket's partials that a task joins in memory."""


class StateTable(State):
    """Running aggregates by key in an ordinary Delta table.

    Args:
        path: the table's folder: a local path or an object-store URI.
        semantics: "opaque" (default) keeps the previous value of each row and survives replays
            that differ; "transactional" skips identical replays and stores no previous values;
            "non_transactional" applies replays again.
        layout: "upsert": one row per key; a commit rewrites the touched hash buckets.
        buckets: number of hash buckets: the unit of rewriting, and the parallelism of a commit.
            Fixed when the table is made; about one per 500,000 keys and at least one per core.
        storage_options: credentials and endpoints for delta-rs.
        new_id: source of folder names and commit tokens.

    Raises:
        TopologyError: an unknown semantics or layout, or less than one bucket.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        semantics: Semantics | str = Semantics.OPAQUE,
        layout: str = "upsert",
        buckets: int = 4,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.path = os.fspath(path)
        self.semantics = parse_semantics(semantics)
        if layout != "upsert":
            raise TopologyError(
                f"State table {self.path} cannot have layout={layout!r}: this version has only "
                '"upsert". Leave layout out.'
            )
        if buckets < 1:
            raise TopologyError(
                f"State table {self.path} cannot have {buckets} hash buckets; give 1 or more."
            )
        self.layout = layout
        self.buckets = buckets
        self._options = dict(storage_options or {})
        self._new_id = new_id

    def bind(self, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> Committer:
        """The committer that keeps `aggregates` (value column -> aggregate) per `keys`.

        Raises:
            TopologyError: no aggregate, or a name that is used twice or reserved.
        """
        layout = StateLayout(
            tuple(keys),
            dict(aggregates),
            self.buckets if keys else 1,
            self.semantics is Semantics.OPAQUE,
        )
        _refuse_names(layout, self.path)
        return StateCommitter(
            self.path,
            self.semantics,
            layout,
            storage_options=self._options,
            new_id=self._new_id,
        )

    def read(self, spark: SparkSession) -> DataFrame:
        """Keys and values as of the newest version now; no bookkeeping columns.

        Raises:
            TableRefusedError: there is no such table, or it is no state table.
        """
        return self.snapshot(spark, None)

    def snapshot(
        self,
        spark: SparkSession,
        version: int | None,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Keys and values as of a table version; None: the newest.

        Raises:
            TableRefusedError: there is no such table, or it is no state table.
        """
        table, properties = read_table(spark, Storage(self.path), self._options, version)
        if properties.get("txn.kind") != "upsert":
            raise TableRefusedError(
                f"Table {self.path} is not a state table (its property txn.kind is "
                f"{properties.get('txn.kind')}). Read it with spark.read.format('delta')."
            )
        keys = json.loads(properties.get("txn.keys") or "[]")
        values = [value for value, _ in json.loads(properties.get("txn.values") or "[]")]
        return table.select(*(quoted(name) for name in (*keys, *values)))


class StateCommitter(TableCommitter):
    """What `StateTable.bind` returns: one state table with its keys and aggregates."""

    def __init__(
        self,
        path: str,
        semantics: Semantics,
        layout: StateLayout,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(path, semantics, storage_options=storage_options, new_id=new_id)
        self._layout = layout
        self._partials_schema: StructType | None = None

    def required_columns(self) -> Sequence[str]:
        """The keys and the columns that the aggregates read."""
        inputs = [agg.column for agg in self._layout.aggregates.values() if agg.column]
        return tuple(dict.fromkeys((*self._layout.keys, *inputs)))

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """One row per group of the batch; one row for a global aggregate, rows or not."""
        return self._layout.partials(batch, count_as)

    def _spec(self, schema: StructType) -> TableSpec:
        self._partials_schema = schema
        values = tuple((name, identity(agg)) for name, agg in self._layout.aggregates.items())
        return TableSpec(
            self._opened.topology,
            "upsert",
            self.semantics,
            storable_columns(self._layout.table_schema(schema), self.name),
            self._layout.keys,
            values,
            self._layout.buckets,
        )

    def stage(self, partials: DataFrame, attempt: TransactionAttempt) -> Staged:
        """Write the partial aggregates by bucket into scratch."""
        require_same_columns(self._known_schema(), partials.schema, self.name)
        files = self._area.write(partials, attempt, below=SCRATCH, partition_by=BUCKET)
        return Staged(attempt, files)

    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        first = publication.first_txid
        reverts = self.semantics is Semantics.OPAQUE and self._unfinished(publication)
        buckets = {int(file.partition[BUCKET] or 0) for file in staged.files}
        if reverts:
            # Whatever the replay mentions: the dead attempt's keys go back in every bucket.
            buckets |= {f.bucket for f in self._log.files.values() if f.may_hold(first)}
        old = tuple(file for file in self._log.files.values() if file.bucket in buckets)
        if not old and not staged.files:
            return Prepared(staged, (), (), self._log.version)
        rows = self._next_rows(old, staged.files, publication, reverts)
        adds = self._area.write(rows, staged.attempt, partition_by=BUCKET)
        return Prepared(staged, adds, old, self._log.version)

    def _next_rows(
        self,
        old: Sequence[ActiveFile],
        new: Sequence[StagedFile],
        publication: Publication,
        reverts: bool,
    ) -> DataFrame:
        partials_schema = self._known_schema()
        schema = self._layout.table_schema(partials_schema)
        stored = self._read_files([file.path for file in old], schema)
        if stored is not None and reverts:
            stored = self._layout.revert(stored, publication.first_txid)
        sizes: dict[str | None, int] = {}
        for file in new:
            bucket = file.partition[BUCKET]
            sizes[bucket] = sizes.get(bucket, 0) + file.size
        return self._layout.merge(
            stored,
            self._read_files([file.path for file in new], partials_schema),
            schema,
            publication.last_txid,
            hash_partials=max(sizes.values(), default=0) <= HASHED_BYTES,
        )

    def _read_files(self, paths: Sequence[str], schema: StructType) -> DataFrame | None:
        """Rows of exactly these files, without the bucket: it follows from the keys."""
        from pyspark.sql.types import StructType

        if not paths:
            return None
        session = self._session(
            {
                # One shuffle partition per bucket, never merged: each task writes one file.
                "spark.sql.shuffle.partitions": str(self._layout.buckets),
                "spark.sql.adaptive.enabled": "false",
            }
        )
        stored = StructType([field for field in schema if field.name != BUCKET])
        return session.read.schema(stored).parquet(*map(self._storage.read_url, paths))

    def _known_schema(self) -> StructType:
        if self._partials_schema is None:
            raise TopologyError(f"Table {self.name} is staged into before it was opened.")
        return self._partials_schema


def _refuse_names(layout: StateLayout, table: str) -> None:
    if not layout.aggregates:
        raise TopologyError(
            f"State table {table} has no aggregate. Name at least one, such as rows=Count()."
        )
    taken = {name.lower(): "the table's own bookkeeping" for name in layout.bookkeeping}
    for role, names in (("a key", layout.keys), ("a value", layout.values)):
        for name in names:
            if name.lower() in taken:
                raise TopologyError(
                    f"State table {table} cannot use '{name}' as {role}: the name is taken by "
                    f"{taken[name.lower()]}. Rename it."
                )
            taken[name.lower()] = role
