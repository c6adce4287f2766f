"""Expressions that the tables share: literals, temporary columns, unions, checks of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from txn.spark.differences import is_utf8, utf8_sql, validated_utf8
from txn.spark.lazy import sf, st
from txn.spark.names import quoted
from txn.spark.own_session import moved

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["bigint", "naming_invalid_text", "side_by_side", "with_valid_text"]


def bigint(value: int) -> Column:
    """`value` as a bigint, such as a txid, that does not become part of generated code.

    Spark writes a literal number into the code that it generates, so each txid's code would be new
    and be compiled again: 25 ms a job (measured: 88 against 62 ms for a batch of 1,000 rows, each
    its own txid). Generated code only refers to an array, and an index that the optimizer cannot
    compute keeps it from turning the element into a literal again. The expression is SQL: columns
    made one by one would take thirty calls into Java.
    """
    always_one = "least(spark_partition_id(), 0) + 1"
    return sf.expr(f"element_at(array(CAST({value} AS bigint)), {always_one})")


def side_by_side(frames: Sequence[DataFrame], session: SparkSession | None = None) -> DataFrame:
    """Union frames with the same columns, so that no task reads rows of two frames.

    Args:
        session: the session of the frames, in which jobs over them run; None: that of the first.

    If all children of a union are partitioned alike, Spark 4.2 makes one task of their first
    partitions, one of their second ... An empty child with another partitioning prevents that, in
    any session, whatever its `spark.sql.unionOutputPartitioning`.
    """
    first = frames[0]
    session = session or first.sparkSession
    if len(frames) == 1:
        return moved(first, session)
    nothing = session.range(0, 0, 1, 2).select(
        *(sf.lit(None).cast(field.dataType).alias(field.name) for field in first.schema)
    )
    return reduce(lambda one, other: one.unionAll(other), [nothing, *frames])


def with_valid_text(schema: StructType, table: str) -> list[Column]:
    """The columns of these rows; a job over text that is not UTF-8 fails and names the column.

    Spark accepts any bytes as a string: from a Parquet file, from `cast(value AS string)`.
    """
    columns = []
    for field in schema:
        name = field.name
        column = sf.col(quoted(name))
        if isinstance(field.dataType, st.StringType):
            # A tenth more transactions a second than the same check with a message of txn's own.
            column = validated_utf8(column).alias(name)
        elif (valid := _valid_utf8(column, field.dataType)) is not None:
            error = sf.raise_error(sf.lit(_not_utf8(f"'{name}'", name, table)))
            column = sf.when(~valid, error).otherwise(column).alias(name)
        columns.append(column)
    return columns


@contextmanager
def naming_invalid_text(rows: DataFrame, table: str) -> Iterator[None]:
    """Name table and columns when a job inside fails at text that is not UTF-8.

    Raises:
        ValueError: deliberately not a TxnError, as `overflows_of` explains.
    """
    try:
        yield
    except Exception as error:
        if "INVALID_UTF8_STRING" not in str(error):
            raise
        names = " or ".join(f"'{name}'" for name, kind in rows.dtypes if kind == "string")
        raise ValueError(f"{_not_utf8(names, 'it', table)}.") from error


def _not_utf8(columns: str, column: str, table: str) -> str:
    """The message for text that is not UTF-8: the cause and the way out.

    Args:
        columns: the columns that may have it, as text.
        column: the column's name in expressions.
    """
    replaced, is_valid = utf8_sql(column)
    return (
        f"Column {columns} of the rows for table {table} has text that is not UTF-8, with which "
        "other readers fail on the whole table. Replace such bytes in a transform "
        f"({replaced}), keep the column as binary, or let a rule set such rows aside (expect with "
        f"{is_valid})"
    )


def _valid_utf8(value: Column, kind: DataType) -> Column | None:
    """True if all text within a value is UTF-8 or NULL; None if its type has no text."""
    if isinstance(kind, st.StringType):
        return is_utf8(value)
    if isinstance(kind, st.ArrayType):
        inner = kind.elementType
        if _valid_utf8(value, inner) is None:
            return None

        def holds(element: Column) -> Column:
            return sf.coalesce(_valid_utf8(element, inner), sf.lit(True))  # type: ignore[arg-type]

        return sf.forall(value, holds)
    parts: list[Column | None] = []
    if isinstance(kind, st.MapType):
        parts.append(_valid_utf8(sf.map_keys(value), st.ArrayType(kind.keyType)))
        parts.append(_valid_utf8(sf.map_values(value), st.ArrayType(kind.valueType)))
    if isinstance(kind, st.StructType):
        parts += [_valid_utf8(value[field.name], field.dataType) for field in kind]
    # The NULL of a NULL within a struct must not hide a false beside it.
    checks = [sf.coalesce(part, sf.lit(True)) for part in parts if part is not None]
    return reduce(lambda one, other: one & other, checks) if checks else None
