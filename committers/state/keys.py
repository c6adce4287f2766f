"""Keys of a table: their hash buckets, and the rows of some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from txn.interfaces import KeysReader
from txn.spark.keys import with_keys_of
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["bucket_of", "keys_reader"]

NARROWED_FROM_BYTES = 4 * 1024 * 1024
"""Compressed bytes of a state, below which reading all of it is faster than a job over keys."""


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
