"""Trino's SQL without Trino: parsed, and its names and types resolved, by sqlglot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlglot
from deltalake import DeltaTable
from sqlglot import ErrorLevel, exp
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from committers.reading.dialect import DIALECTS
from txn.errors import TableRefusedError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["assert_trino_parses"]

TRINO = DIALECTS["trino"]


def assert_trino_parses(table: Any, shown: StructType, txid: int | None = None) -> list[str]:
    """The query for Trino parses, calls only functions of its dialect, names only columns that the
    table has, and gives these columns, of these types.

    Returns:
        The columns that are refused for Trino; the query is that for the others.
    """
    fields = json.loads(shown.json())["fields"]
    refused = [field["name"] for field in fields if _is_refused(table, field["name"], txid)]
    due = {f["name"]: TRINO.typed(f["type"], "") for f in fields if f["name"] not in refused}
    if not due:
        return refused
    text = table.sql(txid, columns=list(due), dialect="trino")
    query = sqlglot.parse_one(text, dialect="trino", error_level=ErrorLevel.RAISE)
    assert not list(query.find_all(exp.Command))
    functions = {function.name.upper() for function in query.find_all(exp.Anonymous)}
    assert functions <= {"FROM_UNIXTIME_NANOS"}
    stored = json.loads(DeltaTable(str(table.path)).schema().to_json())["fields"]
    kinds = {TRINO.quoted(f["name"]): TRINO.typed(f["type"], f["name"]) for f in stored}
    name = TRINO.quoted(Path(table.path).name)
    schema: Any = {'"delta"': {'"default"': {name: kinds}}}
    named = qualify(query, schema=schema, dialect="trino")
    typed = annotate_types(named, schema=schema, dialect="trino")
    # Names have no case in Trino, so sqlglot writes small letters.
    found = {one.alias: one.type.sql("trino") for one in typed.selects}
    kinds = {name: exp.DataType.build(kind, dialect="trino") for name, kind in due.items()}
    texts = {name.lower(): kind.sql("trino") for name, kind in kinds.items()}
    others = [(n, found.get(n), kind) for n, kind in texts.items() if found.get(n) != kind]
    assert list(found) == list(texts)
    assert not others, others
    return refused


def _is_refused(table: Any, column: str, txid: int | None) -> bool:
    try:
        table.sql(txid, columns=[column], dialect="trino")
    except TableRefusedError:
        return True
    return False
