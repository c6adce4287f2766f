"""Built-in aggregates in DuckDB's SQL: how partials of a key merge, and what readers see of them.

Both mirror `Aggregate.merge` and `Aggregate.result`, which are expressions of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from committers import aggregates as agg
from committers.reading.types import (
    element_of,
    field_of,
    mean_type,
    precision_of,
    quoted,
    type_text,
)
from txn.interfaces import Aggregate

__all__ = ["DISTINCT", "InSql", "in_sql"]

DISTINCT = "txn_count_distinct"
"""The function of `committers.reading.sketches`: a list of sketches -> the estimate for all."""
_ONE, _OTHER = '"txn one"', '"txn other"'
"""Names of the query alone: no column of a Delta table has a space in its name."""


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


_Maker = Callable[[Any, Any], InSql]
"""(aggregate, type of its stored values) -> the aggregate in SQL."""


def in_sql(aggregate: Aggregate, kind: Any) -> InSql | None:
    """An aggregate in SQL; None if only its own program can compute it.

    Args:
        kind: type of the stored values, as in the JSON of a schema.
    """
    make = _IN_SQL.get(type(aggregate))
    return None if make is None else make(aggregate, kind)


def _as_stored(x: str) -> str:
    return x


def _over(function: str) -> _Maker:
    """An aggregate over partials of one type, which gives that type."""

    def make(_: Aggregate, kind: Any) -> InSql:
        return InSql(kind, _as_stored, lambda x: f"{function}({x})")

    return make


def _extreme(*, descending: bool) -> _Maker:
    def make(aggregate: Aggregate, kind: Any) -> InSql:
        if isinstance(kind, str):
            return _over("MAX" if descending else "MIN")(aggregate, kind)
        return InSql(kind, _as_stored, partial(_first, kind=kind, descending=descending))

    return make


def _ordered(*, descending: bool) -> _Maker:
    def make(_: Aggregate, kind: Any) -> InSql:
        first = partial(_first, kind=kind, descending=descending)
        return InSql(field_of(kind, "value"), lambda x: f"{x}.value", first)

    return make


def _avg(_: Aggregate, kind: Any) -> InSql:
    total = field_of(kind, "sum")

    def merged(x: str) -> str:
        return f"{{'sum': {_sum(f'{x}.sum', total)}, 'count': {_sum(f'{x}.count', 'long')}}}"

    def result(x: str) -> str:
        mean = f"CAST({x}.sum AS DOUBLE) / {x}.count"
        if precision_of(total) is not None:
            mean = _exact_mean(f"{x}.sum", f"{x}.count", total)
        return f"CASE WHEN {x}.count > 0 THEN {mean} END"

    return InSql(mean_type(total), result, merged)


def _exact_mean(total: str, count: str, kind: Any) -> str:
    """The quotient of a decimal and a count, rounded half up as by Spark. DuckDB makes a double."""
    decimal, mean = precision_of(kind), precision_of(mean_type(kind))
    assert decimal is not None
    assert mean is not None
    more = f"CAST(1{'0' * (mean[1] - decimal[1])} AS HUGEINT)"
    # A decimal of 38 digits has no room for a factor, its digits alone have.
    digits = f"ABS(CAST(REPLACE(CAST({total} AS VARCHAR), '.', '') AS HUGEINT))"
    many = f"CAST({count} AS HUGEINT)"
    rest = f"((({digits} % {many}) * {more} * 2 + {many}) // ({many} * 2))"
    whole = f"CAST(({digits} // {many}) * {more} + {rest} AS DECIMAL(38,0))"
    unit = f"CAST('{Decimal(1).scaleb(-mean[1]):f}' AS DECIMAL(38,{mean[1]}))"
    value = f"CAST({whole} * {unit} AS DECIMAL({mean[0]},{mean[1]}))"
    return f"CASE WHEN {total} < 0 THEN -{value} ELSE {value} END"


def _variance(*, root: bool) -> _Maker:
    def merged(x: str) -> str:
        moments = f"LIST({x} ORDER BY txid NULLS FIRST) FILTER (WHERE {x}.count > 0)"
        return f"LIST_REDUCE({moments}, lambda {_ONE}, {_OTHER}: {_both_moments(_ONE, _OTHER)})"

    def result(x: str) -> str:
        value = f"{x}.m2 / ({x}.count - 1)"
        return f"CASE WHEN {x}.count > 1 THEN {f'SQRT({value})' if root else value} END"

    return lambda _, _kind: InSql("double", result, merged)


def _both_moments(one: str, other: str) -> str:
    """`Variance._combine`."""
    far, count = f"({other}.mean - {one}.mean)", f"({one}.count + {other}.count)"
    mean = f"{one}.mean + {far} * {other}.count / {count}"
    m2 = f"{one}.m2 + {other}.m2 + {far} * {far} * {one}.count * {other}.count / {count}"
    return f"{{'count': {count}, 'mean': {mean}, 'm2': {m2}}}"


def _collected(aggregate: Any, kind: Any) -> InSql:
    """The first elements of all lists, sorted; of a set each once."""
    is_set = isinstance(aggregate, agg.CollectSet)
    order = _order(_ONE, element_of(kind), descending=isinstance(aggregate, agg.LastN))
    most = aggregate.limit if is_set else aggregate.n

    def merged(x: str) -> str:
        lists = f"FLATTEN(LIST({x}) FILTER (WHERE {x} IS NOT NULL))"
        return f"LIST_DISTINCT({lists})" if is_set else lists

    def merged_result(x: str) -> str:
        # The list of no elements is no row of UNNEST, and NULL stays NULL.
        sorted_ = f"(SELECT LIST({_ONE} ORDER BY {order}) FROM (SELECT UNNEST({x}) AS {_ONE}))"
        return f"CASE WHEN {x} IS NOT NULL THEN COALESCE({sorted_}, [])[1:{most}] END"

    return InSql(kind, _as_stored, merged, merged_result)


def _distinct(_: Aggregate, _kind: Any) -> InSql:
    def merged(x: str) -> str:
        return f"LIST({x}) FILTER (WHERE {x} IS NOT NULL)"

    def result(x: str) -> str:
        return f"CASE WHEN {x} IS NOT NULL THEN {DISTINCT}([{x}]) END"

    return InSql("long", result, merged, lambda x: f"{DISTINCT}({x})")


def _sum(x: str, kind: Any) -> str:
    # Wide as a sum is in DuckDB; what does not fit back is an error, as in Spark.
    return f"CAST(SUM({x}) AS {type_text(kind, x)})"


def _first(x: str, kind: Any, *, descending: bool) -> str:
    return f"FIRST({x} ORDER BY {_order(x, kind, descending)}) FILTER (WHERE {x} IS NOT NULL)"


def _order(x: str, kind: Any, descending: bool) -> str:
    """Return a term of ORDER BY that orders values as Spark does: NULL first, at any depth.

    DuckDB puts a NULL within an array or a struct last, whatever ORDER BY says. So each inner value
    becomes a struct that begins with whether it is a value.
    """
    way = "DESC NULLS LAST" if descending else "ASC NULLS FIRST"
    return f"{_comparable(x, kind)} {way}"


def _comparable(x: str, kind: Any, depth: int = 0) -> str:
    if isinstance(kind, str):
        return x
    if kind["type"] == "array":
        one = f'"txn {depth}"'
        inner = _inner(one, element_of(kind), depth + 1)
        return f"LIST_TRANSFORM({x}, lambda {one}: {inner})"
    fields = (
        f"'{n}': {_inner(_field(x, field), field['type'], depth)}"
        for n, field in enumerate(kind["fields"])
    )
    return f"CASE WHEN {x} IS NOT NULL THEN {{{', '.join(fields)}}} END"


def _field(x: str, field: Mapping[str, Any]) -> str:
    return f"{x}.{quoted(field['name'])}"


def _inner(x: str, kind: Any, depth: int) -> str:
    return f"{{'is': {x} IS NOT NULL, 'value': {_comparable(x, kind, depth)}}}"


_IN_SQL: dict[type[Aggregate], _Maker] = {
    agg.Count: lambda _, kind: InSql(kind, _as_stored, lambda x: f"COALESCE({_sum(x, kind)}, 0)"),
    agg.Sum: lambda _, kind: InSql(kind, _as_stored, lambda x: _sum(x, kind)),
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
