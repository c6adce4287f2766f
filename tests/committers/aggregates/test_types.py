"""The table of docs/aggregates.md, walked: every aggregate over every type, in both layouts."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from committers import aggregates as agg
from committers.aggregates import Aggregate
from committers.state_table import StateTable

ROOT = Path(__file__).parents[3]
EXACT = Context(prec=120)
INTEGERS = ("tinyint", "smallint", "int", "bigint")
DECIMALS = ("decimal(5,2)", "decimal(18,4)", "decimal(28,10)", "decimal(38,0)", "decimal(38,18)",
    "decimal(38,38)")  # fmt: skip
FLOATS = ("float", "double")
NUMBERS = (*INTEGERS, *DECIMALS, *FLOATS)
OTHERS = ("boolean", "string", "binary", "date", "timestamp", "timestamp_ntz",
    "struct<a:int,b:string>", "array<int>")  # fmt: skip
ALL = (*NUMBERS, *OTHERS)
MEANS = "struct<sum,count>"
MOMENTS = "struct<count,mean,m2> of bigint, double, double"

GROUPS = {
    "any": ALL,
    "integers": INTEGERS,
    "decimal(p,s)": DECIMALS,
    "float, double": FLOATS,
    "numbers": NUMBERS,
    "any but map": ALL,
    "boolean": ("boolean",),
    "int, bigint, string, binary": ("int", "bigint", "string", "binary"),
}
TABLE = [
    # aggregates, input, stored as, exact, out of range
    ("Count", "any", "bigint", "yes", "cannot be"),
    ("Sum", "integers", "bigint", "yes", "error"),
    ("Sum", "decimal(p,s)", "decimal(min(p + 10, 38),s)", "yes", "error"),
    ("Sum", "float, double", "double", "no: rounded", "Infinity"),
    ("Avg", "integers", f"{MEANS} of bigint", "stored yes; read as double", "error"),
    ("Avg", "decimal(p,s)", f"{MEANS} of decimal(min(p + 10, 38),s), bigint",
        "stored yes; read to the last digit of its type", "error"),
    ("Avg", "float, double", f"{MEANS} of double, bigint", "no: rounded", "Infinity"),
    ("Variance, StdDev", "numbers", MOMENTS, "no: rounded", "Infinity or NaN"),
    ("Min, Max", "any but map", "type of the column", "yes", "cannot be"),
    ("First, Last", "any but map", "struct<order,value>", "yes", "cannot be"),
    ("FirstN, LastN", "any but map", "array of structs", "yes", "cannot be"),
    ("CollectSet", "any but map", "array of the column's type", "yes", "cannot be"),
    ("BoolAnd, BoolOr", "boolean", "boolean", "yes", "cannot be"),
    ("BitAnd, BitOr, BitXor", "integers", "type of the column", "yes", "cannot be"),
    ("CountDistinct", "int, bigint, string, binary", "binary", "no: estimate", "cannot be"),
    ("Fold", "any but map", "type of `init`", "as its expression", "as its expression"),
]  # fmt: skip


def test_the_documented_table_is_the_tested_one() -> None:
    """docs/aggregates.md has these rows, and they name every aggregate."""
    text = (ROOT / "docs/aggregates.md").read_text()
    assert [row for row in TABLE if f"| {' | '.join(row)} |" not in text] == []
    named = {name for names, *_ in TABLE for name in names.split(", ")}
    public = {n for n in agg.__all__ if isinstance(getattr(agg, n), type)} - {"Aggregate"}
    assert named == public
    assert len(public) == 19


def column_of(kind: str) -> str:
    """A column's name out of its type."""
    return "c_" + "".join(c if c.isalnum() else "_" for c in kind).strip("_")


def values_of(kind: str) -> list[Any]:
    """Values of a type: small ones, extremes that leave room for a total, no NULL."""
    if kind in INTEGERS:
        most = {"tinyint": 127, "smallint": 2**15 - 1, "int": 2**31 - 1, "bigint": 2**57 + 1}[kind]
        return [most, -most - 1, 0, 1, -7, most // 3]
    if kind in DECIMALS:
        precision, scale = map(int, kind[8:-1].split(","))
        # A mean has six digits behind the point at least, and so fewer in front of it.
        room = precision if precision <= 28 else 36 if scale else 30
        digits = (10**room - 1, -(10**room) + 3, 1, -1, 0, int("1234567890" * 4) % 10**room)
        return [Decimal(n).scaleb(-scale, EXACT) for n in digits]
    moment = dt.datetime(2024, 2, 28, 12, 30, 0, 123456)
    found: dict[str, list[Any]] = {
        "float": [0.5, -2.25, 1024.0, -0.0, math.inf],
        "double": [0.1, -2.5e100, 3e-300, -0.0, math.nan, 7.0],
        "boolean": [True, False],
        "string": ["", " ", "a", "ä", "\U0001f600", "a\0"],
        "binary": [b"", b"\0", b"\xff", b"ab"],
        "date": [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(9999, 12, 31)],
        "timestamp": [moment, moment + dt.timedelta(microseconds=1), moment.replace(year=1883)],
        "timestamp_ntz": [moment, moment.replace(year=1), moment.replace(year=9999)],
        "struct<a:int,b:string>": [(1, ""), (1, "b"), (-1, "z")],
        "array<int>": [[], [1], [1, 2], [-5]],
    }
    return found[kind]


def batches(seed: int) -> list[list[tuple[Any, ...]]]:
    """Three batches of rows: key, order, one column per type; a key without any value."""
    chance, number, made = random.Random(seed), 0, []
    for _ in range(3):
        rows = []
        for _ in range(14):
            number += 1
            key = chance.choice("abcn")
            cells = [
                None if key == "n" or chance.random() < 0.15 else chance.choice(values_of(kind))
                for kind in ALL
            ]
            rows.append((key, number, *cells))
        made.append(rows)
    return made


def wanted_sum(values: Sequence[Any], kind: str) -> Any:
    """The exact sum; of floats as close as Python has it."""
    if not values:
        return None
    return math.fsum(values) if kind in FLOATS else sum(map(Fraction, values), Fraction(0))


def wanted_mean(values: Sequence[Any], kind: str) -> Any:
    """The exact mean."""
    total = wanted_sum(values, kind)
    return None if total is None else total / len(values)


def wanted_variance(values: Sequence[Any], kind: str) -> Any:
    """The variance of the values as doubles."""
    if len(values) < 2:
        return None
    numbers = list(map(float, values))
    if not all(map(math.isfinite, numbers)):
        return math.nan
    exact = list(map(Fraction, numbers))
    mean = sum(exact) / len(exact)
    return float(sum((x - mean) ** 2 for x in exact) / (len(exact) - 1))


def rank(value: Any) -> Any:
    """Something to order values of one type by, as SQL does: NaN last, text by its bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def extreme(choose: Callable[..., Any]) -> Callable[[Sequence[Any], str], Any]:
    """The least or greatest value."""
    return lambda values, _: choose(values, key=rank) if values else None


def smallest(values: Sequence[Any], _: str) -> list[Any]:
    """The three smallest distinct values."""
    return sorted({repr(rank(v)): v for v in map(plus_zero, values)}.values(), key=rank)[:3]


def plus_zero(value: Any) -> Any:
    """0.0 for -0.0."""
    return value + 0.0 if isinstance(value, float) else value


def folded(function: Callable[[Any, Any], Any]) -> Callable[[Sequence[Any], str], Any]:
    """A function of two over all."""
    return lambda values, _: reduce(function, values) if values else None


Oracle = Callable[[Sequence[Any], str], Any]
OF_A_COLUMN: dict[str, tuple[Callable[[str], Aggregate], Oracle]] = {
    "Count": (agg.Count, lambda values, _: len(values)),
    "Sum": (agg.Sum, wanted_sum),
    "Avg": (agg.Avg, wanted_mean),
    "Variance": (agg.Variance, wanted_variance),
    "StdDev": (agg.StdDev, lambda v, k: None if (x := wanted_variance(v, k)) is None else x**0.5),
    "Min": (agg.Min, extreme(min)),
    "Max": (agg.Max, extreme(max)),
    "CollectSet": (lambda c: agg.CollectSet(c, 3), smallest),
    "BoolAnd": (agg.BoolAnd, folded(lambda a, b: a and b)),
    "BoolOr": (agg.BoolOr, folded(lambda a, b: a or b)),
    "BitAnd": (agg.BitAnd, folded(lambda a, b: a & b)),
    "BitOr": (agg.BitOr, folded(lambda a, b: a | b)),
    "BitXor": (agg.BitXor, folded(lambda a, b: a ^ b)),
    "CountDistinct": (
        agg.CountDistinct,
        lambda values, _: len({v for v in values if v not in ("", b"")}),
    ),
    "First": (lambda c: agg.First(c, "o"), lambda rows, _: rows[0] if rows else None),
    "Last": (lambda c: agg.Last(c, "o"), lambda rows, _: rows[-1] if rows else None),
}
WHOLE_ROWS = ("First", "Last")
"""Those for which a row counts although its value is NULL."""


def same(found: Any, wanted: Any, kind: str) -> bool:
    """Equal: exactly for exact types, closely for doubles, to the last digit for a decimal mean."""
    if found is None or wanted is None:
        return found is wanted
    if isinstance(found, float) and not isinstance(wanted, str):
        number = float(wanted)
        if kind in FLOATS and number == 0 and math.copysign(1, found) < 0:
            return False
        alike = math.isnan(found) and math.isnan(number)
        return alike or found == number or math.isclose(found, number, rel_tol=1e-9)
    if isinstance(found, Decimal):
        exact = EXACT.divide(Decimal(Fraction(wanted).numerator), Fraction(wanted).denominator)
        unit = Decimal(1).scaleb(found.as_tuple().exponent)  # type: ignore[arg-type]
        return found == exact.quantize(unit, ROUND_HALF_UP, EXACT)
    if isinstance(found, bytearray | tuple):
        return bytes(found) == wanted if isinstance(found, bytearray) else tuple(found) == wanted
    if isinstance(found, list) and kind not in ("array<int>",):
        return len(found) == len(wanted) and all(map(lambda a, b: same(a, b, kind), found, wanted))
    return bool(found == wanted)


def stored_type(stored: str, kind: str) -> str | None:
    """The type that the table says, in Delta's words; None: it is looked at no further."""
    wide = kind
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        wide = f"decimal({min(precision + 10, 38)},{scale})"
    names = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
    simple = {
        "bigint": "long",
        "double": "double",
        "boolean": "boolean",
        "binary": "binary",
        "decimal(min(p + 10, 38),s)": wide,
    }
    if stored == "type of the column":
        return names.get(kind, kind) if "<" not in kind else None
    if stored.startswith(MEANS):
        own = wide if kind in DECIMALS else "double" if kind in FLOATS else "long"
        return f"sum {own}, count long"
    if stored == MOMENTS:
        return "count long, mean double, m2 double"
    return simple.get(stored)


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_every_aggregate_over_every_type(driver: Any, warehouse: Path, layout: str) -> None:
    """Values are what Python's ints, decimals and fractions say, and types are the documented."""
    schema = "k string, o bigint, " + ", ".join(f"{column_of(kind)} {kind}" for kind in ALL)
    cases: dict[str, tuple[str, str, str]] = {}
    for names, group, stored, *_ in TABLE:
        for name in names.split(", "):
            for kind in GROUPS[group] if name in OF_A_COLUMN else ():
                cases[f"{name}_{column_of(kind)}"] = name, kind, stored
    assert len(cases) > 150
    rows = batches(seed=7)
    frames = [driver.frame(batch, schema).coalesce(1).localCheckpoint() for batch in rows]
    wrong: list[Any] = []
    for number in range(3):
        part = {v: c for i, (v, c) in enumerate(cases.items()) if i % 3 == number}
        values = {v: OF_A_COLUMN[name][0](column_of(kind)) for v, (name, kind, _) in part.items()}
        if number == 0:
            columns = [column_of(kind) for kind in ALL]
            values["rows"] = agg.FirstN(2, "o", *columns)
            values["last_rows"] = agg.LastN(2, "o", *columns)
        path = warehouse / str(number)
        state = StateTable(path, "transactional", layout=layout, buckets=1)
        committer = driver.open(state.bind(["k"], values), schema)
        for txid, frame in enumerate(frames, 1):
            driver.commit(committer, frame, txid)
        for row in state.read(driver.spark).collect():
            mine = [one for batch in rows for one in batch if one[0] == row["k"]]
            for value, (name, kind, _) in part.items():
                cells = [one[2 + ALL.index(kind)] for one in mine]
                if name not in WHOLE_ROWS:
                    cells = [plus_zero(cell) for cell in cells if cell is not None]
                wanted = OF_A_COLUMN[name][1](list(map(plus_zero, cells)), kind)
                if not same(row[value], wanted, kind):
                    wrong.append((row["k"], value, row[value], wanted))
            if number == 0:
                assert [one["o"] for one in row["rows"]] == [one[1] for one in mine[:2]]
                assert [one["o"] for one in row["last_rows"]] == [o[1] for o in mine[:-3:-1]]
        fields = json.loads(DeltaTable(str(path)).schema().to_json())["fields"]
        types = {field["name"]: _text(field["type"]) for field in fields}
        wrong += [
            (value, types[value], stored_type(stored, kind))
            for value, (_, kind, stored) in part.items()
            if stored_type(stored, kind) not in (None, types[value])
        ]
    assert wrong == []


def _text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    return ", ".join(f"{f['name']} {f['type']}" for f in kind.get("fields", ()))
