"""The rows of a state table that have some given keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from committers.publishing.files import BUCKET
from committers.state.keys import bucket_of, with_keys_of
from committers.state.shape import StateShape
from txn.errors import TableRefusedError
from txn.spark.names import quoted
from txn.spark.rows import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["rows_of_keys"]


def rows_of_keys(
    spark: SparkSession,
    table: DataFrame,
    shape: StateShape,
    keys: DataFrame | Sequence[Any],
    where: str,
) -> DataFrame:
    """The table's rows of the given keys, out of their hash buckets only where it has some.

    Raises:
        TableRefusedError: keys that are not the table's, by number, name or type.
    """
    if not shape.keys:
        raise TableRefusedError(
            f"State table {where} is a global aggregate: it has one row and no keys. Use read().",
            number="TXN-310",
        )
    types = {name: table.schema[name].dataType for name in shape.keys}
    wanted = _frame(spark, keys, types, where)
    if not shape.buckets:
        return with_keys_of(table, wanted, shape.keys)
    buckets = wanted.select(bucket_of(types, shape.buckets).alias(BUCKET)).distinct()
    numbers = [row[BUCKET] for row in buckets.collect()]
    return with_keys_of(table.where(table[BUCKET].isin(numbers)), wanted, shape.keys)


def _frame(
    spark: SparkSession,
    keys: DataFrame | Sequence[Any],
    types: Mapping[str, DataType],
    where: str,
) -> DataFrame:
    """The given keys as a DataFrame with exactly the table's key columns."""
    from pyspark.errors import PySparkTypeError, PySparkValueError
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StructField, StructType

    if isinstance(keys, DataFrame):
        _require_columns(keys.schema, types, where)
        return keys.select(*(sf.col(quoted(name)) for name in types))
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
        raise TableRefusedError(
            f"The keys to get from state table {where} are a list or a DataFrame, and {keys!r} is "
            f"neither. For this one key give [{keys!r}].",
            number="TXN-310",
        )
    schema = StructType([StructField(name, kind) for name, kind in types.items()])
    rows = [_row(key, types, where) for key in keys]
    try:
        return local_frame(spark, rows, schema)
    except (PySparkTypeError, PySparkValueError) as error:
        raise TableRefusedError(
            f"The given keys do not have the types of state table {where}, {_text(types)}: "
            f"{str(error).strip().splitlines()[0]}",
            number="TXN-310",
        ) from error


def _row(key: Any, types: Mapping[str, DataType], where: str) -> tuple[Any, ...]:
    """One key as a row of its columns."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    row: tuple[Any, ...] = (key,)
    if isinstance(key, Mapping) and set(key) == set(types):
        row = tuple(key[name] for name in types)
    elif isinstance(key, tuple | list) and len(key) == len(types):
        row = tuple(key)
    for value, kind in zip(row, types.values(), strict=False):
        nested = isinstance(kind, ArrayType | MapType | StructType)
        # Spark would take the text of any value for a string, and find no such key.
        if (isinstance(kind, StringType) and not isinstance(value, str | None)) or (
            not nested and isinstance(value, tuple | list | Mapping)
        ):
            row = ()
    if len(row) != len(types):
        raise TableRefusedError(
            f"{key!r} is not a key of state table {where}, whose keys are {_text(types)}. Give "
            f"each key as a tuple in this order, as a dict of these names, or, of one key column, "
            f"as the value itself.",
            number="TXN-310",
        )
    return row


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
