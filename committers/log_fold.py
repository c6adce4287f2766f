"""Putting the partial aggregates of a log table together, for readers and for compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from committers.aggregates import quoted
from committers.log_actions import TXID
from txn.interfaces import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["folded"]


def folded(
    rows: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    *,
    with_txid: bool = False,
) -> DataFrame:
    """One row per key out of all partials of it: keys and merged partials, in the same types.

    Args:
        rows: rows of a log table, `txid` included.
        with_txid: keep `txid`, the greatest of each key.
    """
    from pyspark.sql import functions as sf

    kinds = {field.name: field.dataType for field in rows.schema}
    txid = sf.col(TXID)
    merged = [
        aggregate.merge(sf.col(quoted(name)), txid, kinds[name]).cast(kinds[name]).alias(name)
        for name, aggregate in aggregates.items()
    ]
    newest = sf.max(txid).alias(TXID)
    if keys:
        columns = [*merged, newest] if with_txid else merged
        return rows.groupBy(*(sf.col(quoted(key)) for key in keys)).agg(*columns)
    # SQL has one row for no rows at all; a table to which nothing was committed has none.
    whole = rows.agg(*merged, newest).where(sf.col(TXID).isNotNull())
    return whole if with_txid else whole.drop(TXID)
