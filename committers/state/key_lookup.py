"""Look up the rows of some keys in a state table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

from committers.publishing.files import BUCKET
from committers.state.keys import bucket_of
from committers.state.shape import StateShape
from committers.state.stored import StoredState
from txn.errors import TableRefusedError
from txn.spark.causes import in_one_line
from txn.spark.keys import with_keys_of
from txn.spark.lazy import sf, st
from txn.spark.names import quoted
from txn.spark.rows import local_frame, verify_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, DecimalType, StructType

__all__ = ["rows_of_keys"]

_MOST_IN_CONDITION = 128
"""The most keys for a condition; for more of them Spark plans a join faster."""
_MOST_PUSHED = 10
"""The most values of an IN that Spark passes to Parquet one by one, by default."""
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""The largest float of four bytes."""
_PLAIN = ("boolean", "tinyint", "smallint", "int", "bigint", "date", "string")
"""Types with bounds in Parquet, whose values have one text each."""


def rows_of_keys(
    spark: SparkSession,
    table: StoredState | DataFrame,
    shape: StateShape,
    keys: DataFrame | Sequence[Any],
    where: str,
) -> DataFrame:
    """Read the table's rows of these keys, only from their hash buckets if it has buckets.

    Raises:
        TableRefusedError: the keys differ from the table's in number, name or type.
    """
    from pyspark.sql import DataFrame

    if not shape.keys:
        raise TableRefusedError(
            f"State table {where} is a global aggregate: it has one row and no keys. Use read().",
            number="TXN-310",
        )
    columns = table.columns if isinstance(table, StoredState) else table.schema
    types = {name: columns[name].dataType for name in shape.keys}
    listed = None if isinstance(keys, DataFrame) else _rows(keys, types, where)
    condition = _key_condition(listed or (), types)
    if condition is not None and not shape.buckets:
        rows = _rows_of_buckets(table, None).where(condition)
        is_small = isinstance(table, StoredState) and table.is_small
        return rows.coalesce(1) if is_small else rows.repartition(1)
    if isinstance(keys, DataFrame):
        _require_columns(keys.schema, types, where)
        key_rows = keys.select(*map(quoted, types))
    else:
        key_rows = local_frame(spark, listed or (), _schema(types))
    buckets = _buckets(key_rows, types, shape.buckets, local=listed is not None)
    rows = _rows_of_buckets(table, buckets)
    if condition is not None:
        return rows.where(condition)
    has_null = listed is None or any(None in key for key in listed)
    return with_keys_of(rows, key_rows, shape.keys, has_null=has_null)


def _rows_of_buckets(table: StoredState | DataFrame, numbers: Sequence[int] | None) -> DataFrame:
    """The table's rows in some hash buckets; None: in all of them."""
    if isinstance(table, StoredState):
        return (table if numbers is None else table.of_buckets(numbers)).rows()
    return table if numbers is None else table.where(table[BUCKET].isin(numbers))


def _buckets(
    keys: DataFrame, types: Mapping[str, DataType], buckets: int, *, local: bool
) -> list[int] | None:
    """The hash buckets of the keys; None if the table has no buckets.

    Args:
        local: the keys came as a list, so that Spark computes the buckets without a job.
    """
    if not buckets:
        return None
    numbers = keys.select(bucket_of(types, buckets).alias(BUCKET))
    rows = (numbers if local else numbers.distinct()).collect()
    return sorted({row[BUCKET] for row in rows})


def _key_condition(keys: Sequence[tuple[Any, ...]], types: Mapping[str, DataType]) -> Column | None:
    """A condition for rows with one of the keys, which Spark pushes down to Parquet.

    None: a join is better, because of many keys or several columns, or because SQL's equality of
    the type is not that of its values.
    """
    if not 0 < len(keys) <= _MOST_IN_CONDITION or len(types) > 1:
        return None
    ((name, kind),) = types.items()
    if kind.simpleString() not in _PLAIN:
        return None
    texts = {_literal(key[0], kind) for key in keys if key[0] is not None}
    null = [f"{quoted(name)} IS NULL"] if (None,) in keys else []
    some = [_in_condition(name, sorted(texts))] if texts else []
    return sf.expr(" OR ".join(some + null))


def _in_condition(name: str, texts: Sequence[str]) -> str:
    """An SQL condition for a column with one of these values.

    For more than `_MOST_PUSHED` values Spark passes only the smallest and largest to Parquet
    (`spark.sql.parquet.pushdown.inFilterThreshold`), so the condition also lists them in parts.
    """
    all_of_them = f"{quoted(name)} IN ({', '.join(texts)})"
    if len(texts) <= _MOST_PUSHED:
        return all_of_them
    some = (texts[n : n + _MOST_PUSHED] for n in range(0, len(texts), _MOST_PUSHED))
    parts = " OR ".join(f"{quoted(name)} IN ({', '.join(part)})" for part in some)
    return f"({all_of_them} AND ({parts}))"


def _literal(value: Any, kind: DataType) -> str:
    """A value in SQL, of exactly the key's type: one SQL text costs less than a column per key."""
    name = kind.simpleString()
    if name == "string":
        return f"CAST(X'{value.encode().hex()}' AS STRING)"  # in any session's escapes
    return f"CAST('{value}' AS {name})"  # a number, a date, True or False


def _rows(keys: Sequence[Any], types: Mapping[str, DataType], where: str) -> list[tuple[Any, ...]]:
    """Convert each key to a row of the table's key columns, with values of their types."""
    from pyspark.errors import PySparkTypeError, PySparkValueError

    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
        raise TableRefusedError(
            f"The keys to get from state table {where} are a list or a DataFrame, and {keys!r} is "
            f"neither. For this one key give [{keys!r}].",
            number="TXN-310",
        )
    rows = [_row(key, types, where) for key in keys]
    try:
        verify_rows(rows, _schema(types))
    except (PySparkTypeError, PySparkValueError) as error:
        raise TableRefusedError(
            f"The given keys do not have the types of state table {where}, {_text(types)}: "
            f"{in_one_line(str(error))}",
            number="TXN-310",
        ) from error
    return rows


def _schema(types: Mapping[str, DataType]) -> st.StructType:
    return st.StructType([st.StructField(name, kind) for name, kind in types.items()])


def _row(key: Any, types: Mapping[str, DataType], where: str) -> tuple[Any, ...]:
    """Convert one key to a row of its columns.

    For an array column a list is the key itself, whatever its length.
    """
    row: tuple[Any, ...] = (key,)
    if isinstance(key, Mapping) and set(key) == set(types):
        row = tuple(key[name] for name in types)
    elif isinstance(key, list) and [*map(type, types.values())] == [st.ArrayType]:
        pass
    elif isinstance(key, tuple | list) and len(key) == len(types):
        row = tuple(key)
    if not all(_has_type(value, kind) for value, kind in zip(row, types.values(), strict=False)):
        row = ()
    if len(row) != len(types):
        raise TableRefusedError(
            f"{key!r} is not a key of state table {where}, whose keys are {_text(types)}. Give "
            f"each key as a tuple in this order, as a dict of these names, or, of one key column, "
            f"as the value itself.",
            number="TXN-310",
        )
    return row


def _has_type(value: Any, kind: DataType) -> bool:
    """Return whether a key can have this value, where Spark would change it silently.

    It turns anything into text for a string, rounds a decimal, cuts the time off a date, and makes
    a double beyond the range of float infinite.
    """
    if value is None or isinstance(kind, st.ArrayType | st.MapType | st.StructType):
        return True
    if isinstance(value, tuple | list | Mapping):
        return False
    if isinstance(kind, st.StringType):
        return _is_text(value)
    if isinstance(kind, st.DateType):
        return not isinstance(value, datetime)
    if isinstance(kind, st.DecimalType) and isinstance(value, Decimal):
        return _fits(value, kind)
    if isinstance(kind, st.FloatType) and isinstance(value, float):
        return not math.isfinite(value) or abs(value) <= _LARGEST_FLOAT
    return True


def _is_text(value: Any) -> bool:
    """Return whether a value is a string that UTF-8 can encode: no lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: Decimal, kind: DecimalType) -> bool:
    """Return whether a decimal of this precision and scale can be exactly this number."""
    exactly = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    try:
        return exactly.quantize(value, Decimal((0, (1,), -kind.scale))).is_finite()
    except (Inexact, InvalidOperation):
        return False


def _require_columns(schema: StructType, types: Mapping[str, DataType], where: str) -> None:
    actual = {field.name: field.dataType.simpleString() for field in schema}
    expected = {name: kind.simpleString() for name, kind in types.items()}
    for name in (*expected, *actual):
        if expected.get(name) != actual.get(name):
            raise TableRefusedError(
                f"Column '{name}' of the given keys is {actual.get(name, 'missing')}, but in the "
                f"keys of state table {where} it is {expected.get(name, 'no such column')}. Give "
                f"exactly {_text(types)}; rename or cast before.",
                number="TXN-310",
            )


def _text(types: Mapping[str, DataType]) -> str:
    return ", ".join(f"'{name}' {kind.simpleString()}" for name, kind in types.items())
