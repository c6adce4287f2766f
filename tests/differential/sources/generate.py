"""Makes a case out of a seed. Everything is drawn here; nothing else is random."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.differential.sources.damage import DAMAGES, JSON_ONLY
from tests.differential.sources.declaration import Case, File
from tests.differential.sources.writers import (
    CSV_WRITERS,
    JSON_WRITERS,
    PARQUET_WRITERS,
    Columns,
    as_object,
)
from tests.differential.values import draw_value

__all__ = ["generate"]

TYPES = (
    *("string", "string", "string", "int", "bigint", "smallint", "tinyint", "double", "float"),
    *("decimal(10,2)", "decimal(38,18)", "boolean", "date", "timestamp", "timestamp_ntz"),
)
NESTED = ("array<int>", "array<string>", "struct<x:int,y:string>")
NAMES = ("id", "name", "v", "größe", "a b")
TEXTS = (
    *('say "hi" ok', '"', '""', "a,b", "a;b", "tab\there", "pipe|", "two\nlines", "cr\rhere"),
    *("crlf\r\nhere", "\n", "back\\slash", "\\", '\\"', " lead", "trail ", "NULL", "null", "'"),
    *("#no comment", "-", "=1+1", "é", "日本", "😀", "\ufeff", "x" * 60, "a,1\nb,2", "nul\x00in"),
)


def generate(seed: int) -> Case:
    """The case of a seed."""
    draw = random.Random(seed)
    through = draw.choice(("files",) * 16 + ("kafka",) * 3 + ("topology",))
    forms = {"files": ("csv",) * 5 + ("json",) * 5 + ("parquet", "parquet", "text")}
    form = draw.choice(forms.get(through, ("csv", "json")))
    columns = _columns(draw, form)
    inferred = through != "kafka" and form != "text" and draw.random() < 0.2
    options = _options(draw, form, through)
    fates = ("set_aside",) if through == "topology" else ("set_aside", "set_aside", "drop", "fail")
    case: dict[str, Any] = {
        "seed": seed,
        "through": through,
        "form": form,
        "schema_": None if inferred else columns,
        "options": options,
        "bad_rows": draw.choice(fates),
        "files_per_batch": draw.choice((1, 2, 9)),
    }
    count = 1 if through == "kafka" else draw.choice((1, 2, 3, 3, 4))
    made = [_file(draw, form, through, n, columns, options) for n in range(count)]
    return Case(**case, files=tuple(made))


def _columns(draw: random.Random, form: str) -> Columns:
    if form == "text":
        return (("value", "string"),)
    types = TYPES + (NESTED if form in ("json", "parquet") else ())
    if form == "parquet":
        types += ("binary",)
    names = draw.sample(NAMES, draw.choice((1, 2, 2, 3, 3, 4)))
    return tuple((name, draw.choice(types)) for name in names)


def _options(draw: random.Random, form: str, through: str) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {}
    if form == "csv":
        if through != "kafka" and draw.random() < 0.6:
            options["header"] = True
        if through == "files" and draw.random() < 0.4:
            options["multiLine"] = True
        if (sep := draw.choice((",", ",", ",", ";", "\t", "|"))) != ",":
            options["sep"] = sep
        if draw.random() < 0.1:
            options["escape"] = "\\"
        if draw.random() < 0.1:
            options["nullValue"] = "NULL"
        if draw.random() < 0.05 and through == "files":
            options["encoding"] = "ISO-8859-1"
    elif form == "json" and through == "files" and draw.random() < 0.3:
        options["multiLine"] = True
    return options


def _rows(draw: random.Random, columns: Columns, form: str) -> list[tuple[Any, ...]]:
    rows = []
    for _ in range(draw.choice((0, 1, 2, 2, 3, 5, 8))):
        row = []
        for _, kind in columns:
            value = as_object(draw_value(draw, kind, few=False), kind)
            if kind == "string" and value is not None and draw.random() < 0.6:
                value = draw.choice(TEXTS)
            if form == "json" and isinstance(value, float) and not math.isfinite(value):
                value = None
            row.append(value)
        rows.append(tuple(row))
    return rows


def _file(
    draw: random.Random, form: str, through: str, number: int, columns: Columns, options: Any
) -> File:
    rows = _rows(draw, columns, form)
    name = f"{number}.{form}"
    if through == "kafka":
        return _topic(draw, form, name, columns, rows, options)
    if form == "parquet":
        writer = draw.choice(tuple(PARQUET_WRITERS))
        data = _parquet(draw, writer, columns, rows)
        damage = draw.choice((("cut",), ("empty",))) if draw.random() < 0.1 else ()
        for one in damage:
            data = DAMAGES[one](draw, data)
        return File(name=name, writer=writer, damage=damage, content=data.decode("latin-1"))
    writer, data = _written(draw, form, columns, rows, options)
    data, damage = _damaged(draw, form, data)
    packed = draw.choice(("gzip", "members", "bz2", "cut")) if draw.random() < 0.1 else ""
    ending = {"gzip": ".gz", "members": ".gz", "cut": ".gz", "bz2": ".bz2"}.get(packed, "")
    if packed == "gzip" and draw.random() < 0.3:
        ending = ""
    return File(
        name=name + ending,
        writer=writer,
        damage=damage,
        content=data.decode("latin-1"),
        packed=packed,
    )


def _written(
    draw: random.Random, form: str, columns: Columns, rows: Any, options: Any
) -> tuple[str, bytes]:
    """The bytes of a writer; one that cannot write such rows gives way to another."""
    writers = JSON_WRITERS if form == "json" else CSV_WRITERS
    sep = str(options.get("sep", ","))
    flag = bool(options.get("header" if form == "csv" else "multiLine"))
    if draw.random() < 0.05:
        sep = draw.choice(",;\t")
    if draw.random() < 0.05:
        flag = not flag
    if draw.random() < 0.05:  # somebody has forgotten a column, or has one more
        columns, rows = columns[:-1] or columns, [row[: len(row) - 1] or row for row in rows]
    while True:
        writer = draw.choice(tuple(writers))
        try:
            return writer, writers[writer](draw, columns, rows, sep, flag)
        except Exception:  # noqa: BLE001 - each library refuses something else
            continue


def _parquet(draw: random.Random, writer: str, columns: Columns, rows: Any) -> bytes:
    if draw.random() < 0.15:
        columns, rows = columns[1:] or columns, [row[1:] or row for row in rows]
    if draw.random() < 0.1:
        columns = tuple((f"{name}_new", kind) for name, kind in columns)
    for one in (writer, "pyarrow"):
        try:
            return PARQUET_WRITERS[one](draw, columns, rows, ",", False)
        except Exception:  # noqa: BLE001 - each library refuses something else
            continue
    return PARQUET_WRITERS["pyarrow"](draw, columns, [], ",", False)


def _damaged(draw: random.Random, form: str, data: bytes) -> tuple[bytes, tuple[str, ...]]:
    damages = DAMAGES | (JSON_ONLY if form == "json" else {})
    done: list[str] = []
    while draw.random() < (0.6 if not done else 0.25):
        name = draw.choice(tuple(damages))
        data = damages[name](draw, data)
        done.append(name)
    return data, tuple(done)


def _topic(
    draw: random.Random, form: str, name: str, columns: Columns, rows: Any, options: Any
) -> File:
    """Each record is what a writer makes of a row, damaged or not; some are tombstones."""
    values: list[str | None] = []
    for row in [*rows, *_rows(draw, columns, form)]:
        if draw.random() < 0.08:
            values.append(None)
            continue
        _, data = _written(draw, form, columns, [row], {**options, "header": False})
        data, _ = _damaged(draw, form, data) if draw.random() < 0.5 else (data, ())
        values.append(data.decode("latin-1"))
    return File(name=name, writer="producers", values=tuple(values))
