"""What a Spark job has counted by an `Observation`, waited for with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txn.errors import FailedException

if TYPE_CHECKING:
    from pyspark.sql import Observation

__all__ = ["observed"]

_LOOK_SECS = 0.002


def observed(
    observation: Observation,
    secs: float,
    missing: str,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The observed counts; empty if Spark pruned the node because there were no rows.

    Spark hands them out a moment after the job. `Observation.get` by itself waits for ever for a
    job that never ran, and for a report that was dropped.

    Args:
        secs: how long to wait for the report.
        missing: the message of the error, should it not come.

    Raises:
        FailedException: no job that observes them has been reported in time.
    """
    from py4j.protocol import Py4JJavaError

    until, java = clock() + secs, observation._jo
    while java is None or not java.future().isCompleted():
        if clock() > until:
            raise FailedException(missing)
        time.sleep(_LOOK_SECS)
    try:
        return dict(observation.get)
    except Py4JJavaError:
        # Spark 4.2 hands out a null row then.
        return {}
