"""Independent writers: each makes bytes of the same rows, in its own dialect."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import random
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.differential.values import element_of, fields_of, is_decimal, precision_of

__all__ = ["CSV_WRITERS", "JSON_WRITERS", "PARQUET_WRITERS", "as_object"]

Columns = tuple[tuple[str, str], ...]
Rows = list[tuple[Any, ...]]
Writer = Callable[[random.Random, Columns, Rows, str, bool], bytes]
"""Arguments: draw, columns, rows of plain Python objects, separator, and whether with a header."""

_DAY = dt.date(1970, 1, 1)
_MOMENT = dt.datetime(1970, 1, 1)


def as_object(value: Any, kind: str) -> Any:
    """A value as `values.draw_value` draws it, as a program of Python has it."""
    if value is None:
        return None
    if (element := element_of(kind)) is not None:
        return [as_object(one, element) for one in value]
    if (fields := fields_of(kind)) is not None:
        return {
            name: as_object(one, inner)
            for one, (name, inner) in zip(value, fields.items(), strict=True)
        }
    if kind == "date":
        return _DAY + dt.timedelta(days=value)
    if kind.startswith("timestamp"):
        return _MOMENT + dt.timedelta(microseconds=value)
    return value


# --- CSV -------------------------------------------------------------------------------------


def _python_csv(**dialect: Any) -> Writer:
    def write(draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool) -> bytes:
        out = io.StringIO(newline="")
        writer = csv.writer(out, **{"delimiter": sep, **dialect})
        if header:
            writer.writerow([name for name, _ in columns])
        writer.writerows(rows)
        return out.getvalue().encode()

    return write


def _naive(draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool) -> bytes:
    """No quotes, whatever the values have: `print(*row, sep=",")`."""
    named = [[name for name, _ in columns]] if header else []
    lines = [*named, *([("" if v is None else str(v)) for v in row] for row in rows)]
    return "".join(sep.join(line) + "\n" for line in lines).encode()


def _pandas_csv(draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool) -> bytes:
    frame = pd.DataFrame(rows, columns=[name for name, _ in columns], dtype=object)
    index = draw.random() < 0.1
    end = draw.choice(("\n", "\r\n"))
    return str(frame.to_csv(sep=sep, header=header, index=index, lineterminator=end)).encode()


def _arrow_csv(draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool) -> bytes:
    style = draw.choice(("needed", "all_valid"))
    options = pa.csv.WriteOptions(include_header=header, delimiter=sep, quoting_style=style)
    out = io.BytesIO()
    pa.csv.write_csv(_arrow(columns, rows), out, options)
    return out.getvalue()


def _duckdb_csv(draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool) -> bytes:
    forced = ", FORCE_QUOTE *" if draw.random() < 0.3 else ""
    return _duckdb(columns, rows, f"(FORMAT csv, HEADER {header}, DELIMITER '{sep}'{forced})")


CSV_WRITERS: dict[str, Writer] = {
    "python excel": _python_csv(),
    "python unix": _python_csv(lineterminator="\n", quoting=csv.QUOTE_ALL),
    "python minimal": _python_csv(lineterminator="\n"),
    "python nonnumeric": _python_csv(quoting=csv.QUOTE_NONNUMERIC),
    "python cr": _python_csv(lineterminator="\r"),
    "python escapes": _python_csv(doublequote=False, escapechar="\\", lineterminator="\n"),
    "python no quotes": _python_csv(quoting=csv.QUOTE_NONE, escapechar="\\", lineterminator="\n"),
    "naive": _naive,
    "pandas": _pandas_csv,
    "pyarrow": _arrow_csv,
    "duckdb": _duckdb_csv,
}


# --- JSON ------------------------------------------------------------------------------------


def _json_lines(draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool) -> bytes:
    ascii_ = draw.random() < 0.5
    shorter = draw.random() < 0.3
    end = draw.choice(("\n", "\n", "\r\n"))
    lines = [
        json.dumps(_object(columns, row, leave_out=shorter), ensure_ascii=ascii_) for row in rows
    ]
    return "".join(line + end for line in lines).encode("utf-8", "surrogatepass")


def _json_whole(draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool) -> bytes:
    value: Any = [_object(columns, row) for row in rows]
    if draw.random() < 0.1:
        value = {"data": value}
    return json.dumps(value, indent=draw.choice((None, 1))).encode()


def _json_pretty(
    draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool
) -> bytes:
    """Objects over several lines, one behind the other: what `jq .` prints."""
    return "".join(json.dumps(_object(columns, r), indent=1) + "\n" for r in rows).encode()


def _pandas_json(
    draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool
) -> bytes:
    frame = pd.DataFrame([_object(columns, row) for row in rows])
    return str(frame.to_json(orient="records", lines=not header)).encode()


def _duckdb_json(
    draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool
) -> bytes:
    return _duckdb(columns, rows, f"(FORMAT json, ARRAY {header})")


JSON_WRITERS: dict[str, Writer] = {
    "json lines": _json_lines,
    "json whole": _json_whole,
    "json pretty": _json_pretty,
    "pandas": _pandas_json,
    "duckdb": _duckdb_json,
}
"""For these, `header` says that the file is to be one array."""


def _object(columns: Columns, row: tuple[Any, ...], *, leave_out: bool = False) -> dict[str, Any]:
    pairs = zip(columns, row, strict=True)
    return {n: _jsonable(v) for (n, _), v in pairs if v is not None or not leave_out}


def _jsonable(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value) if len(value.as_tuple().digits) < 15 else f"{value:f}"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, list):
        return [_jsonable(one) for one in value]
    if isinstance(value, dict):
        return {name: _jsonable(one) for name, one in value.items()}
    return value


# --- Parquet ---------------------------------------------------------------------------------


def _arrow_parquet(
    draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool
) -> bytes:
    out = io.BytesIO()
    pq.write_table(
        _arrow(columns, rows),
        out,
        version=draw.choice(("1.0", "2.6")),
        compression=draw.choice(("snappy", "gzip", "none", "zstd")),
        use_dictionary=draw.random() < 0.5,
        data_page_version=draw.choice(("1.0", "2.0")),
        coerce_timestamps="us",
        store_decimal_as_integer=draw.random() < 0.5,
    )
    return out.getvalue()


def _duckdb_parquet(
    draw: random.Random, columns: Columns, rows: Rows, sep: str, header: bool
) -> bytes:
    return _duckdb(columns, rows, "(FORMAT parquet)")


PARQUET_WRITERS: dict[str, Writer] = {"pyarrow": _arrow_parquet, "duckdb": _duckdb_parquet}


def _arrow_type(kind: str) -> Any:
    if (element := element_of(kind)) is not None:
        return pa.list_(_arrow_type(element))
    if (fields := fields_of(kind)) is not None:
        return pa.struct([(name, _arrow_type(inner)) for name, inner in fields.items()])
    if is_decimal(kind):
        return pa.decimal128(*precision_of(kind))
    simple = {
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    return simple[kind]


def _arrow(columns: Columns, rows: Rows) -> Any:
    """A table; what no UTF-8 or no type of Arrow can hold is left to other writers."""
    arrays = [
        pa.array([row[place] for row in rows], _arrow_type(kind))
        for place, (_, kind) in enumerate(columns)
    ]
    return pa.table(arrays, names=[name for name, _ in columns])


def _duckdb(columns: Columns, rows: Rows, how: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", _arrow(columns, rows))
        path = Path(folder) / "file"
        connection.execute(f"COPY (SELECT * FROM rows) TO '{path}' {how}")
        return path.read_bytes()


def is_finite(value: Any) -> bool:
    """Whether JSON has a number for it."""
    return not isinstance(value, float) or math.isfinite(value)
