"""What the built-in aggregates have in common: parameters and their text, columns, NULL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from txn.interfaces import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = [
    "Builtin",
    "OfColumn",
    "as_text",
    "as_values",
    "either",
    "exact_sum",
    "if_any",
    "input_column",
    "quoted",
    "require_number",
    "require_text",
]

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_VALUE = re.compile(rf"`(?:[^`]|``)+`|[0-9]+|{_PLAIN.pattern}", re.ASCII)


def quoted(name: str) -> str:
    """A column name as Spark takes it literally, dots included."""
    return "`" + name.replace("`", "``") + "`"


def input_column(name: str) -> Column:
    """The input column of this name."""
    from pyspark.sql import functions as sf

    return sf.col(quoted(name))


def either(combined: Column, stored: Column, partial: Column) -> Column:
    """`combined`, and where that is NULL the one of both that is not."""
    from pyspark.sql import functions as sf

    return sf.coalesce(combined, stored, partial)


def exact_sum(values: Column, kind: DataType) -> Column:
    """Sum of those that are not NULL, of the type `kind`; an error where it leaves the range.

    Whatever `spark.sql.ansi.enabled` says: where totals are read, the session is the user's.
    """
    from pyspark.sql import functions as sf

    total = sf.try_sum(values).try_cast(kind)
    message = f"ARITHMETIC_OVERFLOW: a running total leaves the range of {kind.simpleString()}"
    overflow = total.isNull() & (sf.count(values) > 0)
    return sf.when(overflow, sf.raise_error(sf.lit(message))).otherwise(total)


def if_any(merged: Column, partial: Column) -> Column:
    """`merged`, an aggregate over partials; NULL when every one of them is NULL."""
    from pyspark.sql import functions as sf

    return sf.when(sf.count(partial) > 0, merged)


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
    """What `as_text` wrote with commas and quotes; None for any other text."""
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


class Builtin(Aggregate):
    """An aggregate of this package: a table can name it, and be read by that name alone."""

    @property
    def parameters(self) -> tuple[str | int, ...]:
        """What the constructor takes, in its order: all that tells it from others of its class."""
        return self.columns

    def __repr__(self) -> str:
        return f"{type(self).__name__}({as_text(self.parameters)})"

    def zero(self) -> Column:
        """NULL, as SQL has it for no rows."""
        from pyspark.sql import functions as sf

        return sf.lit(None)


class OfColumn(Builtin):
    """An aggregate of one column.

    Raises:
        ValueError: the column has no name.
    """

    def __init__(self, column: str) -> None:
        self.column: str = require_text(self, column)
