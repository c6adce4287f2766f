"""The Spark jobs of a run: their tags, their pools, and the session of their threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.spark.causes import without_copies
from txn.spark.origins import unnoted
from txn.spark.own_session import SettingsWatch, make_active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["COMMIT_POOL", "MAINTENANCE_POOL", "PROCESSING_POOL", "Jobs", "described"]

PROCESSING_POOL = "txn-processing"
COMMIT_POOL = "txn-commit"
MAINTENANCE_POOL = "txn-maintenance"

_NAMED = 8
"""Most attempts that a description names one by one."""


class Jobs:
    """A run's use of its Spark context. From any thread."""

    def __init__(self, spark: SparkSession, topology: str) -> None:
        self._spark = spark
        self._topology = topology
        self._watch = SettingsWatch(spark)
        without_copies()
        self._entered = threading.local()

    @property
    def slots(self) -> int:
        """Tasks that Spark runs at once."""
        return int(self._spark.sparkContext.defaultParallelism)

    def enter_thread(self) -> None:
        """Prepare a thread for the user's code, once: make the user's session active."""
        if not hasattr(self._entered, "done"):
            make_active(self._spark)
            self._entered.done = True

    @contextmanager
    def tagged(
        self,
        tags: Sequence[str],
        attempts: Sequence[TransactionAttempt],
        pool: str,
        work: str,
        table: str | None = None,
    ) -> Iterator[None]:
        """Give tags, pool and description to every Spark job that this thread starts inside.

        Expressions made there count as txn's own, except inside `noted`.

        Args:
            work: the station, or "maintain".
        """
        self.enter_thread()
        context = self._spark.sparkContext
        # The context's tags: those of a session can be cancelled by the tagging thread alone, and
        # do not cover the committers' own sessions.
        for tag in tags:
            context.addJobTag(tag)
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.setJobDescription(described(self._topology, attempts, work, table))
        try:
            with unnoted():
                yield
        finally:
            for tag in tags:
                context.removeJobTag(tag)
            for name in ("spark.scheduler.pool", "spark.job.description"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None clears it

    def cancel(self, tag: str) -> None:
        """Cancel the jobs of an attempt, of a commit turn or of maintenance."""
        self._spark.sparkContext.cancelJobsWithTag(tag)

    def check_settings(self) -> None:
        """Refuse settings of the session that have changed since the run's start."""
        self._watch.check()


def described(
    topology: str, attempts: Sequence[TransactionAttempt], work: str, table: str | None = None
) -> str:
    """The description of a Spark job, such as "flights txid 12:0 process".

    A group's is "flights txid 12:0, 13:0 prepare warehouse/delays"; of a long one, only the first
    and the last attempt are named.
    """
    names = [str(attempt) for attempt in attempts]
    named = ", ".join(names) if len(names) <= _NAMED else f"{names[0]} to {names[-1]}"
    return " ".join([topology, "txid", named, work, *([table] if table else [])])
