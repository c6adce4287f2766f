"""The changes of a txid in a table with layout="log" (`committers.state.changes`).

The table has the partials of all txids, so it merges the earlier ones of every staged key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from committers.log_layout.columns import LogLayout
from committers.state.merging import BEFORE
from committers.state.removal import with_removal
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["from_partials", "removed_keys"]


def from_partials(layout: LogLayout, rows: DataFrame, removed: DataFrame | None) -> DataFrame:
    """Changes of a log table.

    Args:
        rows: `committers.state.merging.touched`.
        removed: the keys that the txid removes; None if it removes none.
    """
    from pyspark.sql import functions as sf

    before = sf.col(quoted(BEFORE))
    shown, gone = with_removal(_shown(layout, rows), layout.keys, removed)
    existed = before.isNotNull()
    columns = [sf.col(quoted(key)) for key in layout.keys]
    columns += [sf.when(~gone, sf.col(quoted(name))).alias(name) for name in layout.aggregates]
    for name, aggregate in layout.aggregates.items():
        old = aggregate.result(aggregate.initial(before.getField(name)))
        columns.append(sf.when(existed, old).alias(f"prev_{name}"))
    # A key that is new and removed in one txid never existed.
    return shown.where(~gone | existed).select(*columns)


def removed_keys(layout: LogLayout, rows: DataFrame) -> DataFrame:
    """The keys of a log table that satisfy its `remove_where` after their update.

    Args:
        rows: `committers.state.merging.touched`.
    """
    from pyspark.sql import functions as sf

    gone = _shown(layout, rows).where(sf.expr(layout.remove_where or "false"))
    return gone.select(*(sf.col(quoted(key)) for key in layout.keys))


def _shown(layout: LogLayout, rows: DataFrame) -> DataFrame:
    """Keys and values as readers see them, and the partials before."""
    from pyspark.sql import functions as sf

    values = (
        aggregate.result(aggregate.initial(sf.col(quoted(name)))).alias(name)
        for name, aggregate in layout.aggregates.items()
    )
    return rows.select(
        *(sf.col(quoted(key)) for key in layout.keys), *values, sf.col(quoted(BEFORE))
    )
