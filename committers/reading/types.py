"""Delta's types in the words of DuckDB and other engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from txn.errors import TableRefusedError

__all__ = [
    "DUCKDB_TYPES",
    "TypeWords",
    "element_of",
    "field_of",
    "has_instant",
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


class TypeWords(NamedTuple):
    """How an engine writes types; a template has {} for each type within. By default as DuckDB."""

    engine: str = "DuckDB"
    names: Mapping[str, str] = {}
    """Type in the JSON of a schema -> its name, where DuckDB has another one."""
    array: str = "{}[]"
    map: str = "MAP({}, {})"
    struct: str = "STRUCT({})"
    quote: Callable[[str], str] = quoted


DUCKDB_TYPES = TypeWords()


def type_text(kind: Any, column: str, words: TypeWords = DUCKDB_TYPES) -> str:
    """A type of Delta's schema, as an engine writes it.

    Args:
        kind: as in the JSON of a schema.
        column: its column, for the error.
        words: those of the engine.

    Raises:
        TableRefusedError: the engine has no such type.
    """
    if isinstance(kind, str):
        if (found := words.names.get(kind, _PLAIN.get(kind))) is not None:
            return found
        if (match := _DECIMAL.fullmatch(kind)) is not None:
            return f"DECIMAL({match[1]},{match[2]})"
    elif kind["type"] == "array":
        return words.array.format(type_text(kind["elementType"], column, words))
    elif kind["type"] == "map":
        parts = (type_text(kind[part], column, words) for part in ("keyType", "valueType"))
        return words.map.format(*parts)
    elif kind["type"] == "struct":
        kinds = ((f["name"], type_text(f["type"], column, words)) for f in kind["fields"])
        fields = (f"{words.quote(name)} {text}" for name, text in kinds)
        return words.struct.format(", ".join(fields))
    raise TableRefusedError(
        f"Column '{column}' has the type {kind}, which {words.engine} does not have. Read the "
        "table with Spark, or leave the column out: columns=[...].",
        number="TXN-310",
    )


def has_instant(kind: Any) -> bool:
    """Return whether a type is a timestamp, or has one within."""
    if isinstance(kind, str):
        return kind == "timestamp"
    inner = [kind.get(part, "") for part in ("elementType", "keyType", "valueType")]
    return any(map(has_instant, [*inner, *(field["type"] for field in kind.get("fields", ()))]))


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
