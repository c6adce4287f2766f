"""What a Spark job says that it wrote, held against the files that this process sees.

The files of a job are found by listing its folder. Where executors have another disk under the same
path, the list is short, or empty, and nothing else would tell: the rows would be lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Reported", "reported"]

Reported = Callable[[], "int | None"]
"""To be called after the job: the rows that it wrote; None: it was not asked."""


def reported(rows: DataFrame) -> tuple[DataFrame, Reported]:
    """The rows to be written in their place, and what the job will say of their number.

    Executors that are threads of the driver's own process write where it reads: they are not
    asked. Others count the rows on their way into the files, in the tasks that write them; Spark
    takes the count of each task once, whatever is run again.
    """
    master = str(rows.sparkSession.sparkContext.master)
    if master == "local" or master.startswith("local["):
        return rows, lambda: None
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    written = Observation()

    def count() -> int:
        from py4j.protocol import Py4JJavaError

        try:
            return int(written.get["rows"])
        except Py4JJavaError:
            return 0  # Spark saw that there are no rows, and counted nothing

    return rows.observe(written, sf.count(sf.lit(1)).alias("rows")), count
