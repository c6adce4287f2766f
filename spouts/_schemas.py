"""Schemas: parse them, make them nullable, compare them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args

from txn.errors import TopologyError
from txn.spark.causes import in_one_line
from txn.spark.differences import parse_ddl
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "NewColumns",
    "as_nullable",
    "as_struct",
    "as_wide",
    "check_new_columns",
    "check_same",
    "conformed",
    "require_schema",
    "with_new",
]

T = TypeVar("T", bound="DataType")
NewColumns = Literal["fail", "ignore", "add"]
"""What becomes of columns that a source got after its first batch was planned."""


def as_struct(schema: str | st.StructType, spout: str) -> st.StructType:
    """Parse a schema given as DDL or StructType. Needs a running Spark session.

    Raises:
        TopologyError: the DDL cannot be read.
    """
    from pyspark.errors import ParseException

    if isinstance(schema, st.StructType):
        return _with_columns(schema, spout)
    try:
        parsed = parse_ddl(schema)
    except ParseException as error:
        raise TopologyError(
            f"The schema of {spout} is not DDL that Spark can read: {schema!r} "
            f"({in_one_line(str(error))}). Write it as 'month int, carrier string'.",
            number="TXN-410",
        ) from error
    if not isinstance(parsed, st.StructType):
        raise TopologyError(
            f"The schema of {spout} has no columns but is a single type: {schema!r}. Write it as "
            "'month int, carrier string'.",
            number="TXN-410",
        )
    return _with_columns(parsed, spout)


def _with_columns(schema: StructType, spout: str) -> StructType:
    if not schema.fields:
        raise TopologyError(
            f"The schema of {spout} has no columns, so of every record only its txid would be "
            "stored. Write it as 'month int, carrier string'.",
            number="TXN-410",
        )
    return schema


def as_nullable(data_type: T) -> T:
    """Return the type with every part nullable, as Spark makes a schema given for a file.

    Spark's own: `DataType.asNullable` in its Scala sources.
    """
    return cast("T", _rebuilt(data_type, lambda leaf: leaf))


def as_wide(data_type: T) -> T:
    """Return the nullable type with `int` for smaller numbers: Spark cuts those off silently."""

    def widened(leaf: DataType) -> DataType:
        return st.IntegerType() if isinstance(leaf, st.ByteType | st.ShortType) else leaf

    return cast("T", _rebuilt(data_type, widened))


def _rebuilt(data_type: DataType, of_leaf: Callable[[DataType], DataType]) -> DataType:
    """Return the type with every part nullable and each innermost type replaced."""
    if isinstance(data_type, st.StructType):
        return st.StructType(
            [
                st.StructField(f.name, _rebuilt(f.dataType, of_leaf), True, f.metadata)
                for f in data_type
            ]
        )
    if isinstance(data_type, st.ArrayType):
        return st.ArrayType(_rebuilt(data_type.elementType, of_leaf), True)
    if isinstance(data_type, st.MapType):
        key, value = _rebuilt(data_type.keyType, of_leaf), _rebuilt(data_type.valueType, of_leaf)
        return st.MapType(key, value, True)
    return of_leaf(data_type)


def require_schema(text: str) -> str:
    """Check the stored JSON of a schema and return it.

    Raises:
        ValueError: it is not the JSON of a schema.
    """
    try:
        st.StructType.fromJson(json.loads(text))
    except Exception as error:
        raise ValueError("it is not the JSON of a schema") from error
    return text


def check_new_columns(choice: str, spout: str) -> None:
    """Refuse a `new_columns` that is none of the three.

    Raises:
        TopologyError: it is another one.
    """
    if choice not in get_args(NewColumns):
        raise TopologyError(
            f"{spout} has new_columns={choice!r}. Give 'fail', 'ignore' or 'add'.",
            number="TXN-415",
        )


def with_new(stored: StructType, current: StructType) -> StructType:
    """Return the stored columns, followed by those that only the current schema has."""
    names = {field.name.lower() for field in stored}
    return st.StructType([*stored, *(f for f in current if f.name.lower() not in names)])


def conformed(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return the rows with exactly these columns, in this order; one that they lack is NULL."""
    if rows.columns == schema.fieldNames():
        return rows
    present = {*rows.columns}
    return rows.select(
        *(
            (rows[quoted(f.name)] if f.name in present else sf.lit(None).cast(f.dataType)).alias(
                f.name
            )
            for f in schema
        )
    )


def check_same(stored: StructType, declared: StructType, spout: str, hint: str = "") -> None:
    """Refuse a schema that differs from the one with which this source was read so far.

    Args:
        hint: what else can be done, as a sentence that follows a space; empty if nothing.

    Raises:
        TopologyError: names the first field that differs.
    """
    for position in range(max(len(stored), len(declared))):
        before = _described(stored, position)
        current = _described(declared, position)
        if before != current:
            raise TopologyError(
                f"The schema of {spout} has changed: field {position + 1} was {before} in the "
                f"batches read so far and is {current} now. Restore the former schema, or give the "
                f"topology another name and start over with other tables.{hint}",
                number="TXN-411",
            )


def _described(schema: StructType, position: int) -> str:
    if position >= len(schema):
        return "absent"
    field = schema[position]
    return f"`{field.name}` {field.dataType.simpleString()}"
