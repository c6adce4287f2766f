"""Read only the rows of a batch's own keys from a large state."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from txn.interfaces import KeysReader
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["keys_of", "rows_for"]

MOST_KEYS = 200_000
"""With more keys than this, all of the state is read: every executor would get a copy of them."""
MOST_SHORT_KEYS = 1_000_000
"""The same for keys of a few bytes. Looking for a row's key costs a tenth of sorting the row."""


def keys_of(batch: DataFrame, on: Sequence[str]) -> DataFrame:
    """The keys of a batch, as often as they come.

    Args:
        batch: rows that do not change when they are read again, together with the result.
        on: its columns with the names of the state's keys.
    """
    return batch.select(*(sf.col(quoted(name)) for name in dict.fromkeys(on)))


def rows_for(
    keys: DataFrame, state: DataFrame, of_keys: KeysReader, *, may_repeat: bool = False
) -> DataFrame:
    """The rows of a state with these keys if the keys are few; else all rows.

    A job counts first: Spark does not know the size of most sources, and would sort all of the
    state to join it with a batch of any size. Only of many rows are the different keys counted.

    Args:
        keys: `keys_of` the batch.
        may_repeat: `of_keys` takes keys several times, which saves a sort.
    """
    names = keys.columns
    if not names:
        return state
    nulls = (sf.col(quoted(name)).isNull() for name in names)
    is_null = functools.reduce(lambda one, other: one | other, nulls)
    ((count, has_null),) = keys.agg(sf.count(sf.lit(1)), sf.bool_or(is_null)).collect()
    most = MOST_SHORT_KEYS if _are_short(keys.schema) else MOST_KEYS
    if count > most or not may_repeat:
        keys = keys.distinct()
    if count > most and (count := keys.count()) > most:
        return state
    rows = of_keys(sf.broadcast(keys), bool(has_null))
    if rows is None:
        return state
    values = [field for field in rows.schema if field.name not in names]
    is_small = count <= MOST_KEYS and _are_short(values)
    return sf.broadcast(rows) if is_small else rows


def _are_short(columns: Iterable[st.StructField]) -> bool:
    """Return whether every value has a few bytes, so that each executor can get many of them."""
    short = st.NumericType | st.BooleanType | st.DateType | st.TimestampType | st.TimestampNTZType
    return all(isinstance(field.dataType, short) for field in columns)
