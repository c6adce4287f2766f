"""Rows that several tables, or a rule and a table, read: computed once in an attempt.

A local checkpoint has no lineage, so a lost block fails the attempt; nothing else computes the rows
again. That holds once all of its blocks are there. Until then, two jobs, two stages of one job, or
a job that lost an executor could each compute a partition, and a transform need not return the same
rows twice. So one job computes the rows, and every job that reads them begins after it.

With `spark.speculation`, or if an executor that was given up still works, two tasks may compute a
partition at the same time, and both keep it on their own executor, where later tasks find it first.
So after each job that reads shared rows the copies are counted; a second one fails the attempt.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txn.errors import FailedException
from txn.spark.jvm import are_stored_twice
from txn.spark.lazy import sf
from txn.spark.own_session import moved
from txn.text import placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SharedRows", "compute_shared", "require_one_copy"]


@dataclass
class SharedRows:
    """The shared rows of one attempt.

    Args:
        spark: the session of the user's transforms.
        own: the session in which jobs run.
        observed: an `Observation` below the rows counts them; Spark reports it only if the rows are
            computed when they are shared.
    """

    spark: SparkSession
    own: SparkSession
    observed: bool = False
    waiting: list[tuple[str, DataFrame]] = field(default_factory=list)
    """(place, rows) that no job has computed yet; later ones may read earlier ones."""
    kept: list[DataFrame] = field(default_factory=list)
    """The frames that `keep` has returned, or the checkpoints behind them."""

    def keep(self, frame: DataFrame, place: str) -> DataFrame:
        """Return the rows to read in place of `frame`."""
        if self.observed:
            with placed(place):
                result = moved(frame, self.own).localCheckpoint()
            self.kept.append(result)
            return moved(result, self.spark)
        result = frame.localCheckpoint(eager=False)
        self.kept.append(result)
        self.waiting.append((place, result))
        return result

    def compute(self) -> None:
        """Compute the rows that no job has computed yet."""
        compute_shared([self], self.own)

    def release(self) -> None:
        """Let go of the rows: Spark deletes blocks of local checkpoints that nothing refers to."""
        self.waiting.clear()
        self.kept.clear()


def compute_shared(several: Sequence[SharedRows], session: SparkSession) -> None:
    """Compute the shared rows of attempts: a job for all of them, at each step of the graph."""
    while steps := [shared.waiting.pop(0) for shared in several if shared.waiting]:
        with placed(", ".join(dict.fromkeys(place for place, _ in steps))):
            _run([frame for _, frame in steps], session)


def require_one_copy(several: Sequence[SharedRows], session: SparkSession) -> None:
    """Refuse shared rows that are there twice. Call it after a job that reads them.

    Raises:
        FailedException: two tasks have computed one partition; later jobs may read either.
    """
    kept = [frame for shared in several for frame in shared.kept]
    if kept and are_stored_twice(kept, session):
        raise FailedException(
            "Spark has computed rows that several tables read twice, on two executors, so that "
            "the tables could differ: a task was started once more while it ran. The batch is "
            "replayed. If this goes on, set spark.speculation=false.",
            number="TXN-522",
        )


def _run(frames: Sequence[DataFrame], session: SparkSession) -> None:
    ones = (frame.select(sf.lit(1).alias("one")) for frame in frames)
    whole = functools.reduce(lambda one, other: one.unionAll(other), ones)
    moved(whole, session).write.format("noop").mode("overwrite").save()
