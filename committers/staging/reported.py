"""Compare the rows that a Spark job reports with the files that this process sees.

The files of a job are found by listing its folder. Where executors have another disk under the same
path, the list is short, or empty, and nothing else would tell: the rows would be lost in silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from txn.spark.observations import observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

__all__ = ["Reported", "reported", "rows_written"]

REPORT_SECS = 60.0
"""How long Spark may take to report a job that has ended: milliseconds, unless its listeners are
behind with the events of many tasks."""

Reported = Callable[[str], "int | None"]
"""To be called after the job, with words for where it wrote: the rows; None: it was not asked.

Raises FailedException when Spark does not say.
"""


def reported(rows: DataFrame) -> tuple[DataFrame, Reported]:
    """The rows to be written in their place, and what the job will say of their number.

    Executors that are threads of the driver's own process write where it reads: they are not
    asked. Others count the rows on their way into the files, in the tasks that write them; Spark
    takes the count of each task once, whatever is run again.
    """
    master = str(rows.sparkSession.sparkContext.master)
    if master == "local" or master.startswith("local["):
        return rows, lambda _: None
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    written = Observation()
    counted = rows.observe(written, sf.count(sf.lit(1)).alias("rows"))
    return counted, lambda where: rows_written(written, where)


def rows_written(
    observation: Observation, where: str, clock: Callable[[], float] = time.monotonic
) -> int:
    """The observed rows of a job that has ended.

    Raises:
        FailedException: Spark has not reported them in time.
    """
    missing = (
        f"Spark has not reported the rows that it wrote {where} within {REPORT_SECS:g} s, so "
        "this process cannot check that it sees all of them. The batch is replayed; if this goes "
        "on, Spark drops events of its jobs ('Dropping event from queue' in its log): raise "
        "spark.scheduler.listenerbus.eventqueue.capacity."
    )
    return int(observed(observation, REPORT_SECS, missing, clock).get("rows", 0))
