"""Python values of keys: whether each is exactly a value of its column's type."""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal
from typing import Any

from committers.reading.types import precision_of

__all__ = ["as_given", "is_of_type"]

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
