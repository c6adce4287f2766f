"""Rankings: the first rows of each group, in an order such as ("spent desc", "customer")."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from txn.spark.keys import joined_by_key, with_keys_of
from txn.spark.lazy import sf
from txn.spark.names import passing, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "RANK",
    "first_rows",
    "in_order",
    "name_of",
    "ranking_problems",
    "touched_rankings",
]

RANK = "rank"
"""The column of `touched_rankings`."""
_ORDER = re.compile(r"(?P<name>.*?)(?:\s+(?P<way>asc|desc))?", re.IGNORECASE | re.DOTALL)
_RANK = passing("rank")


def ranking_problems(
    known: Sequence[str], top: int | None, by: Sequence[str], per: Sequence[str]
) -> Iterator[str]:
    """Say what is wrong with a ranking over these columns."""
    unknown = next((name for name in (*per, *map(name_of, by)) if name not in known), None)
    if unknown is not None:
        yield f"it has no column {unknown!r}. It has {', '.join(known)}."
    if top is not None and (isinstance(top, bool) or top < 1):
        yield f"top={top!r} is not a number of rows above 0."
    if (top is None) == bool(by) or (per and top is None):
        yield (
            "by= and per= are a ranking's, which needs top= and by=. Write for example top=10, "
            "by='spent desc'."
        )


def first_rows(
    rows: DataFrame,
    top: int,
    by: Sequence[str],
    per: Sequence[str],
    keys: Sequence[str],
    *,
    rank: str = _RANK,
) -> DataFrame:
    """The first rows of each group by `per`, with their `rank`, from 1; rows of equal rank by keys.

    Args:
        per: empty: all rows are one group.
    """
    from pyspark.sql import Window

    # Keys last: rows of equal rank are told apart the same way at each time.
    order = [*map(in_order, by), *(sf.col(quoted(key)) for key in keys)]
    # Without groups a sort of few rows is cheaper than a window over all.
    some = rows if per else rows.orderBy(*order).limit(top)
    window = Window.partitionBy(*(sf.col(quoted(name)) for name in per)).orderBy(*order)
    ranked = some.withColumn(rank, sf.row_number().over(window))
    return ranked.where(sf.col(quoted(rank)) <= top)


def touched_rankings(
    before: DataFrame,
    changed: DataFrame,
    top: int,
    by: Sequence[str],
    per: Sequence[str],
    keys: Sequence[str],
) -> DataFrame:
    """The rankings of the groups that a change touches, as they are after it.

    A key whose values are all NULL has no rank: changes show a key that is gone like that.

    Args:
        before: keys and values.
        changed: new keys and values of the touched keys, all values NULL for one that is gone, and
            `prev_<value>`.
    """
    names = before.columns
    values = [name for name in names if name not in keys]
    alive = ~reduce(and_, (sf.col(quoted(name)).isNull() for name in values))
    new = changed.where(alive).select(*map(quoted, names))
    now = joined_by_key(before.where(alive), changed, keys, "left_anti").unionByName(new)
    ranked = first_rows(now, top, by, per, keys, rank=RANK)
    if not per:
        return ranked.join(changed.select().limit(1), sf.lit(True), "left_semi")
    former = (sf.col(quoted(name if name in keys else f"prev_{name}")).alias(name) for name in per)
    groups = new.select(*map(quoted, per)).union(changed.select(*former)).distinct()
    return with_keys_of(ranked, groups, per)


def in_order(order: str) -> Column:
    """An order such as "spent desc" as Spark's."""
    name, descends = _parsed(order)
    column = sf.col(quoted(name))
    return column.desc() if descends else column.asc()


def name_of(order: str) -> str:
    """The column of an order."""
    return _parsed(order)[0]


def _parsed(order: str) -> tuple[str, bool]:
    """(column, whether it descends)."""
    match = _ORDER.fullmatch(order.strip())
    assert match is not None
    return match["name"], (match["way"] or "").lower() == "desc"
