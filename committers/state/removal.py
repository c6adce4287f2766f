"""`remove_where`: the condition under which a state table lets go of a key, and the mark of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txn.errors import TopologyError
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["REMOVED", "check_condition"]

REMOVED = "txn_removed"
"""True where a key was removed at `txid`: in a log table's marks, in an opaque one's tombstones.
Only with `remove_where`."""


def check_condition(spark: SparkSession, condition: str, shown: StructType, table: str) -> None:
    """Refuse a `remove_where` that is no condition over keys and values. Runs no job."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as sf

    nothing = no_rows(spark, shown)
    try:
        # Only `where` checks that it is boolean; `select` evaluates it, without subqueries.
        nothing.where(condition).select(sf.expr(condition))
    except (AnalysisException, ParseException) as error:
        raise TopologyError(
            f"remove_where={condition!r} of state table {table} is not an SQL condition over its "
            f"keys and values ({', '.join(shown.fieldNames())}): "
            f"{str(error).strip().splitlines()[0]}",
            number="TXN-102",
        ) from error
