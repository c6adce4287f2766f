"""The changes of a txid in a table with layout="log" (`committers.state.changes`).

The table has the partials of all txids, so those before are put together for the keys that were
staged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from committers.aggregates import quoted
from committers.state.fold import BEFORE, told_gone
from txn.interfaces import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["from_partials", "removed_keys"]


def from_partials(
    rows: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    removed: DataFrame | None,
) -> DataFrame:
    """Changes of a log table.

    Args:
        rows: `committers.state.fold.touched`.
        removed: the keys that the txid removes; None: it removes none.
    """
    from pyspark.sql import functions as sf

    before = sf.col(quoted(BEFORE))
    shown, gone = told_gone(_shown(rows, keys, aggregates), keys, removed)
    existed = before.isNotNull()
    columns = [sf.col(quoted(key)) for key in keys]
    columns += [sf.when(~gone, sf.col(quoted(name))).alias(name) for name in aggregates]
    for name, aggregate in aggregates.items():
        old = aggregate.result(aggregate.initial(before.getField(name)))
        columns.append(sf.when(existed, old).alias(f"prev_{name}"))
    # One that is new and removed at once was never there.
    return shown.where(~gone | existed).select(*columns)


def removed_keys(
    rows: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    remove_where: str,
) -> DataFrame:
    """The keys of a log table that satisfy `remove_where` after their update.

    Args:
        rows: `committers.state.fold.touched`.
    """
    from pyspark.sql import functions as sf

    shown = _shown(rows, keys, aggregates).where(sf.expr(remove_where))
    return shown.select(*(sf.col(quoted(key)) for key in keys))


def _shown(rows: DataFrame, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> DataFrame:
    """Keys and values as readers see them, and the partials before."""
    from pyspark.sql import functions as sf

    values = (
        aggregate.result(aggregate.initial(sf.col(quoted(name)))).alias(name)
        for name, aggregate in aggregates.items()
    )
    return rows.select(*(sf.col(quoted(key)) for key in keys), *values, sf.col(quoted(BEFORE)))
