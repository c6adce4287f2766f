"""The parameters of built-in aggregates: their text in a table, and their checks."""

from __future__ import annotations

import re

from txn.interfaces import Aggregate
from txn.spark.names import quoted

__all__ = ["as_text", "as_values", "require_number", "require_text"]

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_VALUE = re.compile(rf"`(?:[^`]|``)+`|[0-9]+|{_PLAIN.pattern}", re.ASCII)


def as_text(parameters: tuple[str | int, ...]) -> str:
    """Parameters as a table records them: `delay`, `user,12`, or `*` for none.

    A single text is written as it is, so that `Sum(delay)` keeps its old form. Among several
    parameters, or if it is ambiguous, a text that is not a plain name is quoted.
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
    while match := _VALUE.match(text, position):
        value = match.group()
        if value.startswith("`"):
            values.append(value[1:-1].replace("``", "`"))
        else:
            values.append(int(value) if value.isdigit() else value)
        if match.end() == len(text):
            return tuple(values)
        if text[match.end()] != ",":
            return None
        position = match.end() + 1
    return None


def require_text(aggregate: Aggregate, text: object, what: str = "the name of a column") -> str:
    """Return `text` if it is a string that is not empty.

    Raises:
        ValueError: it is empty or not a string.
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"{type(aggregate).__name__} needs {what}, not {text!r}")
    return text


def require_number(aggregate: Aggregate, name: str, value: object, low: int, high: int) -> int:
    """Return `value` if it is a whole number within [low, high].

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(
            f"{name} of {type(aggregate).__name__} must be a whole number from {low} to {high}, "
            f"not {value!r}"
        )
    return value
