"""Expressions that the tables share: rows and columns made of nothing stored, unions, names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from txn.spark.names import quoted
from txn.spark.own_session import moved

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["bigint", "naming_invalid_text", "passing", "side_by_side", "with_valid_text"]


def bigint(value: int) -> Column:
    """`value` as a bigint, such as a txid, that generated code refers to and does not contain.

    Spark writes a literal number into the code that it generates, so that each txid's code is new
    and compiled anew: 25 ms a job (measured: 88 against 62 ms for a batch of 1,000 rows, each its
    own txid). An array is referred to instead, and an index that the optimizer cannot compute
    keeps it from making a literal of the element again. It is written as SQL: columns made one by
    one would take thirty calls into Java.
    """
    from pyspark.sql import functions as sf

    always_one = "least(spark_partition_id(), 0) + 1"
    return sf.expr(f"element_at(array(CAST({value} AS bigint)), {always_one})")


def passing(name: str) -> str:
    """The name of a column that is needed for a moment, beside those of a table.

    With a space, which Delta allows in no name: so no key and no value has it.
    """
    return f"txn {name}"


def side_by_side(frames: Sequence[DataFrame], session: SparkSession | None = None) -> DataFrame:
    """The rows of all frames, which have the same columns, no two frames in one task.

    Args:
        session: in which they are, and jobs over them run; None: that of the first of them.

    Where all children of a union are partitioned alike, Spark 4.2 makes one task of their first
    partitions, one of their second ... An empty child that is partitioned otherwise keeps it from
    that, in any session, whatever its `spark.sql.unionOutputPartitioning` says.
    """
    from pyspark.sql import functions as sf

    first = frames[0]
    session = session or first.sparkSession
    if len(frames) == 1:
        return moved(first, session)
    nothing = session.range(0, 0, 1, 2).select(
        *(sf.lit(None).cast(field.dataType).alias(field.name) for field in first.schema)
    )
    return reduce(lambda one, other: one.unionAll(other), [nothing, *frames])


def with_valid_text(schema: StructType, table: str) -> list[Column]:
    """The columns of these rows; a job that computes text that is not UTF-8 fails with its name.

    Spark takes any bytes for a string: of a Parquet file, of `cast(value AS string)`.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType

    columns = []
    for field in schema:
        name = field.name
        column = sf.col(quoted(name))
        if isinstance(field.dataType, StringType):
            # A tenth more transactions a second than the same test with a message of our own.
            column = sf.validate_utf8(column).alias(name)
        elif (valid := _is_valid(column, field.dataType)) is not None:
            error = sf.raise_error(sf.lit(_not_utf8(f"'{name}'", name, table)))
            column = sf.when(~valid, error).otherwise(column).alias(name)
        columns.append(column)
    return columns


@contextmanager
def naming_invalid_text(rows: DataFrame, table: str) -> Iterator[None]:
    """Name table and columns when a job inside fails at text that is not UTF-8.

    Raises:
        ValueError: no error of the product's own, as `overflows_of` explains.
    """
    try:
        yield
    except Exception as error:
        if "INVALID_UTF8_STRING" not in str(error):
            raise
        names = " or ".join(f"'{name}'" for name, kind in rows.dtypes if kind == "string")
        raise ValueError(f"{_not_utf8(names, 'it', table)}.") from error


def _not_utf8(columns: str, column: str, table: str) -> str:
    """What is wrong with text, and the way out.

    Args:
        columns: those that may have it, in words.
        column: how expressions name it.
    """
    return (
        f"Column {columns} of the rows for table {table} has text that is not UTF-8, with which "
        "other readers fail on the whole table. Replace such bytes in a transform "
        f"(make_valid_utf8({column})), keep the column as binary, or let a rule set such rows "
        f"aside (expect with is_valid_utf8({column}))"
    )


def _is_valid(value: Column, kind: DataType) -> Column | None:
    """Whether all text within a value is UTF-8, or NULL; None: there is no text in its type."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if isinstance(kind, st.StringType):
        return sf.is_valid_utf8(value)
    if isinstance(kind, st.ArrayType):
        inner = kind.elementType
        if _is_valid(value, inner) is None:
            return None

        def holds(each: Column) -> Column:
            return sf.coalesce(_is_valid(each, inner), sf.lit(True))  # type: ignore[arg-type]

        return sf.forall(value, holds)
    parts: list[Column | None] = []
    if isinstance(kind, st.MapType):
        parts.append(_is_valid(sf.map_keys(value), st.ArrayType(kind.keyType)))
        parts.append(_is_valid(sf.map_values(value), st.ArrayType(kind.valueType)))
    if isinstance(kind, st.StructType):
        parts += [_is_valid(value[field.name], field.dataType) for field in kind]
    # NULL, of a NULL within a struct, must not hide what is false beside it.
    found = [sf.coalesce(part, sf.lit(True)) for part in parts if part is not None]
    return reduce(lambda one, other: one & other, found) if found else None
