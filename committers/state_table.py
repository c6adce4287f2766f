"""A table of running values, one row per key."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from committers.aggregates import Fold, identity
from committers.aggregates.base import named_for
from committers.guard import parse_semantics
from committers.kept_rows import KeptKeys, KeptRows
from committers.log_layout.committer import LogCommitter
from committers.log_layout.compaction import Pace
from committers.named_table import storage_of
from committers.reading.frames import Frames
from committers.staging.area import random_id
from committers.state.key_lookup import rows_of_keys
from committers.state.keys import keys_reader
from committers.state.layouts import RESERVED, LogLayout, UpsertLayout
from committers.state.partials import mergeable, overrides
from committers.state.properties import shape_of
from committers.state.shape import StateShape
from committers.state.stored import StoredState, find_stored
from committers.state.versions import (
    missing_file,
    newest_version,
    version_of,
    watermark_at,
)
from committers.table_rows import read_table
from committers.upsert_layout.committer import UpsertCommitter
from txn.errors import TopologyError
from txn.interfaces import Aggregate, Committer, Expiry, Semantics, State, StoredRows
from txn.storage.catalog_names import as_location, name_beside
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LAYOUTS", "StateTable"]

LAYOUTS = ("upsert", "log")
"""The layouts of a state table."""


class StateTable(Frames, State):
    """Running aggregates by key in an ordinary Delta table.

    Args:
        path: the table's folder, a local path or an object-store URI; or its name in Spark's
            catalog, "catalog.schema.table".
        semantics: "opaque" (default) keeps the previous value of each row and survives replays
            that differ; "transactional" skips identical replays and stores no previous values;
            "non_transactional" applies replays again.
        layout: "upsert": one row per key; a commit rewrites the touched hash buckets. "log": a
            commit only adds the batch's partial aggregates, whatever the size of the state, and
            readers merge those of a key; compaction keeps them few.
        buckets: number of hash buckets: the unit of rewriting, and the parallelism of a commit.
            About one per 500,000 keys and at least one per core. Only with layout="upsert".
        compact_files: only with layout="log": merge files of about the same size in the background
            as soon as there are this many, 2 or more; None: never. A lower number makes
            reading cheaper and compaction more frequent. After 30 s without input all become one.
        compact_share: share of the time that compaction may take, above 0 and up to 1: while it
            has had more, up to four times `compact_files` wait. 1: they never wait.
        remove_where: SQL condition over keys and values as readers see them, such as
            "flights = 0": a key of the batch that satisfies it after the update is removed, in
            the same txid; later rows start it afresh (Trident: `multiRemove`).
        columns_were: key or value -> its former name, for one that the program has renamed.
        storage_options: credentials and endpoints, by object_store's names (`aws_endpoint_url`);
            missing ones come from the environment.
        new_id: source of folder names and commit tokens.

    Raises:
        TopologyError: the semantics or layout is unknown, there is less than one bucket, or
            `compact_files` or `compact_share` is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        semantics: Semantics | str = Semantics.OPAQUE,
        layout: str = "upsert",
        buckets: int = 4,
        *,
        compact_files: int | None = 16,
        compact_share: float = 0.1,
        remove_where: str | None = None,
        columns_were: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.path = as_location(path)
        self.semantics = parse_semantics(semantics)
        if layout not in LAYOUTS:
            layouts = " or ".join(f'"{name}"' for name in LAYOUTS)
            raise TopologyError(
                f"State table {self.path} cannot have layout={layout!r}. Choose {layouts}.",
                number="TXN-112",
            )
        if buckets < 1:
            raise TopologyError(
                f"State table {self.path} cannot have {buckets} hash buckets; give 1 or more.",
                number="TXN-112",
            )
        if compact_files is not None and compact_files < 2:
            raise TopologyError(
                f"State table {self.path} cannot have compact_files={compact_files}; give 2 or "
                "more, or None for no compaction.",
                number="TXN-112",
            )
        if not 0 < compact_share <= 1:
            raise TopologyError(
                f"State table {self.path} cannot have compact_share={compact_share}; give a share "
                "above 0 and up to 1.",
                number="TXN-112",
            )
        self.layout = layout
        self.compact_files = compact_files
        self.compact_share = compact_share
        self.buckets = buckets
        self.remove_where = remove_where
        self.columns_were = dict(columns_were or {})
        self._options = dict(storage_options or {})
        self._new_id = new_id

    def bind(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        *,
        expiry: Expiry | None = None,
    ) -> Committer:
        """The committer that keeps `aggregates` (value column -> aggregate) per `keys`.

        Args:
            expiry: when keys end; readers know it from the table.

        Raises:
            TopologyError: there is no aggregate, a name is used twice or reserved, or the layout
                does not support an aggregate, condition or expiry.
        """
        named = named_for(self.path, aggregates)
        if expiry is not None:
            self._refuse_expiry(expiry, keys)
        if self.layout == "log":
            log = LogLayout(tuple(keys), named, self.remove_where, expiry=expiry)
            _refuse_names(log, self.path)
            self._refuse_unmergeable(named)
            return LogCommitter(
                self.path,
                self.semantics,
                log,
                self.compact_files,
                Pace(self.compact_share, time.monotonic),
                columns_were=self.columns_were,
                storage_options=self._options,
                new_id=self._new_id,
            )
        layout = UpsertLayout(
            tuple(keys),
            named,
            self.remove_where,
            self.buckets if keys else 1,
            self.semantics is Semantics.OPAQUE,
            expiry,
            apart=frozenset(n for n, agg in named.items() if overrides(agg, "result")),
        )
        _refuse_names(layout, self.path)
        return UpsertCommitter(
            self.path,
            self.semantics,
            layout,
            columns_were=self.columns_were,
            storage_options=self._options,
            new_id=self._new_id,
        )

    def keeping(
        self, name: str, keys: Sequence[str], time: str | None, after: int | None, *, whole: bool
    ) -> Committer:
        """Return the committer of a table beside this one (`KeepsBeside`)."""
        folder, slash, _ = self.path.rstrip("/").rpartition("/")
        path = name_beside(self.path, name) or f"{folder}{slash}{name}"
        if whole and time is not None and after is not None:
            return KeptRows(path, keys, time, after, storage_options=self._options)
        return KeptKeys(path, keys, time, after, storage_options=self._options)

    def _refuse_expiry(self, expiry: Expiry, keys: Sequence[str]) -> None:
        if expiry.by == "key" and expiry.column not in keys:
            raise TopologyError(
                f"Keys of state table {self.path} cannot end by column '{expiry.column}': it is "
                f"none of its keys ({', '.join(keys) or 'none'}).",
                number="TXN-123",
            )
        if self.semantics is Semantics.NON_TRANSACTIONAL:
            raise TopologyError(
                f"Keys of state table {self.path} cannot end: it applies replays again "
                '(semantics="non_transactional"). Use semantics="opaque".',
                number="TXN-123",
            )

    def _refuse_unmergeable(self, aggregates: Mapping[str, Aggregate]) -> None:
        """Refuse removals and aggregates that layout="log" cannot support."""
        if self.remove_where is not None and self.semantics is Semantics.NON_TRANSACTIONAL:
            raise TopologyError(
                f'State table {self.path} has layout="log" and semantics="non_transactional", so '
                "rows that a failed attempt removed stay removed, together with those of its "
                'replay. Use layout="upsert" for remove_where, or semantics="opaque".',
                number="TXN-112",
            )
        for name, aggregate in aggregates.items():
            if not mergeable(aggregate) or isinstance(aggregate, Fold):
                raise TopologyError(
                    f"Value '{name}' of state table {self.path} is {identity(aggregate)}, but "
                    'layout="log" combines partial values in any order, which this aggregate '
                    'does not allow. Use layout="upsert", or an aggregate that can be combined.',
                    number="TXN-111",
                )

    def read(
        self,
        spark: SparkSession,
        txid: int | None = None,
        *,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Read keys and values (`Aggregate.result` applied), without bookkeeping columns.

        Args:
            txid: as of this txid; None: as of the newest version.
            aggregates: value column -> aggregate, for the user's own aggregates that show another
                value than they store.

        Raises:
            TableRefusedError: the table does not exist or is not a state table, it has not reached
                `txid` or its log no longer goes back to it, or `aggregates` lacks one.
        """
        if txid is None:
            return self.snapshot(spark, None, aggregates)
        version = version_of(self._folder(spark), txid)
        return self.snapshot(spark, version, aggregates)

    def get(
        self,
        spark: SparkSession,
        keys: DataFrame | Sequence[Any],
        *,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Read the values of some keys; keys that the table lacks are left out (`multiGet`).

        As of the newest version. With layout="upsert" it reads only the hash buckets of these
        keys; for keys in a DataFrame a small job finds those buckets right away.

        Args:
            keys: a DataFrame of exactly the key columns; or a list of keys, each a tuple or dict
                of the key columns, or the bare value for a single key column.
            aggregates: as in `read`.

        Raises:
            TableRefusedError: as `read`; or the keys have other names, numbers or types.
        """
        stored, shape = self._stored(spark, None, aggregates)
        return shape.shown(rows_of_keys(spark, stored, shape, keys, self.path))

    def snapshot(
        self,
        spark: SparkSession,
        version: int | None,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Keys and values (`Aggregate.result` applied) as of a table version; None: the newest.

        Raises:
            TableRefusedError: the table or version does not exist, it is not a state table, or
                `aggregates` lacks one.
        """
        return _shown(*self._stored(spark, version, aggregates))

    def newest(
        self, spark: SparkSession, aggregates: Mapping[str, Aggregate] | None = None
    ) -> StoredRows:
        """Read a `snapshot` of the newest version, with a check for files deleted later."""
        storage = self._folder(spark)
        version = newest_version(storage)
        stored, shape = self._stored(spark, version, aggregates)
        of_keys = None
        if isinstance(stored, StoredState):
            of_keys = keys_reader(stored.rows, shape.keys, stored.size, shape.shown)
        rows = _shown(stored, shape)
        return StoredRows(rows, lambda: missing_file(storage, version), of_keys)

    def create_view(
        self,
        spark: SparkSession,
        name: str,
        *,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> None:
        """Create or replace a temporary SQL view of this session: keys and values as in `read`.

        Each query of the view sees the newest version at that moment. If keys end, it hides those
        that have ended as of the newest txid that has brought the table rows.

        Args:
            name: the view's name, as in `spark.table(name)`.
            aggregates: as in `read`.

        Raises:
            TableRefusedError: the table does not exist yet or is not a state table, or
                `aggregates` lacks one.
        """
        storage = self._folder(spark)
        rows, properties = read_table(spark, storage, follow=True)
        shape = shape_of(properties, self.path, aggregates)
        _as_of(shape, storage, None).view(rows).createOrReplaceTempView(name)

    def _stored(
        self,
        spark: SparkSession,
        version: int | None,
        aggregates: Mapping[str, Aggregate] | None,
    ) -> tuple[StoredState | DataFrame, StateShape]:
        """(the files of a version, or its rows if only Delta's reader can read it; its shape)."""
        storage = self._folder(spark)
        stored = find_stored(spark, storage, version)
        if stored is not None:
            shape = shape_of(stored.properties, self.path, aggregates)
            return stored, _as_of(shape, storage, stored.version)
        rows, properties = read_table(spark, storage, version)
        return rows, _as_of(shape_of(properties, self.path, aggregates), storage, version)

    def find_table(self, spark: SparkSession) -> None:
        """Find the folder of a name (`FindsTable`)."""
        self.path = self._folder(spark).location

    def _folder(self, spark: SparkSession | None = None) -> Storage:
        return storage_of(spark, self.path, self._options)


def _as_of(shape: StateShape, storage: Storage, version: int | None) -> StateShape:
    """The shape as of the newest txid in a version; None: in the newest one."""
    if shape.expiry is None:
        return shape
    at = newest_version(storage) if version is None else version
    return shape.at(watermark_at(storage, at))


def _shown(stored: StoredState | DataFrame, shape: StateShape) -> DataFrame:
    """Keys and values as readers see them."""
    if not isinstance(stored, StoredState):
        return shape.shown(stored)
    parts = stored.in_two() if isinstance(shape, LogLayout) and shape.splits else None
    if not isinstance(shape, LogLayout) or parts is None:
        return shape.shown(stored.rows())
    once, rest = parts
    if shape.ends_by_event and once.first_txid > stored.first_txid:
        # Only a compaction of the oldest files has decided for each key what counts.
        return shape.shown(stored.rows())
    if not rest.files:
        return shape.shown_once(once.rows())
    has_null = rest.may_have_null(shape.keys)
    return shape.shown_in_two(once.rows(), rest.rows(), has_null=has_null)


def _refuse_names(layout: StateShape, table: str) -> None:
    if not layout.aggregates:
        raise TopologyError(
            f"State table {table} has no aggregate. Name at least one, such as rows=Count().",
            number="TXN-109",
        )
    own = (*layout.bookkeeping, *RESERVED)
    taken = {name.lower(): "the table's own bookkeeping" for name in own}
    for role, names in (("a key", layout.keys), ("a value", layout.values)):
        for name in names:
            if name.lower() in taken:
                raise TopologyError(
                    f"State table {table} cannot use '{name}' as {role}: the name is taken by "
                    f"{taken[name.lower()]}. Rename it.",
                    number="TXN-113",
                )
            taken[name.lower()] = role
