"""The counts of a Spark job's `Observation`, with a limit on the wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from txn.errors import FailedException
from txn.spark.differences import reports_pruned_counts
from txn.spark.jvm import wait_for_reports

if TYPE_CHECKING:
    from pyspark.sql import Observation

__all__ = ["observed"]

_POLL_SECS = 0.002


def observed(
    observation: Observation, secs: float, missing: str, *, may_lack: bool = False
) -> dict[str, Any]:
    """The observed counts; empty if Spark pruned the node because there were no rows.

    Spark reports them a moment after the job. `Observation.get` alone would wait for ever if the
    job never ran or its report was dropped.

    Args:
        secs: how long to wait for the report.
        missing: the error's message if the report does not come.
        may_lack: the job has ended, and may have had no rows. Spark 4.0 then reports nothing.

    Raises:
        FailedException: Spark did not report the counts in time.
    """
    from py4j.protocol import Py4JJavaError

    until, java = time.monotonic() + secs, observation._jo
    if may_lack and not reports_pruned_counts():
        wait_for_reports(secs)
        if java is not None and not java.future().isCompleted():
            return {}
    while java is None or not java.future().isCompleted():
        if time.monotonic() > until:
            raise FailedException(missing)
        time.sleep(_POLL_SECS)
    try:
        return dict(observation.get)
    except Py4JJavaError:
        # Spark 4.2 returns a null row if it pruned the node.
        return {}
