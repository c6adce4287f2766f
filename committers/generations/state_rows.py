"""The rows of a state table's next generation: from either layout, with other keys or values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from committers.aggregates.fold import Fold
from committers.generations.rows import columns_of, renamed_and_cast
from committers.publishing.files import BUCKET
from committers.publishing.spec import TableSpec
from committers.state.keys import bucket_of
from committers.state.layouts import LogLayout, UpsertLayout
from committers.state.merging import merged_by_key
from committers.state.partials import mergeable, overrides
from committers.state.properties import shape_of
from committers.state.shape import StateShape
from txn.delta.commits import TXID
from txn.errors import TableRefusedError
from txn.interfaces import Aggregate
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["generation_rows"]


def generation_rows(
    stored: DataFrame,
    properties: Mapping[str, str | None],
    layout: StateShape,
    spec: TableSpec,
    table: str,
    watermark: int | None,
) -> tuple[DataFrame, bool]:
    """Compute all columns of the new shape, one row per key, with the txid that last wrote it.

    No row has previous values: all of them are committed, so no replay reverts them.

    Args:
        stored: every row of the table, as of a txid that is committed everywhere.
        properties: the table's properties, which describe the rows.
        layout: the new description.
        spec: the new shape.
        watermark: that of the newest txid; keys that have ended at it are left out.

    Returns:
        The rows; True if Spark has sent them to partitions by the very keys that they have.

    Raises:
        TableRefusedError: an aggregate does not allow it, or a value does not fit its new type.
    """
    former = _former_layout(properties, layout, spec, table).at(watermark)
    merges = len(layout.keys) < len(former.keys)
    _require_partials(former, layout, merges=merges, table=table)
    rows = _living(former.as_stored(stored), former)
    types = {field.name: field.dataType for field in layout.stored_schema(columns_of(spec))}
    were = {name: spec.former_name(name, former.stored) for name in layout.stored}
    values = {name: layout.stored[name] for name, old in were.items() if old in former.stored}
    casts = {name: types[name] for name in (*layout.keys, *values)}
    if former.readers_merge and not layout.readers_merge:
        # An aggregate with its own `initial` stores a partial as another type.
        differ = (name for name, one in values.items() if overrides(one, "initial"))
        casts |= {name: rows.schema[were[name]].dataType for name in differ}
    rows = renamed_and_cast(rows, {**casts, TXID: types[TXID]}, spec, table)
    if merges:
        rows = merged_by_key(rows, layout.keys, values, with_txid=True)
    # A key that was renamed or cast after the merge is sent elsewhere.
    merged = former.readers_merge and layout.keys == former.keys
    same = merged and all(stored.schema[k].dataType == types[k] for k in layout.keys)
    complete = _complete(rows, former, layout, values, types)
    if isinstance(layout, UpsertLayout):
        complete = layout.as_written(complete)
    return complete, merges or same


def _former_layout(
    properties: Mapping[str, str | None], layout: StateShape, spec: TableSpec, table: str
) -> StateShape:
    """Return the table's layout until now, with the values that stay."""
    listed: list[list[str]] = json.loads(properties.get("txn.values") or "[]")
    names = {name for name, *_ in listed}
    aggregates: dict[str, Aggregate] = {}
    for name, aggregate in layout.aggregates.items():
        old = spec.former_name(name, names)
        if old in names:
            aggregates[old] = aggregate
    staying = [entry for entry in listed if entry[0] in aggregates]
    described = {**properties, "txn.values": json.dumps(staying)}
    return shape_of(described, table, aggregates)


def _require_partials(former: StateShape, layout: StateShape, *, merges: bool, table: str) -> None:
    """Refuse values that are no partials any more where partials are needed."""
    if not merges and not (layout.readers_merge and not former.readers_merge):
        return
    for name, aggregate in former.aggregates.items():
        is_stored_otherwise = not former.readers_merge and overrides(aggregate, "initial")
        if is_stored_otherwise or not mergeable(aggregate) or isinstance(aggregate, Fold):
            raise TableRefusedError(
                f"Value '{name}' of table {table} cannot be merged any more: its stored values are "
                "not partial aggregates. Nothing was changed. Drop the value, or give the "
                "committer a path of its own.",
                number="TXN-304",
            )


def _living(stored: DataFrame, former: StateShape) -> DataFrame:
    """One row per key: keys, values as stored or merged partials, txid."""
    if isinstance(former, LogLayout):
        return former.unended(former.merged(stored, with_txid=True))
    assert isinstance(former, UpsertLayout)
    names = (*former.keys, *former.stored, TXID)
    return former.unended(former.alive(stored)).select(*(sf.col(quoted(name)) for name in names))


def _complete(
    rows: DataFrame,
    former: StateShape,
    layout: StateShape,
    staying: Mapping[str, Aggregate],
    types: Mapping[str, DataType],
) -> DataFrame:
    """Add new values and the layout's own bookkeeping, in the order of the table."""
    values = {name: sf.col(quoted(name)) for name in staying}
    if isinstance(layout, UpsertLayout) and former.readers_merge:
        values = {n: staying[n].initial(c).cast(types[n]) for n, c in values.items()}
    columns = {**{name: sf.col(quoted(name)) for name in (*layout.keys, TXID)}, **values}
    if isinstance(layout, UpsertLayout):
        keys = {key: types[key] for key in layout.keys}
        columns[BUCKET] = bucket_of(keys, layout.buckets)
    empty = (name for name in types if name not in columns)
    columns |= {name: sf.lit(None).cast(types[name]) for name in empty}
    return rows.select(*(columns[name].alias(name) for name in types))
