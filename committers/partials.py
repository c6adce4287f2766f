"""Partial aggregates: what a batch's rows are before they meet a state table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from committers.aggregates import quoted
from txn.interfaces import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROWS", "partial_rows"]

ROWS = "txn_rows"
"""A column that a global aggregate needs for a moment; no key or value may be called so."""


def partial_rows(
    batch: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    count_as: str | None = None,
) -> DataFrame:
    """One row per group: keys and partial values; one row for a global aggregate, rows or not.

    Args:
        count_as: name of one more column, the number of rows of each group; None: no such column.
    """
    from pyspark.sql import functions as sf

    columns = [agg.partial().alias(name) for name, agg in aggregates.items()]
    count = sf.count(sf.lit(1))
    if keys:
        if count_as is not None:
            columns.append(count.alias(count_as))
        return batch.groupBy(*(sf.col(quoted(key)) for key in keys)).agg(*columns)
    # An aggregate may answer no rows with something else than NULL, and than its zero.
    whole = batch.agg(*columns, count.alias(ROWS))
    any_row = sf.col(ROWS) > 0
    values = [
        sf.coalesce(sf.when(any_row, sf.col(quoted(name))), agg.zero()).alias(name)
        for name, agg in aggregates.items()
    ]
    kept = [] if count_as is None else [sf.col(ROWS).alias(count_as)]
    return whole.select(*values, *kept)
