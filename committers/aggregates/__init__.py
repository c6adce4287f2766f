"""Aggregations that a state table can keep as running values, built-in and the user's own.

    class Product(Aggregate):
        def __init__(self, column): self.column = column
        def partial(self): return sf.product(self.column)
        def combine(self, stored, partial): return stored * partial
        def zero(self): return sf.lit(1.0)

Everything is a Spark SQL expression; see `txn.interfaces.Aggregate` for the contract, and
docs/aggregates.md for a table of all of them. A table finds a built-in one by its `identity`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from committers.aggregates import collected, fold, numbers
from committers.aggregates.base import Builtin
from committers.aggregates.collected import CollectSet, CountDistinct, First, FirstN, Last, LastN
from committers.aggregates.fold import Fold
from committers.aggregates.numbers import (
    Avg,
    BitAnd,
    BitOr,
    BitXor,
    BoolAnd,
    BoolOr,
    Count,
    Max,
    Min,
    StdDev,
    Sum,
    Variance,
)
from committers.aggregates.parameters import as_text, as_values
from txn.interfaces import Aggregate

__all__ = [
    "BUILTIN",
    "Aggregate",
    "Avg",
    "BitAnd",
    "BitOr",
    "BitXor",
    "BoolAnd",
    "BoolOr",
    "CollectSet",
    "Count",
    "CountDistinct",
    "First",
    "FirstN",
    "Fold",
    "Last",
    "LastN",
    "Max",
    "Min",
    "StdDev",
    "Sum",
    "Variance",
    "by_identity",
    "identity",
]

BUILTIN: dict[str, type[Builtin]] = {
    name: getattr(module, name) for module in (collected, fold, numbers) for name in module.__all__
}
"""Name -> class of every built-in aggregate."""


def identity(aggregate: Aggregate) -> str:
    """An aggregate's identity in a table: `Sum(delay)`, `CountDistinct(user,12)`.

    All parameters of a built-in one; class and columns of any other, with its module if its class
    has the name of a built-in one.
    """
    kind = type(aggregate)
    own = aggregate.parameters if isinstance(aggregate, Builtin) else aggregate.columns
    taken = BUILTIN.get(kind.__name__, kind) is not kind
    name = f"{kind.__module__}.{kind.__name__}" if taken else kind.__name__
    return f"{name}({as_text(own)})"


def by_identity(text: str) -> Aggregate | None:
    """The built-in aggregate whose `identity` is `text`; None if none has it."""
    name, opening, rest = text.partition("(")
    make: Callable[..., Any] | None = BUILTIN.get(name)
    if make is None or not opening or not rest.endswith(")"):
        return None
    written = rest[:-1]
    # Parse the text in every possible way, and accept the aggregate whose identity is the text.
    for parameters in ((), (written,), as_values(written)):
        if parameters is None:
            continue
        try:
            aggregate: Builtin = make(*parameters)
        except (TypeError, ValueError):
            continue
        if identity(aggregate) == text:
            return aggregate
    return None
