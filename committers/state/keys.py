"""Keys of a state table: their hash buckets, and joins of rows by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from committers.expressions import passing
from txn.interfaces import KeysReader
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = [
    "bucket_of",
    "joined_by_key",
    "keys_reader",
    "renamed",
    "same_key",
    "side_column",
    "with_keys_of",
]

NARROWED_FROM_BYTES = 4 * 1024 * 1024
"""Compressed bytes of a state, below which reading all of it is faster than a job over keys."""
_KEY = passing("key")


def bucket_of(keys: Mapping[str, DataType], buckets: int) -> Column:
    """The hash bucket of a row.

    Args:
        keys: key column -> type, in the table's order; empty: the only bucket of a global
            aggregate.
    """
    if not keys:
        return sf.lit(0)
    parts: list[Column] = []
    for key, kind in keys.items():
        column = sf.col(quoted(key))
        filler = _filler(kind)
        parts += [column if filler is None else sf.coalesce(column, filler), column.isNull()]
    return sf.pmod(sf.hash(*parts), sf.lit(buckets)).cast("int")


def with_keys_of(
    rows: DataFrame, others: DataFrame, keys: Sequence[str], *, has_null: bool = True
) -> DataFrame:
    """The rows whose key is also in `others`; NULL is a key like any other.

    Args:
        has_null: True if `others` may have a NULL key; otherwise Spark compares numbers directly.
    """
    return joined_by_key(rows, others, keys, "left_semi", has_null=has_null)


def keys_reader(
    rows: Callable[[], DataFrame],
    keys: Sequence[str],
    size: int,
    shown: Callable[[DataFrame], DataFrame],
) -> KeysReader | None:
    """A reader of some keys of a state; None: it has no keys, or reading all of it is as fast.

    Args:
        rows: reads the rows of its files.
        keys: its key columns.
        size: bytes of the files.
        shown: makes the rows for readers from all stored rows of some keys.
    """
    if not keys or size < NARROWED_FROM_BYTES:
        return None

    def read(key_rows: DataFrame, has_null: bool) -> DataFrame | None:
        stored = rows()
        types = {field.name: field.dataType for field in stored.schema if field.name in keys}
        # The user's session compares values of other types, by its own rules.
        if types != {field.name: field.dataType for field in key_rows.schema}:
            return None
        return shown(with_keys_of(stored, key_rows, keys, has_null=has_null))

    return read


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


def _filler(kind: DataType) -> Column | None:
    """The value that Spark's null-safe join hashes for NULL; buckets follow its shuffle.

    Source: `ExtractEquiJoinKeys` and `Literal.default`. A type that is missing here still works:
    only its NULL keys go into a second file of their bucket.
    """
    if isinstance(kind, st.BooleanType):
        return sf.lit(False)
    if isinstance(kind, st.NumericType):
        return sf.lit(0).cast(kind)
    if isinstance(kind, st.StringType | st.BinaryType):
        return sf.lit("").cast(kind)
    if isinstance(kind, st.DateType):
        return sf.lit("1970-01-01").cast(kind)
    if isinstance(kind, st.TimestampType):
        return sf.timestamp_micros(sf.lit(0))
    return None
