"""Keys of a state table: the hash bucket of each, and the rows that have some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from committers.expressions import passing
from txn.interfaces import KeysReader
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["bucket_of", "joined_by_key", "keys_reader", "same_key", "with_keys_of"]

NARROWED_FROM_BYTES = 4 * 1024 * 1024
"""Compressed, of a state: below, reading all of it takes less time than a job that counts keys."""
_KEY = passing("key")


def bucket_of(keys: Mapping[str, DataType], buckets: int) -> Column:
    """The hash bucket of a row.

    Args:
        keys: key column -> type, in the table's order; none: the one bucket of a global aggregate.
        buckets: how many there are.
    """
    from pyspark.sql import functions as sf

    if not keys:
        return sf.lit(0)
    parts: list[Column] = []
    for key, kind in keys.items():
        column = sf.col(quoted(key))
        filler = _filler(kind)
        parts += [column if filler is None else sf.coalesce(column, filler), column.isNull()]
    return sf.pmod(sf.hash(*parts), sf.lit(buckets)).cast("int")


def with_keys_of(
    rows: DataFrame, wanted: DataFrame, keys: Sequence[str], *, has_null: bool = True
) -> DataFrame:
    """The rows whose key `wanted` has as well; NULL is a key like any other.

    Args:
        has_null: whether `wanted` may have a NULL; without, Spark compares numbers as numbers.
    """
    return joined_by_key(rows, wanted, keys, "left_semi", has_null=has_null)


def keys_reader(
    rows: Callable[[], DataFrame],
    keys: Sequence[str],
    size: int,
    shown: Callable[[DataFrame], DataFrame],
) -> KeysReader | None:
    """Reads some keys of a state; None: it has no keys, or is so small that all is read as fast.

    Args:
        rows: of its files.
        keys: its key columns.
        size: bytes of the files.
        shown: what readers see of rows, if those of a key are all there.
    """
    if not keys or size < NARROWED_FROM_BYTES:
        return None

    def read(wanted: DataFrame, has_null: bool) -> DataFrame | None:
        found = rows()
        types = {field.name: field.dataType for field in found.schema if field.name in keys}
        # Values of other types are compared by the rules of the user's session, not by ours.
        if types != {field.name: field.dataType for field in wanted.schema}:
            return None
        return shown(with_keys_of(found, wanted, keys, has_null=has_null))

    return read


def joined_by_key(
    rows: DataFrame,
    others: DataFrame,
    keys: Sequence[str],
    how: str,
    *columns: Column,
    has_null: bool = True,
) -> DataFrame:
    """The rows joined with those of `others` that have the same key (`same_key`).

    Args:
        how: the kind of join; after one that keeps columns of `others`, its keys are there under
            names that no table has.
        columns: of `others`, besides its keys.
        has_null: whether a key of `others` may be NULL.
    """
    from pyspark.sql import functions as sf

    renamed = others.select(*(sf.col(quoted(key)).alias(f"{_KEY}_{key}") for key in keys), *columns)
    condition = same_key(
        keys,
        lambda key: sf.col(quoted(key)),
        lambda key: sf.col(quoted(f"{_KEY}_{key}")),
        has_null=has_null,
    )
    return rows.join(renamed, condition, how)


def same_key(
    keys: Sequence[str],
    one: Callable[[str], Column],
    other: Callable[[str], Column],
    *,
    has_null: bool = True,
) -> Column:
    """Whether two rows have the same key; NULL is a key like any other.

    Args:
        keys: names of the key columns; none: all rows have the key of a global aggregate.
        one: name -> the column of one side of a join.
        other: name -> that of the other side.
        has_null: whether both may be NULL, and then are the same.
    """
    from pyspark.sql import functions as sf

    pairs = [(one(key), other(key)) for key in keys]
    same = [mine.eqNullSafe(its) if has_null else mine == its for mine, its in pairs]
    return reduce(lambda left, right: left & right, same) if same else sf.lit(True)


def _filler(kind: DataType) -> Column | None:
    """The value that Spark's null-safe join hashes for NULL; buckets follow its shuffle.

    Source: `ExtractEquiJoinKeys` and `Literal.default`. A type that is missing here still works:
    its NULL keys only come to lie in a second file of their bucket.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types

    if isinstance(kind, types.BooleanType):
        return sf.lit(False)
    if isinstance(kind, types.NumericType):
        return sf.lit(0).cast(kind)
    if isinstance(kind, types.StringType | types.BinaryType):
        return sf.lit("").cast(kind)
    if isinstance(kind, types.DateType):
        return sf.lit("1970-01-01").cast(kind)
    if isinstance(kind, types.TimestampType):
        return sf.timestamp_micros(sf.lit(0))
    return None
