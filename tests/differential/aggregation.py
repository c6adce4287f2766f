"""What each aggregate is of a key's rows, in plain Python: all rows at once, whatever the txids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.committers.aggregates.cases import OF_A_COLUMN
from tests.differential.columns import Columns
from tests.differential.values import order_key, text_of

__all__ = ["aggregated"]

Row = dict[str, Any]


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
    name, column, *arguments = spec
    values = [row[column] for row in rows if row[column] is not None]
    return OF_A_COLUMN[name].value(values, columns[column], *arguments)


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
