"""Expressions over event times, which are microseconds since 1970, UTC, everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txn.spark.lazy import sf, st

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["is_left", "moment", "null_time"]


def moment(at: int) -> Column:
    """A point in event time, as a literal: Spark compares it with the statistics of files."""
    return sf.timestamp_micros(sf.lit(at))


def null_time() -> Column:
    """NULL as a point in time. A cast by the name "timestamp" follows the session's settings."""
    return sf.lit(None).cast(st.TimestampType())


def is_left(time: Column, bound: Column) -> Column:
    """Whether a row stays when all up to a time end. NULL is no time: such a row stays."""
    return time.isNull() | (time > bound)
