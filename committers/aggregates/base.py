"""The base of the built-in aggregates: parameters and their text, columns, NULL."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from txn.errors import TopologyError
from txn.interfaces import Aggregate
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, DecimalType

__all__ = [
    "Builtin",
    "OfColumn",
    "as_text",
    "as_values",
    "either",
    "exact_add",
    "exact_sum",
    "if_any",
    "input_column",
    "input_value",
    "kept_in",
    "or_overflow",
    "overflows_of",
    "quotient_checked",
    "require_number",
    "require_numeric",
    "require_text",
    "wants_exact_check",
    "whole_sum",
]

_OVERFLOW = "ARITHMETIC_OVERFLOW: {} leaves the range of its type."
"""The error conditions of our own expressions."""
_OVERFLOWN = re.compile(r"ARITHMETIC_OVERFLOW: (.+?) leaves the range of its type\.", re.DOTALL)

_MOST_DIGITS = 38
_SAFE_DIGITS = 28
_QUOTIENT_DIGITS = 32
"""Digits before the point in SQL's quotient of decimals: six of 38 stay behind it."""
_HALF = 32
_LOW_HALF = 2**_HALF - 1
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_VALUE = re.compile(rf"`(?:[^`]|``)+`|[0-9]+|{_PLAIN.pattern}", re.ASCII)


def input_column(name: str) -> Column:
    """The input column of this name."""
    from pyspark.sql import functions as sf

    return sf.col(quoted(name))


def either(combined: Column, stored: Column, partial: Column) -> Column:
    """`combined`, and where that is NULL the one of both that is not."""
    from pyspark.sql import functions as sf

    return sf.coalesce(combined, stored, partial)


def input_value(name: str, kinds: Mapping[str, DataType]) -> Column:
    """The input column of this name, with 0.0 for -0.0, within structs and arrays, too.

    SQL takes both for one value, so which of them is kept would depend on the batches.
    """
    column, kind = input_column(name), kinds.get(name)
    return column if kind is None or not _has_floats(kind) else _without_minus_zero(column, kind)


def _is_float(kind: DataType) -> bool:
    from pyspark.sql.types import DoubleType, FloatType

    return isinstance(kind, DoubleType | FloatType)


def _has_floats(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return _has_floats(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind)
    return _is_float(kind)


def _without_minus_zero(value: Column, kind: DataType) -> Column:
    """`value`, of the same type, with 0.0 for every -0.0 in it; what is NULL stays NULL."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType, StructType

    if not _has_floats(kind):
        return value
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return sf.transform(value, lambda one: _without_minus_zero(one, element))
    if isinstance(kind, StructType):
        fields = (
            _without_minus_zero(value.getField(one.name), one.dataType).alias(one.name)
            for one in kind
        )
        return sf.when(value.isNotNull(), sf.struct(*fields))
    return value + sf.lit(0.0).cast(kind)


def or_overflow(total: Column, counted: Column, what: str) -> Column:
    """`total`; an error where it is NULL although `counted` is true."""
    from pyspark.sql import functions as sf

    error = sf.raise_error(sf.lit(_OVERFLOW.format(what)))
    return sf.coalesce(total, sf.when(counted, error))


@contextmanager
def overflows_of(table: str) -> Iterator[None]:
    """Name the table and the aggregate when a job inside fails because a total is out of range.

    The total may belong to another table whose new values feed this one: its aggregate says so.

    Args:
        table: into which the job writes.

    Raises:
        OverflowError: no error of the product's own, so that a group of txids goes on one by one,
            and stops at the one whose rows are too much.
    """
    try:
        yield
    except Exception as error:
        found = _OVERFLOWN.search(str(error))
        if found is None:
            raise
        own = found[1].endswith(_of_table(table))
        where = "" if own else f", when the rows for table {table} are computed"
        raise OverflowError(
            f"{found[1]} leaves the range of its type{where}. Nothing of this txid was stored, "
            "and every table is as it was. Filter out the rows with too large values in a "
            "transform; or start over with a new table and cast the column to a wider type "
            "(decimal(38,s), or fewer decimal places if it has 38 digits already; a mean of "
            "decimals has 32 digits before the point at most)."
        ) from error


def _of_table(table: str) -> str:
    return f" of table {table}"


def wants_exact_check(kind: DataType | None) -> bool:
    """Return whether one batch can bring a sum of this type out of the range of the sum's type.

    Spark gives the sum of a narrower decimal ten digits more: it takes 10,000,000,000 rows.
    """
    from pyspark.sql.types import DecimalType

    return not isinstance(kind, DecimalType) or kind.precision > _SAFE_DIGITS


def exact_sum(values: Column, kind: DataType, what: str) -> Column:
    """Sum of those that are not NULL, of the type `kind`; an error where it leaves the range.

    Whatever the session's settings say: where totals are read, the session is the user's. Of whole
    numbers only the total has to be in range, and not what the sum is on the way to it.

    Args:
        what: whose sum it is, for the error.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import LongType

    total = whole_sum(values) if isinstance(kind, LongType) else sf.try_sum(values).try_cast(kind)
    return or_overflow(total, sf.count(values) > 0, what)


def whole_sum(values: Column) -> Column:
    """Sum of bigints; NULL where the total leaves the range, in whatever order they are added.

    Both halves of the bits are added up apart: for less than 2^31 values neither sum can overflow.
    Grouping 20 million rows that way takes 3.2 s of a core, `try_sum` 2.9, sums of decimals 5.6.
    """
    from pyspark.sql import functions as sf

    high = sf.try_sum(sf.shiftright(values, _HALF))
    low = sf.try_sum(values.bitwiseAND(sf.lit(_LOW_HALF)))
    carried = sf.try_add(high, sf.shiftright(low, _HALF))
    total = sf.shiftleft(carried, _HALF).bitwiseOR(low.bitwiseAND(sf.lit(_LOW_HALF)))
    return sf.when(carried.between(-(2 ** (_HALF - 1)), 2 ** (_HALF - 1) - 1), total)


def quotient_checked(total: Column, count: Column, kind: DataType, what: str) -> Column:
    """`total`; an error where `total / count` has more digits than SQL has room for.

    A mean of several batches is never farther from zero than the farthest of theirs, so that one of
    which every batch was looked at can be read for ever.

    Args:
        total: the sum of `count` values of the type `kind`.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import DecimalType

    if not isinstance(kind, DecimalType):
        return total
    room = min(kind.precision + 10, _MOST_DIGITS) - kind.scale - _QUOTIENT_DIGITS
    if room <= 0:
        return total
    # More values than that have no sum so large. Whole numbers of 38 digits are multiplied and
    # compared as they are, whatever the session says.
    few = 10 ** (_MOST_DIGITS - _QUOTIENT_DIGITS) - 1
    counted = sf.least(count, sf.lit(few)).cast(DecimalType(_MOST_DIGITS - _QUOTIENT_DIGITS, 0))
    limit = (counted * sf.lit(Decimal(10**_QUOTIENT_DIGITS))).cast(DecimalType(_MOST_DIGITS, 0))
    size = sf.floor(sf.abs(total)).cast(DecimalType(_MOST_DIGITS, 0))
    return sf.when((count > few) | (size < limit) | total.isNull(), total).otherwise(
        sf.raise_error(sf.lit(_OVERFLOW.format(what)))
    )


def exact_add(stored: Column, partial: Column, kind: DataType, what: str) -> Column:
    """Both, or the one that is not NULL, of the type `kind`; an error where it leaves the range.

    Whatever the session's settings say, and without losing a digit of the scale.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import DecimalType

    if isinstance(kind, DecimalType) and kind.precision == _MOST_DIGITS and kind.scale > 0:
        both = _widest_sum(stored.cast(kind), partial.cast(kind), kind)
    else:
        both = sf.try_add(stored, partial).try_cast(kind)
    there = stored.isNotNull() & partial.isNotNull()
    total = sf.when(there, both).otherwise(sf.coalesce(stored, partial).cast(kind))
    return or_overflow(total, there, what)


def _widest_sum(one: Column, other: Column, kind: DecimalType) -> Column:
    """The sum of two decimals of 38 digits; NULL where it has more.

    `one + other` has 39 digits, of which Spark gives up the last one of the scale, and `-one` is
    rounded to 34. Whole numbers have no scale to give up: both are counted in units of the last
    place, by way of text, which moves the point exactly. Needs ANSI mode, where the text of a
    small decimal has no exponent; in any other the result is NULL, and never wrong.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import DecimalType

    def moved_point(value: Column, places: int, to: DecimalType) -> Column:
        return sf.concat(value.cast("string"), sf.lit(f"E{places}")).try_cast(to)

    whole = DecimalType(kind.precision, 0)
    units = [moved_point(value, kind.scale, whole) for value in (one, other)]
    return moved_point(sf.try_add(*units), -kind.scale, kind)


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


def require_numeric(aggregate: Aggregate, name: str, kinds: Mapping[str, DataType]) -> None:
    """Refuse a column that is no number; Spark would make doubles of texts.

    Raises:
        TopologyError: naming the column and its type.
    """
    from pyspark.sql.types import NumericType

    kind = kinds.get(name)
    if kind is not None and not isinstance(kind, NumericType):
        raise TopologyError(
            f"{aggregate!r} needs a column of numbers, but '{name}' is {kind.simpleString()}. Cast "
            "it to the type in which to add it up: bigint and decimal are exact, double is not.",
            number="TXN-111",
        )


class Builtin(Aggregate):
    """An aggregate of this package: a table can name it, and be read by that name alone."""

    _table: str | None = None

    @property
    def _what(self) -> str:
        """Whose total it is, for errors."""
        return repr(self) if self._table is None else f"{self!r}{_of_table(self._table)}"

    @property
    def parameters(self) -> tuple[str | int, ...]:
        """The constructor's arguments, in order: they distinguish it from others of its class."""
        return self.columns

    def __repr__(self) -> str:
        return f"{type(self).__name__}({as_text(self.parameters)})"

    def zero(self) -> Column:
        """NULL, as SQL has it for no rows."""
        from pyspark.sql import functions as sf

        return sf.lit(None)


def kept_in(table: str, aggregates: Mapping[str, Any]) -> dict[str, Any]:
    """The same aggregates, whose errors name the table; of others than ours nothing changes."""
    found = dict(aggregates)
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, Builtin):
            found[name] = copy.copy(aggregate)
            found[name]._table = table
    return found


class OfColumn(Builtin):
    """An aggregate of one column.

    Raises:
        ValueError: the column has no name.
    """

    def __init__(self, column: str) -> None:
        self.column: str = require_text(self, column)
