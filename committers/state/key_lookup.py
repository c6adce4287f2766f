"""The rows of a state table that have some given keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

from committers.publishing.files import BUCKET
from committers.state.keys import bucket_of, with_keys_of
from committers.state.shape import StateShape
from committers.state.stored import StoredState
from txn.errors import TableRefusedError
from txn.spark.causes import in_one_line
from txn.spark.names import quoted
from txn.spark.rows import local_frame, verify_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, DecimalType, StructType

__all__ = ["rows_of_keys"]

_MOST_IN_CONDITION = 128
"""Keys beyond which a join is planned sooner than a condition."""
_MOST_PUSHED = 10
"""Values of an IN that Spark hands to Parquet one by one, by default."""
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""Of four bytes."""
_PLAIN = ("boolean", "tinyint", "smallint", "int", "bigint", "date", "string")
"""Types of which Parquet knows the bounds, and whose values have one text each."""


def rows_of_keys(
    spark: SparkSession,
    table: StoredState | DataFrame,
    shape: StateShape,
    keys: DataFrame | Sequence[Any],
    where: str,
) -> DataFrame:
    """The table's rows of the given keys, out of their hash buckets only where it has some.

    Raises:
        TableRefusedError: keys that are not the table's, by number, name or type.
    """
    from pyspark.sql import DataFrame

    if not shape.keys:
        raise TableRefusedError(
            f"State table {where} is a global aggregate: it has one row and no keys. Use read().",
            number="TXN-310",
        )
    columns = table.columns if isinstance(table, StoredState) else table.schema
    types = {name: columns[name].dataType for name in shape.keys}
    given = None if isinstance(keys, DataFrame) else _rows(keys, types, where)
    one_of = _is_one_of(given or (), types)
    if one_of is not None and not shape.buckets:
        found = _in_buckets(table, None).where(one_of)
        is_small = isinstance(table, StoredState) and table.is_small
        return found.coalesce(1) if is_small else found.repartition(1)
    if isinstance(keys, DataFrame):
        wanted = _selected(keys, types, where)
    else:
        wanted = local_frame(spark, given or (), _schema(types))
    rows = _in_buckets(table, _buckets(wanted, types, shape.buckets, local=given is not None))
    if one_of is not None:
        return rows.where(one_of)
    has_null = given is None or any(None in key for key in given)
    return with_keys_of(rows, wanted, shape.keys, has_null=has_null)


def _in_buckets(table: StoredState | DataFrame, numbers: Sequence[int] | None) -> DataFrame:
    """The table's rows in some hash buckets; None: all of them."""
    if isinstance(table, StoredState):
        return (table if numbers is None else table.of_buckets(numbers)).rows()
    return table if numbers is None else table.where(table[BUCKET].isin(numbers))


def _buckets(
    wanted: DataFrame, types: Mapping[str, DataType], buckets: int, *, local: bool
) -> list[int] | None:
    """The hash buckets of the keys; None: the table has none.

    Args:
        local: the keys came as a list, of which Spark finds them without a job.
    """
    if not buckets:
        return None
    found = wanted.select(bucket_of(types, buckets).alias(BUCKET))
    rows = (found if local else found.distinct()).collect()
    return sorted({row[BUCKET] for row in rows})


def _is_one_of(keys: Sequence[tuple[Any, ...]], types: Mapping[str, DataType]) -> Column | None:
    """Whether a row has one of the keys, as a condition that Parquet files can be asked.

    None: a join does it better, because there are many keys or several columns; or equality of the
    type is not that of its values.
    """
    from pyspark.sql import functions as sf

    if not 0 < len(keys) <= _MOST_IN_CONDITION or len(types) > 1:
        return None
    ((name, kind),) = types.items()
    if kind.simpleString() not in _PLAIN:
        return None
    texts = {_literal(key[0], kind) for key in keys if key[0] is not None}
    null = [f"{quoted(name)} IS NULL"] if (None,) in keys else []
    some = [_in(name, sorted(texts))] if texts else []
    return sf.expr(" OR ".join(some + null))


def _in(name: str, texts: Sequence[str]) -> str:
    """Whether a column has one of these values, as SQL.

    Of more than `_MOST_PUSHED` values Spark tells Parquet no more than the smallest and largest
    (`spark.sql.parquet.pushdown.inFilterThreshold`), so they are told some at a time as well.
    """
    all_of_them = f"{quoted(name)} IN ({', '.join(texts)})"
    if len(texts) <= _MOST_PUSHED:
        return all_of_them
    some = (texts[n : n + _MOST_PUSHED] for n in range(0, len(texts), _MOST_PUSHED))
    parts = " OR ".join(f"{quoted(name)} IN ({', '.join(part)})" for part in some)
    return f"({all_of_them} AND ({parts}))"


def _literal(value: Any, kind: DataType) -> str:
    """A value in SQL, of exactly the key's type: one text costs less than a column for each."""
    name = kind.simpleString()
    if name == "string":
        return f"CAST(X'{value.encode().hex()}' AS STRING)"  # whatever escapes the session knows
    return f"CAST('{value}' AS {name})"  # a number, a date, True or False


def _rows(keys: Sequence[Any], types: Mapping[str, DataType], where: str) -> list[tuple[Any, ...]]:
    """The given keys, each as a row of the table's key columns with values of their types."""
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
        raise _mistyped(types, where, error) from error
    return rows


def _selected(keys: DataFrame, types: Mapping[str, DataType], where: str) -> DataFrame:
    """Keys that came as a DataFrame, with exactly the table's key columns."""
    from pyspark.sql import functions as sf

    _require_columns(keys.schema, types, where)
    return keys.select(*(sf.col(quoted(name)) for name in types))


def _schema(types: Mapping[str, DataType]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, kind) for name, kind in types.items()])


def _mistyped(types: Mapping[str, DataType], where: str, error: Exception) -> TableRefusedError:
    return TableRefusedError(
        f"The given keys do not have the types of state table {where}, {_text(types)}: "
        f"{in_one_line(str(error))}",
        number="TXN-310",
    )


def _row(key: Any, types: Mapping[str, DataType], where: str) -> tuple[Any, ...]:
    """One key as a row of its columns.

    The list that is a key of an array column is that key, whatever its length.
    """
    from pyspark.sql.types import ArrayType

    row: tuple[Any, ...] = (key,)
    if isinstance(key, Mapping) and set(key) == set(types):
        row = tuple(key[name] for name in types)
    elif isinstance(key, list) and [*map(type, types.values())] == [ArrayType]:
        pass
    elif isinstance(key, tuple | list) and len(key) == len(types):
        row = tuple(key)
    if not all(_is_of(value, kind) for value, kind in zip(row, types.values(), strict=False)):
        row = ()
    if len(row) != len(types):
        raise TableRefusedError(
            f"{key!r} is not a key of state table {where}, whose keys are {_text(types)}. Give "
            f"each key as a tuple in this order, as a dict of these names, or, of one key column, "
            f"as the value itself.",
            number="TXN-310",
        )
    return row


def _is_of(value: Any, kind: DataType) -> bool:
    """Whether a key can have this value, for values that Spark would make another one of.

    It takes the text of anything for a string, rounds a decimal, cuts the time off a date, and
    makes a double that no float holds infinite.
    """
    from pyspark.sql import types as st

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
    """Whether it is a string that has bytes: one with half of a surrogate pair has none."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: Decimal, kind: DecimalType) -> bool:
    """Whether a decimal of this precision and scale is exactly this number."""
    exactly = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    try:
        return exactly.quantize(value, Decimal((0, (1,), -kind.scale))).is_finite()
    except (Inexact, InvalidOperation):
        return False


def _require_columns(found: StructType, types: Mapping[str, DataType], where: str) -> None:
    given = {field.name: field.dataType.simpleString() for field in found}
    wanted = {name: kind.simpleString() for name, kind in types.items()}
    for name in (*wanted, *given):
        if wanted.get(name) != given.get(name):
            raise TableRefusedError(
                f"Column '{name}' of the given keys is {given.get(name, 'missing')}, but in the "
                f"keys of state table {where} it is {wanted.get(name, 'no such column')}. Give "
                f"exactly {_text(types)}; rename or cast before.",
                number="TXN-310",
            )


def _text(types: Mapping[str, DataType]) -> str:
    return ", ".join(f"'{name}' {kind.simpleString()}" for name, kind in types.items())
