"""A table of running values, one row per key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from committers.staging import random_id
from committers.state_committer import StateCommitter
from committers.state_reader import rows_of_keys, version_of
from committers.state_shape import StateShape
from committers.storage import Storage
from committers.table_committer import parse_semantics, read_table
from committers.upsert import RESERVED, StateLayout
from txn.errors import TopologyError
from txn.interfaces import Aggregate, Committer, Semantics, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["StateTable"]


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
        remove_where: SQL condition over keys and values as readers see them, such as
            "flights = 0": a key of the batch that satisfies it after the update is removed, in
            the same txid; rows that come later start it afresh (Trident: `multiRemove`).
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
        remove_where: str | None = None,
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
        self.remove_where = remove_where
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
            self.remove_where,
        )
        _refuse_names(layout, self.path)
        return StateCommitter(
            self.path,
            self.semantics,
            layout,
            storage_options=self._options,
            new_id=self._new_id,
        )

    def read(
        self,
        spark: SparkSession,
        txid: int | None = None,
        *,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Keys and values (`Aggregate.result` applied); no bookkeeping columns.

        Args:
            txid: as of this txid; None: as of the newest version now.
            aggregates: value column -> aggregate, for aggregates of the user's own that show
                something else than what they store.

        Raises:
            TableRefusedError: there is no such table, it is no state table, it has not reached
                `txid` or its log no longer goes back to it, or an aggregate must be handed in.
        """
        if txid is None:
            return self.snapshot(spark, None, aggregates)
        version = version_of(Storage(self.path), self._options, txid)
        return self.snapshot(spark, version, aggregates)

    def get(
        self,
        spark: SparkSession,
        keys: DataFrame | Sequence[Any],
        *,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Keys and values of those of the given keys that the table has (Trident: `multiGet`).

        As of the newest version now. Reads only the hash buckets of the given keys; a small job
        finds out at once which those are.

        Args:
            keys: a DataFrame of exactly the key columns; or a list of keys, each a tuple or dict
                of the key columns, or the bare value where there is one key column.
            aggregates: as in `read`.

        Raises:
            TableRefusedError: as `read`; or keys of other names, number or types.
        """
        rows, properties = read_table(spark, Storage(self.path), self._options)
        shape = StateShape.of(properties, self.path, aggregates)
        return shape.shown(rows_of_keys(spark, rows, shape, keys, self.path))

    def snapshot(
        self,
        spark: SparkSession,
        version: int | None,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> DataFrame:
        """Keys and values (`Aggregate.result` applied) as of a table version; None: the newest.

        Raises:
            TableRefusedError: there is no such table or version, it is no state table, or an
                aggregate must be handed in.
        """
        rows, properties = read_table(spark, Storage(self.path), self._options, version)
        return StateShape.of(properties, self.path, aggregates).shown(rows)


def _refuse_names(layout: StateLayout, table: str) -> None:
    if not layout.aggregates:
        raise TopologyError(
            f"State table {table} has no aggregate. Name at least one, such as rows=Count()."
        )
    own = (*layout.bookkeeping, *RESERVED)
    taken = {name.lower(): "the table's own bookkeeping" for name in own}
    for role, names in (("a key", layout.keys), ("a value", layout.values)):
        for name in names:
            if name.lower() in taken:
                raise TopologyError(
                    f"State table {table} cannot use '{name}' as {role}: the name is taken by "
                    f"{taken[name.lower()]}. Rename it."
                )
            taken[name.lower()] = role
