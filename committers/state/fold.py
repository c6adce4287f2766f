"""Putting the partial aggregates of a log table together: for readers, compaction and commit turns.

A key that was removed has a mark: a row without values, whose txid is that of the removal. It makes
every row of the key of that txid and of those before void; later ones start the key afresh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from committers.expressions import passing
from committers.state.keys import joined_by_key, with_keys_of
from committers.state.partials import merges
from committers.state.removal import REMOVED
from txn.delta.commits import TXID
from txn.interfaces import Aggregate
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BEFORE", "folded", "marks_of", "told_gone", "touched", "without_removed"]

BEFORE = passing("before")
"""In `touched`: the partials before, a struct by value; NULL where the key was not there."""
_GONE, _FRESH = passing("gone"), passing("fresh")


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


def marks_of(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Keys that were removed, and the txid at which each was removed last."""
    from pyspark.sql import functions as sf

    marks = rows.where(sf.coalesce(sf.col(REMOVED), sf.lit(False)))
    grouped = marks.groupBy(*(sf.col(quoted(key)) for key in keys))
    return grouped.agg(sf.max(TXID).alias(TXID)).where(sf.col(TXID).isNotNull())


def without_removed(rows: DataFrame, keys: Sequence[str], marks: DataFrame) -> DataFrame:
    """Partials that no removal of their key has made void; the marks themselves go, too.

    Args:
        rows: rows of a log table whose keys may be removed.
        marks: `marks_of` all rows that there are.
    """
    from pyspark.sql import functions as sf

    # A row without a txid is older than any: another writer brought it, and it was accepted.
    is_void = sf.coalesce(sf.col(TXID), sf.lit(0)) <= sf.col(quoted(_GONE))
    living = rows.where(~sf.coalesce(sf.col(REMOVED), sf.lit(False)))
    left = _beside(living, keys, marks, sf.col(TXID)).where(~sf.coalesce(is_void, sf.lit(False)))
    return left.select(*(sf.col(quoted(name)) for name in rows.columns if name != REMOVED))


def told_gone(
    rows: DataFrame, keys: Sequence[str], gone: DataFrame | None
) -> tuple[DataFrame, Column]:
    """The rows with one more column, and whether a row's key is among `gone`.

    Args:
        gone: keys, each once; None: there are none.
    """
    from pyspark.sql import functions as sf

    if gone is None:
        return rows, sf.lit(False)
    return _beside(rows, keys, gone, sf.lit(True)), sf.col(quoted(_GONE)).isNotNull()


def _beside(rows: DataFrame, keys: Sequence[str], marks: DataFrame, what: Column) -> DataFrame:
    """The rows with `what` the mark of their key says (`_GONE`)."""
    return joined_by_key(rows, marks, keys, "left", what.alias(_GONE))


def touched(
    staged: DataFrame,
    before: DataFrame,
    keys: Sequence[str],
    aggregates: Mapping[str, Aggregate],
) -> DataFrame:
    """One row per key of `staged`: keys, merged partials, and those before (`BEFORE`).

    Only the rows of these keys are put together: the table is read, and neither sorted nor
    shuffled as a whole.

    Args:
        staged: the partials of one txid, with it.
        before: the table's living rows before it.
    """
    from pyspark.sql import functions as sf

    names = (*keys, *aggregates, TXID)
    columns = [sf.col(quoted(name)) for name in names]
    old = folded(with_keys_of(before, staged, keys), keys, aggregates, with_txid=True)
    # `staged` first: the result belongs to its session.
    both = staged.select(*columns, sf.lit(True).alias(_FRESH)).unionAll(
        old.select(*columns, sf.lit(False).alias(_FRESH))
    )
    values = sf.struct(*(sf.col(quoted(name)) for name in aggregates))
    kept = sf.first(sf.when(~sf.col(quoted(_FRESH)), values), ignorenulls=True).alias(BEFORE)
    kinds = {field.name: field.dataType for field in both.schema}
    grouped = both.groupBy(*(sf.col(quoted(key)) for key in keys))
    return grouped.agg(*merges(aggregates, kinds), kept).drop(TXID)
