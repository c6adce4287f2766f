"""Putting the partial aggregates of a log table together, for readers and for compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from committers.aggregates import quoted
from committers.log_actions import TXID
from committers.partials import merges
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

    columns = merges(aggregates, {field.name: field.dataType for field in rows.schema})
    if keys:
        found = rows.groupBy(*(sf.col(quoted(key)) for key in keys)).agg(*columns)
    else:
        # SQL has one row for no rows at all; a table to which nothing was committed has none.
        found = rows.agg(*columns).where(sf.col(TXID).isNotNull())
    return found if with_txid else found.drop(TXID)
