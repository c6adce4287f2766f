"""Delta's types in DuckDB's words."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Context, Decimal
from typing import Any

from txn.errors import TableRefusedError

__all__ = [
    "as_given",
    "element_of",
    "field_of",
    "is_of_type",
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


_RANGES = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_CLASSES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "float": (float, int),
    "double": (float, int),
    "string": str,
    "binary": (bytes, bytearray),
}


def is_of_type(value: Any, kind: Any) -> bool:
    """Return whether a Python value is one of a type, so that nothing of it is rounded or cut."""
    if value is None:
        return True
    if not isinstance(kind, str):
        parts = _parts(value, kind)
        return parts is not None and all(is_of_type(*part) for part in parts)
    if kind in _RANGES:
        limit = 1 << _RANGES[kind]
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind == "date":
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if kind in ("timestamp", "timestamp_ntz"):
        is_local = kind == "timestamp_ntz"
        return isinstance(value, dt.datetime) and (value.tzinfo is None) is is_local
    if (decimal := precision_of(kind)) is not None:
        return _has_digits(value, *decimal)
    expected = _CLASSES[kind]
    return isinstance(value, expected) and (kind == "boolean" or not isinstance(value, bool))


def as_given(value: Any, kind: Any) -> Any:
    """A value as DuckDB takes it: a struct as a dict, with its fields in their order."""
    if value is None or isinstance(kind, str):
        return value
    parts = [as_given(*part) for part in _parts(value, kind) or ()]
    if kind["type"] == "struct":
        return dict(zip((field["name"] for field in kind["fields"]), parts, strict=True))
    return parts


def _parts(value: Any, kind: Any) -> list[tuple[Any, Any]] | None:
    """The inner values with their types; None: it is no value of the type."""
    if kind["type"] == "array":
        is_list = isinstance(value, list | tuple)
        return [(one, kind["elementType"]) for one in value] if is_list else None
    if kind["type"] != "struct":
        return None  # a map is no key
    names = [field["name"] for field in kind["fields"]]
    if isinstance(value, dict) and set(value) == set(names):
        value = [value[name] for name in names]
    if not isinstance(value, list | tuple) or len(value) != len(names):
        return None
    return [(one, field["type"]) for one, field in zip(value, kind["fields"], strict=True)]


def _has_digits(value: Any, precision: int, scale: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        return False
    exact = Decimal(value)
    if not exact.is_finite() or not exact:
        return exact.is_finite()
    _, digits, exponent = exact.normalize(Context(prec=200)).as_tuple()
    assert isinstance(exponent, int)
    return exponent >= -scale and len(digits) + exponent <= precision - scale
