"""What each aggregate is of a key's rows, in plain Python: all rows at once, whatever the txids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from tests.differential.columns import Columns, aggregate_type
from tests.differential.values import (
    BOUNDS,
    group_key,
    is_decimal,
    is_integer,
    order_key,
    precision_of,
    text_of,
)

__all__ = ["OutOfRangeError", "aggregated"]

Row = dict[str, Any]
_EXACT = Context(prec=200)


class OutOfRangeError(Exception):
    """A total leaves the range of its type."""


def aggregated(spec: Sequence[Any], batches: Sequence[Sequence[Row]], columns: Columns) -> Any:
    """The value of an aggregate over rows that came in these batches.

    Raises:
        OutOfRangeError: it has none; the run has to say so.
    """
    rows = [row for batch in batches for row in batch]
    match spec:
        case ["Count"]:
            return len(rows)
        case ["FirstN" | "LastN" as name, n, order, value]:
            return _first(rows, n, list(dict.fromkeys((order, value))), descending=name == "LastN")
        case ["First" | "Last" as name, value, order]:
            ordered = [row for row in rows if row[order] is not None]
            pick: Callable[..., Row] = min if name == "First" else max
            by = lambda row: (order_key(row[order]), order_key(row[value]))  # noqa: E731
            return pick(ordered, key=by)[value] if ordered else None
        case ["Fold", order, value]:
            return _fold(batches, order, value)
    name = spec[1]
    values = [row[name] for row in rows if row[name] is not None]
    return _of_values(spec, values, columns[name], aggregate_type(spec, columns))


def _of_values(spec: Sequence[Any], values: list[Any], kind: str, result: str) -> Any:
    match spec[0]:
        case "Count":
            return len(values)
        case "CountDistinct":
            return len({group_key(value) for value in values} - {"", b""})
        case "CollectSet":
            distinct = {group_key(value): value for value in values}
            return tuple(sorted(distinct.values(), key=order_key)[: spec[2]])
    if not values:
        return None
    match spec[0]:
        case "Sum":
            return _sum(values, kind, result)
        case "Avg":
            return _mean(values, kind, result)
        case "Min":
            return min(values, key=order_key)
        case "Max":
            return max(values, key=order_key)
        case "BoolAnd":
            return all(values)
        case "BoolOr":
            return any(values)
        case "Variance" | "StdDev":
            return _variance(values, root=spec[0] == "StdDev")
    return _bits(spec[0], values)


def _sum(values: list[Any], kind: str, result: str) -> Any:
    if is_integer(kind):
        total = sum(values)
        if not -BOUNDS["bigint"] <= total < BOUNDS["bigint"]:
            raise OutOfRangeError(f"a sum of {kind} is {total}")
        return total
    if is_decimal(kind):
        exact = Decimal(0)
        for value in values:
            exact = _EXACT.add(exact, value)
        precision, scale = precision_of(result)
        if abs(exact) >= Decimal(10) ** (precision - scale):
            raise OutOfRangeError(f"a sum of {kind} is {exact}")
        return exact
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def _mean(values: list[Any], kind: str, result: str) -> Any:
    total = _sum(values, kind, aggregate_type(["Sum", "c"], {"c": kind}))
    if not is_decimal(kind):
        return float(total) / len(values)
    precision, scale = precision_of(result)
    quotient = Fraction(total) / len(values)
    scaled = quotient * 10**scale
    whole = int(abs(scaled) + Fraction(1, 2)) * (1 if scaled >= 0 else -1)
    mean = Decimal(whole).scaleb(-scale, _EXACT)
    if abs(mean) >= Decimal(10) ** (precision - scale):
        raise OutOfRangeError(f"a mean of {kind} is {mean}")
    return mean


def _variance(values: list[Any], *, root: bool) -> float | None:
    numbers = [float(value) for value in values]
    if len(numbers) < 2:
        return None
    if not all(map(math.isfinite, numbers)):
        return math.nan
    exact = [Fraction(number) for number in numbers]
    mean = sum(exact) / len(exact)
    found = float(sum((number - mean) ** 2 for number in exact) / (len(exact) - 1))
    return math.sqrt(found) if root else found


def _bits(name: str, values: list[int]) -> int:
    found = values[0]
    for value in values[1:]:
        match name:
            case "BitAnd":
                found &= value
            case "BitOr":
                found |= value
            case "BitXor":
                found ^= value
    return found


def _first(rows: list[Row], n: int, names: list[str], *, descending: bool) -> tuple[Any, ...]:
    present = [tuple(row[name] for name in names) for row in rows if row[names[0]] is not None]
    return tuple(sorted(present, key=order_key, reverse=descending)[:n])


def _fold(batches: Sequence[Sequence[Row]], order: str, value: str) -> str:
    text = ""
    for batch in batches:
        names = list(dict.fromkeys((order, value)))
        for row in sorted(batch, key=lambda row: order_key(tuple(row[name] for name in names))):
            text += "|-" if row[value] is None else f"|{text_of(row[value])}"
    return text
