"""Unions whose parts stay in tasks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from txn.interfaces import moved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["side_by_side"]


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
