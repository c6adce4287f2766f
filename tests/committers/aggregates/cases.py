"""Every built-in aggregate of one column: the types that it takes, and its value by other means.

One entry of `OF_A_COLUMN` is all that tests need of such an aggregate. `test_types` takes it
through both layouts and every type, `test_algebra`, `test_merge` and `test_groups` through random
batches, and the differential machine draws it. Aggregates of whole rows (`OF_ROWS`) have their own
lines in each of them.

Types are Spark's DDL; values are those of `tests.differential.values`. No Spark, except in `own`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as sf

from committers import aggregates as agg
from committers.aggregates import Aggregate
from tests.differential.values import (
    BOUNDS,
    EXACT,
    group_key,
    is_decimal,
    is_integer,
    order_key,
    precision_of,
)

__all__ = ["OF_A_COLUMN", "OF_ROWS", "Case", "OutOfRangeError", "make_aggregate"]

Value = Callable[..., Any]
"""(values that are not NULL, their type, further arguments) -> what readers see."""


class OutOfRangeError(Exception):
    """A total leaves the range of its type."""


@dataclass(frozen=True)
class Case:
    """What one aggregate is, said without it.

    Args:
        takes: whether it takes a column of this type.
        result: type of the column -> type that readers see.
        value: its value in plain Python.
        own: column -> Spark's own aggregate of all rows.
        samples: columns of `test_algebra`.
        arguments: further arguments of the constructor, of which `value` and `own` take the same;
            tests use the first ones, the differential machine draws.
        weight: how often the differential machine draws it; 0: its values are not exact.
    """

    takes: Callable[[str], bool]
    result: Callable[[str], str]
    value: Value
    own: Callable[..., Column]
    samples: Sequence[str]
    arguments: Sequence[tuple[int, ...]] = ((),)
    weight: int = 1


def make_aggregate(name: str, column: str) -> Aggregate:
    """The aggregate of a column."""
    aggregate = getattr(agg, name)(column, *OF_A_COLUMN[name].arguments[0])
    assert isinstance(aggregate, Aggregate)
    return aggregate


# --- types -----------------------------------------------------------------------------------


def is_number(kind: str) -> bool:
    """Whether sums can be made of it."""
    return is_integer(kind) or is_decimal(kind) or kind in ("float", "double")


def is_boolean(kind: str) -> bool:
    """Whether it is true or false."""
    return kind == "boolean"


def is_sketched(kind: str) -> bool:
    """Whether Spark makes a sketch of it."""
    return kind in ("int", "bigint", "string", "binary")


def anything(kind: str) -> bool:
    """Any type."""
    return True


def same_type(kind: str) -> str:
    """The type of the column."""
    return kind


def sum_type(kind: str) -> str:
    """The type of a sum."""
    if is_integer(kind):
        return "bigint"
    if is_decimal(kind):
        precision, scale = precision_of(kind)
        return f"decimal({min(38, precision + 10)},{scale})"
    return "double"


def mean_type(kind: str) -> str:
    """SQL's `sum / count`, the count being a decimal(20,0)."""
    if not is_decimal(kind):
        return "double"
    precision, scale = precision_of(sum_type(kind))
    wide = max(6, scale + 20 + 1)
    whole = precision - scale + wide
    if whole <= 38:
        return f"decimal({whole},{wide})"
    return f"decimal(38,{max(38 - (whole - wide), min(wide, 6))})"


# --- values ----------------------------------------------------------------------------------


def null_if_empty(value: Value) -> Value:
    """NULL for no values."""
    return lambda values, *arguments: value(values, *arguments) if values else None


def reduced(function: Callable[[Any, Any], Any]) -> Value:
    """A function of two over all values; NULL for none."""
    return null_if_empty(lambda values, _: reduce(function, values))


def total(values: Sequence[Any], kind: str) -> Any:
    """The exact sum; of floats as close as Python has it.

    Raises:
        OutOfRangeError: it leaves the range of its type.
    """
    if is_integer(kind):
        exact = sum(values)
        if not -BOUNDS["bigint"] <= exact < BOUNDS["bigint"]:
            raise OutOfRangeError(f"a sum of {kind} is {exact}")
        return exact
    if is_decimal(kind):
        wide = reduce(EXACT.add, values, Decimal(0))
        precision, scale = precision_of(sum_type(kind))
        if abs(wide) >= Decimal(10) ** (precision - scale):
            raise OutOfRangeError(f"a sum of {kind} is {wide}")
        return wide
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def mean(values: Sequence[Any], kind: str) -> Any:
    """The mean, of decimals rounded half up to the digits of its type."""
    exact = total(values, kind)
    if not is_decimal(kind):
        return float(exact) / len(values)
    precision, scale = precision_of(mean_type(kind))
    scaled = Fraction(exact) / len(values) * 10**scale
    whole = int(abs(scaled) + Fraction(1, 2)) * (1 if scaled >= 0 else -1)
    quotient = Decimal(whole).scaleb(-scale, EXACT)
    if abs(quotient) >= Decimal(10) ** (precision - scale):
        raise OutOfRangeError(f"a mean of {kind} is {quotient}")
    return quotient


def variance(values: Sequence[Any], kind: str) -> float | None:
    """The sample variance of the values as doubles."""
    numbers = [float(value) for value in values]
    if len(numbers) < 2:
        return None
    if not all(map(math.isfinite, numbers)):
        return math.nan
    exact = [Fraction(number) for number in numbers]
    middle = sum(exact) / len(exact)
    return float(sum((number - middle) ** 2 for number in exact) / (len(exact) - 1))


def deviation(values: Sequence[Any], kind: str) -> float | None:
    """The root of the variance."""
    squared = variance(values, kind)
    return None if squared is None else math.sqrt(squared)


def smallest(values: Sequence[Any], kind: str, limit: int) -> tuple[Any, ...]:
    """The smallest distinct values."""
    distinct = {group_key(value): value for value in values}
    return tuple(sorted(distinct.values(), key=order_key)[:limit])


def distinct_but_empty(values: Sequence[Any], kind: str) -> int:
    """How many distinct values there are; empty texts do not count."""
    return len({group_key(value) for value in values} - {"", b""})


# --- the aggregates --------------------------------------------------------------------------

OF_A_COLUMN: dict[str, Case] = {
    # name: takes, result, value, Spark's own, samples
    "Count": Case(anything, lambda _: "bigint", lambda values, _: len(values), sf.count, ("i",)),
    "Min": Case(
        anything,
        same_type,
        null_if_empty(lambda values, _: min(values, key=order_key)),
        sf.min,
        ("d", "s"),
    ),
    "Max": Case(
        anything,
        same_type,
        null_if_empty(lambda values, _: max(values, key=order_key)),
        sf.max,
        ("d",),
    ),
    "CollectSet": Case(
        anything,
        lambda kind: f"array<{kind}>",
        smallest,
        lambda column, limit: sf.slice(sf.sort_array(sf.collect_set(column)), 1, limit),
        ("i",),
        arguments=((3,), (1,), (9,)),
    ),
    "Sum": Case(is_number, sum_type, null_if_empty(total), sf.sum, ("i", "d", "m"), weight=4),
    "Avg": Case(is_number, mean_type, null_if_empty(mean), sf.avg, ("i", "d", "m"), weight=2),
    "Variance": Case(is_number, lambda _: "double", variance, sf.var_samp, ("l",), weight=0),
    "StdDev": Case(is_number, lambda _: "double", deviation, sf.stddev_samp, ("i",), weight=0),
    "BitAnd": Case(is_integer, same_type, reduced(lambda a, b: a & b), sf.bit_and, ("i",)),
    "BitOr": Case(is_integer, same_type, reduced(lambda a, b: a | b), sf.bit_or, ("t",)),
    "BitXor": Case(is_integer, same_type, reduced(lambda a, b: a ^ b), sf.bit_xor, ("l",)),
    "BoolAnd": Case(is_boolean, same_type, reduced(lambda a, b: a and b), sf.bool_and, ("b",)),
    "BoolOr": Case(is_boolean, same_type, reduced(lambda a, b: a or b), sf.bool_or, ("b",)),
    "CountDistinct": Case(
        is_sketched,
        lambda _: "bigint",
        distinct_but_empty,
        lambda column: sf.expr(f"count(DISTINCT nullif({column}, ''))"),
        ("s",),
    ),
}
OF_ROWS = {"First", "FirstN", "Fold", "Last", "LastN"}
"""Aggregates for which a row counts although a value in it is NULL."""
