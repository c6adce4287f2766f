"""Rows that several tables, or a rule and a table, read: computed once in an attempt.

A transform need not return the same rows twice, so each partition must be computed only once. The
rows are kept in a local checkpoint. Once all of its blocks exist, it has no lineage: a lost block
fails the attempt, and nothing computes the rows again. Until then, two jobs, two stages of a job,
or a job that lost an executor could each compute a partition. So one job computes the rows, and
every job that reads them begins after it.

With `spark.speculation`, or if a lost executor still works, two tasks may compute a partition at
the same time, and each keeps it on its own executor, where later tasks find it first. So after each
job that reads shared rows the copies are counted; a second one fails the attempt.
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
        observed: an `Observation` below the rows counts them; Spark reports it only if `keep`
            computes the rows at once.
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


def compute_shared(attempts: Sequence[SharedRows], session: SparkSession) -> None:
    """Compute the shared rows of attempts: one job for all of them at each step of the graph."""
    while steps := [shared.waiting.pop(0) for shared in attempts if shared.waiting]:
        with placed(", ".join(dict.fromkeys(place for place, _ in steps))):
            _compute([frame for _, frame in steps], session)


def require_one_copy(attempts: Sequence[SharedRows], session: SparkSession) -> None:
    """Refuse shared rows that are stored twice. Call it after a job that reads them.

    Raises:
        FailedException: two tasks have computed one partition; later jobs may read either.
    """
    kept = [frame for shared in attempts for frame in shared.kept]
    if kept and are_stored_twice(kept, session):
        raise FailedException(
            "Spark has computed rows that several tables read twice, on two executors, so that "
            "the tables could differ: a task was started once more while it ran. The batch is "
            "replayed. If this goes on, set spark.speculation=false.",
            number="TXN-522",
        )


def _compute(frames: Sequence[DataFrame], session: SparkSession) -> None:
    """Compute all frames in one job; their columns may differ, so it selects none of them."""
    ones = (frame.select(sf.lit(1).alias("one")) for frame in frames)
    union = functools.reduce(lambda left, right: left.unionAll(right), ones)
    moved(union, session).write.format("noop").mode("overwrite").save()
