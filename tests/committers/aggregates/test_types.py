"""The table of docs/aggregates.md, walked: every aggregate over every type, in both layouts."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from committers import aggregates as agg
from committers.state_table import StateTable
from tests.committers.aggregates.cases import OF_A_COLUMN, OF_ROWS, make_aggregate

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
HEADER = "| aggregate | input | stored as | exact | a total out of range |"
ROWS_OF = {"First": lambda c: agg.First(c, "o"), "Last": lambda c: agg.Last(c, "o")}
"""Aggregates of a column for which a row counts although its value is NULL."""


def documented() -> list[tuple[str, str, str]]:
    """(aggregates, input, stored as) of every row of the table in docs/aggregates.md."""
    lines = (ROOT / "docs/aggregates.md").read_text().partition(HEADER)[2].splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    return [(names, group, stored) for names, group, stored, _, _ in rows]


def test_the_documented_table_is_the_tested_one() -> None:
    """docs/aggregates.md has every aggregate, with exactly the types that it takes."""
    types: dict[str, list[str]] = {}
    for names, group, _ in documented():
        for name in names.split(", "):
            types.setdefault(name, []).extend(GROUPS[group])
    assert set(types) == set(agg.BUILTIN) == {*OF_A_COLUMN, *OF_ROWS}
    for name, case in OF_A_COLUMN.items():
        assert types[name] == [kind for kind in ALL if case.takes(kind)], name


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
        "array<int>": [(), (1,), (1, 2), (-5,)],
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


def plus_zero(value: Any) -> Any:
    """0.0 for -0.0."""
    return value + 0.0 if isinstance(value, float) else value


def plain(value: Any) -> Any:
    """A value of Spark with tuples for rows and arrays, and bytes for binaries."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return bytes(value) if isinstance(value, bytearray) else value


def same(found: Any, wanted: Any, kind: str) -> bool:
    """Equal: exactly for exact types, closely for doubles."""
    if isinstance(found, tuple) and isinstance(wanted, tuple):
        return len(found) == len(wanted) and all(map(lambda a, b: same(a, b, kind), found, wanted))
    if isinstance(found, float) and isinstance(wanted, float):
        if kind in FLOATS and wanted == 0 and math.copysign(1, found) < 0:
            return False
        alike = math.isnan(found) and math.isnan(wanted)
        return alike or found == wanted or math.isclose(found, wanted, rel_tol=1e-9)
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
    """Values are those of `OF_A_COLUMN`, and stored types are the documented ones."""
    schema = "k string, o bigint, " + ", ".join(f"{column_of(kind)} {kind}" for kind in ALL)
    cases: dict[str, tuple[str, str, str]] = {}
    for names, group, stored in documented():
        for name in names.split(", "):
            for kind in GROUPS[group] if name in (*OF_A_COLUMN, *ROWS_OF) else ():
                cases[f"{name}_{column_of(kind)}"] = name, kind, stored
    assert len(cases) > 150
    rows = batches(seed=7)
    frames = [driver.frame(batch, schema).coalesce(1).localCheckpoint() for batch in rows]
    wrong: list[Any] = []
    for number in range(3):
        part = {v: c for i, (v, c) in enumerate(cases.items()) if i % 3 == number}
        values = {
            value: ROWS_OF[name](column_of(kind))
            if name in ROWS_OF
            else make_aggregate(name, column_of(kind))
            for value, (name, kind, _) in part.items()
        }
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
                cells = [plus_zero(one[2 + ALL.index(kind)]) for one in mine]
                if name in ROWS_OF:
                    wanted = cells[0 if name == "First" else -1] if cells else None
                else:
                    cells = [cell for cell in cells if cell is not None]
                    case = OF_A_COLUMN[name]
                    wanted = case.value(cells, kind, *case.arguments[0])
                if not same(plain(row[value]), wanted, kind):
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
