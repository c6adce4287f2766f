"""Delta's types in DuckDB's words."""

from __future__ import annotations

import re
from typing import Any

from txn.errors import TableRefusedError

__all__ = [
    "element_of",
    "field_of",
    "mean_type",
    "precision_of",
    "quoted",
    "type_text",
]

_PLAIN = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
"""Digits of the widest decimal."""


def quoted(name: str) -> str:
    """A name in double quotes."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def type_text(kind: Any, column: str) -> str:
    """A type of Delta's schema, as DuckDB writes it.

    Args:
        kind: as in the JSON of a schema.
        column: its column, for the error.

    Raises:
        TableRefusedError: DuckDB has no such type.
    """
    if isinstance(kind, str):
        if (found := _PLAIN.get(kind)) is not None:
            return found
        if (match := _DECIMAL.fullmatch(kind)) is not None:
            return f"DECIMAL({match[1]},{match[2]})"
    elif kind["type"] == "array":
        return f"{type_text(kind['elementType'], column)}[]"
    elif kind["type"] == "map":
        key, value = (type_text(kind[part], column) for part in ("keyType", "valueType"))
        return f"MAP({key}, {value})"
    elif kind["type"] == "struct":
        fields = (f"{quoted(f['name'])} {type_text(f['type'], column)}" for f in kind["fields"])
        return f"STRUCT({', '.join(fields)})"
    raise TableRefusedError(
        f"Column '{column}' has the type {kind}, which DuckDB does not have. Read the table with "
        "Spark, or leave the column out: columns=[...].",
        number="TXN-310",
    )


def precision_of(kind: Any) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for other types."""
    match = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    return None if match is None else (int(match[1]), int(match[2]))


def field_of(kind: Any, name: str) -> Any:
    """The type of a struct's field."""
    return next(field["type"] for field in kind["fields"] if field["name"] == name)


def element_of(kind: Any) -> Any:
    """The type of an array's elements."""
    return kind["elementType"]


def mean_type(total: Any) -> str:
    """The type of `sum / count` in Spark's SQL, the count being a bigint.

    Source: Spark's `DecimalPrecision`, with `allowPrecisionLoss`.

    Args:
        total: the type of the sum.
    """
    decimal = precision_of(total)
    if decimal is None:
        return "double"
    precision, scale = decimal
    wide = max(6, scale + 21)
    whole = precision - scale + wide
    if whole <= _MOST_DIGITS:
        return f"decimal({whole},{wide})"
    return f"decimal({_MOST_DIGITS},{max(_MOST_DIGITS - (whole - wide), min(wide, 6))})"
