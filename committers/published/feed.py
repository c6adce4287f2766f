"""The rows that a version changes, in the form of Delta's change data feed.

Source: Delta's PROTOCOL.md, "Add CDC File" and "Change Data Files".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

from txn.spark.keys import renamed, same_key, side_column
from txn.spark.lazy import sf
from txn.spark.names import passing, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["changed_rows"]

_KIND = "_change_type"
_BEFORE, _AFTER, _ROW = passing("before"), passing("after"), passing("row")


def changed_rows(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The changes between two sets of rows with each key once; rows that are the same are none.

    A value that Spark cannot compare, such as a map, counts as changed.

    Returns:
        The columns of `after` and `_change_type`: "insert", "delete", or for a key whose values
        changed "update_preimage" and "update_postimage".
    """
    names = after.columns
    was, now = partial(side_column, _BEFORE), partial(side_column, _AFTER)
    sides = [
        rows.select(*renamed(side, names), sf.lit(True).alias(side))
        for rows, side in ((before, _BEFORE), (after, _AFTER))
    ]
    both = sides[0].join(sides[1], same_key(keys, was, now), "full")
    same = reduce(
        and_,
        (
            was(field.name).eqNullSafe(now(field.name))
            for field in after.schema
            if "map<" not in field.dataType.simpleString()
        ),
        sf.lit("map<" not in after.schema.simpleString()),
    )

    def row(kind: str, side: str) -> Column:
        columns = (side_column(side, name).alias(name) for name in names)
        return sf.struct(*columns, sf.lit(kind).alias(_KIND))

    changes = (
        sf.when(sf.col(quoted(_BEFORE)).isNull(), sf.array(row("insert", _AFTER)))
        .when(sf.col(quoted(_AFTER)).isNull(), sf.array(row("delete", _BEFORE)))
        .when(~same, sf.array(row("update_preimage", _BEFORE), row("update_postimage", _AFTER)))
    )
    each = both.select(sf.explode(changes).alias(_ROW))
    return each.select(*(sf.col(quoted(_ROW)).getField(n).alias(n) for n in (*names, _KIND)))
