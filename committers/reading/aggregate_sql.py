"""Built-in aggregates in SQL: how partials of a key merge, and what readers see of them.

Both mirror `Aggregate.merge` and `Aggregate.result`, which are expressions of Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from committers import aggregates as agg
from committers.reading.dialect import Dialect
from committers.reading.types import element_of, field_of, mean_type
from txn.interfaces import Aggregate

__all__ = ["InSql", "in_sql"]


@dataclass(frozen=True)
class InSql:
    """An aggregate whose stored values have a known type. Each function takes SQL and returns it.

    Args:
        shown: type of what readers see, as in the JSON of a schema.
        result: a stored value -> what readers see.
        merged: a column of partials -> an aggregate over those of one key.
        merged_result: what `merged` gives -> what readers see; None: as of a stored value.
    """

    shown: Any
    result: Callable[[str], str]
    merged: Callable[[str], str]
    merged_result: Callable[[str], str] | None = None

    def result_of_merged(self, merged: str) -> str:
        """Return the SQL of the value that readers see, given that of merged partials."""
        return (self.merged_result or self.result)(merged)


_Maker = Callable[[Any, Any, Dialect], InSql]
"""(aggregate, type of its stored values, dialect) -> the aggregate in SQL."""


def in_sql(aggregate: Aggregate, kind: Any, dialect: Dialect) -> InSql | None:
    """An aggregate in SQL; None if only its own program can compute it.

    Args:
        kind: type of the stored values, as in the JSON of a schema.
        dialect: it does not lack the aggregate.
    """
    make = _IN_SQL.get(type(aggregate))
    return None if make is None else make(aggregate, kind, dialect)


def _as_stored(x: str) -> str:
    return x


def _over(function: str) -> _Maker:
    """An aggregate over partials of one type, which gives that type."""

    def make(_: Aggregate, kind: Any, dialect: Dialect) -> InSql:
        return InSql(kind, _as_stored, partial(dialect.over, function))

    return make


def _extreme(*, descending: bool) -> _Maker:
    def make(_: Aggregate, kind: Any, dialect: Dialect) -> InSql:
        merged = partial(dialect.extreme, kind=kind, descending=descending)
        return InSql(kind, _as_stored, merged)

    return make


def _ordered(*, descending: bool) -> _Maker:
    def make(_: Aggregate, kind: Any, dialect: Dialect) -> InSql:
        merged = partial(dialect.extreme, kind=kind, descending=descending)
        return InSql(field_of(kind, "value"), partial(dialect.field, name="value"), merged)

    return make


def _count(_: Aggregate, kind: Any, dialect: Dialect) -> InSql:
    return InSql(kind, _as_stored, lambda x: f"COALESCE({dialect.sum(x, kind)}, 0)")


def _sum(_: Aggregate, kind: Any, dialect: Dialect) -> InSql:
    return InSql(kind, _as_stored, partial(dialect.sum, kind=kind))


def _avg(_: Aggregate, kind: Any, dialect: Dialect) -> InSql:
    kinds = {name: field_of(kind, name) for name in ("sum", "count")}

    def merged(x: str) -> str:
        totals = {n: dialect.sum(dialect.field(x, n), one) for n, one in kinds.items()}
        return dialect.row(totals, kind)

    def result(x: str) -> str:
        total, count = (dialect.field(x, name) for name in kinds)
        return f"CASE WHEN {count} > 0 THEN {dialect.quotient(total, count, kinds['sum'])} END"

    return InSql(mean_type(kinds["sum"]), result, merged)


def _variance(*, root: bool) -> _Maker:
    def make(_: Aggregate, kind: Any, dialect: Dialect) -> InSql:
        def both(one: str, other: str) -> str:
            return _both_moments(one, other, kind, dialect)

        def result(x: str) -> str:
            count = dialect.field(x, "count")
            value = f"{dialect.field(x, 'm2')} / ({count} - 1)"
            return f"CASE WHEN {count} > 1 THEN {f'SQRT({value})' if root else value} END"

        return InSql("double", result, partial(dialect.moments, kind=kind, both=both))

    return make


def _both_moments(one: str, other: str, kind: Any, dialect: Dialect) -> str:
    """`Variance._combine`."""
    (n, a, s), (m, b, t) = (
        [dialect.field(x, name) for name in ("count", "mean", "m2")] for x in (one, other)
    )
    far, count = f"({b} - {a})", f"({n} + {m})"
    mean = f"{a} + {far} * {m} / {count}"
    m2 = f"{s} + {t} + {far} * {far} * {n} * {m} / {count}"
    return dialect.row({"count": count, "mean": mean, "m2": m2}, kind)


def _collected(aggregate: Any, kind: Any, dialect: Dialect) -> InSql:
    """The first elements of all lists, sorted; of a set each once."""
    is_set = isinstance(aggregate, agg.CollectSet)
    first = partial(
        dialect.first_of,
        kind=element_of(kind),
        most=aggregate.limit if is_set else aggregate.n,
        descending=isinstance(aggregate, agg.LastN),
    )
    return InSql(kind, _as_stored, partial(dialect.elements, distinct=is_set), first)


def _distinct(_: Aggregate, _kind: Any, dialect: Dialect) -> InSql:
    def of_one(x: str) -> str:
        return dialect.distinct.format(x=x)

    def of_all(x: str) -> str:
        return dialect.distinct_of_all.format(x=x)

    return InSql("long", of_one, of_all, _as_stored)


_IN_SQL: dict[type[Aggregate], _Maker] = {
    agg.Count: _count,
    agg.Sum: _sum,
    agg.Avg: _avg,
    agg.Min: _extreme(descending=False),
    agg.Max: _extreme(descending=True),
    agg.First: _ordered(descending=False),
    agg.Last: _ordered(descending=True),
    agg.FirstN: _collected,
    agg.LastN: _collected,
    agg.CollectSet: _collected,
    agg.CountDistinct: _distinct,
    agg.Variance: _variance(root=False),
    agg.StdDev: _variance(root=True),
    agg.BoolAnd: _over("BOOL_AND"),
    agg.BoolOr: _over("BOOL_OR"),
    agg.BitAnd: _over("BIT_AND"),
    agg.BitOr: _over("BIT_OR"),
    agg.BitXor: _over("BIT_XOR"),
}
