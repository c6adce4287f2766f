"""What a program has left: its tables' rows as plain Python, and the attempts that stand."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from committers.published_table import PublishedTable
from committers.state_table import StateTable
from tests.differential.build import is_published, shown_beside, state_table
from tests.differential.columns import Columns, columns_of
from tests.differential.declaration import Program, Step
from tests.differential.rules import BAD_ROWS, bad_rows_of
from tests.differential.spouts import EPOCH, schema_of
from tests.differential.values import element_of, fields_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["attempts_that_stand", "read_as_of", "read_bad_rows", "read_tables"]

Row = dict[str, Any]
MICRO = dt.timedelta(microseconds=1)


def read_tables(
    program: Program, spark: SparkSession, folder: Path, columns: Mapping[str, Columns]
) -> dict[str, list[Row]]:
    """Every table as its readers see it; one that was never made has no rows.

    Args:
        spark: a session with Spark's own settings, whatever those of the run were.
    """
    found: dict[str, list[Row]] = {}
    for step in program.tables:
        path, kinds = folder / step.id, columns[step.id]
        if not (path / "_delta_log").exists():
            found[step.id] = []
            continue
        if step.op == "append":
            schema, rows = _appended(path)
            found[step.id] = _rows(step.id, schema, rows(), {**kinds, "txid": "bigint"})
        else:
            state = state_table(step, folder)
            found[step.id] = _state(step.id, state, None, spark, kinds)
            if is_published(step):
                _require_shown(step.id, PublishedTable(shown_beside(step, folder)), state, kinds)
    return found


def _require_shown(name: str, shown: PublishedTable, state: StateTable, kinds: Columns) -> None:
    """Check that the published table shows what the state has at the end of a run.

    What a program changes at its tables is published with the first txid after it.
    """
    columns = [name for name in kinds if name in shown.to_arrow().column_names]
    rows, wanted = (_values(table.to_arrow(columns=columns), kinds) for table in (shown, state))
    if sorted(map(repr, rows)) != sorted(map(repr, wanted)):
        as_of = f"as of {shown.txids()[:1]}"
        raise AssertionError(f"{name} is published {as_of} with {rows}, and has {wanted}")


def read_as_of(
    step: Step, txid: int, spark: SparkSession, folder: Path, kinds: Columns
) -> list[Row]:
    """A state table as a reader sees it who asks for a former txid."""
    state = state_table(step, folder)
    return _state(f"{step.id} as of txid {txid}", state, txid, spark, kinds)


def _state(
    name: str, state: StateTable, txid: int | None, spark: SparkSession, kinds: Columns
) -> list[Row]:
    """What Spark reads, which is what DuckDB reads."""
    frame = state.read(spark, txid)
    rows = _rows(name, frame.schema, _as_arrow(frame), kinds)
    other = _values(_as_arrow(spark.sql(state.sql(txid, dialect="spark"))), kinds)
    if sorted(map(repr, rows)) != sorted(map(repr, other)):
        raise AssertionError(f"{name} has {rows} for Spark and {other} as SQL")
    others = _values(state.to_arrow(txid), kinds)
    if sorted(map(repr, rows)) != sorted(map(repr, others)):
        raise AssertionError(f"{name} has {rows} for Spark and {others} without")
    return rows


def _rows(name: str, schema: StructType, table: pa.Table, kinds: Columns) -> list[Row]:
    actual = {field.name: field.dataType.simpleString() for field in schema}
    if actual != kinds:
        raise AssertionError(f"{name} has columns {actual} and should have {kinds}")
    return _values(table, kinds)


def _values(table: pa.Table, kinds: Columns) -> list[Row]:
    columns = table.to_pydict()
    return [
        {n: _plain(v, kinds[n]) for n, v in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def _as_arrow(frame: DataFrame) -> pa.Table:
    """Collect rows; `DataFrame.toArrow` is new in Spark 4.0."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    batches = frame._collect_as_arrow()  # type: ignore[operator]
    return pa.Table.from_batches(batches, None if batches else to_arrow_schema(frame.schema))


def read_bad_rows(program: Program, spark: SparkSession, folder: Path) -> dict[str, list[Row]]:
    """Rule -> the rows that it set aside, with their txids, as the text of each says."""
    from pyspark.sql import functions as sf

    found: dict[str, list[Row]] = {rule.id: [] for rule in bad_rows_of(program)}
    path = folder / BAD_ROWS
    if not (path / "_delta_log").exists():
        return found
    stored = DeltaTable(path).to_pyarrow_table().to_pylist()
    columns = columns_of(program)
    for rule in bad_rows_of(program):
        rows = [row for row in stored if row["rule"] == rule.args["name"]]
        kinds = columns[rule.id]
        names = [list(json.loads(row["row"])) for row in rows]
        if any(set(one) != set(kinds) for one in names):
            raise AssertionError(f"rule {rule.id} has rows of {names[0]}, not of {list(kinds)}")
        if not rows:
            continue
        texts = spark.createDataFrame(
            [(row["txid"], row["row"]) for row in rows], "txid bigint, text string"
        )
        read = sf.from_json("text", schema_of(tuple(kinds.items())), {"mode": "FAILFAST"})
        table = _as_arrow(texts.select("txid", read.alias("row"))).to_pylist()
        found[rule.id] = [
            {"txid": one["txid"]} | {n: _plain(one["row"][n], kind) for n, kind in kinds.items()}
            for one in table
        ]
    surplus = {row["rule"] for row in stored} - {r.args["name"] for r in bad_rows_of(program)}
    if surplus:
        raise AssertionError(f"rows of rules that set nothing aside: {surplus}")
    return found


def _appended(path: Path) -> tuple[StructType, Callable[[], pa.Table]]:
    """Columns and rows of a plain table, by a reader that is not Spark: in a tenth of its time."""
    from pyspark.sql.types import StructType

    table = DeltaTable(path)
    return StructType.fromJson(json.loads(table.schema().to_json())), table.to_pyarrow_table


def _plain(value: Any, kind: str) -> Any:
    """A value of Arrow as the oracle has it."""
    if value is None:
        return None
    if (element := element_of(kind)) is not None:
        return tuple(_plain(one, element) for one in value)
    if (fields := fields_of(kind)) is not None:
        return tuple(_plain(value[name], field) for name, field in fields.items())
    if kind == "date":
        return (value - EPOCH.date()).days
    if kind in ("timestamp", "timestamp_ntz"):
        return (value.replace(tzinfo=None) - EPOCH) // MICRO
    return value


def attempts_that_stand(program: Program, folder: Path) -> dict[int, int]:
    """Txid -> its last attempt, out of the tables' logs."""
    found: dict[int, int] = {}
    for step in program.tables:
        for log in sorted((folder / step.id / "_delta_log").glob("[0-9]*.json")):
            for line in log.read_text().splitlines():
                said = json.loads(line).get("commitInfo", {}).get("txn")
                txn = json.loads(said) if isinstance(said, str) else said
                if not txn or "last_txid" not in txn:
                    continue
                members = txn.get("members") or [{**txn, "txid": txn["last_txid"]}]
                for one in members:
                    txid, attempt = one["txid"], one["attempt_id"]
                    found[txid] = max(attempt, found.get(txid, 0))
    return found
