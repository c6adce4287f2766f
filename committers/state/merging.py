"""Merge the partial aggregates of a log table: for readers, compaction and commit turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from committers.state.partials import merges
from txn.delta.commits import TXID
from txn.interfaces import Aggregate
from txn.spark.keys import with_keys_of
from txn.spark.lazy import sf
from txn.spark.names import passing, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BEFORE", "merged_by_key", "touched"]

BEFORE = passing("before")
"""In `touched`: the partials before, a struct by value; NULL if the key did not exist."""


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
    merged: Callable[[DataFrame], DataFrame],
    continues: Column | None = None,
) -> DataFrame:
    """One row per key of `staged`: keys, merged partials, and those before (`BEFORE`).

    Merges only the rows of these keys: it reads the table, but neither sorts nor shuffles all of
    it.

    Args:
        staged: the partials of one txid, with the txid.
        before: the table's living rows before it.
        merged: merges rows of some keys into one row each, with the txid.
        continues: of a key before the txid: it goes on, and does not begin anew; None: all do.
    """
    values, txid = [sf.col(quoted(name)) for name in aggregates], sf.col(TXID)
    key_columns = [sf.col(quoted(key)) for key in keys]
    old = merged(with_keys_of(before, staged, keys))
    before_now = sf.struct(*values)
    lasting = values
    if continues is not None:
        lasting = [
            sf.when(continues, value).alias(name)
            for name, value in zip(aggregates, values, strict=True)
        ]
    # `staged` first: the result takes its session.
    both = staged.select(
        *key_columns, *values, txid, sf.when(sf.lit(False), before_now).alias(BEFORE)
    ).unionAll(old.select(*key_columns, *lasting, txid, before_now.alias(BEFORE)))
    previous = sf.first(quoted(BEFORE), ignorenulls=True).alias(BEFORE)
    kinds = {field.name: field.dataType for field in both.schema}
    grouped = both.groupBy(*(sf.col(quoted(key)) for key in keys))
    return grouped.agg(*merges(aggregates, kinds), previous).drop(TXID)
