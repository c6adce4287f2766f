"""The changes of a txid in a table with layout="log" (`StateShape.change_columns`).

The table has the partials of all txids, so it merges the earlier ones of every staged key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from committers.state.layouts import LogLayout
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
    existed = before.isNotNull()
    shown, gone = with_removal(layout.shown_once(rows, before), layout.keys, removed)
    columns = layout.change_columns(
        [sf.col(quoted(key)) for key in layout.keys],
        lambda name: sf.col(quoted(name)),
        ~gone,
        lambda name: layout.shown_value(name, before.getField(name)),
        existed,
    )
    # A key that is new and removed in one txid never existed.
    return shown.where(~gone | existed).select(*columns)


def removed_keys(layout: LogLayout, rows: DataFrame) -> DataFrame:
    """The keys of a log table that satisfy its `remove_where` after their update.

    Args:
        rows: `committers.state.merging.touched`.
    """
    from pyspark.sql import functions as sf

    gone = layout.shown_once(rows).where(sf.expr(layout.remove_where or "false"))
    return gone.select(*(sf.col(quoted(key)) for key in layout.keys))
