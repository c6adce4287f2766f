"""Unions whose parts stay in tasks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["side_by_side"]


def side_by_side(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all frames, which have the same columns, no two frames in one task.

    Where all children of a union are partitioned alike, Spark 4.2 makes one task of their first
    partitions, one of their second ... An empty child that is partitioned otherwise keeps it from
    that, in any session, whatever its `spark.sql.unionOutputPartitioning` says.
    """
    from pyspark.sql import functions as sf

    if len(frames) == 1:
        return frames[0]
    first = frames[0]
    nothing = first.sparkSession.range(0, 0, 1, 2).select(
        *(sf.lit(None).cast(field.dataType).alias(field.name) for field in first.schema)
    )
    return reduce(lambda one, other: one.unionAll(other), [*frames, nothing])
