"""Values written as text, read under a type of SQL. Plain Python, and nothing of the product."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext

from tests.differential.sources.records import ANY, BAD, Field
from tests.differential.values import BOUNDS, is_decimal, precision_of

__all__ = ["decimal_field", "float_field", "integer_field", "read_text", "read_time"]

_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_DAY = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})\Z")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]{1,9})?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?\Z"
)
_EPOCH = dt.date(1970, 1, 1)
_NOT_NUMBERS = {
    "NaN": math.nan,
    "Inf": math.inf,
    "-Inf": -math.inf,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


def read_text(kind: str, text: str) -> Field:
    """The field of a CSV file whose text is this."""
    if kind == "string":
        return Field((text,))
    if kind in BOUNDS:
        if _INTEGER.match(text):
            return integer_field(kind, int(text))
        return BAD if text.isascii() else Field((ANY,), True)
    if is_decimal(kind):
        return decimal_field(kind, text)
    if kind in ("double", "float"):
        return _float_text(kind, text)
    if kind == "boolean":
        lower = text.lower()
        return Field((lower == "true",)) if lower in ("true", "false") else BAD
    return read_time(kind, text)


def integer_field(kind: str, number: int) -> Field:
    """An integer, if the type has it."""
    return Field((number,)) if -BOUNDS[kind] <= number < BOUNDS[kind] else BAD


def decimal_field(kind: str, text: str) -> Field:
    """A decimal, rounded to its scale as SQL rounds."""
    if not _FLOAT.match(text):
        return BAD if text.strip() == text and "," not in text else Field((ANY,), True)
    precision, scale = precision_of(kind)
    with localcontext() as context:
        context.prec = 2000
        context.Emax, context.Emin = 999999, -999999
        try:
            number = Decimal(text)
            exact = number.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
        except InvalidOperation:
            return BAD
        if abs(exact) >= Decimal(10) ** (precision - scale):
            return BAD
        return Field((exact,), exact != number)


def _float_text(kind: str, text: str) -> Field:
    if text in _NOT_NUMBERS:
        return Field((_NOT_NUMBERS[text],))
    if text.lower() in ("nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity"):
        return Field((float(text),), True)
    if _FLOAT.match(text):
        return float_field(kind, text)
    # Java reads more than this: blanks around, `1d`, hexadecimal digits.
    return Field((ANY,), True) if re.search("[0-9]", text) else BAD


def float_field(kind: str, text: str) -> Field:
    """A number of floating point; beyond the limits it is infinite, or bad."""
    number = float(text)
    if kind == "double":
        return Field((number,), math.isinf(number))
    return _single(number)


def _single(number: float) -> Field:
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return Field((math.copysign(math.inf, number),), True)
    return Field((rounded,), math.isinf(rounded))


def read_time(kind: str, text: str) -> Field:
    """Days, or microseconds, since 1970; what is neither clear nor clearly wrong may be either."""
    if not re.search("[0-9]", text):
        return BAD
    if kind == "date" and (day := _DAY.match(text)):
        return _day(day.groups())
    if kind in ("timestamp", "timestamp_ntz") and (moment := _TIME.match(text)):
        return _moment(kind, moment.groups())
    return Field((ANY,), True)


def _day(parts: tuple[str, ...]) -> Field:
    try:
        return Field(((dt.date(*map(int, parts)) - _EPOCH).days,))
    except ValueError:
        return BAD


def _moment(kind: str, parts: tuple[str | None, ...]) -> Field:
    day, hour, minute, second, fraction, zone = parts
    assert day
    assert hour
    assert minute
    assert second
    field = _day(tuple(day.split("-")))
    if field is BAD or int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return BAD
    digits = (fraction or ".")[1:]
    seconds = field.values[0] * 86400 + int(hour) * 3600 + int(minute) * 60 + int(second)
    unclear = any(map(int, digits[6:]))
    if zone and zone != "Z":
        away = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        unclear |= away > 18 * 3600 or kind == "timestamp_ntz"
        seconds -= away if zone[0] == "+" else -away
    micros = seconds * 1_000_000 + int(digits[:6].ljust(6, "0"))
    if zone and kind == "timestamp_ntz":
        return Field((ANY,), True)
    return Field((micros,), unclear)
