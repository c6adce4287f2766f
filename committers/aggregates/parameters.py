"""The parameters of built-in aggregates: their text in a table, and what they may be."""

from __future__ import annotations

import re

from txn.interfaces import Aggregate
from txn.spark.names import quoted

__all__ = ["as_text", "as_values", "require_number", "require_text"]

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_VALUE = re.compile(rf"`(?:[^`]|``)+`|[0-9]+|{_PLAIN.pattern}", re.ASCII)


def as_text(parameters: tuple[str | int, ...]) -> str:
    """Parameters as a table remembers them: `delay`, `user,12`, or `*` for none.

    A text alone is written as it is, so that `Sum(delay)` stays what it always was. Among several,
    and where it could be taken for something else, a text that is no plain name is quoted.
    """
    if not parameters:
        return "*"
    alone = parameters[0] if len(parameters) == 1 else None
    if isinstance(alone, str) and alone != "*" and not alone.startswith("`"):
        return alone
    return ",".join(
        str(value) if isinstance(value, int) or _PLAIN.fullmatch(value) else quoted(value)
        for value in parameters
    )


def as_values(text: str) -> tuple[str | int, ...] | None:
    """Parse a text of `as_text`; None for any other text."""
    values: list[str | int] = []
    position = 0
    while found := _VALUE.match(text, position):
        value = found.group()
        if value.startswith("`"):
            values.append(value[1:-1].replace("``", "`"))
        else:
            values.append(int(value) if value.isdigit() else value)
        if found.end() == len(text):
            return tuple(values)
        if text[found.end()] != ",":
            return None
        position = found.end() + 1
    return None


def require_text(aggregate: Aggregate, text: object, what: str = "the name of a column") -> str:
    """`text`, if it is one and not empty.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"{type(aggregate).__name__} needs {what}, not {text!r}")
    return text


def require_number(aggregate: Aggregate, name: str, value: object, low: int, high: int) -> int:
    """`value`, if it is within [low, high].

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(
            f"{name} of {type(aggregate).__name__} must be a whole number from {low} to {high}, "
            f"not {value!r}"
        )
    return value
