"""`remove_where`: the condition that removes a key from a state table, and the mark of removal.

In a log table a removed key has a mark: a row without values, with the txid of the removal. It
voids every row of the key of that txid and of earlier ones; later rows start the key afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txn.delta.commits import TXID
from txn.errors import TopologyError
from txn.spark.causes import in_one_line
from txn.spark.keys import joined_by_key
from txn.spark.lazy import sf
from txn.spark.names import passing, quoted
from txn.spark.rows import no_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["REMOVED", "check_condition", "marks_of", "with_removal", "without_removed"]

REMOVED = "txn_removed"
"""True if a key was removed at `txid`: in a log table's marks, in an opaque table's tombstones.
Only with `remove_where`."""
_GONE = passing("gone")


def check_condition(spark: SparkSession, condition: str, shown: StructType, table: str) -> None:
    """Refuse a `remove_where` that is not a condition over keys and values. Runs no job."""
    from pyspark.errors import AnalysisException, ParseException

    nothing = no_rows(spark, shown)
    try:
        # Only `where` checks that it is boolean; `select` evaluates it, without subqueries.
        nothing.where(condition).select(sf.expr(condition))
    except (AnalysisException, ParseException) as error:
        raise TopologyError(
            f"remove_where={condition!r} of state table {table} is not an SQL condition over its "
            f"keys and values ({', '.join(shown.fieldNames())}): "
            f"{in_one_line(str(error))}",
            number="TXN-102",
        ) from error


def marks_of(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Removed keys, each with the txid of its last removal."""
    marks = rows.where(sf.coalesce(sf.col(REMOVED), sf.lit(False)))
    grouped = marks.groupBy(*(sf.col(quoted(key)) for key in keys))
    return grouped.agg(sf.max(TXID).alias(TXID)).where(sf.col(TXID).isNotNull())


def without_removed(rows: DataFrame, keys: Sequence[str], marks: DataFrame) -> DataFrame:
    """Drop partials that a removal of their key has voided, and the marks themselves.

    Args:
        rows: rows of a log table whose keys may be removed.
        marks: `marks_of` all rows of the table.
    """
    # A row without a txid is older than any txid: it is another writer's row that was accepted.
    is_void = sf.coalesce(sf.col(TXID), sf.lit(0)) <= sf.col(quoted(_GONE))
    living = rows.where(~sf.coalesce(sf.col(REMOVED), sf.lit(False)))
    left = joined_by_key(living, marks, keys, "left", sf.col(TXID).alias(_GONE)).where(
        ~sf.coalesce(is_void, sf.lit(False))
    )
    return left.select(*(sf.col(quoted(name)) for name in rows.columns if name != REMOVED))


def with_removal(
    rows: DataFrame, keys: Sequence[str], gone: DataFrame | None
) -> tuple[DataFrame, Column]:
    """(the rows with one more column, the condition that a row's key is in `gone`).

    Args:
        gone: keys, each once; None if there are none.
    """
    if gone is None:
        return rows, sf.lit(False)
    marked = joined_by_key(rows, gone, keys, "left", sf.lit(True).alias(_GONE))
    return marked, sf.col(quoted(_GONE)).isNotNull()
