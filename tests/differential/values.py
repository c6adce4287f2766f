"""Types and values of random programs: drawn, written down as JSON, and compared. No Spark.

A type is Spark's DDL for it. A value is plain Python: int, float, bool, str, bytes, `Decimal`, a
tuple for an array or struct; a date is its days and a timestamp its microseconds since 1970, so
that no time zone has a say.
"""

from __future__ import annotations

import math
import random
import re
from decimal import Context, Decimal
from typing import Any

__all__ = [
    "BOUNDS",
    "EXACT",
    "decode",
    "draw_type",
    "draw_value",
    "element_of",
    "encode",
    "fields_of",
    "group_key",
    "is_decimal",
    "is_integer",
    "order_key",
    "precision_of",
    "text_of",
]

BOUNDS = {
    "tinyint": 2**7,
    "smallint": 2**15,
    "int": 2**31,
    "bigint": 2**63,
}
EXACT = Context(prec=200)
_FIRST_DAY, _LAST_DAY = -719162, 2932896
_FIRST_MICRO, _LAST_MICRO = -62135596800000000, 253402300799999999
_TEXTS = (
    "",
    " ",
    "a",
    "A",
    "b",
    "null",
    "é",
    "e\u0301",
    "日本",
    "😀",
    "\U0010fffd",
    "\u0000",
    "\ufeff",
    "tab\there",
    "x" * 40,
    "'",
    '"',
    "\\",
)
_FLOATS = ("nan", "inf", "-inf", "-0.0", "0.0", "0.125", "-2.5", "3.0", "1.0", "1024.75")


def is_integer(kind: str) -> bool:
    """Whether it is one of SQL's integers."""
    return kind in BOUNDS


def is_decimal(kind: str) -> bool:
    """Whether it is a decimal."""
    return kind.startswith("decimal(")


def precision_of(kind: str) -> tuple[int, int]:
    """Precision and scale of a decimal."""
    precision, scale = re.findall(r"\d+", kind)
    return int(precision), int(scale)


def element_of(kind: str) -> str | None:
    """The type of an array's elements; None: no array."""
    return kind[6:-1] if kind.startswith("array<") else None


def fields_of(kind: str) -> dict[str, str] | None:
    """The fields of a struct; None: no struct."""
    if not kind.startswith("struct<"):
        return None
    fields, depth, start = {}, 0, 0
    inner = kind[7:-1] + ","
    for place, letter in enumerate(inner):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0 and ":" in inner[start:place]:  # else it is in a name
            name, _, value = inner[start:place].partition(":")
            fields[name], start = value, place + 1
    return fields


def draw_type(draw: random.Random, *, nested: bool = True) -> str:
    """A type that a table can hold."""
    if nested and draw.random() < 0.08:
        inner = draw_type(draw, nested=False)
        if draw.random() < 0.5:
            return f"array<{inner}>"
        return f"struct<x:{inner},y:{draw_type(draw, nested=False)}>"
    if draw.random() < 0.25:
        precision = draw.choice((1, 5, 9, 10, 18, 19, 28, 37, 38))
        return f"decimal({precision},{draw.randint(0, precision)})"
    simple = "bigint int string string double float boolean date timestamp timestamp_ntz binary"
    return draw.choice((*simple.split(), "bigint", "smallint", "tinyint"))


def draw_value(draw: random.Random, kind: str, few: bool) -> Any:
    """A value, often at a limit of its type.

    Args:
        few: out of so few that keys meet.
    """
    if draw.random() < 0.12:
        return None
    if (element := element_of(kind)) is not None:
        return tuple(draw_value(draw, element, few) for _ in range(draw.randint(0, 2)))
    if (fields := fields_of(kind)) is not None:
        return tuple(draw_value(draw, field, few) for field in fields.values())
    if is_decimal(kind):
        return _draw_decimal(draw, *precision_of(kind), few)
    if kind in BOUNDS:
        bound = BOUNDS[kind]
        if few or draw.random() < 0.8:
            return draw.randint(-2, 3) if few else draw.randint(-100, 100)
        return draw.choice((bound - 1, -bound, bound // 2 - 1))
    if kind == "boolean":
        return draw.random() < 0.5
    if kind in ("float", "double"):
        if few:
            return float(draw.choice(_FLOATS))
        return float(draw.choice(_FLOATS)) if draw.random() < 0.2 else draw.randint(-80, 80) / 8
    if kind == "string":
        return draw.choice(_TEXTS[:5] if few else _TEXTS)
    if kind == "binary":
        return draw.choice((b"", b"\x00", b"\xff\xfe", b"a")[: 3 if few else 4])
    return _draw_time(draw, kind, few)


def _draw_decimal(draw: random.Random, precision: int, scale: int, few: bool) -> Decimal:
    digits = 1 if few else draw.choice((1, 1, 2, max(1, precision // 2), max(1, precision - 1)))
    if not few and draw.random() < 0.05:
        digits = precision
    number = draw.randint(0, 10 ** min(digits, precision) - 1)
    return Decimal(draw.choice((number, -number))).scaleb(-scale)


def _draw_time(draw: random.Random, kind: str, few: bool) -> int:
    if kind == "date":
        if few or draw.random() < 0.7:
            return 19000 + draw.randint(0, 3)
        return draw.choice((_FIRST_DAY, _LAST_DAY, -141428, -141427, 0, -1))
    if few or draw.random() < 0.7:
        return 1_700_000_000_000_000 + draw.randint(0, 4) * 1_800_000_000
    limits = (_FIRST_MICRO, _LAST_MICRO, -1, 1, -12219292800000001, -9223372036854775)
    return draw.choice(limits)


def encode(value: Any) -> Any:
    """As JSON; the type tells how to read it back."""
    if isinstance(value, tuple):
        return [encode(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return repr(value) if isinstance(value, float) else value


def decode(value: Any, kind: str) -> Any:
    """What `encode` made of a value of this type."""
    if value is None:
        return None
    if (element := element_of(kind)) is not None:
        return tuple(decode(one, element) for one in value)
    if (fields := fields_of(kind)) is not None:
        pairs = zip(value, fields.values(), strict=True)
        return tuple(decode(one, field) for one, field in pairs)
    if kind == "binary":
        return bytes.fromhex(value)
    if is_decimal(kind):
        return Decimal(value)
    return float(value) if kind in ("float", "double") else value


def text_of(value: Any) -> str:
    """A simple value as SQL writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def group_key(value: Any) -> Any:
    """Equal for values that SQL groups together: NaN is one value, and so are both zeros."""
    if isinstance(value, tuple):
        return tuple(group_key(one) for one in value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else ("float", value + 0.0)
    if isinstance(value, bool):
        return ("boolean", value)
    return value


def order_key(value: Any) -> Any:
    """Sorts as SQL does, ascending: NULL first, NaN as the greatest number."""
    if value is None:
        return (0,)
    if isinstance(value, tuple):
        return (1, tuple(order_key(one) for one in value))
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)
