"""Joins of rows by key, in which NULL is a key like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from txn.spark.lazy import sf
from txn.spark.names import passing, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["joined_by_key", "renamed", "same_key", "side_column", "with_keys_of"]

_KEY = passing("key")


def with_keys_of(
    rows: DataFrame, others: DataFrame, keys: Sequence[str], *, has_null: bool = True
) -> DataFrame:
    """The rows whose key is also in `others`; NULL is a key like any other.

    Args:
        has_null: True if `others` may have a NULL key; otherwise Spark compares numbers directly.
    """
    return joined_by_key(rows, others, keys, "left_semi", has_null=has_null)


def joined_by_key(
    rows: DataFrame,
    others: DataFrame,
    keys: Sequence[str],
    how: str,
    *columns: Column,
    has_null: bool = True,
) -> DataFrame:
    """Join rows with those of `others` that have the same key (`same_key`).

    Args:
        how: the kind of join; if it keeps columns of `others`, its keys have names that no table
            has.
        columns: columns of `others`, besides its keys.
        has_null: True if a key of `others` may be NULL.
    """
    condition = same_key(
        keys, lambda key: sf.col(quoted(key)), partial(side_column, _KEY), has_null=has_null
    )
    return rows.join(others.select(*renamed(_KEY, keys), *columns), condition, how)


def same_key(
    keys: Sequence[str],
    one: Callable[[str], Column],
    other: Callable[[str], Column],
    *,
    has_null: bool = True,
) -> Column:
    """The condition that two rows have the same key; NULL is a key like any other.

    Args:
        keys: names of the key columns; empty: all rows have the key of a global aggregate.
        one: name -> the column of one side of a join.
        other: name -> that of the other side.
        has_null: True if both may be NULL, and then are the same.
    """
    pairs = [(one(key), other(key)) for key in keys]
    same = [a.eqNullSafe(b) if has_null else a == b for a, b in pairs]
    return reduce(lambda left, right: left & right, same) if same else sf.lit(True)


def renamed(side: str, names: Iterable[str]) -> list[Column]:
    """Columns of a table, with the names that they have on one side of a join."""
    return [sf.col(quoted(name)).alias(f"{side}_{name}") for name in names]


def side_column(side: str, name: str) -> Column:
    """The column of one side of a join (`renamed`)."""
    return sf.col(quoted(f"{side}_{name}"))
