"""Merge the partial aggregates of a log table: for readers, compaction and commit turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from committers.expressions import passing
from committers.state.keys import with_keys_of
from committers.state.partials import merges
from txn.delta.commits import TXID
from txn.interfaces import Aggregate
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BEFORE", "merged_by_key", "touched"]

BEFORE = passing("before")
"""In `touched`: the partials before, a struct by value; NULL if the key did not exist."""
_FRESH = passing("fresh")


def merged_by_key(
    rows: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    *,
    with_txid: bool = False,
) -> DataFrame:
    """Merge all partials of each key into one row: keys and merged partials, in the same types.

    Args:
        rows: rows of a log table, `txid` included.
        with_txid: keep `txid`, the greatest of each key.
    """
    columns = merges(aggregates, {field.name: field.dataType for field in rows.schema})
    if keys:
        merged = rows.groupBy(*(sf.col(quoted(key)) for key in keys)).agg(*columns)
    else:
        # SQL returns one row for no rows at all; an empty table must return none.
        merged = rows.agg(*columns).where(sf.col(TXID).isNotNull())
    return merged if with_txid else merged.drop(TXID)


def touched(
    staged: DataFrame,
    before: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
) -> DataFrame:
    """One row per key of `staged`: keys, merged partials, and those before (`BEFORE`).

    Merges only the rows of these keys: it reads the table, but neither sorts nor shuffles all of
    it.

    Args:
        staged: the partials of one txid, with the txid.
        before: the table's living rows before it.
    """
    names = (*keys, *aggregates, TXID)
    columns = [sf.col(quoted(name)) for name in names]
    old = merged_by_key(with_keys_of(before, staged, keys), keys, aggregates, with_txid=True)
    # `staged` first: the result takes its session.
    both = staged.select(*columns, sf.lit(True).alias(_FRESH)).unionAll(
        old.select(*columns, sf.lit(False).alias(_FRESH))
    )
    values = sf.struct(*(sf.col(quoted(name)) for name in aggregates))
    previous = sf.first(sf.when(~sf.col(quoted(_FRESH)), values), ignorenulls=True).alias(BEFORE)
    kinds = {field.name: field.dataType for field in both.schema}
    grouped = both.groupBy(*(sf.col(quoted(key)) for key in keys))
    return grouped.agg(*merges(aggregates, kinds), previous).drop(TXID)
