"""Rows of a table in its new shape: renamed, cast and checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from committers.publishing.spec import TableSpec
from txn.errors import TableRefusedError
from txn.spark.causes import in_one_line
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["columns_of", "renamed_and_cast", "types_of"]


def types_of(spec: TableSpec) -> dict[str, DataType]:
    """Column -> Spark's type, of the new shape."""
    return {field.name: field.dataType for field in columns_of(spec)}


def columns_of(spec: TableSpec) -> st.StructType:
    """The columns of the new shape."""
    return st.StructType.fromJson(json.loads(spec.schema_json()))


def renamed_and_cast(
    rows: DataFrame, types: dict[str, DataType], spec: TableSpec, table: str
) -> DataFrame:
    """Return rows of the former shape with these columns of the new one, NULL where they are new.

    Runs a job that reads the rows, if a column gets another type.

    Raises:
        TableRefusedError: a value does not fit the new type of its column.
    """
    stored = {field.name: field.dataType for field in rows.schema}
    columns, casts = [], {}
    for name, kind in types.items():
        old = spec.former_name(name, stored)
        if old not in stored:
            columns.append(sf.lit(None).cast(kind).alias(name))
        elif stored[old] == kind:
            columns.append(sf.col(quoted(old)).alias(name))
        else:
            casts[name] = old, stored[old], kind
            columns.append(_cast(old, kind).alias(name))
    if casts:
        _require_values(rows, casts, table)
    return rows.select(*columns)


def _cast(name: str, kind: DataType) -> Column:
    """NULL where a value does not fit, whatever the session's settings."""
    return sf.expr(f"try_cast({quoted(name)} AS {_sql_type(kind)})")


def _sql_type(kind: DataType) -> str:
    """The type in SQL, whatever the names of its fields."""
    if isinstance(kind, st.ArrayType):
        return f"array<{_sql_type(kind.elementType)}>"
    if isinstance(kind, st.StructType):
        fields = (f"{quoted(field.name)}: {_sql_type(field.dataType)}" for field in kind)
        return f"struct<{', '.join(fields)}>"
    return kind.simpleString()


def _require_values(
    rows: DataFrame, casts: dict[str, tuple[str, DataType, DataType]], table: str
) -> None:
    """Refuse values that their new type cannot hold, column by column."""
    counted = [
        _counted(rows, sf.count_if(_is_lost(old, before, kind)), name, table)
        for name, (old, before, kind) in casts.items()
    ]
    lost = {name: rows_lost for name, rows_lost in _first(rows.agg(*counted)).items() if rows_lost}
    if lost:
        listed = ", ".join(
            f"{count} of column '{name}' do not fit {casts[name][2].simpleString()}"
            for name, count in lost.items()
        )
        raise TableRefusedError(
            f"The rows of table {table} cannot be written with the program's types: {listed}. "
            "Nothing was changed. Use a wider type, or give the committer a path of its own.",
            number="TXN-304",
        )


def _counted(rows: DataFrame, count: Column, name: str, table: str) -> Column:
    """Return the count under a name, if Spark has casts between the two types. Runs no job."""
    from pyspark.errors import AnalysisException

    try:
        rows.agg(count)
    except AnalysisException as error:
        raise TableRefusedError(
            f"Column '{name}' of table {table} cannot get its new type: "
            f"{in_one_line(str(error))} Nothing was changed. Give the new column another name.",
            number="TXN-304",
        ) from error
    return count.alias(name)


def _is_lost(name: str, before: DataType, kind: DataType) -> Column:
    """True for a value that is another one after a cast to the new type and back."""
    back = f"try_cast(try_cast({quoted(name)} AS {_sql_type(kind)}) AS {_sql_type(before)})"
    return sf.col(quoted(name)).isNotNull() & ~sf.col(quoted(name)).eqNullSafe(sf.expr(back))


def _first(counted: DataFrame) -> dict[str, int]:
    row = counted.collect()[0]
    return {name: int(row[name]) for name in counted.columns}
