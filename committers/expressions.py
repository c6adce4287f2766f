"""Expressions that the tables share: rows and columns made of nothing stored, unions, names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from txn.spark.own_session import moved

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["bigint", "passing", "side_by_side"]


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
